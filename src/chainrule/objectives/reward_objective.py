"""The base of objectives that train on a metric: sampled translations, their rewards, and a share of likelihood.

Likelihood makes each token of the reference probable given the tokens before it, but metrics score whole translations.
Here the model translates, a reward scores the result, and good translations become more probable (sequence-level
training).

Several translations of every sentence of a batch would not fit into memory. So they are scored in chunks, and the
gradients of a chunk are computed before the next chunk is read.
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

from chainrule.base.arrays import Array
from chainrule.config import Section
from chainrule.errors import ConfigError
from chainrule.objectives.likelihood import output_loss
from chainrule.objectives.network import SteppingNetwork
from chainrule.objectives.rollout import Samples, make_samples, sample_translations, token_lists
from chainrule.types import Batch, Loss, Objective, Source, State

TokenReward = Callable[[list[list[int]], list[list[int]]], Array]
"""R rows of tokens and the reference of each, all without `eos` -> R rewards from 0 to 1."""

CHUNK_TOKENS = 4096
"""Maximum number of tokens in a chunk …"""

CHUNK_ENTRIES = 2**25
"""… and maximum size of its table of positions by tokens, 128 MB; but a chunk has at least the rows of one source."""

EXTRA_TOKENS = 5
"""Tokens that a translation may have beyond `max_ratio` times the longest reference, for short references."""


class RewardConfig(Section):
    """The reward, and how translations are sampled."""

    reward: Literal["bleu", "chrf", "rouge"] = Field("bleu", description="metric that rewards a translation")
    temperature: float = Field(
        1.0, gt=0, description="sampling temperature; only at 1 do samples follow the model's distribution"
    )
    likelihood: float = Field(0.0, ge=0, lt=1, description="share of the likelihood in the loss")
    max_ratio: float = Field(1.5, ge=1, description="maximum length of a sample, relative to the longest reference")


class RewardObjective(Objective):
    """An objective that samples translations and rewards them. Subclasses give `chunk_losses`.

    The count of the loss is the number of reference tokens, as for likelihood, and the loss is that of one sequence per
    source, whatever the number of samples. So its gradient has the size of the likelihood's: the same learning rates
    work, and the two losses can be mixed. The number of sampled tokens depends on the samples, so dividing by it would
    bias the estimate.
    """

    name: ClassVar[str]
    needs_reward: ClassVar[bool] = True
    samples: ClassVar[bool] = True
    config: RewardConfig
    reward: TokenReward  # set by the trainer, since it needs the tokeniser

    @abstractmethod
    def chunk_losses(self, model: SteppingNetwork, batch: Batch, source: Source) -> Iterator[Tensor]:
        """Sample and reward translations -> scalars whose sum is the loss due to the rewards."""

    def loss(self, model: SteppingNetwork, batch: Batch, state: State, step: int) -> Loss:
        if batch.source is None:
            raise ConfigError(
                f"{self.name} trains translators only: it compares translations with references; use likelihood or "
                "scheduled-sampling for a language model"
            )
        share, total = self.config.likelihood, sum_chunks(self.chunk_losses(model, batch, batch.source), model)
        if share:
            total = (1 - share) * total + share * output_loss(model, model(batch), batch).total
        count = batch.targets_BT.numel() if batch.weights_BT is None else int(batch.weights_BT.sum())
        return Loss(total, count)

    def sample(
        self, model: SteppingNetwork, batch: Batch, source: Source, *, samples: int, greedy: bool = False
    ) -> Samples:
        """Translations of each source, as `sample_translations` gives them."""
        limit = math.ceil(self.config.max_ratio * batch.targets_BT.shape[1]) + EXTRA_TOKENS
        temperature = self.config.temperature
        return sample_translations(
            model, source, limit, eos=model.eos, samples=samples, greedy=greedy, temperature=temperature
        )

    def compute_rewards(self, samples: Samples, batch: Batch, source_R: Tensor, eos: int) -> Tensor:
        """The reward of each row -> R, where source_R gives the index of its source."""
        references = token_lists(references_of(batch, eos), eos)
        repeated = [references[source] for source in source_R.tolist()]
        rewards_R = np.asarray(self.reward(token_lists(samples, eos), repeated), np.float32)
        return torch.as_tensor(rewards_R, device=source_R.device)


def references_of(batch: Batch, eos: int) -> Samples:
    """The references of a batch, in the form of samples."""
    if batch.weights_BT is None:
        return make_samples(batch.targets_BT, eos)
    return make_samples(batch.targets_BT.masked_fill(batch.weights_BT == 0, eos), eos)


# Chunks


def split_into_chunks(lengths: Sequence[int], units: Sequence[int], size: int) -> list[list[int]]:
    """Row numbers in chunks of limited size, given the length of each row and its unit; a unit is never divided.

    Units of similar length are in the same chunk. `size` is that of the vocabulary.
    """
    rows_of: dict[int, list[int]] = {}
    for row, unit in enumerate(units):
        rows_of.setdefault(unit, []).append(row)
    max_tokens, tokens = min(CHUNK_TOKENS, CHUNK_ENTRIES // size), 0
    chunks: list[list[int]] = []
    for rows in sorted(rows_of.values(), key=lambda rows: -max(lengths[row] for row in rows)):
        more = sum(lengths[row] for row in rows)
        if not chunks or tokens + more > max_tokens:
            chunks.append([])
            tokens = 0
        chunks[-1] += rows
        tokens += more
    return chunks


def sum_chunks(losses: Iterable[Tensor], model: SteppingNetwork) -> Tensor:
    """The sum of scalars as a node of the graph; the graph of each is freed before the next is computed."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = parameters[0].new_zeros(())
    gradients: list[Tensor | None] = [None] * len(parameters)
    for loss in losses:
        with torch.autocast(total.device.type, enabled=False):  # as where the training loop computes gradients
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
        gradients = [_add(*both) for both in zip(gradients, found, strict=True)]
        total += loss.detach()
    summed: Tensor = PrecomputedGradients.apply(total, gradients, *parameters)
    return summed


class PrecomputedGradients(torch.autograd.Function):
    """A scalar whose gradients with respect to the parameters are given."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, gradients: list[Tensor | None], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(None if gradient is None else gradient * grad_output for gradient in ctx.gradients)


def _add(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other
