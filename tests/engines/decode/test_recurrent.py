"""The compiled recurrent decoders against torch, and what their states promise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from builders import small_model, small_translator, some_source, some_tokens
from chainrule.base.kernels import kernels_suspended
from chainrule.base.modes import evaluating
from chainrule.base.states import join_states
from chainrule.engines.decode import recurrent as engine
from chainrule.engines.decode.recurrent import CompiledRecurrence, RecurrentState
from chainrule.layers.compiled_recurrence import recurrence_weights
from chainrule.layers.recurrent.stack import Recurrence

CLOSE: dict[str, Any] = {"rtol": 2e-4, "atol": 2e-5}  # both round; input feeding enlarges differences from step to step
T = 11
KINDS = ("rnn", "lstm", "lstm-peephole", "lstm-coupled", "gru")
FORMS: list[dict[str, Any]] = [
    {"hidden": 20, "embedding": 20},
    {"hidden": 33, "embedding": 12, "layers": 3},  # a bridge to the tied embedding
    {"hidden": 16, "embedding": 40, "layers": 1, "tied": False},
]
DECODERS: list[tuple[str, dict[str, Any]]] = [
    ("seq2seq-rnn", {"cell": "lstm", "hidden": 24, "layers": 2}),
    ("seq2seq-rnn", {"cell": "gru", "hidden": 17}),
    *(
        (
            "seq2seq-attention",
            {"cell": cell, "score": score, "input_feeding": feeding, "hidden": 18, "decoder_layers": 2},
        )
        for cell in ("lstm", "gru")
        for score in ("dot", "general", "additive", "location")
        for feeding in (True, False)
    ),
    ("seq2seq-attention", {"hidden": 80, "embedding": 80}),
]


def by_torch(model: Any, start: Any, tokens_BT: Tensor) -> Tensor:
    with kernels_suspended(), evaluating(model):
        return model.extend(model.start(start), tokens_BT)[0]


def check_against_torch(model: Any, start: Any, state_of: Any, rows: int) -> None:
    tokens_BT = some_tokens(rows, T)
    expected_BTV = by_torch(model, start, tokens_BT)
    with evaluating(model):
        state = model.start(start)
        assert isinstance(state_of(state), RecurrentState)
        # Output layers that torch computes round differently for other numbers of rows.
        bounds = {"rtol": 0, "atol": 0} if state_of(state).predicts else CLOSE
        found_BTV, after = model.extend(state, tokens_BT)
        torch.testing.assert_close(found_BTV, expected_BTV, **CLOSE)
        last_BV, state = model.prefill(state, tokens_BT[:, :4])
        torch.testing.assert_close(last_BV, found_BTV[:, 3], **bounds)
        for t in range(4, T):
            last_BV, state = model.step(state, tokens_BT[:, t])
            torch.testing.assert_close(last_BV, found_BTV[:, t], **bounds)
        assert (state_of(after).numbers_RX == state_of(state).numbers_RX).all()


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("output", ["softmax", "adaptive"])
@pytest.mark.parametrize("kind", KINDS)
def test_language_models_are_those_of_torch(kind: str, output: str, form: dict[str, Any]) -> None:
    model = small_model(kind, output, **form)
    check_against_torch(model, 3, lambda state: state.features, 3)
    tokens_BT = some_tokens(3, T)
    with evaluating(model):
        scores_BT = model.log_probs(tokens_BT)
        with kernels_suspended():
            torch.testing.assert_close(scores_BT, model.log_probs(tokens_BT), **CLOSE)


def test_rectified_units_are_those_of_torch() -> None:
    check_against_torch(small_model("rnn", activation="relu", hidden=20), 2, lambda state: state.features, 2)


@pytest.mark.parametrize(("kind", "reset"), [*((kind, "before") for kind in KINDS), ("gru", "after")])
@pytest.mark.parametrize("entries", [0, 2**20])
def test_features_of_every_cell(kind: str, reset: str, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without a table of the first layer's sums."""
    monkeypatch.setattr(engine, "TABLE_ENTRIES", entries)
    torch.manual_seed(1)
    recurrence, embedding = Recurrence(kind, 9, 21, 2, reset=reset), torch.nn.Embedding(7, 9)
    tokens_BT = torch.randint(0, 7, (4, T))
    with torch.no_grad():
        expected_BTU, _ = recurrence(embedding(tokens_BT))
    compiled = CompiledRecurrence(recurrence_weights(recurrence, embedding))
    found, _ = compiled.start(4).features(tokens_BT.numpy())
    torch.testing.assert_close(torch.from_numpy(found).view(4, T, 21), expected_BTU, **CLOSE)


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
def test_translators_are_those_of_torch(decoder: tuple[str, dict[str, Any]]) -> None:
    name, form = decoder
    model = small_translator(name, **form)
    source, tokens_BT = some_source([5, 2, 7], padding=2), some_tokens(3, 5)
    check_against_torch(model, source, lambda state: state, 3)
    with evaluating(model):
        found_BTD, _ = model.read(model.start(source), tokens_BT)
        expected_BTD, _ = model.read(model.begin(source, stepping=False), tokens_BT)
    torch.testing.assert_close(found_BTD, expected_BTD, **CLOSE)


def test_translators_with_another_output_layer_are_those_of_torch() -> None:
    model = small_translator("seq2seq-attention", "adaptive", hidden=20, embedding=12)
    check_against_torch(model, some_source([5, 2], padding=1), lambda state: state, 2)


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("kind", KINDS)
def test_how_tokens_are_divided_into_calls_changes_nothing(
    kind: str, precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens_BT = small_model(kind, hidden=37, embedding=24), some_tokens(5, T)
    model.precision = precision
    with evaluating(model):
        at_once_BTV, _ = model.extend(model.start(5), tokens_BT)
        alone_1TV, _ = model.extend(model.start(1), tokens_BT[3:4])
        monkeypatch.setattr(engine, "ITEMS_PER_CALL", 13)
        divided_BTV, state = model.extend(model.start(5), tokens_BT)
        last_BV, same = model.prefill(model.start(5), tokens_BT)
    assert torch.equal(alone_1TV[0], at_once_BTV[3])
    assert torch.equal(divided_BTV, at_once_BTV)
    assert torch.equal(last_BV, at_once_BTV[:, -1])
    assert (state.features.numbers_RX == same.features.numbers_RX).all()


@pytest.mark.parametrize("name", ["seq2seq-rnn", "seq2seq-attention"])
def test_rows_of_translators_are_selected_and_joined(name: str) -> None:
    model, tokens_BT = small_translator(name, hidden=20), some_tokens(3, 6)
    with evaluating(model):
        whole = model.start(some_source([5, 2, 7], padding=1))
        _, read = model.prefill(whole, tokens_BT[:, :3])
        expected_BTV, _ = model.extend(read, tokens_BT[:, 3:])
        rows_K = torch.tensor([2, 0, 2])
        found_KTV, _ = model.extend(model.select(read, rows_K), tokens_BT[rows_K, 3:])
        assert torch.equal(found_KTV, expected_BTV[rows_K])
        parts = [model.select(read, torch.tensor([row])) for row in range(3)]
        joined_BTV, _ = model.extend(join_states(parts), tokens_BT[:, 3:])
        assert torch.equal(joined_BTV, expected_BTV)
        again_BTV, _ = model.extend(read, tokens_BT[:, 3:])  # reading changed no state
        assert torch.equal(again_BTV, expected_BTV)


@pytest.mark.parametrize("name", ["lstm", "gru", "seq2seq-attention"])
def test_8_bits_are_close_to_float32(name: str) -> None:
    translator = name.startswith("seq2seq")
    model = (small_translator if translator else small_model)(name, hidden=48, embedding=48)
    start, tokens_BT = some_source([5, 2]) if translator else 2, some_tokens(2, 2)  # differences grow with the steps
    expected_BTV = by_torch(model, start, tokens_BT)
    model.precision = "int8"
    with evaluating(model):
        found_BTV, _ = model.extend(model.start(start), tokens_BT)
    assert 0 < float((found_BTV - expected_BTV).abs().mean()) < 0.05


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_many_rows_are_scored_by_torch_and_then_continued(kind: str) -> None:
    model, tokens_BT = small_model(kind, hidden=20, embedding=12), some_tokens(12, T)
    with evaluating(model):
        state = model.start(12)
        many_BTD, after = model.read(state, tokens_BT)
        few_BTD, few = model.read(model.select(state, torch.arange(3)), tokens_BT[:3])
        torch.testing.assert_close(many_BTD[:3], few_BTD, **CLOSE)
        following_BV, _ = model.step(after, tokens_BT[:, 0])
        torch.testing.assert_close(following_BV[:3], model.step(few, tokens_BT[:3, 0])[0], **CLOSE)


def test_gradients_and_training_are_computed_by_torch() -> None:
    model = small_model("lstm")
    assert not isinstance(model.start(1).features, RecurrentState)  # gradients are recorded
    with torch.no_grad():
        assert isinstance(model.start(1).features, RecurrentState)
        model.train()
        assert not isinstance(model.start(1).features, RecurrentState)


def test_changed_weights_are_packed_again() -> None:
    model, tokens_BT = small_model("gru"), some_tokens(1, 5)
    with evaluating(model):
        model.extend(model.start(1), tokens_BT)
    with torch.no_grad():
        model.features.recurrence.layers[0].weight_hidden_GH.mul_(2)
    with evaluating(model):
        found_BTV, _ = model.extend(model.start(1), tokens_BT)
    torch.testing.assert_close(found_BTV, by_torch(model, 1, tokens_BT), **CLOSE)
