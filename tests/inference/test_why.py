"""Explanations of tokens, by a second route: the ARPA file, the parts of a mixture, the formula of a hybrid."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chainrule as cr
from builders import letter_pairs, pairs_text, write_pairs
from chainrule.errors import ConfigError
from chainrule.inference.why.records import (
    AttentionRow,
    BackoffPath,
    Branches,
    CacheMemory,
    ContextCurve,
    RecurrentTrace,
    Shares,
    Why,
)
from chainrule.runs.language_model import LanguageModelRun
from chainrule.runs.translator import TranslatorRun
from chainrule.text.samples.texts import english_text

LINES = english_text()[:12_000]
TEXT = pairs_text(300)
PROBE = TEXT[:60] + "zq" + TEXT[60:100]


def train(folder: Path, model: str, **settings: Any) -> LanguageModelRun:
    text = folder / "text.txt"
    text.write_text(TEXT, encoding="utf-8")
    steps = {} if model == "ngram" else {"steps": 8}
    return cr.train(text, model=model, tokenizer="char", out=folder / model, settings={"model": settings}, **steps)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("why")


@pytest.fixture(scope="module")
def ngram(folder: Path) -> LanguageModelRun:
    return train(folder, "ngram", order=4)


@pytest.fixture(scope="module")
def lstm(folder: Path) -> LanguageModelRun:
    return train(folder, "lstm", embedding=8, hidden=12, layers=2)


def only(found: Why, kind: type) -> Any:
    (one,) = [reason for reason in found.reasons if isinstance(reason, kind)]
    return one


def check_token(run: LanguageModelRun, found: Why, text: str, position: int) -> None:
    """The explained token is the one that `surprise` has at this place."""
    token = run.surprise(text).tokens[position]
    assert found.token == token.token
    assert found.bits == pytest.approx(token.bits - token.spelling_bits, rel=1e-4, abs=1e-4)
    assert found.rank == token.rank


# n-grams


def read_arpa(path: Path) -> dict[tuple[str, ...], tuple[float, float]]:
    """Words -> log10 p and log10 of the back-off weight."""
    entries = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = line.split("\t")
        if len(fields) >= 2:
            entries[tuple(fields[1].split(" "))] = (float(fields[0]), float(fields[2]) if len(fields) > 2 else 0.0)
    return entries


def test_the_backoff_path_is_that_of_the_arpa_file(folder: Path) -> None:
    text = folder / "words.txt"
    text.write_text(LINES, encoding="utf-8")
    run = cr.train(text, model="ngram", tokenizer="word", out=folder / "words", settings={"model": {"order": 4}})
    cr.export(folder / "words", folder / "model.arpa", to="arpa")
    entries = read_arpa(folder / "model.arpa")
    probe = LINES[300:700] + " qqqq the the the\nthe\n"
    tokens, orders = run.surprise(probe).tokens, set()
    for position in range(len(tokens)):
        found = run.why(probe, position)
        check_token(run, found, probe, position)
        reason = only(found, BackoffPath)
        word = {"<eos>": "</s>"}.get(found.token, "<unk>" if tokens[position].oov else found.token)
        total = 0.0
        for tried in reason.tried:
            context = tuple("<s>" if one == "<eos>" else one for one in tried.context)
            if tried.probability is None:
                assert (*context, word) not in entries
                assert tried.in_table == (context in entries)
                weight = entries[context][1] if context in entries else 0.0
                assert math.log10(tried.backoff) == pytest.approx(weight, abs=2e-4)
            else:
                weight = entries[(*context, word)][0]
                assert math.log10(tried.probability) == pytest.approx(weight, abs=2e-4)
            total += weight
        assert total == pytest.approx(math.log10(found.probability), abs=1e-3)
        assert reason.order == tokens[position].order
        orders.add(reason.order)
    assert orders == {1, 2, 3, 4}


# Mixtures and caches


@pytest.fixture(scope="module")
def mixture(folder: Path, ngram: LanguageModelRun, lstm: LanguageModelRun) -> LanguageModelRun:
    valid = folder / "valid.txt"
    valid.write_text(TEXT[:600], encoding="utf-8")
    return cr.mix(
        [ngram, lstm],
        valid=valid,
        out=folder / "mixture",
        caches=["unigram", "continuous"],
    )


@pytest.mark.parametrize("position", [0, 1, 40, 61])
def test_the_shares_of_a_mixture_are_those_of_its_parts(
    mixture: LanguageModelRun, ngram: LanguageModelRun, lstm: LanguageModelRun, position: int
) -> None:
    found = mixture.why(PROBE, position)
    check_token(mixture, found, PROBE, position)
    shares = only(found, Shares)
    assert [one.name for one in shares.components] == ["ngram", "lstm", "unigram cache", "continuous cache"]
    for run, component in zip((ngram, lstm), shares.components, strict=False):
        assert component.probability == pytest.approx(run.why(PROBE, position).probability, rel=1e-3)
    weighted = [one.weight * one.probability for one in shares.components]
    assert sum(one.weight for one in shares.components) == pytest.approx(1, abs=1e-5)
    assert sum(weighted) == pytest.approx(found.probability, rel=1e-4)
    assert [one.share for one in shares.components] == pytest.approx([one / sum(weighted) for one in weighted])
    assert isinstance(shares.components[0].reasons[0], BackoffPath)
    assert any(isinstance(one, RecurrentTrace) for one in shares.components[1].reasons)


def test_a_unigram_cache_shows_the_decayed_counts(mixture: LanguageModelRun) -> None:
    text, decay = "abababcd", mixture.model.caches[0].config.decay
    (memory,) = only(mixture.why(text, 7, top=3), Shares).components[2].reasons
    assert isinstance(memory, CacheMemory)
    mass: dict[str, float] = {}
    for age, letter in enumerate(reversed(text[:7])):
        mass[letter] = mass.get(letter, 0.0) + decay**age
    expected = sorted(((value / sum(mass.values()), letter) for letter, value in mass.items()), reverse=True)
    assert [(one.token, pytest.approx(one.weight, rel=1e-4)) for one in memory.remembered] == [
        (letter, weight) for weight, letter in expected
    ]
    assert memory.tokens == 7


def test_a_continuous_cache_shows_its_probability_token_by_token(mixture: LanguageModelRun) -> None:
    component = only(mixture.why(PROBE, 40, top=100), Shares).components[3]
    (memory,) = component.reasons
    assert len(memory.remembered) == memory.tokens == 40
    assert sum(one.weight for one in memory.remembered) == pytest.approx(1, abs=1e-4)
    own = sum(one.weight for one in memory.remembered if one.token == PROBE[40])
    assert own == pytest.approx(component.probability, rel=1e-3)
    for one in memory.remembered:
        assert PROBE[40 - one.ago] == one.token or PROBE[40 - one.ago] == "\n"


# Networks


def test_the_gates_of_a_recurrent_model_are_those_of_its_steps(lstm: LanguageModelRun) -> None:
    found = lstm.why("abab", 3)
    check_token(lstm, found, "abab", 3)
    trace = only(found, RecurrentTrace)
    assert trace.tokens == ["<eos>", "a", "b", "a"]
    layer, hidden, cell = lstm.model.features.recurrence.layers[0], torch.zeros(12), torch.zeros(12)
    ids = [lstm.tokenizer.eos, *lstm.tokenizer.encode("aba")]
    for place, token in enumerate(ids):
        sums = layer.weight_input_GD @ lstm.model.embedding.weight[token] + layer.weight_hidden_GH @ hidden
        g, i, f, o = (sums + layer.bias_G).detach().view(4, 12)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        before, hidden = hidden, o.sigmoid() * cell.tanh()
        gates = trace.layers[0].gates
        assert gates["forget"][place] == pytest.approx(float(f.sigmoid().mean()), abs=1e-5)
        assert gates["input"][place] == pytest.approx(float(i.sigmoid().mean()), abs=1e-5)
        assert gates["output"][place] == pytest.approx(float(o.sigmoid().mean()), abs=1e-5)
        assert trace.layers[0].size[place] == pytest.approx(float(hidden.square().mean().sqrt()), abs=1e-5)
        assert trace.layers[0].change[place] == pytest.approx(float((hidden - before).square().mean().sqrt()), abs=1e-5)
    assert len(trace.layers) == 2


@pytest.mark.parametrize(
    ("model", "gates"), [("gru", {"update", "reset"}), ("rnn", set()), ("lstm-coupled", {"input", "output"})]
)
def test_every_cell_has_its_gates(folder: Path, model: str, gates: set[str]) -> None:
    run = train(folder, model, embedding=8, hidden=12, layers=1)
    assert set(only(run.why("abab"), RecurrentTrace).layers[0].gates) == gates


def test_attention_is_that_of_the_window_in_which_the_token_is_predicted(folder: Path) -> None:
    run = train(folder, "transformer", embedding=16, heads=2, layers=2, context=24)
    row = only(run.why(PROBE, 10), AttentionRow)
    assert np.shape(row.weights) == (2, 2, 11)
    np.testing.assert_allclose(row.weights, run.attention(PROBE[:10]).weights[:, :, -1], atol=1e-6)
    late = only(run.why(PROBE, 70), AttentionRow)  # longer than the window
    assert len(late.tokens) <= 24
    assert late.tokens[-1] == PROBE[69]
    np.testing.assert_allclose(np.sum(late.weights, 2), 1, atol=1e-5)
    check_token(run, run.why(PROBE, 70), PROBE, 70)


def test_the_branches_of_a_hybrid_mix_to_its_probability(folder: Path) -> None:
    run = train(folder, "hybrid-lm", embedding=8, hidden=8, block=4, context=8, gamma=0.3)
    for position in (0, 3, 10):
        found = run.why(PROBE, position)
        check_token(run, found, PROBE, position)
        both = only(found, Branches)
        assert both.gamma == pytest.approx(0.3, abs=1e-5)
        assert found.probability == pytest.approx(0.7 * both.ar + 0.3 * both.nar, rel=1e-4)
        assert both.ar_best[0].probability >= both.ar
    run.adjust(gamma=0.0)
    alone = run.why(PROBE, 10)
    assert not [one for one in alone.reasons if isinstance(one, Branches)]
    assert alone.probability == pytest.approx(both.ar, rel=1e-4)


@pytest.fixture(scope="module")
def hybrid(folder: Path) -> TranslatorRun:
    source, target = write_pairs(folder, letter_pairs(80))
    shape = {"embedding": 8, "hidden": 8, "gamma": 0.4}
    return cr.train([source, target], model="hybrid", steps=8, out=folder / "hybrid", settings={"model": shape})


@pytest.mark.parametrize("position", [0, 1, -1])
def test_the_branches_of_a_translator_mix_to_its_probability(hybrid: TranslatorRun, position: int) -> None:
    source, target = letter_pairs(80)[3]
    found = hybrid.why(source, target, position)
    (scored,) = hybrid.score_pairs([(source, target)])
    assert found.token == scored.pieces[position]
    assert math.log(found.probability) == pytest.approx(scored.log_probs[position], abs=1e-4)
    both, row = only(found, Branches), only(found, AttentionRow)
    assert found.probability == pytest.approx((1 - both.gamma) * both.ar + both.gamma * both.nar, rel=1e-4)
    assert sum(row.weights[0][0]) == pytest.approx(1, abs=1e-5)
    assert len(row.tokens) == len(row.weights[0][0])
    shown = next(hybrid.translate_lines([source], attention=True))[0].attention
    assert shown is not None
    assert row.tokens == shown.source


def test_a_position_outside_a_translation_is_refused(hybrid: TranslatorRun) -> None:
    with pytest.raises(ConfigError, match="position is 99, but the translation has"):
        hybrid.why("a b", "b a", 99)


# Every model


def test_the_curve_of_the_context_ends_at_the_bits_of_the_token(ngram: LanguageModelRun) -> None:
    found = ngram.why("ababab", 5)
    curve = only(found, ContextCurve)
    assert curve.known == [0, 1, 2, 4, 5]
    assert curve.bits[-1] == pytest.approx(found.bits)
    for known, bits in zip(curve.known, curve.bits, strict=True):
        assert bits == pytest.approx(ngram.why("ababab"[5 - known :], known).bits)


@pytest.mark.parametrize("position", [4, -5])
def test_a_position_outside_the_text_is_refused(ngram: LanguageModelRun, position: int) -> None:
    with pytest.raises(ConfigError, match=rf"position is {position}, but the text has 4 tokens, counted from 0"):
        ngram.why("abab", position)


def test_json_has_every_kind_by_name(mixture: LanguageModelRun) -> None:
    record = mixture.why(PROBE, 40).to_dict()
    assert [one["kind"] for one in record["reasons"]] == ["context", "mixture"]
    inner = [[reason["kind"] for reason in one["reasons"]] for one in record["reasons"][1]["components"]]
    assert inner == [["backoff"], ["recurrent"], ["cache"], ["cache"]]
