"""Choosers pick the next token from its distribution: their interface, and greedy choice. Sampling: `sample.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Chooser(Protocol):
    """Picks a token for each row."""

    def __call__(self, log_probs_BV: Tensor) -> Tensor:
        """log p(. | prefix) of each row -> the chosen tokens, B."""
        ...


class Greedy:
    """Picks the most probable token."""

    def __call__(self, log_probs_BV: Tensor) -> Tensor:
        """log_probs_BV -> argmax, B."""
        return log_probs_BV.argmax(-1)
