"""What training on the measure itself shares: the reward of each translation, and a share of plain likelihood.

Likelihood asks that each word of the reference be probable after the words before it; what is measured is the whole
translation. Here the model translates, a reward says how good that was, and what was good becomes more probable.

Several translations of each sentence of a batch would not fit into memory at once. So they are read a portion at a
time, and the gradients of a portion are taken before the next is read.

Legend: B sources, N rows, T time.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.autograd.function import once_differentiable

from chainrule.config import Section
from chainrule.errors import ConfigError
from chainrule.objectives.likelihood import output_loss
from chainrule.objectives.rollout import Drawn, draw, drawn_from, sequences
from chainrule.types import Batch, Loss, Objective, Source, State

Reward = Callable[[list[list[int]], list[list[int]]], np.ndarray[Any, Any]]
"""N rows of tokens and the references of each, all without `eos` -> N rewards from 0 to 1."""

PORTION_TOKENS = 4096
"""The most tokens read at once …"""

PORTION_ENTRIES = 2**25
"""… and the most entries that their table of tokens by words may have, 128 MB; but always the rows of one source."""

SPARE = 5
"""Tokens that a translation may have beyond its share of the longest reference, so that short ones have room."""


class RewardedConfig(Section):
    """What is rewarded, and how translations are drawn."""

    reward: Literal["bleu", "chrf", "rouge"] = Field("bleu", description="the measure of a translation")
    temperature: float = Field(1.0, gt=0, description="of the draws; only at 1 are they the model's own")
    likelihood: float = Field(0.0, ge=0, lt=1, description="share of plain likelihood in the loss")
    max_ratio: float = Field(1.5, ge=1, description="longest translation, as a multiple of the longest reference")


class Rewarded(Objective):
    """An objective that draws translations and has them rewarded. Subclasses give `portions`.

    The count of its loss is the number of reference tokens, as in likelihood, and the portions together stand for one
    sequence a source. So the gradient is of the size of the likelihood's however many are drawn: a learning rate
    carries over, and a share of likelihood is a share. A count of drawn tokens would depend on the draw, which an
    unbiased estimate must not be divided by.
    """

    name: ClassVar[str]
    needs_reward: ClassVar[bool] = True
    config: RewardedConfig
    reward: Reward  # set by the trainer: it needs the tokeniser

    @abstractmethod
    def portions(self, model: Any, batch: Batch, source: Source) -> Iterator[Tensor]:
        """Draw, reward, and give the part of the loss that the rewards make in scalars whose sum it is."""

    def loss(self, model: Any, batch: Batch, state: State, step: int) -> Loss:
        if batch.source is None:
            raise ConfigError(
                f"{self.name} trains translators; a language model has no reference to be compared with: "
                "use likelihood or scheduled-sampling"
            )
        share, total = self.config.likelihood, ready_sum(self.portions(model, batch, batch.source), model)
        if share:
            total = (1 - share) * total + share * output_loss(model, model(batch), batch).total
        count = batch.targets_BT.numel() if batch.weights_BT is None else int(batch.weights_BT.sum())
        return Loss(total, count)

    def draw(self, model: Any, batch: Batch, source: Source, *, samples: int, greedy: bool = False) -> Drawn:
        """Translations of each source, as `rollout.draw` gives them."""
        limit = math.ceil(self.config.max_ratio * batch.targets_BT.shape[1]) + SPARE
        heat = self.config.temperature
        return draw(model, source, limit, eos=model.eos, samples=samples, greedy=greedy, temperature=heat)

    def rewards(self, drawn: Drawn, batch: Batch, source_N: Tensor, eos: int) -> Tensor:
        """The reward of each row, translation of the source that source_N says -> N."""
        references = sequences(references_of(batch, eos), eos)
        repeated = [references[source] for source in source_N.tolist()]
        rewards_N = np.asarray(self.reward(sequences(drawn, eos), repeated), np.float32)
        return torch.as_tensor(rewards_N, device=source_N.device)


class ReadySum(torch.autograd.Function):
    """A sum whose gradients are known when it is made."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, gradients: list[Tensor | None], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(None if gradient is None else gradient * above for gradient in ctx.gradients)


def ready_sum(portions: Iterable[Tensor], model: Any) -> Tensor:
    """The sum of scalars as a node of the graph; what each was computed from is let go before the next is made."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = parameters[0].new_zeros(())
    gradients: list[Tensor | None] = [None] * len(parameters)
    for portion in portions:
        with torch.autocast(total.device.type, enabled=False):  # as where a training takes its gradients
            found = torch.autograd.grad(portion, parameters, allow_unused=True)
        gradients = [_added(*both) for both in zip(gradients, found, strict=True)]
        total += portion.detach()
    summed: Tensor = ReadySum.apply(total, gradients, *parameters)
    return summed


def _added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other


def portioned(lengths: Sequence[int], units: Sequence[int], size: int) -> list[list[int]]:
    """Row numbers in portions that are small enough, given each row's length and the unit it must not be parted from.

    Units of like length come together. `size` is that of the vocabulary.
    """
    rows_of: dict[int, list[int]] = {}
    for row, unit in enumerate(units):
        rows_of.setdefault(unit, []).append(row)
    most, tokens = min(PORTION_TOKENS, PORTION_ENTRIES // size), 0
    portions: list[list[int]] = []
    for rows in sorted(rows_of.values(), key=lambda rows: -max(lengths[row] for row in rows)):
        more = sum(lengths[row] for row in rows)
        if not portions or tokens + more > most:
            portions.append([])
            tokens = 0
        portions[-1] += rows
        tokens += more
    return portions


def references_of(batch: Batch, eos: int) -> Drawn:
    """The references of a batch, as if they had been drawn."""
    if batch.weights_BT is None:
        return drawn_from(batch.targets_BT, eos)
    return drawn_from(batch.targets_BT.masked_fill(batch.weights_BT == 0, eos), eos)
