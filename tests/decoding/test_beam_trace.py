"""The trace of a beam search against a plain Python beam that keeps every candidate; observing changes nothing."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chainrule.decoding.beam import Hypothesis, beam_search
from chainrule.decoding.beam_trace import PRUNED, BeamRecorder, BeamTrace
from marian import EOS
from toy import TableModel

Entry = tuple[float, list[int]]
CLOSE = 1e-5


def traced(model: TableModel, batch: int = 1, **options: Any) -> tuple[list[list[Hypothesis]], list[BeamTrace]]:
    """A search with a recorder; its result is that without one."""
    options = {"length_penalty": 0.0, "num_return_sequences": 1, **options}
    recorder = BeamRecorder(options["beams"], options["length_penalty"])
    first_B1 = torch.arange(batch)[:, None]
    found = beam_search(model, model.start(batch), first_B1, eos=EOS, observer=recorder, **options)
    assert found == beam_search(model, model.start(batch), first_B1, eos=EOS, **options)
    return found, recorder.traces(batch)


def tokens_of(trace: BeamTrace, place: int | None) -> list[int]:
    """The tokens from the prompt to a node."""
    if place is None:
        return []
    return [*tokens_of(trace, trace.nodes[place].parent), trace.nodes[place].token]


def paths(trace: BeamTrace) -> dict[tuple[int, ...], tuple[str, float]]:
    """Fate and log p of every candidate, by its tokens."""
    return {tuple(tokens_of(trace, i)): (node.fate, node.log_prob) for i, node in enumerate(trace.nodes)}


def plain(model: TableModel, prompt: int, width: int, limit: int) -> dict[tuple[int, ...], tuple[str, float]]:
    """The same by lists of hypotheses, for length penalty 0 and as many results as beams."""
    live: list[Entry] = [(0.0, [])]
    fates: dict[tuple[int, ...], tuple[str, float]] = {}
    finished: list[float] = []
    for length in range(1, limit + 1):
        grown = []
        for log_prob, tokens in live:
            state = model.start(1)
            for token in [prompt, *tokens]:
                row_1V, state = model.step(state, torch.tensor([token]))
            grown += [(log_prob + value, [*tokens, token]) for token, value in enumerate(row_1V[0].tolist())]
        grown.sort(reverse=True)
        assume(all(one[0] - two[0] > CLOSE for one, two in pairwise(grown[: 2 * width + 1])))
        best = grown[: 2 * width]
        open_ones = [entry for entry in best if entry[1][-1] != EOS and length < limit]
        for place, (log_prob, tokens) in enumerate(best):
            if (log_prob, tokens) in open_ones:
                fate = "kept" if open_ones.index((log_prob, tokens)) < width else "outranked"
            else:
                fate = "finished" if place < width else "ended-late"
                finished += [log_prob] if place < width else []
            fates[tuple(tokens)] = (fate, log_prob)
        live = open_ones[:width]
        settled = len(finished) >= width and live and live[0][0] <= sorted(finished, reverse=True)[width - 1]
        if settled or not live:
            fates |= {tuple(tokens): ("stopped", log_prob) for log_prob, tokens in live}
            break
    return fates


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(1, 6), st.integers(3, 7))
def test_every_candidate_has_the_fate_of_the_plain_algorithm(seed: int, width: int, limit: int, vocab: int) -> None:
    model = TableModel(vocab, seed)
    _, (trace,) = traced(model, beams=width, max_new_tokens=limit, num_return_sequences=width)
    expected = plain(model, 0, width, limit)
    found = paths(trace)
    assert {key: fate for key, (fate, _) in found.items()} == {key: fate for key, (fate, _) in expected.items()}
    for key, (_, log_prob) in expected.items():
        assert math.isclose(found[key][1], log_prob, abs_tol=1e-4)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("vocab", [6, 2500])  # the second is divided into buckets
def test_ranks_are_the_order_of_the_results(penalty: float, vocab: int) -> None:
    model = TableModel(vocab, 3)
    options: dict[str, Any] = {"beams": 4, "max_new_tokens": 8, "length_penalty": penalty, "num_return_sequences": 4}
    found, traces = traced(model, batch=3, **options)
    for hypotheses, trace in zip(found, traces, strict=True):
        ranked = sorted((node.rank, place) for place, node in enumerate(trace.nodes) if node.rank is not None)
        assert [rank for rank, _ in ranked] == list(range(1, len(ranked) + 1))
        for hypothesis, (_, place) in zip(hypotheses, ranked, strict=False):
            node = trace.nodes[place]
            assert (hypothesis.tokens, hypothesis.log_prob) == (tokens_of(trace, place), node.log_prob)
            assert hypothesis.score == node.score
        assert any(node.fate in PRUNED for node in trace.nodes)
        assert all(node.parent is None or trace.nodes[node.parent].fate == "kept" for node in trace.nodes)


def test_passes_are_the_steps_of_each_prompt() -> None:
    model = TableModel(6, 5)
    recorder = BeamRecorder(1, 1.0)
    first_B1 = torch.arange(4)[:, None]
    found = beam_search(
        model, model.start(4), first_B1, eos=EOS, beams=1, max_new_tokens=[9, 2, 5, 9], observer=recorder
    )
    assert recorder.passes(4) == [len(best[0].tokens) for best in found]  # greedy: one pass for each token
    assert len(set(recorder.passes(4))) > 1
    assert BeamRecorder(1, 1.0).passes(2) == [0, 0]
