"""The hybrid language model against a hybrid translator with the same weights, block by block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from builders import small_model, small_translator, some_tokens
from chainrule.models.hybrid_lm import block_sources
from chainrule.types import Batch, Source, detach_state

EOS = 0
CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-4}
SHAPES = pytest.mark.parametrize(("block", "context"), [(4, 6), (4, 3), (5, 1), (3, 40)])


def pair_of_models(monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Any, Any]:
    """A language model, and a translator with its weights that always predicts the length of a block."""
    model = small_model("hybrid-lm", dropout=0.0, **options)
    block = model.config.block
    shared = {name: value for name, value in options.items() if name not in ("block", "context")}
    translator = small_translator("hybrid", dropout=0.0, **shared)
    translator.core.load_state_dict(model.features.state_dict())
    translator.output.load_state_dict(model.output.state_dict())
    translator.embedding.load_state_dict(model.embedding.state_dict())
    # The last position of a translator is that of `eos`, which a block does not have.
    monkeypatch.setattr(
        translator, "predict_lengths", lambda encoded, count=1: torch.full((len(encoded.states_BSE), 1), block - 1)
    )
    return model, translator


def starts(T: int, block: int) -> list[tuple[int, int]]:
    """Start and number of inputs of each block of T inputs."""
    return [(begin, min(block, T - begin)) for begin in range(0, T, block)]


@SHAPES
@pytest.mark.parametrize("mixing", ["fixed", "gated"])
@torch.no_grad()
def test_a_block_is_a_translation_of_what_came_before(
    mixing: str, block: int, context: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, translator = pair_of_models(monkeypatch, mixing=mixing, gamma=0.4, block=block, context=context)
    tokens_BT = some_tokens(3, 17)
    inputs_BT = model_inputs(tokens_BT)
    rows = []
    for begin, count in starts(17, block):
        source_BS = inputs_BT[:, max(0, begin + 1 - context) : begin + 1]
        state = translator.begin(Source(source_BS, torch.ones_like(source_BS) > 0), stepping=False)
        log_probs_BTV, _ = translator.extend(state, inputs_BT[:, begin : begin + count])
        rows.append(log_probs_BTV.gather(2, tokens_BT[:, begin : begin + count, None])[:, :, 0])
    torch.testing.assert_close(model.log_probs(tokens_BT), torch.cat(rows, 1), **CLOSE)


def model_inputs(tokens_BT: Tensor) -> Tensor:
    return torch.cat([torch.full((len(tokens_BT), 1), EOS), tokens_BT[:, :-1]], 1)


@SHAPES
def test_the_source_of_a_block_is_the_text_before_it(block: int, context: int) -> None:
    stream_BX = some_tokens(2, 3 + 4 * block)
    source_NS, mask_NS = block_sources(stream_BX, 3, 4, block, context)
    for row in range(2):
        for number in range(4):
            last = 3 + number * block
            expected = stream_BX[row, max(0, last + 1 - context) : last + 1].tolist()
            kept_S = mask_NS[4 * row + number]
            assert source_NS[4 * row + number][kept_S].tolist() == expected
            assert kept_S.tolist() == sorted(kept_S.tolist(), reverse=True)  # padding is at the end


@SHAPES
@torch.no_grad()
def test_pieces_of_a_text_carry_their_context(block: int, context: int) -> None:
    model = small_model("hybrid-lm", block=block, context=context, gamma=0.4)
    tokens_BT = some_tokens(2, 6 * block)
    inputs_BT, state, parts = model_inputs(tokens_BT), model.start(2), []
    for begin in range(0, 6 * block, 2 * block):
        piece = slice(begin, begin + 2 * block)
        outputs = model(Batch(inputs_BT[:, piece], tokens_BT[:, piece]), state)
        state = detach_state(outputs.state)
        log_probs_N = model.output.log_prob(outputs.hidden_BTD.flatten(0, 1), tokens_BT[:, piece].flatten())
        parts.append(log_probs_N.view(2, -1))
    torch.testing.assert_close(torch.cat(parts, 1), model.log_probs(tokens_BT), **CLOSE)


@torch.no_grad()
def test_a_piece_that_ends_within_a_block_is_read_to_its_end() -> None:
    model = small_model("hybrid-lm", gamma=0.4)
    tokens_BT = some_tokens(2, 7)
    hidden_BTD = model(Batch(model_inputs(tokens_BT), tokens_BT)).hidden_BTD
    assert hidden_BTD.shape == (2, 7, model.feature_width)
    log_probs_N = model.output.log_prob(hidden_BTD.flatten(0, 1), tokens_BT.flatten())
    torch.testing.assert_close(log_probs_N.view(2, 7), model.log_probs(tokens_BT), **CLOSE)


def test_the_parallel_branch_learns_from_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    model, translator = pair_of_models(monkeypatch, gamma=0.4, block=4, context=6, glancing=0.0, nar_weight=0.5)
    tokens_BT = some_tokens(2, 10)  # two blocks and a half
    inputs_BT = model_inputs(tokens_BT)
    model.train()
    outputs = model(Batch(inputs_BT, tokens_BT))
    expected = torch.zeros(())
    for begin, count in starts(10, 4):
        source_BS = inputs_BT[:, max(0, begin - 5) : begin + 1]
        encoded = translator.encode(Source(source_BS, torch.ones_like(source_BS) > 0))
        aligned = translator.core.read_allocation(encoded)
        features_BTD = translator.core.parallel_features(encoded, aligned, torch.tensor([4, 4]), 0.01)[:, :count]
        log_probs_BTV = translator.output.base.log_probs(features_BTD.flatten(0, 1)).view(2, count, -1)
        expected = expected - log_probs_BTV.gather(2, tokens_BT[:, begin : begin + count, None]).sum()
    torch.testing.assert_close(outputs.extra, 0.5 * expected, **CLOSE)
    assert outputs.hidden_BTD.shape == (2, 10, 8)  # a γ that is given is not needed in training


def test_a_gate_learns_from_the_mixture() -> None:
    model = small_model("hybrid-lm", mixing="gated", nar_weight=0.0, dropout=0.0)
    tokens_BT = some_tokens(2, 10)
    log_prob = model.log_probs(tokens_BT).sum()
    outputs = model.train()(Batch(model_inputs(tokens_BT), tokens_BT))
    torch.testing.assert_close(outputs.extra, -log_prob, **CLOSE)
    outputs.extra.backward()
    assert {name for name, weight in model.named_parameters() if weight.grad is not None} == {
        "features.log_odds",
        "features.gate_first.weight",
        "features.gate_second.weight",
    }


def test_a_long_text_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens_BT = small_model("hybrid-lm"), some_tokens(2, 50)
    with torch.no_grad():
        whole_BT = model.log_probs(tokens_BT)
        monkeypatch.setattr("chainrule.models.hybrid_lm.TOKENS_PER_PASS", 45)  # two blocks of each row
        torch.testing.assert_close(model.log_probs(tokens_BT), whole_BT, **CLOSE)


# Several tokens in one parallel pass


@pytest.mark.parametrize("block", [4, 5])
@torch.no_grad()
def test_a_predicted_block_is_the_mixture_with_all_weight_on_the_parallel_branch(block: int) -> None:
    model = small_model("hybrid-lm", gamma=1.0, block=block)
    inputs_BT = model_inputs(some_tokens(2, 3 * block))
    rows_BTV, _ = model.extend(model.start(2), inputs_BT)
    found_BTV = model.predict_block(inputs_BT[:, : 2 * block + 1])
    torch.testing.assert_close(found_BTV, rows_BTV[:, 2 * block :], **CLOSE)


@pytest.mark.parametrize("gamma", [0.0, 0.4])
@torch.no_grad()
def test_the_rest_of_a_block_is_predicted_from_its_known_tokens(gamma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model, translator = pair_of_models(monkeypatch, gamma=gamma, block=5, context=6)
    inputs_BT = model_inputs(some_tokens(2, 12))
    for read in range(11):
        state = model.prefill(model.start(2), inputs_BT[:, :read])[1] if read else model.start(2)
        begin = read - read % 5
        source_BS = inputs_BT[:, max(0, begin - 5) : begin + 1]
        encoded = translator.encode(Source(source_BS, torch.ones_like(source_BS) > 0))
        known_BT, place_T = torch.zeros(2, 4, dtype=torch.int64), torch.arange(4)
        known_BT[:, : read - begin] = inputs_BT[:, begin + 1 : read + 1]
        shown_BT = (place_T < read - begin).expand(2, -1)
        scores_BTV = translator.predict_parallel(encoded, torch.tensor([4, 4]), (known_BT, shown_BT))
        found_BTV, prepared = model.predict_rest(state, inputs_BT[:, read])
        assert found_BTV.shape[1] == 5 - read % 5
        expected_BTV = scores_BTV.log_softmax(2)[:, read - begin :]
        torch.testing.assert_close(found_BTV[:, :-1], expected_BTV, **CLOSE)
        row_BV, other_BV = (model.step(one, inputs_BT[:, read])[0] for one in (prepared, state))
        torch.testing.assert_close(row_BV, other_BV, **CLOSE)


@torch.no_grad()
def test_tokens_of_a_block_are_removed_again() -> None:
    model, fed_BT = small_model("hybrid-lm", block=4, context=6), some_tokens(2, 12)
    state = model.prefill(model.start(2), fed_BT[:, :9])[1]
    assert model.rewindable(state) == 3
    _, after = model.extend(state, fed_BT[:, 3:6])
    again = model.prefill(model.rewind(after, 3), fed_BT[:, 9:])[0]
    torch.testing.assert_close(again, model.prefill(state, fed_BT[:, 9:])[0], **CLOSE)


# A pretrained encoder

ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {"kind": "bert", "width": 8, "layers": 2, "heads": 2, "inner": 12, "positions": 9, "first": 2},
    "roberta": {"kind": "roberta", "width": 8, "layers": 1, "heads": 2, "inner": 12, "positions": 20, "pad": 1},
    "distilbert": {"kind": "distilbert", "width": 8, "layers": 1, "heads": 2, "inner": 12, "positions": 12, "types": 0},
    "transformer": {"kind": "transformer", "width": 8, "layers": 2, "heads": 2},
    "lstm": {"kind": "lstm", "width": 8},
}


def with_encoder(name: str, **options: Any) -> Any:
    shape = {**ENCODERS[name], "vocab_size": 13}
    return small_model(
        "hybrid-lm", pretrained="x", pretrained_shape=shape, block=4, context=10, gamma=0.4, dropout=0.0, **options
    )


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_a_pretrained_encoder_sees_no_later_token(name: str) -> None:
    model, tokens_BT = with_encoder(name), some_tokens(2, 19)
    whole_BT = model.log_probs(tokens_BT)
    for place in range(19):
        other_BT = tokens_BT.clone()
        other_BT[:, place] = (other_BT[:, place] + 1) % 13
        changed_BT = model.log_probs(other_BT)
        torch.testing.assert_close(changed_BT[:, :place], whole_BT[:, :place], **CLOSE)
    row_BV, state, rows = None, model.start(2), []
    for token_B in model_inputs(tokens_BT).unbind(1):
        row_BV, state = model.step(state, token_B)
        rows.append(row_BV)
    steps_BT = torch.stack(rows, 1).gather(2, tokens_BT[:, :, None])[:, :, 0]
    torch.testing.assert_close(steps_BT, whole_BT, **CLOSE)


@pytest.mark.parametrize("tuned", [False, True])
def test_a_pretrained_encoder_is_read_and_is_frozen_unless_tuned(tuned: bool) -> None:
    model, tokens_BT = with_encoder("bert", tuned=tuned), some_tokens(2, 12)
    before_BT = model.log_probs(tokens_BT).detach()
    outputs = model.train()(Batch(model_inputs(tokens_BT), tokens_BT))
    (outputs.hidden_BTD.sum() + outputs.extra).backward()
    assert [parameter.requires_grad for parameter in model.tuned_parameters] == [tuned] * len(model.tuned_parameters)
    trained = [parameter.grad is not None for name, parameter in model.pretrained.encoder.named_parameters()]
    assert any(trained) == tuned
    assert model.pretrained.project.weight.grad is not None
    with torch.no_grad():
        for parameter in model.pretrained.encoder.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    assert not torch.allclose(model.eval().log_probs(tokens_BT), before_BT)


def test_a_source_is_not_longer_than_the_encoder_reads() -> None:
    assert with_encoder("bert").config.source_limit == 8  # 9 positions, one of them for [CLS]
    assert with_encoder("transformer").config.source_limit <= 10
