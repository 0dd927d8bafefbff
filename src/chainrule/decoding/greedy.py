"""Choosing the next token: what a chooser is, and the simplest one.

Legend: B batch, V vocabulary.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Chooser(Protocol):
    """Picks a token for each row."""

    def __call__(self, log_probs_BV: Tensor) -> Tensor:
        """log p(. | prefix) of each row -> the chosen token_B."""
        ...


class Greedy:
    """The most probable token."""

    def __call__(self, log_probs_BV: Tensor) -> Tensor:
        """log_probs_BV -> argmax, B."""
        return log_probs_BV.argmax(-1)
