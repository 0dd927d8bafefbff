"""The loss of masked tokens against a loop over them, and the checks of its options."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from builders import some_tokens, some_vocabulary, stir
from chainrule.checkpoint.build import build_model
from chainrule.config import RunConfig, parse
from chainrule.errors import ConfigError
from chainrule.objectives.masked import MaskedTokens
from chainrule.types import Batch

SHAPE = {"width": 8, "layers": 2, "heads": 2, "positions": 12, "dropout": 0.0}


def small_bert(**options: Any) -> Any:
    torch.manual_seed(0)
    model = build_model(RunConfig.model_validate({"model": {"name": "bert", **SHAPE, **options}}), some_vocabulary())
    stir(model)
    return model


def some_batch() -> Batch:
    targets_BT, weights_BT = some_tokens(3, 9), (some_tokens(3, 9, seed=1) < 4).float()
    inputs_BT = torch.where(weights_BT > 0, torch.full_like(targets_BT, 13), targets_BT)
    return Batch(inputs_BT, targets_BT, weights_BT)


@torch.no_grad()
def test_the_loss_is_the_sum_over_the_chosen_positions() -> None:
    model, batch = small_bert().eval(), some_batch()
    assert batch.weights_BT is not None
    loss = MaskedTokens(MaskedTokens.Config()).loss(model, batch, None, 0)
    logits_BTV = model.logits(batch.inputs_BT, torch.ones_like(batch.inputs_BT, dtype=torch.bool))
    expected, count = 0.0, 0
    for row in range(3):
        for t in range(9):
            if batch.weights_BT[row, t]:
                probs_V = logits_BTV[row, t].double().exp() / logits_BTV[row, t].double().exp().sum()
                expected, count = expected - float(probs_V[batch.targets_BT[row, t]].log()), count + 1
    assert loss.count == count > 5
    assert float(loss.total) == pytest.approx(expected, rel=1e-5)


def test_the_gradient_equals_that_through_all_logits() -> None:
    batch = some_batch()
    assert batch.weights_BT is not None
    grads = []
    for all_logits in (False, True):
        model = small_bert()
        if all_logits:
            logits_BTV = model.logits(batch.inputs_BT, torch.ones_like(batch.inputs_BT, dtype=torch.bool))
            log_prob_BT = logits_BTV.log_softmax(2).gather(2, batch.targets_BT[:, :, None])[:, :, 0]
            (-(log_prob_BT * batch.weights_BT).sum()).backward()
        else:
            MaskedTokens(MaskedTokens.Config()).loss(model, batch, None, 0).total.backward()
        grads.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert grads[0].keys() == grads[1].keys()
    for name in grads[0]:
        torch.testing.assert_close(grads[0][name], grads[1][name], atol=1e-5, rtol=1e-4)


def test_the_embedding_of_the_mask_is_learned_but_the_mask_is_not_predicted() -> None:
    model, batch = small_bert(), some_batch()
    table = model.encoder.word_table.weight
    assert table.shape == (14, 8)
    MaskedTokens(MaskedTokens.Config()).loss(model, batch, None, 0).total.backward()
    assert float(table.grad[13].abs().max()) > 0
    assert model.logits(batch.inputs_BT, batch.inputs_BT >= 0).shape == (3, 9, 13)


def test_a_batch_of_empty_lines_has_no_loss_and_no_gradient() -> None:
    model, batch = small_bert(), some_batch()
    assert batch.weights_BT is not None
    loss = MaskedTokens(MaskedTokens.Config()).loss(model, batch._replace(weights_BT=0 * batch.weights_BT), None, 0)
    loss.total.backward()
    assert (float(loss.total.detach()), loss.count) == (0.0, 1)
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_shares_above_one_raise_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(MaskedTokens.Config, {"mask_share": 0.8, "random_share": 0.3}, "objective")
    assert str(caught.value) == (
        "objective.mask_share is 0.8 and objective.random_share is 0.3; expected a sum of at most 1, since the chosen "
        "tokens that remain stay unchanged"
    )
    assert parse(MaskedTokens.Config, {"mask_share": 0.7, "random_share": 0.3}, "objective").rate == 0.15
