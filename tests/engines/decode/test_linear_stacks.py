"""Compiled stacks with linear attention, `at`, `seq2seq-at` and `fat`: against torch, and what their states promise."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from builders import small_model, small_translator, some_source, some_tokens
from chainrule.base.kernels import kernels_suspended
from chainrule.base.modes import evaluating
from chainrule.base.states import join_states
from chainrule.decoding import Greedy, generate
from chainrule.engines.decode import stack as engine
from chainrule.engines.decode.linear_attention import TINY, advance_heads, map_features
from chainrule.engines.decode.past import Sums
from chainrule.engines.decode.stack import StackState
from chainrule.models.translator import ConditionedModel
from chainrule.types import Source
from engines.decode.test_search import EOS, General, check_same, search, sharpened

T = 17
FORMS: list[dict[str, Any]] = [
    {"layers": 2},
    {"decay": False, "bias": True, "tied": False},
    {"embedding": 40, "heads": 2, "layers": 2, "activation": "gelu"},  # heads of 20, which are widened to 32
    {"embedding": 64, "heads": 1, "feedforward": 48},
    {"embedding": 112, "heads": 1},  # a head of seven vectors
]
TRANSLATORS: list[tuple[str, dict[str, Any]]] = [
    ("seq2seq-at", {"decoder_layers": 2, "norm": "post", "bias": True, "tied": False}),
    ("seq2seq-at", {"decay": False, "positions": "learned"}),
    ("seq2seq-at", {"embedding": 40, "separate": True}),
    ("fat", {"decoder_layers": 2}),
    ("fat", {"direction": "left-to-right", "encoder_layers": 2, "embedding": 40, "tied": False}),
    ("fat", {"direction": "right-to-left", "embedding": 64, "heads": 1}),
    ("fat", {"skip": "always", "threshold": 100, "embedding": 112, "heads": 1}),
    ("fat", {"skip": "always", "threshold_share": 6.0, "separate": True}),
]
BOTH = [("at", FORMS[0]), ("at", FORMS[2]), *TRANSLATORS]
precisions = pytest.mark.parametrize("precision", ["float32", "int8"])
models = pytest.mark.parametrize(("name", "form"), BOTH, ids=str)
translators = pytest.mark.parametrize(("name", "form"), TRANSLATORS, ids=str)


def made(name: str, form: dict[str, Any], precision: str = "float32") -> tuple[Any, Any]:
    """A model, and what it starts three rows from: their number, or their sources."""
    if name == "at":
        model, start = small_model(name, **form), 3
    else:
        model, start = small_translator(name, **form), some_source([5, 2, 7], padding=2)
    model.precision = precision
    return model, start


def state_of(state: Any) -> StackState:
    found: StackState = state if isinstance(state, StackState) else state.features
    assert isinstance(found.past, Sums)
    return found


def by_torch(model: Any, start: Any, tokens_BT: Tensor) -> Tensor:
    with kernels_suspended(), evaluating(model):
        return model.extend(model.start(start), tokens_BT)[0]


def test_sums_are_those_of_the_formula() -> None:
    draw = np.random.default_rng(0)
    heads, width, padded, count = 3, 20, 32, 9
    X, slots = heads * padded, heads * (width + 1) * padded
    parts_THE = draw.normal(size=(3, count, heads, width)).astype(np.float32)
    decay_H = np.array([0.5, 0.9, 1.0], np.float32)
    before, after, mixed = np.zeros(slots, np.float32), np.empty(slots, np.float32), np.empty(X, np.float32)
    query_THE, key_THE = (np.where(part > 0, part + 1, np.exp(part)).astype(float) for part in parts_THE[:2])
    for t in range(count):
        wide = np.zeros((3, heads, padded), np.float32)
        wide[..., :width] = parts_THE[:, t]
        wide = wide.reshape(-1)
        map_features(wide, 0, 2 * X, width, padded)
        advance_heads(before, 0, after, 0, wide, 0, (decay_H, 0), (heads, width, padded), mixed, 0)
        before = after  # the sums may be replaced in place
        for head in range(heads):
            weight_L = [float(decay_H[head]) ** (t - i) * (query_THE[t, head] @ key_THE[i, head]) for i in range(t + 1)]
            expected_E = weight_L @ parts_THE[2, : t + 1, head].astype(float) / (sum(weight_L) + TINY)
            found_E = mixed[head * padded : head * padded + width]
            np.testing.assert_allclose(found_E, expected_E, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("output", ["softmax", "adaptive"])
def test_language_models_are_those_of_torch(form: dict[str, Any], output: str) -> None:
    model, tokens_BT = small_model("at", output, **form), some_tokens(3, T)
    exact_BTV, torch_BTV = (by_torch(one, 3, tokens_BT) for one in (copy.deepcopy(model).double(), model))
    with evaluating(model):
        state = model.start(3)
        found_BTV, after = model.extend(state, tokens_BT)
        scores_BT = model.log_probs(tokens_BT)
    assert state_of(after).predicts == (output == "softmax")
    # Both round in single precision; neither is closer to the exact numbers.
    bound = 5 * float((torch_BTV - exact_BTV).abs().max()) + 2e-5
    torch.testing.assert_close(found_BTV.double(), exact_BTV, rtol=0, atol=bound)
    with kernels_suspended(), evaluating(model):
        torch.testing.assert_close(scores_BT, model.log_probs(tokens_BT), rtol=0, atol=2 * bound)


@translators
def test_translators_are_those_of_torch(name: str, form: dict[str, Any]) -> None:
    model, source = made(name, form)
    tokens_BT = some_tokens(3, 7)
    exact_BTV, torch_BTV = (by_torch(one, source, tokens_BT) for one in (copy.deepcopy(model).double(), model))
    with evaluating(model):
        found_BTV, after = model.extend(model.start(source), tokens_BT)
        state_of(after)
        found_BTD, _ = model.read(model.start(source), tokens_BT)
        expected_BTD, _ = model.read(model.begin(source, stepping=False), tokens_BT)
    bound = 5 * float((torch_BTV - exact_BTV).abs().max()) + 5e-5
    torch.testing.assert_close(found_BTV.double(), exact_BTV, rtol=0, atol=bound)
    torch.testing.assert_close(found_BTD, expected_BTD, rtol=1e-4, atol=2e-4)


@models
@precisions
def test_how_tokens_are_divided_into_calls_changes_nothing(
    name: str, form: dict[str, Any], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model, start), tokens_BT = made(name, form, precision), some_tokens(3, T)
    with evaluating(model):
        at_once_BTV, _ = model.extend(model.start(start), tokens_BT)
        state, rows = model.start(start), []
        for token_B in tokens_BT.unbind(1):
            log_probs_BV, state = model.step(state, token_B)
            rows.append(log_probs_BV)
        last_BV, _ = model.prefill(model.start(start), tokens_BT)
        alone = 1 if name == "at" else Source(*(part[1:2] for part in start))
        alone_1TV, _ = model.extend(model.start(alone), tokens_BT[1:2])
        monkeypatch.setattr(engine, "ITEMS_PER_CALL", 8)
        divided_BTV, _ = model.extend(model.start(start), tokens_BT)
        divided_BV, _ = model.prefill(model.start(start), tokens_BT)
    assert torch.equal(torch.stack(rows, 1), at_once_BTV)
    assert torch.equal(last_BV, at_once_BTV[:, -1])
    assert torch.equal(alone_1TV[0], at_once_BTV[1])
    assert torch.equal(divided_BTV, at_once_BTV)
    assert torch.equal(divided_BV, last_BV)


@models
def test_rows_are_selected_and_joined_and_states_stay_as_they_are(name: str, form: dict[str, Any]) -> None:
    (model, start), tokens_BT = made(name, form), some_tokens(3, 9)
    with evaluating(model):
        _, read = model.prefill(model.start(start), tokens_BT[:, :4])
        expected_BTV, _ = model.extend(read, tokens_BT[:, 4:])
        rows_K = torch.tensor([2, 0, 2, 1])
        found_KTV, _ = model.extend(model.select(read, rows_K), tokens_BT[rows_K, 4:])
        parts = [model.select(read, torch.tensor([row])) for row in range(3)]
        _, parts[1] = model.step(parts[1], tokens_BT[1:2, 4])  # of another length
        joined_BV, _ = model.step(join_states(parts), torch.stack([tokens_BT[0, 4], tokens_BT[1, 5], tokens_BT[2, 4]]))
        again_BTV, _ = model.extend(read, tokens_BT[:, 4:])
        assert model.rewindable(read) is None
    assert torch.equal(found_KTV, expected_BTV[rows_K])
    assert torch.equal(joined_BV, torch.stack([expected_BTV[0, 0], expected_BTV[1, 1], expected_BTV[2, 0]]))
    assert torch.equal(again_BTV, expected_BTV)


@pytest.mark.parametrize("name", ["at", "seq2seq-at", "fat"])
@precisions
def test_greedy_chunks_are_greedy_steps(name: str, precision: str) -> None:
    for seed in range(3):
        translator = name != "at"
        model = sharpened(small_translator(name) if translator else small_model(name, layers=2), seed, precision)
        one = ConditionedModel(model, some_source([5])) if translator else model
        for eos in (None, 0, 2):
            for prompt in ([], [3, 1, 2]):
                options: Any = {"eos": eos, "bos": EOS, "max_new_tokens": 18, "choose": Greedy()}
                prompt_T = torch.tensor(prompt, dtype=torch.int64)
                (found,), (expected,) = (generate(each, prompt_T, **options) for each in (one, General(one)))
                assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["at", "seq2seq-at", "fat"])
def test_a_greedy_chunk_leaves_the_state_of_its_steps(name: str) -> None:
    model, start = made(name, {})
    sharpened(model, 1)
    first = 1 if name == "at" else Source(*(part[:1] for part in start))
    with evaluating(model):
        _, before = model.prefill(model.start(first), torch.tensor([[EOS, 3]]))
        tokens, after = model.continue_greedily(before, torch.tensor([5]), 7, None)
        again, _ = model.continue_greedily(before, torch.tensor([5]), 7, None)  # the old state is as it was
        by_steps = before
        for token in [5, *tokens[:-1]]:
            _, by_steps = model.step(by_steps, torch.tensor([token]))
    assert list(tokens) == list(again)
    assert len(tokens) == 7
    assert (state_of(after).past.sums_TX == state_of(by_steps).past.sums_TX).all()  # type: ignore[attr-defined]


@translators
@precisions
def test_beams_are_those_of_beam_search(name: str, form: dict[str, Any], precision: str) -> None:
    for beams in (1, 4):
        model, source = made(name, form)
        sharpened(model, beams, precision)
        with torch.inference_mode():
            state = model.start(source)
        options = {"length_penalty": 0.5, "num_return_sequences": min(beams, 2)}
        check_same(*(search(one, state, 3, beams, **options) for one in (model, General(model))))


def test_beams_of_language_models_are_those_of_beam_search() -> None:
    for seed in range(3):
        model = sharpened(small_model("at", layers=2), seed)
        with torch.inference_mode():
            state = model.start(4)
        check_same(*(search(one, state, 4, 3) for one in (model, General(model))))


@pytest.mark.parametrize("direction", ["both", "left-to-right", "right-to-left"])
@pytest.mark.parametrize("skip", ["never", "always"])
def test_the_encoder_of_fat_is_that_of_torch(direction: str, skip: str) -> None:
    for width, heads in ((40, 2), (64, 4), (64, 1), (112, 1)):
        options = {"direction": direction, "encoder_layers": 2, "skip": skip, "threshold": 100}
        model = small_translator("fat", embedding=width, heads=heads, **options)
        source = some_source([9, 2, 7, 20], padding=2, size=13)
        with torch.inference_mode():
            selection = model.select_positions(source)
            found_ND = model.encode_for_steps(source, selection)
            assert model.encoder_engine() is not None
            with kernels_suspended():
                expected_ND = model.encode(source, selection)
            torch.testing.assert_close(found_ND, expected_ND, rtol=1e-4, atol=1e-4)
            rows = [Source(*(part[row : row + 1] for part in source)) for row in range(4)]
            alone = [model.encode_for_steps(row, model.select_positions(row)) for row in rows]
        assert torch.equal(found_ND, torch.cat(alone))  # neighbours and padding change nothing


@models
def test_8_bits_are_close_to_float32(name: str, form: dict[str, Any]) -> None:
    # Differences grow with the steps.
    (model, start), tokens_BT = made(name, {**form, "embedding": 64, "heads": 2}), some_tokens(3, 2)
    expected_BTV = by_torch(model, start, tokens_BT)
    model.precision = "int8"
    with evaluating(model):
        found_BTV, _ = model.extend(model.start(start), tokens_BT)
    difference = float((found_BTV - expected_BTV).abs().mean())
    spread = float((expected_BTV - expected_BTV.mean(-1, keepdim=True)).abs().mean())
    assert 0 < difference < 0.1 * spread


def test_long_texts_are_scored_by_torch_and_continued_by_it() -> None:
    model, tokens_BT = small_model("at"), some_tokens(1, 80)
    with evaluating(model):
        by_engine = model.start(1)
        scores_BT, state = model.score(tokens_BT, by_engine)
        assert not isinstance(state.features, StackState)
        short, after = model.score(tokens_BT[:, :20], by_engine)
        rest, after = model.score(tokens_BT[:, 20:], after)
        assert isinstance(after.features, StackState)
        torch.testing.assert_close(torch.cat([short, rest], 1), scores_BT, rtol=1e-4, atol=1e-4)


def test_gradients_and_training_are_computed_by_torch() -> None:
    model = small_model("at")
    assert not isinstance(model.start(1).features, StackState)  # gradients are recorded
    model.train()
    with torch.no_grad():
        assert not isinstance(model.start(1).features, StackState)


@pytest.mark.parametrize("name", ["seq2seq-at", "fat"])
def test_texts_beyond_the_context_are_refused(name: str) -> None:
    model, source = small_translator(name, context=8), some_source([3])
    message = "got 9 tokens, but the model reads at most model.context = 8"
    with evaluating(model):
        state = model.start(source)
        for read in (model.prefill, model.extend, model.read):
            with pytest.raises(Exception, match=message):
                read(state, some_tokens(1, 9))
        _, full = model.prefill(state, some_tokens(1, 8))
        with pytest.raises(Exception, match=message):
            model.best_continuations(full, torch.tensor([1]), torch.zeros(1, 1), 2)
        with pytest.raises(Exception, match=message):
            model.continue_greedily(full, torch.tensor([1]), 2, None)
        with pytest.raises(Exception, match="got 13 tokens"):
            model.start(some_source([12]))
