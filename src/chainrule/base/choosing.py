"""Steppers that choose tokens themselves: what a decoder may ask for instead of log p of every token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chainrule.types import State

if TYPE_CHECKING:
    from torch import Tensor


class TokenChooser:
    """An optional part of a stepper. None: the decoder chooses from what `step` gives; the result is the same."""

    def continue_greedily(
        self, state: State, token_1: Tensor, count: int, eos: int | None
    ) -> tuple[Sequence[int], State] | None:
        """Append a token to one prefix, then the most probable next ones, at least one and at most `count`.

        Returns those, of which only the last may be `eos`, and the state that has read all but the last.
        """
        return None

    def best_continuations(
        self, state: State, token_R: Tensor, log_prob_AW: Tensor, count: int
    ) -> tuple[Tensor, Tensor, State] | None:
        """Append a token to each of A·W prefixes -> the most probable continuations of each W of them.

        Given log p of the prefixes with their tokens: log p of the continuations AM, best first, M at most `count`;
        cells row · V + token, AM; and the new state.
        """
        return None
