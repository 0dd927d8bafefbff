"""Choices inside the engine of recurrences against those of the general decoders: the same tokens and numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from builders import small_model, small_translator, some_source
from chainrule.base.modes import evaluating
from chainrule.decoding import Greedy, generate
from chainrule.engines.decode import screening
from chainrule.engines.decode.recurrent import RecurrentState
from chainrule.layers.recurrent.stack import Recurrence
from engines.decode.test_recurrent import DECODERS, KINDS
from engines.decode.test_search import EOS, General, check_same, search, sharpened

FORMS: list[dict[str, Any]] = [
    {"hidden": 20, "embedding": 20},
    {"hidden": 33, "embedding": 12, "layers": 3},  # a bridge to the tied embedding
    {"hidden": 16, "embedding": 40, "layers": 1, "tied": False},
]


def check_greedy(model: Any) -> None:
    for eos in (None, 0, 2):
        for prompt in ([], [3, 1, 2]):
            options: Any = {"eos": eos, "bos": EOS, "max_new_tokens": 37, "choose": Greedy()}
            prompt_T = torch.tensor(prompt, dtype=torch.int64)
            (found,), (expected,) = (generate(one, prompt_T, **options) for one in (model, General(model)))
            assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_chunks_are_greedy_steps(kind: str, form: dict[str, Any], precision: str) -> None:
    for seed in range(2):
        check_greedy(sharpened(small_model(kind, **form), seed, precision))


def test_greedy_chunks_of_a_gru_that_resets_after_the_product() -> None:
    model = small_model("gru", hidden=20, embedding=20)
    model.features.recurrence = Recurrence("gru", 20, 20, 2, reset="after")
    check_greedy(sharpened(model, 3))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_screened_words_are_those_of_greedy_steps(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening, "SCREENED_WEIGHTS", 0)
    check_greedy(sharpened(small_model(kind, hidden=24, embedding=24), seed))


@pytest.mark.parametrize("count", [6, 7])  # the last step was taken backwards, or forwards
@pytest.mark.parametrize("kind", KINDS)
def test_a_greedy_chunk_leaves_the_state_of_its_steps(kind: str, count: int) -> None:
    model = sharpened(small_model(kind, hidden=20), 1)
    with evaluating(model):
        _, before = model.prefill(model.start(1), torch.tensor([[EOS, 3]]))
        tokens, after = model.continue_greedily(before, torch.tensor([5]), count, None)
        again, _ = model.continue_greedily(before, torch.tensor([5]), count, None)  # the old state is as it was
        by_steps = before
        for token in [5, *tokens[:-1]]:
            _, by_steps = model.step(by_steps, torch.tensor([token]))
        assert list(tokens) == list(again)
        assert len(tokens) == count
        assert (after.features.numbers_RX == by_steps.features.numbers_RX).all()


def test_other_output_layers_are_left_to_the_decoders() -> None:
    model = small_model("lstm", "adaptive").eval()
    with torch.inference_mode():
        state = model.start(1)
        assert isinstance(state.features, RecurrentState)
        assert model.continue_greedily(state, torch.tensor([1]), 4, None) is None
        assert model.best_continuations(state, torch.tensor([1]), torch.zeros(1, 1), 4) is None


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("decoder", DECODERS, ids=str)
def test_beams_of_translators_are_those_of_beam_search(decoder: tuple[str, dict[str, Any]], precision: str) -> None:
    name, form = decoder
    for beams in (1, 4):
        model = sharpened(small_translator(name, **form), beams, precision)
        with torch.inference_mode():
            state = model.start(some_source([5, 2, 7], padding=2))
        options = {"length_penalty": 0.5, "num_return_sequences": min(beams, 2)}
        check_same(*(search(one, state, 3, beams, **options) for one in (model, General(model))))


@pytest.mark.parametrize("kind", KINDS)
def test_beams_of_language_models_are_those_of_beam_search(kind: str) -> None:
    for seed in range(2):
        model = sharpened(small_model(kind, hidden=20, embedding=12), seed)
        with torch.inference_mode():
            state = model.start(4)
        check_same(*(search(one, state, 4, 3) for one in (model, General(model))))
