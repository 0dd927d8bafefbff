"""Sampling for the rows of a batch together, each with its own random numbers.

The tokens of a row are those that `Sample` with a generator of the same seed draws for it alone: every operation acts
on a row by itself, and the uniform numbers of a generator are the same one by one and in blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chainrule.base.arrays import Array
from chainrule.base.lazy import torch
from chainrule.decoding.sample import MIN_TEMPERATURE, Sample, draw_at

BLOCK = 64
"""Uniform numbers that are drawn at once."""


class RowSampler:
    """How the tokens of one text are drawn."""

    def __init__(self, options: Sample | None, seed: int) -> None:
        """`options` None: the most probable token. Their generator is not used."""
        self.options = None if options is None else replace(options, generator=None)
        self._generator = torch.Generator().manual_seed(seed)
        self._uniform: list[float] = []  # the next numbers, in reverse

    def uniform(self) -> float:
        """The next uniform number."""
        if not self._uniform:
            self._uniform = torch.rand(BLOCK, generator=self._generator, dtype=torch.float64).tolist()[::-1]
        return self._uniform.pop()


def choose_rows(log_probs_BV: Array, samplers: Sequence[RowSampler]) -> list[int]:
    """The next token of each row; the samplers must have equal options."""
    scores_BV, options = torch.from_numpy(log_probs_BV), samplers[0].options
    if options is None or options.temperature < MIN_TEMPERATURE:
        tokens: list[int] = scores_BV.argmax(-1).tolist()
        return tokens
    uniform_B1 = torch.tensor([[sampler.uniform()] for sampler in samplers], dtype=torch.float64)
    tokens = draw_at(options.filtered(scores_BV), uniform_B1).tolist()
    return tokens
