"""Speculative decoding: texts with and without drafts are the same, token for token, whatever is drafted.

Models are in double precision where texts are compared: in single precision a pass over several tokens and a step may
differ in the last bit, which can decide a near tie differently.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from builders import (
    LANGUAGE_MODELS,
    TRANSLATORS,
    rows_by_steps,
    small_model,
    small_translator,
    some_source,
    some_tokens,
)
from chainrule.decoding import (
    Chooser,
    Drafter,
    DraftStatistics,
    FallbackDrafter,
    GivenTextDrafter,
    Greedy,
    LookupDrafter,
    Sample,
    StepperDrafter,
    beam_search,
    generate,
    generate_with_drafts,
    stream_with_drafts,
)
from chainrule.decoding.speculative import MAX_REREAD
from chainrule.errors import ConfigError
from toy import TableModel, TablePrefix, _mix

EOS = 0
WINDOWED = [("transformer", {"positions": kind, "context": 7}) for kind in ("rotary", "sinusoidal", "learned", "none")]
KINDS: list[tuple[str, dict[str, Any]]] = [*((name, {}) for name in (*LANGUAGE_MODELS, *TRANSLATORS)), *WINDOWED]


class ParallelTable(TableModel):
    """A table model that reads several tokens in one pass and records the number of tokens of each pass."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.passes: list[int] = []

    def extend(self, state: TablePrefix, tokens_BT: Tensor) -> tuple[Tensor, TablePrefix]:
        self.passes.append(tokens_BT.shape[1])
        hash_B, rows = state.hash_B, []
        for token_B in tokens_BT.unbind(1):
            hash_B = _mix(hash_B, token_B)
            rows.append(self._row(hash_B))
        return torch.stack(rows, 1), TablePrefix(hash_B, None)

    def step(self, state: TablePrefix, token_B: Tensor) -> tuple[Tensor, TablePrefix]:
        self.passes.append(1)
        return super().step(state, token_B)


class RandomDrafter:
    """Drafts random tokens, any number of them, including ids that are not in the vocabulary."""

    def __init__(self, seed: int, size: int) -> None:
        self.random, self.size = random.Random(seed), size

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        return [self.random.randrange(-1, self.size + 1) for _ in range(self.random.randint(0, count))]


class OracleDrafter:
    """Knows the text that will be generated; each token is wrong with a given probability."""

    def __init__(self, text: list[int], prompt: int, seed: int, wrong: float, size: int) -> None:
        self.text, self.prompt, self.wrong, self.size = text, prompt, wrong, size
        self.random = random.Random(seed)

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        assert list(tokens[self.prompt :]) == self.text[: len(tokens) - self.prompt], "the text so far is different"
        assert count >= 1
        following = self.text[len(tokens) - self.prompt :][:count]
        return [self.random.randrange(self.size) if self.random.random() < self.wrong else one for one in following]


@cache
def model_of(kind: int, seed: int) -> Any:
    name, options = KINDS[kind]
    with torch.inference_mode(False):  # cached for tests in another mode too
        model = small_model(name, seed=seed, **options)
        return model.double() if isinstance(model, nn.Module) else model


# Passes and rewinding


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=lambda kind: str(KINDS[kind]))
@torch.inference_mode()
def test_a_pass_predicts_the_same_as_steps(kind: int) -> None:
    """Also after other passes, and where the window is exceeded within a pass."""
    model, tokens_BT = model_of(kind, 0), some_tokens(2, 17)
    tokens_BT[:, 0] = EOS
    state, rows = model.start(2), []
    for part_BT in tokens_BT.split([1, 3, 9, 2, 2], 1):
        row_BTV, state = model.extend(state, part_BT)
        rows.append(row_BTV)
    torch.testing.assert_close(torch.cat(rows, 1), rows_by_steps(model, tokens_BT[:, 1:]))


@torch.inference_mode()
def test_a_pass_after_scoring_reads_the_last_scored_token_first() -> None:
    for name in ("transformer", "lstm"):
        model, tokens_BT = small_model(name), some_tokens(2, 8)
        _, state = model.score(tokens_BT[:, :5], model.start(2))
        row_BTV, _ = model.extend(state, tokens_BT[:, 5:])
        torch.testing.assert_close(row_BTV, rows_by_steps(model, tokens_BT)[:, 6:])


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=lambda kind: str(KINDS[kind]))
@torch.inference_mode()
def test_a_rewound_state_equals_one_that_never_read_the_tokens(kind: int) -> None:
    model = model_of(kind, 1)
    tokens_BT, others_BT = some_tokens(2, 20), some_tokens(2, 20, seed=1)
    if model.rewindable(model.start(2)) is None:
        pytest.skip("the model cannot rewind")
    for before, read, back in [(1, 4, 2), (2, 3, 3), (8, 2, 1), (9, 1, 1)]:
        _, state = model.extend(model.start(2), tokens_BT[:, :before])
        if read > model.rewindable(state):
            continue
        kept_BTV, longer = model.extend(state, tokens_BT[:, before : before + read])
        row_BTV, _ = model.extend(model.rewind(longer, back), others_BT[:, :3])
        whole_BT = torch.cat([tokens_BT[:, : before + read - back], others_BT[:, :3]], 1)
        torch.testing.assert_close(row_BTV, rows_after(model, whole_BT)[:, -3:])
        # Rewinding does not change the longer state.
        further_BTV, _ = model.extend(longer, others_BT[:, 3:5])
        torch.testing.assert_close(
            torch.cat([kept_BTV, further_BTV], 1),
            rows_after(model, torch.cat([tokens_BT[:, : before + read], others_BT[:, 3:5]], 1))[:, before:],
        )


def rows_after(model: Any, tokens_BT: Tensor) -> Tensor:
    """log p(. | prefix) after each token, by steps, BTV."""
    state, rows = model.start(len(tokens_BT)), []
    for token_B in tokens_BT.unbind(1):
        row_BV, state = model.step(state, token_B)
        rows.append(row_BV)
    return torch.stack(rows, 1)


# The text is unchanged


def drafter_of(kind: str, text: list[int], prompt: list[int], seed: int, model: Any) -> Drafter:
    size = model.vocab_size
    if kind == "model":
        other = model_of(LANGUAGE_MODELS.index("lstm"), seed)
        return StepperDrafter(other, other.start(1))
    if kind == "counts":
        counted = model_of(LANGUAGE_MODELS.index("ngram"), seed)
        return FallbackDrafter(LookupDrafter(shortest=3), StepperDrafter(counted, counted.start(1)))
    if kind == "lookup":
        return LookupDrafter(longest=4, shortest=1)
    if kind == "given":
        shortened = [one for one in text if one % 5]
        return GivenTextDrafter(shortened, prompt=1 + len(prompt))
    if kind == "random":
        return RandomDrafter(seed, size)
    return OracleDrafter(text, 1 + len(prompt), seed, {"right": 0.0, "mostly right": 0.2, "wrong": 1.0}[kind], size)


@settings(max_examples=100, deadline=None)
@given(
    kind=st.integers(0, len(KINDS) - 1),
    seed=st.integers(0, 2),
    prompt=st.lists(st.integers(0, 12), max_size=9),
    drafts=st.sampled_from(["right", "mostly right", "wrong", "random", "lookup", "given", "model", "counts"]),
    choice=st.sampled_from(
        [{}, {"temperature": 1.0}, {"temperature": 0.5, "top_k": 4}, {"top_p": 0.8}, {"min_p": 0.2}]
    ),
    limit=st.integers(1, 22),
    draft_tokens=st.integers(1, 9),
    stops=st.booleans(),
)
def test_drafts_do_not_change_the_text(
    kind: int,
    seed: int,
    prompt: list[int],
    drafts: str,
    choice: dict[str, Any],
    limit: int,
    draft_tokens: int,
    stops: bool,
) -> None:
    model = model_of(kind, seed)
    limit = min(limit, 23 - len(prompt))  # the translators' context is 24
    eos = EOS if stops else None
    generators = [torch.Generator().manual_seed(seed) for _ in range(2)]
    choosers: list[Chooser] = [Sample(**choice, generator=one) if choice else Greedy() for one in generators]
    prompt_T = torch.tensor(prompt, dtype=torch.int64)
    text = generate(model, prompt_T, eos=eos, bos=EOS, max_new_tokens=limit, choose=choosers[0])[0].tolist()
    drafter = drafter_of(drafts, text, prompt, seed, model)
    found, statistics = generate_with_drafts(
        model, model.start(1), torch.tensor([[EOS, *prompt]]), drafter, eos, limit, choosers[1], draft_tokens
    )
    assert found == text
    assert statistics.emitted == len(text)
    chosen = statistics.passes + statistics.accepted
    assert chosen == statistics.emitted or (stops and chosen == statistics.emitted + 1)  # nothing follows a drafted eos
    assert statistics.accepted <= statistics.proposed
    assert generators[0].get_state().equal(generators[1].get_state())  # so later samples are the same too
    if drafts == "right" and not stops and model.__class__.__name__ != "ConditionedModel":
        assert statistics.accepted == statistics.proposed


@pytest.mark.parametrize("name", TRANSLATORS)
def test_translations_equal_those_of_greedy_search(name: str) -> None:
    model = small_translator(name, seed=3).double()
    smaller = small_translator("seq2seq-rnn", seed=4).double()
    counted = small_model("ngram")
    for row in range(4):
        source = some_source([3 + row], seed=row, size=13)
        prompt_1T = torch.tensor([[EOS]])
        (best,) = beam_search(model, model.start(source), prompt_1T, eos=EOS, beams=1, max_new_tokens=20)
        for drafter in (
            StepperDrafter(smaller, smaller.start(source), window=8),
            StepperDrafter(counted, counted.start(1)),
            LookupDrafter(source.tokens_BS[0].tolist()),
            GivenTextDrafter(best[0].tokens),
        ):
            tokens, statistics = generate_with_drafts(model, model.start(source), prompt_1T, drafter, EOS, 20)
            assert tokens == best[0].tokens
        assert statistics.acceptance == 1  # the last draft is the text itself
        assert statistics.passes <= 1 + len(tokens) // 9


# The distribution is unchanged


def p_value(counts: Counter[tuple[int, ...]], shares: dict[tuple[int, ...], float]) -> float:
    """The p-value of counts under given probabilities (chi-square test)."""
    total = sum(counts.values())
    statistic = sum((counts[cell] - total * share) ** 2 / (total * share) for cell, share in shares.items())
    freedom = torch.tensor((len(shares) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)))


def shares_by_enumeration(model: TableModel, length: int, temperature: float) -> dict[tuple[int, ...], float]:
    """The probability of every sequence of `length` tokens."""
    shares = {}
    for cell in itertools.product(range(model.vocab_size), repeat=length):
        rows_TV = rows_after(model, torch.tensor([[EOS, *cell]]))[0].double()
        tempered_TV = (rows_TV / temperature).softmax(1)
        shares[cell] = float(torch.stack([tempered_TV[t, token] for t, token in enumerate(cell)]).prod())
    return shares


@pytest.mark.parametrize(("drafts", "temperature"), [("random", 1.0), ("the best", 0.5)])
def test_sampled_texts_follow_the_distribution_of_the_model(drafts: str, temperature: float) -> None:
    model, other = ParallelTable(3, 5, sharpness=1.0), TableModel(3, 6)
    shares = shares_by_enumeration(model, 3, temperature)
    assert sum(shares.values()) == pytest.approx(1)
    generator = torch.Generator().manual_seed(7)
    choose = Sample(temperature, generator=generator)
    counts: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for number in range(900):
        if drafts == "random":
            drafter: Drafter = RandomDrafter(number, 3)
        else:
            drafter = StepperDrafter(model, model.start(1), min_log_prob=-99.0)
        tokens, statistics = generate_with_drafts(
            model, model.start(1), torch.tensor([[EOS]]), drafter, None, 3, choose
        )
        counts[tuple(tokens)] += 1
        accepted += statistics.accepted
    assert accepted > 200
    assert p_value(counts, shares) > 0.01
    assert p_value(counts, shares_by_enumeration(other, 3, temperature)) < 1e-9  # the test distinguishes models


# Cost


def test_right_drafts_take_the_fewest_possible_passes() -> None:
    model = ParallelTable(9, 2)
    text = generate(model, eos=None, bos=EOS, max_new_tokens=50, choose=Greedy())[0].tolist()
    model.passes.clear()
    drafter = OracleDrafter(text, 1, 0, 0.0, 9)
    tokens, statistics = generate_with_drafts(model, model.start(1), torch.tensor([[EOS]]), drafter, None, 50)
    assert tokens == text
    assert statistics == DraftStatistics(6, 44, 44, 50, statistics.seconds)
    assert model.passes == [9, 9, 9, 9, 9, 5]
    assert statistics.acceptance == 1
    assert statistics.tokens_per_pass == pytest.approx(50 / 6)


def test_drafts_grow_while_they_are_right_and_shrink_otherwise() -> None:
    asked: list[int] = []

    class ImprovingDrafter(OracleDrafter):
        def propose(self, tokens: Sequence[int], count: int) -> list[int]:
            asked.append(count)
            right = super().propose(tokens, count)
            return right if len(asked) > 6 else [(one + 1) % 9 for one in right]

    model = ParallelTable(9, 2)
    text = generate(model, eos=None, bos=EOS, max_new_tokens=60, choose=Greedy())[0].tolist()
    drafter = ImprovingDrafter(text, 1, 0, 0.0, 9)
    assert generate_with_drafts(model, model.start(1), torch.tensor([[EOS]]), drafter, None, 60)[0] == text
    assert asked[:6] == [8, 5, 3, 2, 2, 2]
    assert asked[6:11] == [2, 4, 6, 8, 8]
    assert max(asked) == 8


class WorstDrafter:
    """Drafts the least probable token of the table model."""

    asked = 0

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        self.asked += 1
        return [int(rows_after(TableModel(9, 2), torch.tensor([list(tokens)]))[0, -1].argmin())] * count


def test_a_model_without_rewind_rereads_a_limited_number_of_tokens() -> None:
    model = ParallelTable(9, 2)
    drafter = WorstDrafter()
    tokens, statistics = generate_with_drafts(model, model.start(1), torch.tensor([[EOS]]), drafter, None, 61)
    assert tokens == generate(model, eos=None, bos=EOS, max_new_tokens=61, choose=Greedy())[0].tolist()
    assert statistics.accepted == 0
    assert statistics.passes == 61
    assert max(model.passes) <= MAX_REREAD + 8
    assert drafter.asked == 25 + 3  # 25 drafts without success, then one after 3, 6 and 12 passes each


def test_tokens_are_yielded_at_once_and_the_callers_mode_is_kept() -> None:
    model, statistics = ParallelTable(9, 2), DraftStatistics()
    options: dict[str, Any] = {"eos": None, "max_new_tokens": 30, "choose": Greedy(), "statistics": statistics}
    tokens = stream_with_drafts(model, model.start(1), torch.tensor([[EOS, 3]]), RandomDrafter(0, 9), **options)
    next(tokens)
    assert statistics.passes == 1
    assert not torch.is_inference_mode_enabled()
    assert len(list(tokens)) == 29
    assert statistics.emitted == 30
    assert statistics.seconds > 0


def test_statistics_without_drafts_are_zero_and_can_be_added() -> None:
    assert (DraftStatistics().acceptance, DraftStatistics().tokens_per_pass) == (0, 0)
    total = DraftStatistics(1, 2, 1, 2, 0.5)
    total.add(DraftStatistics(2, 4, 3, 5, 0.25))
    assert total == DraftStatistics(3, 6, 4, 7, 0.75)


# Errors


def test_wrong_options_raise_an_error() -> None:
    model = TableModel(3)
    options: dict[str, Any] = {"eos": 0, "max_new_tokens": 3, "choose": Greedy()}
    with pytest.raises(ConfigError) as caught:
        stream_with_drafts(model, model.start(2), torch.zeros(2, 1, dtype=torch.int64), LookupDrafter(), **options)
    assert str(caught.value) == "the prompt has 2 rows; drafts are for one sequence at a time"
    with pytest.raises(ConfigError) as caught:
        stream_with_drafts(model, model.start(1), torch.tensor([[0]]), LookupDrafter(), **options, draft_tokens=0)
    assert str(caught.value) == "draft_tokens is 0; expected at least 1: leave the draft out to have none"
    with pytest.raises(ConfigError) as caught:
        generate_with_drafts(model, model.start(1), torch.tensor([[0]]), LookupDrafter(), None, 0)
    assert str(caught.value) == "max_new_tokens is 0; expected at least 1"
