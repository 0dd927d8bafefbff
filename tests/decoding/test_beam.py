"""Beam search against exhaustive enumeration, a plain Python beam, greedy search, and the beam of transformers."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from chainrule.decoding import Greedy, Hypothesis, beam, beam_search, generate
from chainrule.errors import ConfigError
from chainrule.inference.generate import GenerationOptions
from chainrule.inference.search import Search
from chainrule.types import SteppingModel
from marian import EOS, PAD, START, HuggingFaceStepper, marian, until_eos
from toy import PrefillingTable, TableModel

CLOSE = 1e-5
"""Single precision may order numbers that differ by less than this either way, so such cases are not compared."""


def every_sequence(vocab: int, limit: int) -> list[list[int]]:
    """All continuations: those that end with the first eos, and those cut at the limit."""
    found = []
    for length in range(1, limit + 1):
        for body in itertools.product([v for v in range(vocab) if v != EOS], repeat=length - 1):
            last = range(vocab) if length == limit else [EOS]
            found += [[*body, token] for token in last]
    return found


def exhaustive(
    model: TableModel, prompt: list[int], limit: int, penalty: float
) -> list[tuple[list[int], float, float]]:
    """Every sequence with its log-probability and score, best first, each scored separately."""
    scored = []
    for tokens in every_sequence(model.vocab_size, limit):
        log_probs_1T = model.log_probs(torch.tensor([[*prompt, *tokens]]))
        log_prob = float(log_probs_1T[0, len(prompt) :].double().sum())
        scored.append((tokens, log_prob, log_prob / len(tokens) ** penalty))
    return sorted(scored, key=lambda entry: -entry[2])


class SparseTable(TableModel):
    """A table in which a third of the tokens, but never the first or last, are impossible after any prefix."""

    def _row(self, hash_B: Tensor) -> Tensor:
        row_BV = super()._row(hash_B)
        impossible_BV = (hash_B[:, None] >> 7 ^ torch.arange(self.vocab_size) * 5) % 3 == 0
        impossible_BV[:, [0, -1]] = False
        return row_BV.masked_fill(impossible_BV, -math.inf).log_softmax(1)


def best_of(entries: list[tuple[float, list[int]]], count: int) -> list[tuple[float, list[int]]]:
    """The best `count` possible entries, best first; cases with near ties among them are discarded."""
    entries = sorted((entry for entry in entries if entry[0] > -math.inf), reverse=True)
    assume(all(one[0] - two[0] > CLOSE for one, two in itertools.pairwise(entries[: count + 1])))
    return entries[:count]


def plain_beam(
    model: TableModel, prompt: list[int], width: int, limit: int, penalty: float, eos: int | None
) -> list[tuple[float, list[int]]]:
    """The algorithm one hypothesis at a time, without the early stop that changes no result -> scores and tokens."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    done: list[tuple[float, list[int]]] = []
    for length in range(1, limit + 1):
        grown = []
        for log_prob, tokens in live:
            state = model.start(1)
            for token in [*prompt, *tokens]:
                row_1V, state = model.step(state, torch.tensor([token]))
            grown += [(log_prob + value, [*tokens, token]) for token, value in enumerate(row_1V[0].tolist())]
        best = best_of(grown, 2 * width)
        ended = [entry for entry in best if entry[1][-1] == eos or length == limit]
        done += [
            (log_prob / length**penalty, tokens) for log_prob, tokens in best[:width] if (log_prob, tokens) in ended
        ]
        live = [entry for entry in best if entry not in ended][:width]
        finished = sorted((score for score, _ in done if score > -math.inf), reverse=True)
        if len(finished) >= width and live:
            now = live[0][0] / length**penalty
            assume(abs(now - finished[width - 1]) > CLOSE)
            if now < finished[width - 1]:
                break
    return best_of(done, width)


def search(model: TableModel, batch: int = 1, **options: object) -> list[list[Hypothesis]]:
    first_B1 = torch.full((batch, 1), EOS)
    return beam_search(model, model.start(batch), first_B1, eos=EOS, **{"length_penalty": 0.0, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0, -0.5])
@pytest.mark.parametrize("seed", range(4))
def test_full_width_is_exhaustive_search(seed: int, penalty: float) -> None:
    model = TableModel(3, seed)
    expected = exhaustive(model, [], 4, penalty)
    found = search(model, beams=len(expected), max_new_tokens=4, length_penalty=penalty, num_return_sequences=7)[0]
    assert [h.tokens for h in found] == [tokens for tokens, _, _ in expected[:7]]
    for hypothesis, (_, log_prob, score) in zip(found, expected, strict=False):
        assert math.isclose(hypothesis.log_prob, log_prob, abs_tol=1e-5)
        assert math.isclose(hypothesis.score, score, abs_tol=1e-5)


def test_full_width_can_return_every_sequence() -> None:
    model = TableModel(3, 11)
    expected = exhaustive(model, [], 3, 1.0)
    found = search(model, beams=40, max_new_tokens=3, length_penalty=1.0, num_return_sequences=40)[0]
    assert [h.tokens for h in found] == [tokens for tokens, _, _ in expected]


def test_by_default_hypotheses_are_ranked_by_the_mean_log_probability_per_token() -> None:
    model = TableModel(3, 11)
    first_11 = torch.tensor([[EOS]])
    found = beam_search(model, model.start(1), first_11, eos=EOS, beams=40, max_new_tokens=3, num_return_sequences=40)
    assert [h.tokens for h in found[0]] == [tokens for tokens, _, _ in exhaustive(model, [], 3, 1.0)]
    assert beam.LENGTH_PENALTY == Search().length_penalty == GenerationOptions().length_penalty == 1.0


@pytest.mark.parametrize("penalty", [0.0, 1.0, -1.0])
@pytest.mark.parametrize("seed", range(6))
def test_width_one_is_greedy_search(seed: int, penalty: float) -> None:
    model = TableModel(5, seed)
    greedy_T = generate(model, eos=EOS, bos=EOS, max_new_tokens=12, choose=Greedy())[0]
    found = search(model, beams=1, max_new_tokens=12, length_penalty=penalty)[0]
    assert [h.tokens for h in found] == [greedy_T.tolist()]


def test_width_one_takes_the_first_of_equals_like_greedy_search() -> None:
    model = TableModel(5, sharpness=0.0)
    greedy_T = generate(model, eos=3, bos=EOS, max_new_tokens=4, choose=Greedy())[0]
    found = beam_search(model, model.start(1), torch.tensor([[EOS]]), eos=3, beams=1, max_new_tokens=4)[0]
    assert found[0].tokens == greedy_T.tolist() == [0, 0, 0, 0]


class Case(NamedTuple):
    """A random search."""

    model: TableModel
    limits: list[int]
    options: dict[str, Any]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from([TableModel, PrefillingTable, SparseTable]))
    seed, sharpness = draw(st.integers(0, 10**6)), draw(st.sampled_from([1.0, 3.0, 6.0]))
    width = draw(st.integers(1, 5))
    options = {
        "beams": width,
        "num_return_sequences": draw(st.integers(1, width)),
        "length_penalty": draw(st.sampled_from([0.0, 1.0, 0.6, -0.5])),
        "eos": draw(st.sampled_from([EOS, EOS, 1, None])),
    }
    limits = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    return Case(kind(draw(st.integers(2, 7)), seed, sharpness=sharpness), limits, options)


@settings(max_examples=150, deadline=None)
@given(cases(), st.booleans())
def test_it_equals_the_plain_beam(case: Case, as_tensor: bool) -> None:
    model, limits, options = case
    prompts = [[EOS, number % model.vocab_size] for number in range(len(limits))]
    given_limits = torch.tensor(limits) if as_tensor else limits
    found = beam_search(model, model.start(len(limits)), torch.tensor(prompts), max_new_tokens=given_limits, **options)
    width, penalty, eos = options["beams"], options["length_penalty"], options["eos"]
    for prompt, limit, hypotheses in zip(prompts, limits, found, strict=True):
        expected = plain_beam(model, prompt, width, limit, penalty, eos)[: options["num_return_sequences"]]
        assert [h.tokens for h in hypotheses] == [tokens for _, tokens in expected]
        assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in expected], abs=CLOSE)
        lengths = [len(h.tokens) ** penalty for h in hypotheses]
        log_probs = [score * length for (score, _), length in zip(expected, lengths, strict=True)]
        assert [h.log_prob for h in hypotheses] == pytest.approx(log_probs, abs=CLOSE)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2048, 2500]), st.sampled_from([0.0, 1.0]))
def test_with_a_large_vocabulary_it_equals_the_plain_beam(seed: int, vocab: int, penalty: float) -> None:
    model, eos = TableModel(vocab, seed, sharpness=12.0), seed % vocab
    options = {"beams": 3, "max_new_tokens": 4, "length_penalty": penalty, "num_return_sequences": 3}
    found = beam_search(model, model.start(1), torch.tensor([[3, 1]]), eos=eos, **options)[0]  # type: ignore[arg-type]
    assert [h.tokens for h in found] == [tokens for _, tokens in plain_beam(model, [3, 1], 3, 4, penalty, eos)]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4), st.integers(2, 8), st.integers(0, 7))
def test_buckets_give_the_same_candidates_as_sorting(seed: int, A: int, W: int, count: int, rest: int) -> None:
    """Also where most tokens are impossible, and where some rows are."""
    random = np.random.default_rng(seed)
    V = 64 + rest
    log_probs_RV = np.log(random.random((A * W, V)).astype(np.float32))
    log_probs_RV[random.random((A * W, V)) < random.choice([0.0, 0.9])] = -math.inf
    log_prob_AW = -random.random((A, W)).astype(np.float32)
    log_prob_AW[random.random((A, W)) < 0.2] = -math.inf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam, "BUCKETS", 8)
        found = beam.best_continuations(torch.from_numpy(log_prob_AW), torch.from_numpy(log_probs_RV), count)
    for number in range(A):
        total_WV = log_prob_AW[number][:, None] + log_probs_RV[number * W : (number + 1) * W]
        best_M = -np.sort(-total_WV.flatten())[:count]
        assert found.log_prob_AM[number].tolist() == best_M.tolist()
        cells = found.cell_AM[number][found.log_prob_AM[number] > -math.inf].numpy() - number * W * V
        assert total_WV.flatten()[cells].tolist() == best_M[best_M > -math.inf].tolist()
        assert len(set(cells.tolist())) == len(cells)


def test_a_batch_gives_the_same_as_each_prompt_alone() -> None:
    prompts_BT = torch.tensor([[EOS, 1], [EOS, 2], [EOS, 3], [2, 2], [4, 1]])
    options = {"eos": EOS, "beams": 4, "max_new_tokens": 9, "length_penalty": 0.8, "num_return_sequences": 3}
    model = TableModel(7, 5)
    together = beam_search(model, model.start(5), prompts_BT, **options)  # type: ignore[arg-type]
    for prompt_T, found in zip(prompts_BT, together, strict=True):
        assert beam_search(model, model.start(1), prompt_T[None], **options)[0] == found  # type: ignore[arg-type]


def test_the_prompt_is_read_with_and_without_prefill() -> None:
    prompt = [2, 1, 2]
    options = {"eos": EOS, "beams": 64, "max_new_tokens": 3, "length_penalty": 0.0, "num_return_sequences": 5}
    for model in (TableModel(3, 8), PrefillingTable(3, 8)):
        found = beam_search(model, model.start(1), torch.tensor([[EOS, *prompt]]), **options)[0]  # type: ignore[arg-type]
        assert [h.tokens for h in found] == [tokens for tokens, _, _ in exhaustive(model, prompt, 3, 0.0)[:5]]


def test_without_eos_every_hypothesis_has_the_full_length() -> None:
    model = TableModel(3, 2)
    found = beam_search(
        model,
        model.start(1),
        torch.tensor([[EOS]]),
        eos=None,
        beams=81,
        max_new_tokens=4,
        length_penalty=0.0,
        num_return_sequences=81,
    )[0]
    assert sorted(h.tokens for h in found) == [list(tokens) for tokens in itertools.product(range(3), repeat=4)]
    assert math.isclose(sum(math.exp(h.log_prob) for h in found), 1.0, abs_tol=1e-5)


def test_eos_ends_a_hypothesis_and_is_part_of_it() -> None:
    found = search(TableModel(4, 3), beams=30, max_new_tokens=6, num_return_sequences=30)[0]
    assert any(h.tokens[-1] == EOS for h in found)
    assert all(EOS not in h.tokens[:-1] for h in found)
    assert all(h.tokens[-1] == EOS or len(h.tokens) == 6 for h in found)


class TwoTokenTable(TableModel):
    """Only eos and token 1 are possible after any token, eos being the more probable; the other tokens never are."""

    def _row(self, hash_B: torch.Tensor) -> torch.Tensor:
        row_V = torch.tensor([0.75, 0.25, 0.0, 0.0]).log()
        return row_V.expand(len(hash_B), 4)


def test_impossible_tokens_are_never_in_hypotheses() -> None:
    found = search(TwoTokenTable(4), beams=9, max_new_tokens=3, num_return_sequences=9)[0]
    assert [h.tokens for h in found] == [[EOS], [1, EOS], [1, 1, EOS], [1, 1, 1]]
    assert math.isclose(sum(math.exp(h.log_prob) for h in found), 1.0, abs_tol=1e-6)


def test_settled_prompts_are_not_stepped() -> None:
    model = TwoTokenTable(4)
    search(model, batch=3, beams=4, max_new_tokens=50)
    assert model.steps == 1  # no other hypothesis can reach the best one, which is eos alone


def test_a_search_stops_when_its_beam_has_finished_and_no_open_hypothesis_is_better() -> None:
    model = TwoTokenTable(4)
    found = search(model, beams=2, max_new_tokens=50, length_penalty=2.0, num_return_sequences=2)[0]
    assert [h.tokens for h in found] == [[EOS], [1, EOS]]  # 50 tokens would score better, but two do not
    assert model.steps == 2


class TimedModel(SteppingModel):
    """A model of eos and token 1, whose probability of eos depends only on the time."""

    def __init__(self, ends: list[float]) -> None:
        self.vocab_size = 2
        self.rows_TV = torch.tensor([[end, 1 - end] for end in ends]).log()

    def start(self, batch: int) -> Tensor:
        return torch.zeros(batch, dtype=torch.int64)

    def step(self, time_B: Tensor, token_B: Tensor) -> tuple[Tensor, Tensor]:
        return self.rows_TV[time_B], time_B + 1


def test_a_hypothesis_that_can_win_with_one_more_token_is_followed() -> None:
    model = TimedModel([0.35, 0.999, 0.999])  # 2 log 0.65 > log 0.35 > 3 log 0.65
    options = {"eos": EOS, "beams": 2, "max_new_tokens": 3, "length_penalty": -1.0}
    found = beam_search(model, model.start(1), torch.tensor([[EOS]]), **options)[0]  # type: ignore[arg-type]
    assert [h.tokens for h in found] == [[1, EOS]]


def test_limits_stay_with_their_prompts_when_a_search_ends() -> None:
    model = TimedModel([0.6, 0.01, 0.99, 0.99])  # three tokens have the best mean, which the first two do not show
    options = {"eos": EOS, "beams": 3, "max_new_tokens": [1, 4], "length_penalty": 1.0}
    found = beam_search(model, model.start(2), torch.tensor([[EOS], [EOS]]), **options)  # type: ignore[arg-type]
    assert [[h.tokens for h in row] for row in found] == [[[EOS]], [[1, 1, EOS]]]


def test_no_prompt_is_stepped_beyond_its_limit() -> None:
    model = TableModel(9, 3, sharpness=1.0)
    first_B1 = torch.tensor([[1], [2], [3]])
    limits = [1, 4, 2]
    found = beam_search(model, model.start(3), first_B1, eos=None, beams=2, max_new_tokens=limits, length_penalty=0.0)
    assert [len(hypotheses[0].tokens) for hypotheses in found] == limits
    assert model.rows == 3 + 2 * (2 + 1 + 1)  # the prompts, then two rows for each prompt that continues


class HalfPrecisionTable(TableModel):
    """Predicts in half precision."""

    def _row(self, hash_B: Tensor) -> Tensor:
        return super()._row(hash_B).bfloat16()


def test_half_precision_predictions_are_summed_in_single_precision() -> None:
    model = HalfPrecisionTable(50, 6)
    options = {"eos": None, "beams": 3, "max_new_tokens": 30, "length_penalty": 0.0}
    best = beam_search(model, model.start(1), torch.tensor([[EOS]]), **options)[0][0]  # type: ignore[arg-type]
    exact = float(model.log_probs(torch.tensor([best.tokens])).double().sum())
    assert math.isclose(best.log_prob, exact, abs_tol=1e-4)


def test_no_prompts_give_no_hypotheses() -> None:
    assert search(TableModel(3), batch=0, beams=2, max_new_tokens=4) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 0}, "beams is 0; expected at least 1"),
        (
            {"beams": 2, "num_return_sequences": 3},
            "num_return_sequences is 3; expected 1 to 2, the width of the beam: widen the beam for more",
        ),
        (
            {"beams": 2, "length_penalty": math.nan},
            "length_penalty is nan; expected a number from -10 to 10 (0: no penalty)",
        ),
        ({"beams": 2, "max_new_tokens": 0}, "max_new_tokens is 0; expected at least 1"),
        ({"beams": 2, "max_new_tokens": [-3]}, "max_new_tokens is -3; expected at least 1"),
        (
            {"beams": 2, "max_new_tokens": [5, 6, 7]},
            "max_new_tokens has 3 values for 1 prompts; give one value, or one per prompt",
        ),
    ],
)
def test_wrong_options_raise_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        search(TableModel(3), **{"max_new_tokens": 4, **options})
    assert str(caught.value) == message


# Against transformers


@pytest.mark.parametrize("penalty", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(("width", "returned"), [(2, 2), (4, 1), (4, 3), (5, 5)])
def test_it_finds_the_same_hypotheses_as_transformers(width: int, returned: int, penalty: float) -> None:
    lengths = set()
    for seed in range(3):
        model = marian(seed)
        torch.manual_seed(seed)
        mask_BS = (torch.arange(9) < torch.tensor([[9], [4], [7], [1], [5], [9]])).long()
        source_BS = torch.randint(2, 60, (6, 9)).masked_fill(mask_BS == 0, PAD)
        theirs = model.generate(
            input_ids=source_BS, attention_mask=mask_BS, num_beams=width, do_sample=False, early_stopping=False,
            length_penalty=penalty, num_return_sequences=returned, max_new_tokens=12, use_cache=False,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        ours = HuggingFaceStepper(model)
        with torch.inference_mode():
            state = ours.start((source_BS, mask_BS))
        found = beam_search(
            ours, state, torch.full((6, 1), START), eos=EOS, beams=width, max_new_tokens=12, length_penalty=penalty,
            num_return_sequences=returned,
        )  # fmt: skip
        flat = [hypothesis for hypotheses in found for hypothesis in hypotheses]
        assert [h.tokens for h in flat] == [until_eos(tokens[1:]) for tokens in theirs.sequences.tolist()]
        assert [h.score for h in flat] == pytest.approx(theirs.sequences_scores.tolist(), abs=1e-4)
        lengths |= {len(h.tokens) for h in flat}
    assert len(lengths) > 2  # the searches end at different lengths


def test_a_power_that_is_no_float32_is_infinite() -> None:
    search_ = beam._Beam(torch.zeros(1, 4), EOS, 2, [9_000], 10.0, 1)
    assert search_.max_divisor_A.tolist() == [math.inf]
