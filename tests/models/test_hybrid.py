"""The hybrid translator: its branches against loops, its mixture against the formula, and its losses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from builders import OUTPUT_LAYERS, small_translator, some_source, some_tokens
from chainrule.errors import ConfigError
from chainrule.layers.nonautoregressive.parallel_branch import choose_revealed
from chainrule.layers.outputs.mixed import NEVER
from chainrule.objectives.likelihood import output_loss
from chainrule.types import Batch, Source

EOS = 0
LENGTHS = [5, 1, 8, 3]
CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-4}


def hybrid(output: str = "softmax", seed: int = 0, **options: Any) -> Any:
    return small_translator("hybrid", output, seed=seed, dropout=0.0, **options)


def with_options(model: Any, **options: Any) -> Any:
    """The same weights with other values of live options."""
    model.config = model.config.model_copy(update=options)
    return model


def a_batch(model: Any) -> Batch:
    """Targets of 4, 2, 6 and 1 tokens and `eos`."""
    targets_BT, lengths_B = some_tokens(4, 7) % 12 + 1, torch.tensor([4, 2, 6, 1])
    places_T = torch.arange(7)
    targets_BT = targets_BT.masked_fill(places_T >= lengths_B[:, None], EOS)
    weights_BT = (places_T <= lengths_B[:, None]).float()
    return Batch(model.shift_right(targets_BT), targets_BT, weights_BT, some_source(LENGTHS))


def loop_of_cells(layer: Any, inputs_TD: Tensor) -> Tensor:
    """An LSTM by torch's own cell, step by step -> TH."""
    H = layer.weight_hidden_GH.shape[1]
    cell = torch.nn.LSTMCell(inputs_TD.shape[1], H).to(inputs_TD.dtype)
    order = [1, 2, 0, 3]  # torch has i f g o, the layer g i f o
    for ours, theirs in ((layer.weight_input_GD, cell.weight_ih), (layer.weight_hidden_GH, cell.weight_hh)):
        theirs.data.copy_(torch.cat([ours.chunk(4)[block] for block in order]))
    cell.bias_ih.data.copy_(torch.cat([layer.bias_G.chunk(4)[block] for block in order]))
    cell.bias_hh.data.zero_()
    state, rows = (inputs_TD.new_zeros(1, H), inputs_TD.new_zeros(1, H)), []
    for input_D in inputs_TD:
        state = cell(input_D[None], state)
        rows.append(state[0][0])
    return torch.stack(rows)


def naive_parallel(model: Any, source: Source, row: int, length: int, known: dict[int, int]) -> Tensor:
    """The features of all places of one target, place by place -> TD."""
    core, tokens = model.core, int(source.mask_BS[row].sum())
    encoded = model.encode(Source(source.tokens_BS[row : row + 1, :tokens], source.mask_BS[row : row + 1, :tokens]))
    weights_TS = core.allocation.weights(
        core.read_allocation(encoded), 0, length + 1, model.config.allocation_threshold
    )[0]
    inputs, alone = [], []
    for t in range(length + 1):
        aligned_D = sum(weights_TS[t, s] * core.allocation.value(encoded.states_BSE[0, s]) for s in range(tokens))
        seen_D = model.embedding.weight[known[t]] * 8**0.5 if t in known else core.parallel.unknown_D
        alone.append(aligned_D + core.allocation.sinusoids.first(20)[length - t])
        inputs.append(alone[-1] + seen_D)
    inputs_TD = torch.stack(inputs)
    (right,), (left,) = (
        side[0].layers for side in (core.parallel.recurrence.rightward, core.parallel.recurrence.leftward)
    )
    hidden_TH = torch.cat([loop_of_cells(right, inputs_TD), loop_of_cells(left, inputs_TD.flip(0)).flip(0)], 1)
    attend, rows = core.parallel.attend, []
    for hidden_H in hidden_TH:
        scores_S = torch.stack([attend.score.project(state_E) @ hidden_H for state_E in encoded.states_BSE[0]])
        context_E = scores_S.softmax(0) @ encoded.states_BSE[0]
        bent_H = (attend.project_context(context_E) + attend.project_query(hidden_H)).tanh()
        rows.append(core.parallel.join(bent_H))
    return torch.stack(rows) + core.parallel.join_inputs(torch.stack(alone))


@pytest.fixture(autouse=True)
def _no_gradients(request: pytest.FixtureRequest) -> Any:
    with torch.set_grad_enabled("learn" in request.node.originalname):
        yield


# The parallel branch


def test_one_pass_equals_loops_over_positions_and_cells() -> None:
    model, source = hybrid(allocation_threshold=0.1), some_source(LENGTHS)
    encoded, lengths_B = model.encode(source), torch.tensor([4, 0, 6, 3])
    found_BTD = model.core.parallel_features(encoded, model.core.read_allocation(encoded), lengths_B + 1, 0.1)
    for row, length in enumerate(lengths_B.tolist()):
        naive_TD = naive_parallel(model, source, row, length, {})
        torch.testing.assert_close(found_BTD[row, : length + 1], naive_TD, **CLOSE)
    scores_BTV = model.predict_parallel(encoded, lengths_B)
    for row, length in enumerate(lengths_B.tolist()):
        log_probs_TV = model.output.base.log_probs(found_BTD[row, :length])
        torch.testing.assert_close(scores_BTV[row, :length].log_softmax(1), log_probs_TV, **CLOSE)


def test_revealed_tokens_are_seen_and_others_are_not() -> None:
    model, source = hybrid(), some_source(LENGTHS)
    encoded, lengths_B = model.encode(source), torch.tensor([4, 2, 6, 3])
    tokens_BT, shown_BT = some_tokens(4, 6), (torch.rand(4, 6) < 0.5) & (torch.arange(6) < lengths_B[:, None])
    log_probs_BTV = model.predict_parallel(encoded, lengths_B, (tokens_BT, shown_BT)).log_softmax(2)
    for row, length in enumerate(lengths_B.tolist()):
        known = {t: int(tokens_BT[row, t]) for t in range(length) if shown_BT[row, t]}
        naive_TD = naive_parallel(model, source, row, length, known)[:length]
        torch.testing.assert_close(log_probs_BTV[row, :length], model.output.base.log_probs(naive_TD), **CLOSE)


def test_rows_of_several_lengths_share_a_source() -> None:
    model, source = hybrid(), some_source(LENGTHS)
    encoded = model.encode(source)
    lengths_BK = model.predict_lengths(encoded, 3)
    scores_BL = model.length(encoded.states_BSE, encoded.mask_BS)
    for row, length in enumerate(LENGTHS):
        best = scores_BL[row].argsort(descending=True)[:3] - model.config.length_range
        assert lengths_BK[row].tolist() == [max(0, length + int(difference)) for difference in best]
    lengths_BK = torch.tensor([[4, 2, 3], [1, 0, 2], [5, 6, 4], [3, 3, 1]])
    scores_RTV = model.predict_parallel(encoded, lengths_BK.flatten())
    for column, lengths_B in enumerate(lengths_BK.unbind(1)):
        alone_BTV = model.predict_parallel(encoded, lengths_B)
        for row, length in enumerate(lengths_B.tolist()):
            torch.testing.assert_close(scores_RTV[3 * row + column, :length], alone_BTV[row, :length], **CLOSE)


# The mixture


@pytest.mark.parametrize("output", OUTPUT_LAYERS)
@pytest.mark.parametrize("mixing", ["fixed", "learned", "gated"])
def test_the_mixture_equals_the_formula(output: str, mixing: str) -> None:
    model, source, tokens_BT = hybrid(output, mixing=mixing, gamma=0.3), some_source(LENGTHS), some_tokens(4, 7)
    found_BT = model.log_probs(tokens_BT, source)
    encoded = model.encode(source)
    alone = with_options(hybrid(output, gamma=0.0), gamma=0.0)
    alone.load_state_dict(model.state_dict(), strict=False)
    first_BTD = alone(Batch(model.shift_right(tokens_BT), tokens_BT, source=source)).hidden_BTD
    lengths_B = model.predict_lengths(encoded)[:, 0]
    second_BPD = model.core.parallel_features(encoded, model.core.read_allocation(encoded), lengths_B + 1, 0.01)
    for row in range(4):
        for t, token in enumerate(tokens_BT[row].tolist()):
            p = model.output.base.log_probs(first_BTD[row, t : t + 1])[0, token].exp()
            if t <= lengths_B[row]:
                second_D = second_BPD[row, t]
                other = model.output.base.log_probs(second_D[None])[0, token].exp()
                gamma = {
                    "fixed": lambda: torch.tensor(0.3),
                    "learned": lambda: model.core.log_odds.sigmoid(),
                    "gated": lambda first_D=first_BTD[row, t], second_D=second_D: (
                        model.core.log_odds
                        + model.core.gate_first.weight[0] @ first_D
                        + model.core.gate_second.weight[0] @ second_D
                    ).sigmoid(),
                }[mixing]()
                p = (1 - gamma) * p + gamma * other
            assert float(found_BT[row, t]) == pytest.approx(math.log(p.item()), abs=1e-4)


def test_beyond_the_predicted_length_only_the_first_branch_counts() -> None:
    model, source, tokens_BT = hybrid(gamma=0.5), some_source(LENGTHS), some_tokens(4, 30)
    hidden_BTD = model(Batch(model.shift_right(tokens_BT), tokens_BT, source=source)).hidden_BTD
    lengths_B = model.predict_lengths(model.encode(source))[:, 0]
    expected_BT = torch.where(torch.arange(30) <= lengths_B[:, None], 0.0, NEVER)
    torch.testing.assert_close(hidden_BTD[:, :, -1], expected_BT)


def test_gamma_is_live_and_its_limits_leave_one_branch() -> None:
    model, source, tokens_BT = hybrid(gamma=0.4), some_source(LENGTHS), some_tokens(4, 3)
    state = with_options(model, gamma=0.0).begin(source, stepping=True)
    assert state.memory.parallel is None  # nothing of the other branch is computed
    assert model(Batch(model.shift_right(tokens_BT), tokens_BT, source=source)).hidden_BTD.shape == (4, 3, 8)
    first_BT = model.log_probs(tokens_BT, source)
    second_BT = with_options(model, gamma=1.0).log_probs(tokens_BT, source)
    encoded = model.encode(source)
    lengths_B = model.predict_lengths(encoded)[:, 0]
    features_BPD = model.core.parallel_features(encoded, model.core.read_allocation(encoded), lengths_B + 1, 0.01)
    for row, length in enumerate(lengths_B.tolist()):
        T = min(3, length + 1)
        log_probs_TV = model.output.base.log_probs(features_BPD[row, :T])
        expected_T = log_probs_TV.gather(1, tokens_BT[row, :T, None])[:, 0]
        torch.testing.assert_close(second_BT[row, :T], expected_T, **CLOSE)
    both_BT = with_options(model, gamma=0.25).log_probs(tokens_BT, source)
    mixed_BT = (0.75 * first_BT.exp() + 0.25 * second_BT.exp()).log()
    inside_BT = torch.arange(3) <= lengths_B[:, None]
    torch.testing.assert_close(both_BT[inside_BT], mixed_BT[inside_BT], **CLOSE)


def test_the_threshold_is_live() -> None:
    model, source, tokens_BT = hybrid(allocation_threshold=0.0), some_source(LENGTHS), some_tokens(4, 3)
    before_BT = model.log_probs(tokens_BT, source)
    after_BT = with_options(model, allocation_threshold=0.5).log_probs(tokens_BT, source)
    assert float((before_BT - after_BT).abs().max()) > 1e-3
    same_BT = hybrid(allocation_threshold=0.5).log_probs(tokens_BT, source)
    assert torch.equal(after_BT, same_BT)


def test_a_large_table_is_not_kept_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, source, tokens_BT = hybrid(gamma=0.3, mixing="gated"), some_source(LENGTHS), some_tokens(4, 3)
    kept_BV, state = model.prefill(model.start(source), tokens_BT)
    assert state.memory.parallel.table_ALV is not None
    monkeypatch.setattr("chainrule.models.hybrid_compiled.TABLE_ENTRIES", 10)
    made_BV, state = model.prefill(model.start(source), tokens_BT)
    assert state.memory.parallel.table_ALV is None
    torch.testing.assert_close(made_BV, kept_BV, **CLOSE)


def test_tokens_read_at_each_row_s_own_place_are_those_of_steps() -> None:
    model, source = hybrid(gamma=0.3), some_source(LENGTHS)
    places, follows_B = [3, 0, 5, 1], torch.tensor([True, False, True, True])  # the greedy choice before
    tokens, steps, hidden = [*some_tokens(4, 9).unbind(1)], [], []
    state = model.start(source)
    for t in range(9):
        hidden.append(state.hidden_RU)
        if t:
            tokens[t] = torch.where(follows_B, steps[-1].argmax(1), tokens[t])
        log_probs_BV, state = model.step(state, tokens[t])
        steps.append(log_probs_BV)
    tokens_BT = torch.stack(tokens, 1)
    hidden_RU = torch.stack([hidden[place][row] for row, place in enumerate(places)])
    some_BT = torch.stack([tokens_BT[row, place : place + 4] for row, place in enumerate(places)])
    state = model.start(source)._replace(hidden_RU=hidden_RU)
    chosen_RT, path = model.check(state, torch.tensor(places), some_BT)
    after = model.advance(state, path, [2, 0, 2, 1])
    for row, (place, last) in enumerate(zip(places, [2, 0, 2, 1], strict=True)):
        known = 4 if follows_B[row] else 1  # what follows a token that is not the choice before is undefined
        assert chosen_RT[row, :known].tolist() == [int(steps[place + t][row].argmax()) for t in range(known)]
        torch.testing.assert_close(after.hidden_RU[row], hidden[place + last + 1][row], **CLOSE)


# Losses


def test_all_losses_have_gradients_and_the_first_is_that_of_the_plain_branch() -> None:
    model = hybrid(glancing=0.0, length_weight=0.7, nar_weight=0.3).train()
    batch = a_batch(model)
    outputs = model(batch)
    encoded = model.encode(batch.source)
    lengths_B = batch.weights_BT.sum(1).long() - 1
    features_BTD = model.core.parallel_features(encoded, model.core.read_allocation(encoded), lengths_B + 1, 0.01)
    log_probs_BTV = model.output.base.log_probs(features_BTD.flatten(0, 1)).view(4, 7, -1)
    log_prob_BT = log_probs_BTV.gather(2, batch.targets_BT[:, :, None])[:, :, 0]
    parallel = -(log_prob_BT * batch.weights_BT).sum()
    source_B = torch.tensor(LENGTHS)
    scores_BL = model.length(encoded.states_BSE, encoded.mask_BS)
    places_B = (lengths_B - source_B).clamp(-20, 20) + 20
    length = -scores_BL.log_softmax(1).gather(1, places_B[:, None]).sum()
    torch.testing.assert_close(outputs.extra, 0.3 * parallel + 0.7 * length, **CLOSE)
    total = output_loss(model, outputs, batch).total
    alone = with_options(model.eval(), gamma=0.0)(batch).hidden_BTD
    plain = model.output.base.loss(alone.flatten(0, 1), batch.targets_BT.flatten(), batch.weights_BT.flatten())
    torch.testing.assert_close(total, outputs.extra + plain, **CLOSE)


@pytest.mark.parametrize("mixing", ["learned", "gated"])
def test_a_gate_learns_from_the_mixture_and_the_branches_do_not(mixing: str) -> None:
    model = hybrid(mixing=mixing, nar_weight=0.0, length_weight=0.0).train()
    batch = a_batch(model)
    outputs = model(batch)
    outputs.extra.backward()
    gates = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    named = {"learned": ["log_odds"], "gated": ["log_odds", "gate_first.weight", "gate_second.weight"]}[mixing]
    assert gates == {f"core.{name}" for name in named}
    log_prob_BT = model.eval().log_probs(batch.targets_BT, batch.source)
    torch.testing.assert_close(outputs.extra, -(log_prob_BT * batch.weights_BT).sum(), **CLOSE)
    assert float(model.core.log_odds.grad.abs()) > 1e-3


def test_a_branch_without_weight_does_not_learn() -> None:
    model = hybrid(nar_weight=0.0, length_weight=0.0).train()
    batch = a_batch(model)
    outputs = model(batch)
    assert outputs.extra is None
    output_loss(model, outputs, batch).total.backward()
    assert all(parameter.grad is None for parameter in model.core.parallel.parameters())
    assert model.length.choose.weight.grad is None


def test_nothing_is_added_to_the_loss_outside_training() -> None:
    model = hybrid()
    assert model(a_batch(model)).extra is None


def test_glancing_reveals_a_share_of_the_wrong_words() -> None:
    torch.manual_seed(0)
    wrong_BT, lengths_B = torch.rand(40, 9) < 0.6, torch.randint(0, 10, (40,))
    held_BT = torch.arange(9) < lengths_B[:, None]
    for share in (0.0, 0.3, 0.5, 1.0):
        shown_BT = choose_revealed(wrong_BT, held_BT, share)
        assert not (shown_BT & ~held_BT).any()
        assert shown_BT.sum(1).tolist() == [round(int(n) * share) for n in (wrong_BT & held_BT).sum(1)]
    times_T = torch.stack(
        [choose_revealed(torch.ones(1, 4) > 0, torch.ones(1, 4) > 0, 0.5)[0] for _ in range(400)]
    ).sum(0)
    assert all(150 < int(times) < 250 for times in times_T)  # every position is equally likely


def test_glancing_counts_the_errors_of_the_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = hybrid(glancing=0.5).train()
    batch, seen = a_batch(model), []

    def watched(wrong_BT: Tensor, held_BT: Tensor, share: float) -> Tensor:
        seen.append((wrong_BT, held_BT, share))
        return held_BT & (torch.arange(7) == 0)  # the first token of each row

    monkeypatch.setattr("chainrule.models.hybrid_core.choose_revealed", watched)
    extra = model(batch).extra
    ((wrong_BT, held_BT, share),) = seen
    lengths_B = batch.weights_BT.sum(1).long() - 1
    encoded = model.encode(batch.source)
    assert share == 0.5
    assert torch.equal(held_BT, batch.weights_BT > 0)
    expected = scores = 0.0
    for row, length in enumerate(lengths_B.tolist()):
        plain_TD = naive_parallel(model, batch.source, row, length, {})
        right_T = model.output.base.log_probs(plain_TD).argmax(1) == batch.targets_BT[row, : length + 1]
        assert wrong_BT[row, : length + 1].tolist() == (~right_T).tolist()
        told_TD = naive_parallel(model, batch.source, row, length, {0: int(batch.targets_BT[row, 0])})[1:]
        log_probs_TV = model.output.base.log_probs(told_TD)
        expected -= float(log_probs_TV.gather(1, batch.targets_BT[row, 1 : length + 1, None]).sum())
        scores += length
    length_loss = model.length.loss(model.length(encoded.states_BSE, encoded.mask_BS), torch.tensor(LENGTHS), lengths_B)
    places = float(batch.weights_BT.sum())
    assert float(extra) == pytest.approx(expected * places / scores + 0.1 * float(length_loss), rel=1e-4)


# CTC


def test_ctc_predicts_no_length_and_cannot_be_mixed() -> None:
    model = hybrid(nar="ctc", gamma=0.0)
    assert model.length is None
    assert not model.mixes
    with pytest.raises(ConfigError) as caught:
        hybrid(nar="ctc", gamma=0.1)
    assert str(caught.value) == (
        "model.nar is ctc with fixed mixing and gamma 0.1, but CTC gives no distribution per position to mix: set "
        "model.mixing=fixed and model.gamma=0, or model.nar=positions"
    )
    with pytest.raises(ConfigError):
        with_options(model, gamma=0.5).start(some_source(LENGTHS))


def test_ctc_learns_from_targets_without_eos() -> None:
    model = hybrid(nar="ctc", gamma=0.0, upsample=3).train()
    batch = a_batch(model)
    outputs = model(batch)
    features_BUD, slots_B = model._slot_features(model.encode(batch.source))
    assert slots_B.tolist() == [3 * (length + 1) for length in LENGTHS]
    lengths_B = batch.weights_BT.sum(1).long() - 1
    loss = model.slots.loss(features_BUD, slots_B, model.output.base, batch.targets_BT, lengths_B)
    torch.testing.assert_close(outputs.extra, loss)
    outputs.extra.backward()
    assert float(model.slots.blank.weight.grad.abs().max()) > 0
    assert float(model.core.parallel.join.weight.grad.abs().max()) > 0
