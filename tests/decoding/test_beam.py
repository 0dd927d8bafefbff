"""Beam search against exhaustive enumeration, a plain Python beam, and greedy search."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from chainrule.decoding import Greedy, Hypothesis, beam_search, generate
from chainrule.errors import ConfigError
from toy import PrefillingTable, TableModel

EOS = 0


def every_sequence(vocab: int, limit: int) -> list[list[int]]:
    """All ways to go on: up to the first eos, or cut at the limit."""
    found = []
    for length in range(1, limit + 1):
        for body in itertools.product([v for v in range(vocab) if v != EOS], repeat=length - 1):
            last = range(vocab) if length == limit else [EOS]
            found += [[*body, token] for token in last]
    return found


def exhaustive(
    model: TableModel, prompt: list[int], limit: int, penalty: float
) -> list[tuple[list[int], float, float]]:
    """Every sequence with its log-probability and score, the best first, each scored by a walk of its own."""
    scored = []
    for tokens in every_sequence(model.vocab_size, limit):
        log_probs_1T = model.log_probs(torch.tensor([[*prompt, *tokens]]))
        log_prob = float(log_probs_1T[0, len(prompt) :].double().sum())
        scored.append((tokens, log_prob, log_prob / len(tokens) ** penalty))
    return sorted(scored, key=lambda entry: -entry[2])


def plain_beam(model: TableModel, places: int, limit: int, penalty: float, wanted: int) -> list[list[int]]:
    """The documented search, one hypothesis at a time, without early leaving."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    done: list[tuple[float, list[int]]] = []
    for length in range(1, limit + 1):
        grown = []
        for log_prob, tokens in live:
            state = model.start(1)
            for token in [EOS, *tokens]:
                row_1V, state = model.step(state, torch.tensor([token]))
            grown += [(log_prob + value, [*tokens, token]) for token, value in enumerate(row_1V[0].tolist())]
        grown.sort(key=lambda entry: -entry[0])
        grown = grown[: places - len(done)]
        ended = [entry for entry in grown if entry[1][-1] == EOS or length == limit]
        done += [(log_prob / length**penalty, tokens) for log_prob, tokens in ended]
        live = [entry for entry in grown if entry not in ended]
    return [tokens for _, tokens in sorted(done, key=lambda entry: -entry[0])[:wanted]]


def search(model: TableModel, batch: int = 1, **options: object) -> list[list[Hypothesis]]:
    first_B1 = torch.full((batch, 1), EOS)
    return beam_search(model, model.start(batch), first_B1, eos=EOS, **options)  # type: ignore[arg-type]


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


def test_full_width_returns_every_sequence_when_asked() -> None:
    model = TableModel(3, 11)
    expected = exhaustive(model, [], 3, 1.0)
    found = search(model, beams=40, max_new_tokens=3, length_penalty=1.0, num_return_sequences=40)[0]
    assert [h.tokens for h in found] == [tokens for tokens, _, _ in expected]


@pytest.mark.parametrize("penalty", [0.0, 1.0, -1.0])
@pytest.mark.parametrize("seed", range(6))
def test_width_one_is_greedy(seed: int, penalty: float) -> None:
    model = TableModel(5, seed)
    greedy_T = generate(model, eos=EOS, bos=EOS, max_new_tokens=12, choose=Greedy())[0]
    found = search(model, beams=1, max_new_tokens=12, length_penalty=penalty)[0]
    assert [h.tokens for h in found] == [greedy_T.tolist()]


@pytest.mark.parametrize("penalty", [0.0, 0.7, 1.5, -0.7])
@pytest.mark.parametrize(("places", "wanted"), [(2, 1), (3, 3), (5, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_leaving_early_changes_nothing(seed: int, places: int, wanted: int, penalty: float) -> None:
    model = TableModel(6, seed, sharpness=6.0)
    options = {"beams": places, "max_new_tokens": 8, "length_penalty": penalty, "num_return_sequences": wanted}
    found = search(model, **options)[0]
    assert [h.tokens for h in found] == plain_beam(model, places, 8, penalty, wanted)


def test_a_batch_is_each_start_alone() -> None:
    prompts_BT = torch.tensor([[EOS, 1], [EOS, 2], [EOS, 3], [2, 2], [4, 1]])
    options = {"eos": EOS, "beams": 4, "max_new_tokens": 9, "length_penalty": 0.8, "num_return_sequences": 3}
    model = TableModel(7, 5)
    together = beam_search(model, model.start(5), prompts_BT, **options)  # type: ignore[arg-type]
    for prompt_T, found in zip(prompts_BT, together, strict=True):
        assert beam_search(model, model.start(1), prompt_T[None], **options)[0] == found  # type: ignore[arg-type]


def test_a_prompt_is_read_first_either_way() -> None:
    prompt = [2, 1, 2]
    options = {"eos": EOS, "beams": 64, "max_new_tokens": 3, "num_return_sequences": 5}
    for model in (TableModel(3, 8), PrefillingTable(3, 8)):
        found = beam_search(model, model.start(1), torch.tensor([[EOS, *prompt]]), **options)[0]  # type: ignore[arg-type]
        assert [h.tokens for h in found] == [tokens for tokens, _, _ in exhaustive(model, prompt, 3, 0.0)[:5]]


def test_without_eos_every_hypothesis_has_the_full_length() -> None:
    model = TableModel(3, 2)
    found = beam_search(
        model, model.start(1), torch.tensor([[EOS]]), eos=None, beams=81, max_new_tokens=4, num_return_sequences=81
    )[0]
    assert sorted(h.tokens for h in found) == [list(tokens) for tokens in itertools.product(range(3), repeat=4)]
    assert math.isclose(sum(math.exp(h.log_prob) for h in found), 1.0, abs_tol=1e-5)


def test_eos_ends_a_hypothesis_and_is_part_of_it() -> None:
    found = search(TableModel(4, 3), beams=30, max_new_tokens=6, num_return_sequences=30)[0]
    assert any(h.tokens[-1] == EOS for h in found)
    assert all(EOS not in h.tokens[:-1] for h in found)
    assert all(h.tokens[-1] == EOS or len(h.tokens) == 6 for h in found)


class Forked(TableModel):
    """After any token only token 1 or eos can come, eos first of all: most of the vocabulary is impossible."""

    def _row(self, hash_B: torch.Tensor) -> torch.Tensor:
        row_V = torch.tensor([0.75, 0.25, 0.0, 0.0]).log()
        return row_V.expand(len(hash_B), 4)


def test_impossible_tokens_are_never_hypotheses() -> None:
    found = search(Forked(4), beams=9, max_new_tokens=3, num_return_sequences=9)[0]
    assert [h.tokens for h in found] == [[EOS], [1, EOS], [1, 1, EOS], [1, 1, 1]]
    assert math.isclose(sum(math.exp(h.log_prob) for h in found), 1.0, abs_tol=1e-6)


def test_settled_starts_are_not_stepped_any_more() -> None:
    model = Forked(4)
    search(model, batch=3, beams=4, max_new_tokens=50)
    assert model.steps == 1  # the best hypothesis, eos at once, cannot be reached by any other


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"beams": 0}, "the beam has 0 places, but at least 1 is needed."),
        (
            {"beams": 2, "num_return_sequences": 3},
            "num_return_sequences is 3, but a beam of 2 can give 1 to 2; widen the beam for more.",
        ),
        (
            {"beams": 2, "length_penalty": math.nan},
            "length_penalty is nan, but it must be from -10 to 10; 0 means none.",
        ),
        ({"beams": 2, "max_new_tokens": 0}, "max_new_tokens is 0, but at least 1 token must be asked for."),
    ],
)
def test_wrong_options_have_their_sentence(options: dict[str, float], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        search(TableModel(3), **{"max_new_tokens": 4, **options})
    assert str(caught.value) == sentence
