"""Masked language modelling: some tokens of a text are masked, and the model predicts them from all the others.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2019; with new masks
each time a text is read, as in Liu et al., "RoBERTa", 2019. The masks are made in data/masks.py.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from chainrule.config import Section
from chainrule.data.masks import MASK_SHARE, RANDOM_SHARE, RATE
from chainrule.errors import ConfigError
from chainrule.objectives.network import Network
from chainrule.registry import OBJECTIVES
from chainrule.types import Batch, Loss, Objective, State


@OBJECTIVES.register("masked")
class MaskedTokens(Objective):
    """-log p of the chosen tokens, whether they were masked, replaced or kept."""

    class Config(Section):
        """How many tokens are chosen, and how they are masked."""

        rate: float = Field(RATE, gt=0, lt=1, description="share of the tokens that are chosen for prediction")
        mask_share: float = Field(MASK_SHARE, ge=0, le=1, description="share of the chosen tokens that become [MASK]")
        random_share: float = Field(
            RANDOM_SHARE, ge=0, le=1, description="share of the chosen tokens that become a random token"
        )
        whole_word: bool = Field(False, description="choose all tokens of a word or none")

        @model_validator(mode="after")
        def _check(self) -> Self:
            if self.mask_share + self.random_share > 1 + 1e-9:
                raise ConfigError(
                    f"objective.mask_share is {self.mask_share:g} and objective.random_share is "
                    f"{self.random_share:g}; expected a sum of at most 1, since the chosen tokens that remain stay "
                    "unchanged"
                )
            return self

    def loss(self, model: Network, batch: Batch, state: State, step: int) -> Loss:
        """The loss on the M chosen positions; the model gives their features, (1, M, D)."""
        assert batch.weights_BT is not None
        targets_M = batch.targets_BT[batch.weights_BT > 0]
        outputs = model(batch, state)
        total = model.output.loss(outputs.hidden_BTD.flatten(0, 1), targets_M)
        # A batch of empty lines has no chosen token: its loss is 0, and the count must not be 0.
        return Loss(total, max(1, len(targets_M)), outputs.state)
