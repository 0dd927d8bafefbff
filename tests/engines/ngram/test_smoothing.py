"""Every smoothing method against its formula: values computed by hand, the numbers of KenLM, and random small texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from builders import rows_by_steps
from chainrule.models.ngram import Ngram, NgramConfig
from chainrule.types import Vocabulary
from engines.ngram.naive import INTERPOLATED, JelinekMercer, Row, Stream, Tokens, reference

SMOOTHINGS = ["mle", "additive", "katz", *INTERPOLATED]
NOTED = ["katz", "absolute", "kneser-ney", "modified-kneser-ney"]
EXACT_ZEROS = ["mle", "stupid-backoff"]  # unseen n-grams have probability 0, not a rounding error
FLOOR = -16.0  # nats: where a fraction is 0, floating point may have a rounding error of this size
CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 0}
few = settings(max_examples=40, deadline=None)


@dataclass(frozen=True)
class Case:
    """A text to estimate from, and texts of equal length to query: its own beginning, and random ones."""

    stream: Stream
    order: int
    probes_BT: Tensor

    def prefixes(self) -> list[list[int]]:
        """Every prefix of every probe, the empty one first, the whole one last."""
        return [row[:length] for row in self.probes_BT.tolist() for length in range(len(row) + 1)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    vocab_size = draw(st.integers(3, 6))
    used = draw(st.integers(2, vocab_size))  # the ids from here on are unseen
    length = draw(st.integers(5, 60))
    text = draw(st.lists(st.integers(0, used - 1), min_size=length, max_size=length))
    probes = draw(st.lists(st.lists(st.integers(0, vocab_size - 1), min_size=6, max_size=6), min_size=2, max_size=2))
    stream = Stream(text, vocab_size, eos=draw(st.integers(0, vocab_size - 1)), across_lines=draw(st.booleans()))
    return Case(stream, draw(st.integers(1, 4)), torch.tensor([np.resize(text, 6).tolist(), *probes]))


def estimate(stream: Stream, order: int, smoothing: str, valid: Sequence[int] = (), **options: Any) -> Ngram:
    return estimate_with_notes(stream, order, smoothing, valid, **options)[0]


def estimate_with_notes(
    stream: Stream, order: int, smoothing: str, valid: Sequence[int] = (), memory: int | None = None, **options: Any
) -> tuple[Ngram, list[str]]:
    train, notes = np.asarray(stream.text, dtype=np.int64), []
    vocabulary = Vocabulary(stream.vocab_size, stream.eos, np.bincount(train, minlength=stream.vocab_size))
    config = NgramConfig(order=order, smoothing=smoothing, across_lines=stream.across_lines, **options)
    fitting = np.asarray(valid, dtype=np.int64)
    model = Ngram.estimate(config, vocabulary, train, fitting, memory=memory, note=notes.append)
    return model, notes


def row_after(model: Ngram, prefix: Sequence[int], eos: int) -> Tensor:
    """log p(. | eos, prefix) -> V."""
    return rows_by_steps(model, torch.tensor([prefix], dtype=torch.int64), eos)[0, -1]


def logs(rows: Sequence[Row]) -> Tensor:
    return torch.tensor([[math.log(prob) if prob else -math.inf for prob in row] for row in rows])


def assert_same(model: Ngram, case: Case, want: Sequence[Row], floor: float = FLOOR) -> None:
    """Rows by steps and the scores of whole texts are those of the reference."""
    steps_BTV = rows_by_steps(model, case.probes_BT, case.stream.eos).clamp(min=floor)
    want_BTV = logs(want).view(steps_BTV.shape).clamp(min=floor)
    torch.testing.assert_close(steps_BTV, want_BTV, **CLOSE, check_dtype=False)
    want_BT = want_BTV[:, :-1].gather(2, case.probes_BT[:, :, None])[:, :, 0]
    scores_BT = model.log_probs(case.probes_BT).clamp(min=floor)
    torch.testing.assert_close(scores_BT, want_BT, **CLOSE, check_dtype=False)


# Two lines, "a b a b" and "a c", with the ids </s> 0, a 1, b 2, c 3, and the unseen 4. By hand:
# c(a) = 3, c(b) = 2, c(c) = 1, c(</s>) = 2;  <s>a 2, ab 2, ba 1, b</s> 1, ac 1, c</s> 1;
# distinct predecessors: two of a and of </s>, one of b and of c.
TWO_LINES = Stream([1, 2, 1, 2, 0, 1, 3, 0], vocab_size=5, eos=0, across_lines=False)
FACTS = [
    ("mle", (1,), 2, "2/3"),
    ("mle", (4,), 2, "2/8"),  # an unseen context: the unigram
    ("additive", (1,), 2, "3/8"),
    ("additive", (4,), 2, "1/5"),
    ("katz", (1,), 2, "1/2"),  # 0.75 of 2/3
    ("katz", (1,), 1, "5/36"),  # 1/3 freed, over 3/4 of the unigrams for the unseen words; 5/16 of the unigram
    ("katz", (4,), 4, "1/4"),  # the mass that the unigrams free goes to the one unseen id
    ("witten-bell", (4,), 2, "7/30"),  # (2 + 4/5) / 12
    ("witten-bell", (1,), 2, "37/75"),  # (2 + 2 * 7/30) / 5
    ("absolute", (4,), 2, "49/200"),  # D = 1/5
    ("absolute", (1,), 2, "349/600"),  # D = 4/8
    ("kneser-ney", (4,), 2, "7/45"),  # D = 2/6: (1 - 1/3) / 6 + (4/3) / 6 / 5
    ("kneser-ney", (1,), 2, "149/270"),
    ("modified-kneser-ney", (4,), 2, "11/60"),  # 0.5, 1, 1.5: 0.5 / 6 + (0.5 * 2 + 1 * 2) / 6 / 5
    ("modified-kneser-ney", (1,), 2, "17/40"),  # (2 - 1) / 3 + (0.5 + 1) / 3 * 11/60
    ("stupid-backoff", (1,), 2, "2/3"),
    ("stupid-backoff", (1,), 1, "3/20"),  # 0.4 * 3/8
]


@pytest.mark.parametrize(("smoothing", "prefix", "word", "fact"), FACTS)
def test_values_computed_by_hand(smoothing: str, prefix: Tokens, word: int, fact: str) -> None:
    assert reference(smoothing, TWO_LINES, 2).row_after(prefix)[word] == Fraction(fact)
    row_V = row_after(estimate(TWO_LINES, 2, smoothing), prefix, eos=0)
    assert row_V[word].item() == pytest.approx(math.log(Fraction(fact)), abs=2e-5)


TINY = """the cat sat on the mat
the dog sat on the log
a cat saw the dog
the dog saw a cat on the mat
a bird sang in the tree
the cat heard the bird in the tree
the dog heard the cat
a log lay on the mat
the bird saw the cat and the dog
the cat and the dog sat on the mat in the sun
"""
KENLM = {  # log10, as `lmplz --discount_fallback` writes and sums them; each text begins with <s>
    2: {"the": -0.2960807, "the cat": -0.8369524, "a log": -0.8207564, "the sun </s>": -0.26446554},
    3: {"the": -0.23443054, "cat": -1.3154008 - 0.5228787, "the mat": -1.1749649 - 0.12112576},
}


def tiny() -> tuple[Stream, dict[str, int]]:
    """The text as ids: 0 for the end of a line, then the words as they occur; the last id is KenLM's unseen <unk>."""
    words = ["</s>", *dict.fromkeys(TINY.split())]
    ids = {word: number for number, word in enumerate(words)}
    text = [ids[word] for line in TINY.splitlines() for word in [*line.split(), "</s>"]]
    return Stream(text, len(words) + 1, eos=0, across_lines=False), ids


@pytest.mark.parametrize("order", KENLM)
def test_modified_kneser_ney_equals_kenlm(order: int) -> None:
    stream, ids = tiny()
    model, formula = estimate(stream, order, "modified-kneser-ney"), reference("modified-kneser-ney", stream, order)
    for text, log10 in KENLM[order].items():
        *prefix, word = (ids[name] for name in text.split())
        row_V = row_after(model, prefix, eos=0)
        assert math.log10(formula.row_after(prefix)[word]) == pytest.approx(log10, abs=1e-6)
        assert row_V[word].item() / math.log(10) == pytest.approx(log10, abs=1e-5)


def test_only_the_order_without_discounts_falls_back() -> None:
    assert reference("modified-kneser-ney", tiny()[0], 2).fallen_back == []
    assert reference("modified-kneser-ney", tiny()[0], 3).fallen_back == [2]


def test_a_discount_of_zero_is_valid() -> None:
    """With 4, 3 and 5 n-grams seen once, twice and three times, D2 = 2 - 3 * 4/10 * 5/3 = 0, exactly at the bound."""
    text = [0, 0, 0, 2, 2, 0, 3, 0, 3, 0, 3, 2, 0, 0, 0, 1, 1, 2, 2, 3, 1, 0, 1, 0, 1, 1, 1, 2, 0]
    stream = Stream(text, vocab_size=4, eos=1, across_lines=False)
    formula = reference("modified-kneser-ney", stream, 2)
    assert formula.fallen_back == [1]
    case = Case(stream, 2, torch.tensor([text[:10]]))
    model = estimate(stream, 2, "modified-kneser-ney")
    assert_same(model, case, [formula.row_after(prefix) for prefix in case.prefixes()])


@pytest.mark.parametrize("smoothing", [*SMOOTHINGS, "jelinek-mercer"])
@few
@given(case=cases())
def test_every_smoothing_sums_to_one(smoothing: str, case: Case) -> None:
    model = estimate(case.stream, case.order, smoothing, valid=case.probes_BT[0].tolist())
    total_BT = rows_by_steps(model, case.probes_BT, case.stream.eos).logsumexp(2)
    torch.testing.assert_close(total_BT, torch.zeros_like(total_BT), **CLOSE)


@pytest.mark.parametrize("smoothing", [*SMOOTHINGS, "stupid-backoff"])
@few
@given(case=cases(), delta=st.sampled_from([1.0, 0.5, 0.01]))
def test_every_smoothing_follows_its_formula(smoothing: str, case: Case, delta: float) -> None:
    delta = delta if smoothing == "additive" else 1.0
    formula = reference(smoothing, case.stream, case.order, delta=delta)
    model, notes = estimate_with_notes(case.stream, case.order, smoothing, delta=delta)
    want = [formula.row_after(prefix) for prefix in case.prefixes()]
    assert smoothing == "stupid-backoff" or {sum(row) for row in want} == {1}
    assert_same(model, case, want, floor=-math.inf if smoothing in EXACT_ZEROS else FLOOR)
    assert bool(notes) == bool(formula.fallen_back)


@pytest.mark.parametrize("smoothing", INTERPOLATED)
@few
@given(case=cases(), prune=st.sampled_from([(0, 1), (0, 0, 1), (0, 1, 2), (0, 2), (0, 0, 0, 3)]))
def test_pruning_frees_mass_for_the_lower_order(smoothing: str, case: Case, prune: Tokens) -> None:
    prune = prune[: case.order]
    formula = reference(smoothing, case.stream, case.order, prune=prune)
    want = [formula.row_after(prefix) for prefix in case.prefixes()]
    assert_same(estimate(case.stream, case.order, smoothing, prune=prune), case, want)


def quoting(across_lines: bool) -> Stream:
    """A text that often repeats itself: every order has n-grams of every small count, so no discount falls back."""
    generator = np.random.default_rng(7)
    weights_V = 1 / np.arange(1, 101)
    fresh = generator.choice(100, size=2000, p=weights_V / weights_V.sum()).tolist()
    quotes, places = generator.random(2000) < 0.7, generator.random(2000)
    text, source = fresh[:1], 0
    for t in range(1, 2000):
        text.append(text[source] if quotes[t] else fresh[t])
        source = source + 1 if quotes[t] else int(places[t] * t)
    return Stream(text, vocab_size=101, eos=1, across_lines=across_lines)


@pytest.mark.parametrize("across_lines", [False, True])
@pytest.mark.parametrize("smoothing", NOTED)
def test_discounts_estimated_from_a_text_follow_their_formulas(smoothing: str, across_lines: bool) -> None:
    stream = quoting(across_lines)
    formula = reference(smoothing, stream, 3)
    model, notes = estimate_with_notes(stream, 3, smoothing)
    assert formula.fallen_back == notes == []
    case = Case(stream, 3, torch.tensor([stream.text[:6], [0, 0, 1, 0, 2, 100]]))
    assert_same(model, case, [formula.row_after(prefix) for prefix in case.prefixes()])


@pytest.mark.parametrize("smoothing", [*SMOOTHINGS, "jelinek-mercer", "stupid-backoff"])
def test_limited_memory_gives_the_same_model(smoothing: str) -> None:
    stream = quoting(across_lines=False)
    in_memory, on_disk = (estimate(stream, 4, smoothing, stream.text[:99], memory=memory) for memory in (None, 2000))
    for name, array in in_memory.table.arrays._asdict().items():
        np.testing.assert_array_equal(array, on_disk.table.arrays._asdict()[name], err_msg=name)


def test_scoring_continues_from_a_state() -> None:
    stream = quoting(across_lines=False)
    model, tokens_BT = estimate(stream, 4, "modified-kneser-ney"), torch.tensor(stream.text[:60]).view(2, 30)
    first_BT, state = model.score(tokens_BT[:, :11], model.start(2))
    rest_BT, _ = model.score(tokens_BT.flip(0)[:, 11:], model.select(state, torch.tensor([1, 0])))
    torch.testing.assert_close(torch.cat([first_BT, rest_BT.flip(0)], 1), model.log_probs(tokens_BT), rtol=0, atol=0)


# Jelinek-Mercer: its weights follow from its rows, since a row is a mixture of the counts and the lower row.

UNSEEN = 4  # an id that ends no context in training, so it cuts off every context


def markov(length: int, seed: int) -> list[int]:
    """Four tokens, each drawn given the previous two; the transition probabilities are the same for every seed."""
    probabilities = 0.85 * np.random.default_rng(0).dirichlet(np.ones(4), size=(4, 4)) + 0.15 / 4
    generator, text = np.random.default_rng(seed), [0, 1]
    while len(text) < length:
        text.append(int(generator.choice(4, p=probabilities[text[-2], text[-1]])))
    return text


def weights_of(model: Ngram, formula: JelinekMercer) -> dict[tuple[int, int], float]:
    """lambda of each (order, bucket), after checking that all contexts of a bucket share it."""
    found: dict[tuple[int, int], list[float]] = {}
    for length in range(formula.order):
        for context in {ngram[:-1] for ngram in formula.raw[length + 1]}:
            key = formula.key(context)
            assert key is not None
            found.setdefault(key, []).append(weight_after(model, formula, context))
    for weights in found.values():
        assert max(weights) - min(weights) < 1e-4
    return {key: sum(weights) / len(weights) for key, weights in found.items()}


def weight_after(model: Ngram, formula: JelinekMercer, context: Tokens) -> float:
    """lambda such that p(. | h) = lambda c(h.) / c(h) + (1 - lambda) p(. | h')."""
    eos, fill = formula.stream.eos, [UNSEEN] * formula.order
    row_V = row_after(model, [*fill, *context], eos).exp().double()
    lower_V = row_after(model, [*fill, *context[1:]], eos).exp().double() if context else torch.full((5,), 0.2).double()
    seen = formula.after(context)
    counts_V = torch.tensor([seen.get(word, 0) for word in range(5)]).double()
    way_V = counts_V / counts_V.sum() - lower_V
    weight = float((row_V - lower_V) @ way_V / (way_V @ way_V))
    torch.testing.assert_close(row_V, lower_V + weight * way_V, **CLOSE)
    assert -1e-5 < weight < 1 + 1e-5
    return weight


def log_likelihood(stream: Stream, order: int, weights: dict[tuple[int, int], float], text: Sequence[int]) -> float:
    formula = JelinekMercer(stream, order, weights)
    return sum(math.log(formula.row_after(text[max(0, t - order) : t])[token]) for t, token in enumerate(text))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_jelinek_mercer_weights_are_the_best_for_the_validation_text(order: int) -> None:
    stream, valid = Stream(markov(300, seed=1), 5, eos=0, across_lines=True), markov(400, seed=2)
    valid[50::50] = [UNSEEN] * 7
    model = estimate(stream, order, "jelinek-mercer", valid=valid)
    weights = weights_of(model, JelinekMercer(stream, order, {}))
    best = log_likelihood(stream, order, weights, valid)
    assert model.log_probs(torch.tensor([valid])).sum().item() == pytest.approx(best, rel=1e-5)
    others = [dict.fromkeys(weights, step / 10) for step in range(10)]
    others += [weights | {key: min(0.999, max(0.0, weights[key] + by))} for key in weights for by in (-0.1, 0.1)]
    for other in others:
        assert log_likelihood(stream, order, other, valid) <= best + 1e-6 * abs(best)
