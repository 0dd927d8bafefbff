"""Evaluation of translators: forced scores, token accuracy and translations against a loop over single pairs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from builders import TRANSLATORS, small_translator
from chainrule.data.pairs import PairBatches, PairStore, pad_sources, pair_batch, pair_stores
from chainrule.data.store import open_store
from chainrule.decoding import Greedy, generate
from chainrule.decoding.limits import length_limit
from chainrule.errors import DataError
from chainrule.evaluation import pairs as under_test
from chainrule.evaluation.pairs import (
    evaluate_pairs,
    mean_loss,
    score_rows,
    score_targets,
    translate_greedily,
)
from chainrule.models.translator import ConditionedModel
from chainrule.text import text_of, train_tokenizer
from chainrule.types import Source, Vocabulary

SOURCES = ["abc", "", "a", "cabbage", "badge", "dab", "face"]
TARGETS = ["cab", "b", "", "egabbac", "e", "badx", "fxce"]  # x is unknown
TOKENIZER = train_tokenizer("char", text_of("abcdefg\n"))
EOS = TOKENIZER.eos


def lines(texts: list[str]) -> str:
    return "".join(text + "\n" for text in texts)


def store_of(sources: list[str], targets: list[str]) -> PairStore:
    stores = [open_store(text_of(lines(texts)), TOKENIZER) for texts in (sources, targets)]
    return pair_stores(stores[0], stores[1], eos=(EOS, EOS), names=("a.src", "a.tgt"))


def translator(name: str, **options: Any) -> Any:
    vocabulary = Vocabulary(TOKENIZER.vocab_size, EOS, np.arange(TOKENIZER.vocab_size) + 1)
    return small_translator(name, vocabulary=vocabulary, **options)


@pytest.fixture(params=TRANSLATORS)
def model(request: pytest.FixtureRequest) -> Any:
    return translator(request.param)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split seven pairs into several batches and chunks."""
    monkeypatch.setattr(under_test, "BATCH_TOKENS", 20)
    monkeypatch.setattr(under_test, "CHUNK", 4)


@torch.no_grad()
def naive(model: Any, source: str, target: str) -> list[tuple[int, float, bool]]:
    """Each target token and `eos` with its log p and whether it is the most probable one, step by step."""
    tokens_S = [*TOKENIZER.encode(source), EOS]
    given = Source(torch.tensor([tokens_S]), torch.ones(1, len(tokens_S), dtype=torch.bool))
    state, before, found = model.start(given), EOS, []
    for token in [*TOKENIZER.encode(target), EOS]:
        (log_probs_V,), state = model.step(state, torch.tensor([before]))
        found.append((token, float(log_probs_V[token]), int(log_probs_V.argmax()) == token))
        before = token
    return found


def test_forced_scores_are_those_of_a_loop(model: Any) -> None:
    found = [naive(model, *pair) for pair in zip(SOURCES, TARGETS, strict=True)]
    every = [one for row in found for one in row]
    known = [one for one in every if one[0] != TOKENIZER.unk]
    forced = score_targets(model, store_of(SOURCES, TARGETS), TOKENIZER.unk)
    assert (forced.every.tokens, forced.known.tokens) == (len(every), len(known)) == (27, 25)
    assert forced.every.nats == pytest.approx(-sum(log_prob for _, log_prob, _ in every), rel=1e-5)
    assert forced.known.nats == pytest.approx(-sum(log_prob for _, log_prob, _ in known), rel=1e-5)
    assert forced.correct == sum(right for _, _, right in every)
    assert score_targets(model, store_of(SOURCES, TARGETS), None).known == forced.every  # without <unk> all are known


def test_scored_rows_are_those_of_a_loop_in_order(model: Any) -> None:
    rows = score_rows(model, store_of(SOURCES, TARGETS))
    first = next(rows)
    assert not torch.is_inference_mode_enabled()  # the caller's mode applies between rows
    found = [first, *rows]
    assert len(found) == len(SOURCES)
    for (tokens, log_probs), source, target in zip(found, SOURCES, TARGETS, strict=True):
        expected = naive(model, source, target)
        assert tokens == [token for token, _, _ in expected]
        assert log_probs == pytest.approx([log_prob for _, log_prob, _ in expected], abs=1e-4)


def test_the_loss_of_batches_is_a_mean_over_all_tokens(model: Any) -> None:
    store = store_of(SOURCES, TARGETS)
    batches = PairBatches(store, np.arange(len(store)), 16, seed=0, shuffled=False)
    assert batches.per_epoch > 2
    model.train()
    loss = mean_loss(model, (batches.batch(index)[0] for index in range(batches.per_epoch)))
    assert model.training  # restored
    every = [one for pair in zip(SOURCES, TARGETS, strict=True) for one in naive(model.eval(), *pair)]
    assert loss == pytest.approx(-sum(log_prob for _, log_prob, _ in every) / len(every), rel=1e-5)
    unweighted = pair_batch(store, np.array([0, 0]))._replace(weights_BT=None)
    assert mean_loss(model, [unweighted]) == pytest.approx(mean_loss(model, [pair_batch(store, np.array([0]))]))


def test_greedy_translations_are_those_of_single_lines_in_order(model: Any) -> None:
    rows = [TOKENIZER.encode(line) for line in SOURCES]
    found = translate_greedily(model, rows, source_eos=EOS, eos=EOS, rows=3)
    for row, tokens in zip(rows, found, strict=True):
        limit = length_limit(len(row), model.window)
        alone = ConditionedModel(model, pad_sources([row], EOS))
        (best_T,) = generate(alone, eos=EOS, bos=EOS, max_new_tokens=limit, choose=Greedy())
        assert tokens == [token for token in best_T.tolist() if token != EOS]


def test_the_length_limit_follows_from_the_source_and_the_window() -> None:
    assert [length_limit(length, None) for length in (0, 10)] == [20, 40]
    assert [length_limit(length, 24) for length in (0, 10)] == [20, 23]
    assert length_limit(3, 2) == 1


# The whole evaluation


def test_an_evaluation_has_every_figure_with_signature_and_protocol() -> None:
    model, store = translator("seq2seq-attention"), store_of(SOURCES, TARGETS)
    outputs = ["cab", "b", "", "egabbac", "e", "", "wrong"]
    measured = evaluate_pairs(model, store, TOKENIZER, outputs, [TARGETS], decoded_by="greedy search")
    every = [one for pair in zip(SOURCES, TARGETS, strict=True) for one in naive(model, *pair)]
    nats = -sum(log_prob for _, log_prob, _ in every)
    known = [log_prob for token, log_prob, _ in every if token != TOKENIZER.unk]
    assert (measured.tokens, measured.oov, measured.bytes) == (27, 2, len(lines(TARGETS)))
    assert measured.cross_entropy == pytest.approx(nats / 27, rel=1e-5)
    assert measured.perplexity == pytest.approx(math.exp(nats / 27), rel=1e-5)
    assert measured.perplexity_without_oov == pytest.approx(math.exp(-sum(known) / len(known)), rel=1e-5)
    residue = store.target.residue_bits
    assert residue > 0  # for the spelling of the unknown letters
    assert measured.bits_per_byte == pytest.approx((nats / math.log(2) + residue) / measured.bytes, rel=1e-5)
    assert measured.token_accuracy == pytest.approx(sum(right for _, _, right in every) / 27)
    assert measured.exact_match == pytest.approx(5 / 7)
    assert measured.sentences == 7
    source, target = store.source.fingerprint[:8], store.target.fingerprint[:8]
    assert measured.signature.startswith(
        f"data:{source}+{target}|tokenizer:char#{TOKENIZER.fingerprint[:8]}|chainrule:"
    )
    assert measured.protocol == (
        "7 sources translated by greedy search; 27 reference tokens, including the <eos> of each line, scored given "
        "the source and the tokens before; bits per byte is that of the references."
    )
    assert set(measured.to_dict()) == {field.name for field in dataclasses.fields(measured)}
    keys = {"tokens", "oov", "bytes", "cross_entropy", "perplexity", "perplexity_without_oov", "bits_per_byte"}
    assert keys | {"signature", "bleu", "chrf", "rouge1", "rouge2", "rougeL"} <= set(measured.to_dict())
    shown = measured.show().splitlines()
    low, high = measured.bleu_interval
    assert shown[0] == f"bleu                      {measured.bleu:.4f}"
    assert f"bleu interval             {low:.2f} to {high:.2f}" in shown
    assert shown[-1] == f"signature                 {measured.signature}"  # the protocol is printed separately


def test_long_references_are_not_scored_and_long_sources_are_cut() -> None:
    model = translator("seq2seq-transformer", context=6)
    sources, targets = ["abcdefg", "ab", "a"], ["abcde", "abcdef", "b"]
    measured = evaluate_pairs(
        model, store_of(sources, targets), TOKENIZER, targets, [targets], decoded_by="greedy search"
    )
    every = [*naive(model, "abcde", "abcde"), *naive(model, "a", "b")]
    assert (measured.tokens, measured.bytes, measured.sentences) == (8, 8, 3)
    assert measured.cross_entropy == pytest.approx(-sum(log_prob for _, log_prob, _ in every) / 8, rel=1e-5)
    assert "(1 references are longer than the model can write and are not scored)" in measured.protocol
    with pytest.raises(DataError) as error:
        evaluate_pairs(model, store_of(["a"], ["abcdef"]), TOKENIZER, ["a"], [["abcdef"]], decoded_by="greedy search")
    assert str(error.value) == (
        "every reference is longer than the 5 tokens that the model can write; give shorter pairs, or train with a "
        "larger model.context"
    )
