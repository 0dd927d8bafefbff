"""T5 folders as runs: the layers of both sides, logits and decoding equal those of transformers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch

import chainrule as cr
from chainrule.decoding import beam_search
from chainrule.interop.huggingface.runs import import_folder
from chainrule.text.tokenizers.pieces import PiecesTokenizer
from chainrule.types import Batch, Source
from hf_folders import (
    CHINESE,
    ENGLISH,
    LINES,
    TEXT,
    change_config,
    error_message,
    hidden_states,
    max_difference,
    perturbed,
    saved,
)
from hf_folders import unigram as t5_tokenizer

SHAPES: list[dict[str, Any]] = [
    {},
    {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_decoder_layers": 3},
    {"feed_forward_proj": "gated-gelu", "d_kv": 5, "layer_norm_epsilon": 0.1},
    {"decoder_start_token_id": 1, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10},
]


def size() -> int:
    return int(t5_tokenizer().get_vocab_size())


def t5(**options: Any) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    small = {"vocab_size": size() + 7, "d_model": 24, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 3}
    start = {"decoder_start_token_id": 0}
    torch.manual_seed(0)
    config = T5Config(**{**small, **start, **options}, attn_implementation="eager")
    theirs = T5ForConditionalGeneration(config)
    if not options.get("tie_word_embeddings", True):
        theirs.lm_head.weight = torch.nn.Parameter(torch.randn_like(theirs.lm_head.weight))
        theirs.config.tie_word_embeddings = False
    return perturbed(theirs, 0.1)


def imported(theirs: Any, tmp_path: Path) -> Any:
    return cr.import_model(saved(theirs, t5_tokenizer(), tmp_path / "folder"), tmp_path / "run")


def some_source() -> Source:
    tokens_BS = torch.randint(3, size(), (3, 15), generator=torch.Generator().manual_seed(5))
    lengths_B = torch.tensor([15, 9, 4])
    tokens_BS[torch.arange(3), lengths_B - 1] = 1
    return Source(tokens_BS, torch.arange(15) < lengths_B[:, None])


@pytest.mark.parametrize("options", SHAPES)
@torch.no_grad()
def test_every_layer_and_the_logits(options: dict[str, Any], tmp_path: Path) -> None:
    theirs = t5(**options)
    run = imported(theirs, tmp_path)
    model, source = run.model, some_source()
    tokens_BT = torch.randint(3, size(), (3, 12), generator=torch.Generator().manual_seed(6))
    start = theirs.config.decoder_start_token_id
    started_BT = torch.cat([torch.full((3, 1), start), tokens_BT[:, :-1]], 1)
    expected = theirs(
        input_ids=source.tokens_BS,
        attention_mask=source.mask_BS.long(),
        decoder_input_ids=started_BT,
        output_hidden_states=True,
    )
    batch = Batch(model.shift_right(tokens_BT), tokens_BT, source=source)
    seen_N = source.mask_BS.flatten()
    for side, hidden in (("encoder", expected.encoder_hidden_states), ("decoder", expected.decoder_hidden_states)):
        stack = getattr(model, side)
        states = hidden_states(stack.blocks, lambda: model(batch))
        assert len(states) == len(hidden) - 1
        states[-1] = stack.norm(states[-1])
        for state_ND, their_BTD in zip(states, hidden[1:], strict=True):
            rows = seen_N if side == "encoder" else slice(None)
            assert max_difference(state_ND[rows], their_BTD.flatten(0, 1)[rows]) < 1e-4
    logits_BTV = model(batch).hidden_BTD @ model.output.weight_VD.T
    assert max_difference(logits_BTV, expected.logits) < 1e-4
    log_probs_BT = expected.logits.log_softmax(2).gather(2, tokens_BT[:, :, None])[:, :, 0]
    assert max_difference(model.log_probs(tokens_BT, source), log_probs_BT) < 1e-4


@pytest.mark.parametrize("beams", [1, 4])
def test_decoding_equals_theirs(beams: int, tmp_path: Path) -> None:
    for seed, options in ((3, {}), (4, {**SHAPES[1], "num_decoder_layers": 2})):
        theirs = perturbed(t5(**options), 0.2, seed)
        run = imported(theirs, tmp_path / str(seed))
        source = some_source()
        search: dict[str, Any] = {"early_stopping": False, "length_penalty": 1.0} if beams > 1 else {}
        found = theirs.generate(
            input_ids=source.tokens_BS, attention_mask=source.mask_BS.long(), do_sample=False, num_beams=beams,
            max_new_tokens=15, **search,
        )  # fmt: skip
        texts = [row[1:] for row in found.tolist()]
        texts = [row[: row.index(1) + 1] if 1 in row else row for row in texts]
        with torch.inference_mode():
            state = run.model.start(source)
        ours = beam_search(run.model, state, torch.full((3, 1), 1), eos=1, beams=beams, max_new_tokens=15)
        assert [best[0].tokens for best in ours] == texts


def test_lines_are_translated_with_their_tokens(tmp_path: Path) -> None:
    theirs = t5()
    run = imported(theirs, tmp_path)
    line = ENGLISH + " <extra_id_0>"
    ids = t5_tokenizer().encode(line).ids
    assert [*run.subject.encode_source(line), run.tokenizer.eos] == ids
    row = theirs.generate(torch.tensor([ids]), do_sample=False, num_beams=1, max_new_tokens=12)[0].tolist()
    written = [token for token in row[1:] if token != 1]
    assert run.translate(line, num_beams=1, max_new_tokens=12) == run.tokenizer.decode(written)


# Older files


def spiece(**options: Any) -> bytes:
    """A sentencepiece model with the ids of T5's special tokens."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.split("\n")), model_writer=model, vocab_size=160, hard_vocab_limit=False,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2, **options,
    )  # fmt: skip
    return model.getvalue()


def test_the_tokeniser_of_a_sentencepiece_file(tmp_path: Path) -> None:
    model = spiece()
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    theirs = t5(vocab_size=processor.vocab_size() + 128)
    folder = saved(theirs, None, tmp_path / "folder")
    (folder / "spiece.model").write_bytes(model)
    run = cr.import_model(folder, tmp_path / "run")
    assert isinstance(run.tokenizer, PiecesTokenizer)
    for line in (*LINES, "unknown: Ж", "  spaces  between "):
        assert run.tokenizer.encode(line) == processor.encode(line)
        assert run.tokenizer.decode(processor.encode(line)) == processor.decode(processor.encode(line)).strip()
    assert run.tokenizer.vocab_size == theirs.config.vocab_size
    sentinels = run.tokenizer.encode(f"{ENGLISH} <extra_id_0> {CHINESE} <extra_id_99>")
    assert [token for token in sentinels if token >= processor.vocab_size()] == [
        processor.vocab_size() + 99,
        processor.vocab_size(),
    ]
    (tmp_path / "pairs.tsv").write_text("".join(f"{line}\t{line}\n" for line in LINES), encoding="utf-8")
    assert run.evaluate(tmp_path / "pairs.tsv", max_new_tokens=5).tokens > 0


# Errors


def test_folders_that_cannot_be_read(tmp_path: Path) -> None:
    folder, out = saved(t5(), t5_tokenizer(), tmp_path / "folder"), tmp_path / "run"
    file = folder / "config.json"
    whole = file.read_text()
    for changes, message in (
        (
            {"feed_forward_proj": "gated-silu"},
            f"{file} has feed_forward_proj = 'gated-silu'; supported are relu, gated-gelu, gelu_new, gated-gelu_new, "
            "gated-relu",
        ),
        (
            {"eos_token_id": 2},
            f"{file} has eos_token_id = 2, but the tokeniser ends a line with 1 (</s>); restore the files that belong "
            "together",
        ),
        (
            {"decoder_start_token_id": 5000},
            f"{file} has decoder_start_token_id = 5000, but vocab_size = {size() + 7}; restore the file",
        ),
        (
            {"vocab_size": size() + 8},
            f"{folder / 'model.safetensors'} does not match its config.json: shared.weight is [{size() + 7}, 24], "
            f"expected [{size() + 8}, 24]; restore the files that belong together",
        ),
        (
            {"d_ff": 41},
            f"{folder / 'model.safetensors'} does not match its config.json: encoder.blocks.0.widen.weight is "
            "[40, 24], expected [41, 24]; restore the files that belong together",
        ),
    ):
        if changes == {"eos_token_id": 2}:
            (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
        change_config(folder, **changes)
        assert error_message(import_folder, folder, out) == message
        file.write_text(whole)
    assert not out.exists()
