"""Several steppers that decide together: p(w | prefix) = Σ_m w_m p_m(w | prefix).

    ensemble = Ensemble([first, second])
    beam_search(ensemble, ensemble.start([first_source, second_source]), prompt_BT, eos=eos, beams=5, max_new_tokens=80)

The members may be of any kind and read sources of their own; only the words they choose from must be the same.

Legend: B batch, T time, V vocabulary, K kept rows, M members.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from chainrule.errors import ConfigError
from chainrule.types import State, Stepper, SteppingModel


class Ensemble(SteppingModel):
    """A stepper whose distribution is the weighted mean of its members'; its state holds theirs, in order."""

    def __init__(self, members: Sequence[Stepper], weights: Sequence[float] | None = None) -> None:
        """The weights, equal if none are given, are scaled to sum to one."""
        self.members = tuple(members)
        self.vocab_size = min((member.vocab_size for member in self.members), default=0)
        self.weights = _normalised([1.0] * len(self.members) if weights is None else weights, len(self.members))

    def start(self, batch: int | Sequence[Any]) -> tuple[State, ...]:
        """The empty prefixes: so many of each member, or what each member's own `start` makes of its item."""
        given = [batch] * len(self.members) if isinstance(batch, int) else batch
        if len(given) != len(self.members):
            raise ConfigError(
                f"the ensemble was started from {len(given)} sources, but it has {len(self.members)} members; "
                "give each member its own."
            )
        return tuple(member.start(item) for member, item in zip(self.members, given, strict=True))

    def step(self, state: tuple[State, ...], token_B: Tensor) -> tuple[Tensor, tuple[State, ...]]:
        """Append a token to each prefix -> log p(. | prefix) BV, and the longer prefixes."""
        return self._mixed([member.step(part, token_B) for member, part in zip(self.members, state, strict=True)])

    def prefill(self, state: tuple[State, ...], tokens_BT: Tensor) -> tuple[Tensor, tuple[State, ...]]:
        """Append T ≥ 1 tokens to each prefix -> log p(. | prefix) BV after the last, and the longer prefixes."""
        return self._mixed([member.prefill(part, tokens_BT) for member, part in zip(self.members, state, strict=True)])

    def select(self, state: tuple[State, ...], rows_K: Tensor) -> tuple[State, ...]:
        """The prefixes rows_K, of every member."""
        return tuple(member.select(part, rows_K) for member, part in zip(self.members, state, strict=True))

    def _mixed(self, answers: list[tuple[Tensor, State]]) -> tuple[Tensor, tuple[State, ...]]:
        sizes = sorted({log_probs_BV.shape[1] for log_probs_BV, _ in answers})
        if len(sizes) > 1:
            raise ConfigError(
                f"the members of the ensemble choose from {sizes[0]} and {sizes[-1]} words, but they must share one "
                "vocabulary; train them with one tokeniser."
            )
        weighted = [row_BV + math.log(weight) for (row_BV, _), weight in zip(answers, self.weights, strict=True)]
        return torch.stack(weighted).logsumexp(0), tuple(state for _, state in answers)


def _normalised(weights: Sequence[float], members: int) -> list[float]:
    """The weights of so many members, summing to one."""
    if not members:
        raise ConfigError("the ensemble has no member, but at least 1 is needed.")
    if len(weights) != members:
        raise ConfigError(
            f"the ensemble has {len(weights)} weights for {members} members; give one each, or none for equal weights."
        )
    for weight in weights:
        if not (math.isfinite(weight) and weight > 0):
            raise ConfigError(
                f"a member of the ensemble weighs {weight}, but a weight must be a positive number; "
                "leave out a member that is to have none."
            )
    return [weight / math.fsum(weights) for weight in weights]
