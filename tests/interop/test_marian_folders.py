"""Marian folders as runs: the layers of both sides, logits and decoding equal those of transformers."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch

import chainrule as cr
from chainrule.decoding import beam_search
from chainrule.interop.huggingface.marian import stream_order
from chainrule.interop.huggingface.runs import import_folder
from chainrule.types import Batch, Source
from hf_folders import CHINESE, ENGLISH, LINES, TEXT, error_message, hidden_states, max_difference, perturbed, saved

SHAPES: list[dict[str, Any]] = [
    {},
    {"scale_embedding": False, "activation_function": "gelu"},
    {"share_encoder_decoder_embeddings": False},
    {"tie_word_embeddings": False, "activation_function": "relu"},
    {"decoder_start_token_id": 0},
]


def piece_model(text: str) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.split("\n")), model_writer=model, vocab_size=120, hard_vocab_limit=False,
        minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


MODELS = {"source.spm": piece_model(TEXT), "target.spm": piece_model((CHINESE + "\n" + ENGLISH.upper() + "\n") * 5)}
PIECES = {
    name: [p.id_to_piece(n) for n in range(3, p.vocab_size())]
    for name, p in ((n, sentencepiece.SentencePieceProcessor(model_proto=m)) for n, m in MODELS.items())
}
VOCABULARY = {
    piece: number
    for number, piece in enumerate(
        ["</s>", "<unk>", ">>zh<<", *sorted({*PIECES["source.spm"], *PIECES["target.spm"]}), "<pad>"]
    )
}
PAD = VOCABULARY["<pad>"]


def marian(**options: Any) -> Any:
    from transformers import MarianConfig, MarianMTModel

    small = {
        **{"vocab_size": len(VOCABULARY), "d_model": 16, "max_position_embeddings": 60, "scale_embedding": True},
        **{"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 24},
        **{"decoder_layers": 3, "decoder_attention_heads": 4, "decoder_ffn_dim": 24},
        **{"eos_token_id": 0, "pad_token_id": PAD, "decoder_start_token_id": PAD, "forced_eos_token_id": None},
    }
    torch.manual_seed(0)
    config = MarianConfig(**{**small, "activation_function": "swish", **options}, attn_implementation="eager")
    theirs = perturbed(MarianMTModel(config), 0.4)
    theirs.final_logits_bias.copy_(torch.randn(1, len(VOCABULARY)) * 0.3)
    return theirs


def folder_of(theirs: Any, folder: Path, **bad: Any) -> Path:
    saved(theirs, None, folder)
    for name, content in MODELS.items():
        (folder / name).write_bytes(content)
    (folder / "vocab.json").write_text(json.dumps(VOCABULARY))
    return folder


def some_source() -> Source:
    tokens_BS = torch.randint(3, PAD, (4, 15), generator=torch.Generator().manual_seed(5))
    lengths_B = torch.tensor([15, 9, 4, 1])
    tokens_BS[torch.arange(4), lengths_B - 1] = 0
    return Source(tokens_BS, torch.arange(15) < lengths_B[:, None])


@pytest.mark.parametrize("options", SHAPES)
@torch.no_grad()
def test_every_layer_and_the_logits(options: dict[str, Any], tmp_path: Path) -> None:
    theirs = marian(**options)
    run = cr.import_model(folder_of(theirs, tmp_path / "folder"), tmp_path / "run")
    model, source = run.model, some_source()
    tokens_BT = torch.randint(3, PAD, (4, 20), generator=torch.Generator().manual_seed(6))
    started_BT = torch.cat([torch.full((4, 1), theirs.config.decoder_start_token_id), tokens_BT[:, :-1]], 1)
    expected = theirs(
        input_ids=source.tokens_BS,
        attention_mask=source.mask_BS.long(),
        decoder_input_ids=started_BT,
        output_hidden_states=True,
    )
    batch, order_D = Batch(model.shift_right(tokens_BT), tokens_BT, source=source), stream_order(16)
    seen_N = source.mask_BS.flatten()
    for side, hidden in (("encoder", expected.encoder_hidden_states), ("decoder", expected.decoder_hidden_states)):
        states = hidden_states(getattr(model, side).blocks, lambda: model(batch))
        assert len(states) == len(hidden) - 1
        for state_ND, their_BTD in zip(states, hidden[1:], strict=True):
            rows = seen_N if side == "encoder" else slice(None)
            assert max_difference(state_ND[rows], their_BTD.flatten(0, 1)[rows][:, order_D]) < 1e-4
    logits_BTV = model(batch).hidden_BTD @ model.output.weight_VD.T + model.output.bias_V
    assert max_difference(logits_BTV, expected.logits) < 1e-4
    log_probs_BT = expected.logits.log_softmax(2).gather(2, tokens_BT[:, :, None])[:, :, 0]
    assert max_difference(model.log_probs(tokens_BT, source), log_probs_BT) < 1e-4


@pytest.mark.parametrize("beams", [1, 4])
def test_decoding_equals_theirs(beams: int, tmp_path: Path) -> None:
    for number, options in enumerate(SHAPES[:3]):
        theirs = marian(**options)
        run = cr.import_model(folder_of(theirs, tmp_path / f"folder{number}"), tmp_path / f"run{number}")
        source = some_source()
        search: dict[str, Any] = {"early_stopping": False, "length_penalty": 1.0} if beams > 1 else {}
        found = theirs.generate(
            input_ids=source.tokens_BS, attention_mask=source.mask_BS.long(), do_sample=False, num_beams=beams,
            max_new_tokens=15, **search,
        )  # fmt: skip
        texts = [row[1:] for row in found.tolist()]
        texts = [row[: row.index(0) + 1] if 0 in row else row for row in texts]
        with torch.inference_mode():
            state = run.model.start(source)
        ours = beam_search(run.model, state, torch.full((4, 1), 0), eos=0, beams=beams, max_new_tokens=15)
        assert [best[0].tokens for best in ours] == texts


def test_lines_have_their_tokens_on_both_sides(tmp_path: Path) -> None:
    from transformers import MarianTokenizer

    folder = folder_of(marian(), tmp_path / "folder")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an optional library
        theirs = MarianTokenizer.from_pretrained(folder)
    run = cr.import_model(folder, tmp_path / "run")
    for line in (*LINES, ">>zh<< the fox", ENGLISH.upper(), "unknown Ж"):
        assert [*run.subject.encode_source(line), 0] == theirs(line)["input_ids"]
        ids = theirs(text_target=line)["input_ids"]
        assert [*run.tokenizer.encode(line), 0] == ids
    assert run.translate(ENGLISH, num_beams=2, max_new_tokens=10)


def test_banned_tokens_are_not_generated(tmp_path: Path) -> None:
    theirs = marian()
    theirs.final_logits_bias[0, PAD] = 50.0  # it would always be generated
    theirs.generation_config.bad_words_ids = [[PAD]]
    notes: list[str] = []
    run = cr.import_model(folder_of(theirs, tmp_path / "folder"), tmp_path / "run", note=notes.append)
    assert notes == ["the token <pad> is never generated, because of bad_words_ids"]
    source = some_source()
    found = theirs.generate(
        input_ids=source.tokens_BS, attention_mask=source.mask_BS.long(), do_sample=False, num_beams=1,
        max_new_tokens=10,
    )  # fmt: skip
    texts = [row[1:] for row in found.tolist()]
    with torch.inference_mode():
        state = run.model.start(source)
    ours = beam_search(run.model, state, torch.full((4, 1), 0), eos=0, beams=1, max_new_tokens=10)
    assert [best[0].tokens for best in ours] == [row[: row.index(0) + 1] if 0 in row else row for row in texts]


def test_folders_that_cannot_be_read(tmp_path: Path) -> None:
    folder, out = folder_of(marian(), tmp_path / "folder"), tmp_path / "run"
    (folder / "target.spm").unlink()
    assert error_message(import_folder, folder, out) == (
        f"{folder} has neither tokenizer.json nor target.spm; restore the file that came with the model"
    )
    (folder / "target.spm").write_bytes(b"no model")
    assert error_message(import_folder, folder, out).startswith("not a sentencepiece model (")
    (folder / "target.spm").write_bytes(MODELS["target.spm"])
    (folder / "vocab.json").write_text(json.dumps({"a": 0}))
    assert error_message(import_folder, folder, out) == "the vocabulary has no </s>: expected one; restore the file."
