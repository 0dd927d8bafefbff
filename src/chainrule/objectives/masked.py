"""Masked words: some words of a text are hidden, and the model is to tell them from all the others.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2019; hidden anew
each time a text is read, as in Liu et al., "RoBERTa", 2019. The hiding is done in data/masks.py.
Legend: B batch, T time, N chosen places, D width.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from chainrule.config import Section
from chainrule.data.masks import MASK_SHARE, RANDOM_SHARE, RATE
from chainrule.errors import ConfigError
from chainrule.registry import OBJECTIVES
from chainrule.types import Batch, Loss, Objective, State


@OBJECTIVES.register("masked")
class Masked(Objective):
    """-log p of the chosen words, whether they were hidden, replaced or kept."""

    class Config(Section):
        """How many words are chosen, and what becomes of them."""

        rate: float = Field(RATE, gt=0, lt=1, description="share of the tokens that are chosen")
        mask_share: float = Field(MASK_SHARE, ge=0, le=1, description="of those, the share that [MASK] hides")
        random_share: float = Field(RANDOM_SHARE, ge=0, le=1, description="and the share that another token replaces")
        whole_word: bool = Field(False, description="choose all pieces of a word or none")

        @model_validator(mode="after")
        def _check(self) -> Self:
            if self.mask_share + self.random_share > 1 + 1e-9:
                raise ConfigError(
                    f"objective.mask_share is {self.mask_share:g} and objective.random_share {self.random_share:g}, "
                    "more than 1 together; what is left of 1 is the share of chosen words that stay as they are"
                )
            return self

    def loss(self, model: Any, batch: Batch, state: State, step: int) -> Loss:
        """The loss on the chosen places alone; the model gives their features, 1ND."""
        assert batch.weights_BT is not None
        targets_N = batch.targets_BT[batch.weights_BT > 0]
        outputs = model(batch, state)
        total = model.output.loss(outputs.hidden_BTD.flatten(0, 1), targets_N)
        # A batch of empty lines has no word to tell: its loss is 0, and nothing may be divided by 0.
        return Loss(total, max(1, len(targets_N)), outputs.state)
