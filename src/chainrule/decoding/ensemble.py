"""An ensemble of steppers averages their probabilities: p(w | prefix) = Σ_k w_k p_k(w | prefix).

    ensemble = Ensemble([first, second])
    beam_search(ensemble, ensemble.start([first_source, second_source]), prompt_BT, eos=eos, beams=5, max_new_tokens=80)

The members may be different models with different sources; only their output vocabulary must be the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chainrule.base.lazy import torch
from chainrule.errors import ConfigError
from chainrule.types import State, Stepper, SteppingModel

if TYPE_CHECKING:
    from torch import Tensor


class Ensemble(SteppingModel):
    """A stepper whose distribution is the weighted mean of its members'; its state is the tuple of their states."""

    def __init__(self, members: Sequence[Stepper], weights: Sequence[float] | None = None) -> None:
        """Weights are scaled to sum to one; None: equal weights."""
        self.members = tuple(members)
        self.vocab_size = min((member.vocab_size for member in self.members), default=0)
        self.weights = _normalise([1.0] * len(self.members) if weights is None else weights, len(self.members))

    def start(self, batch: int | Sequence[Any]) -> tuple[State, ...]:
        """The empty prefixes: `batch` of them for each member, or those of each member's own source."""
        sources = [batch] * len(self.members) if isinstance(batch, int) else batch
        if len(sources) != len(self.members):
            raise ConfigError(
                f"the ensemble got {len(sources)} sources for {len(self.members)} members; give one source per member"
            )
        return tuple(member.start(source) for member, source in zip(self.members, sources, strict=True))

    def step(self, state: tuple[State, ...], token_B: Tensor) -> tuple[Tensor, tuple[State, ...]]:
        """Append a token to each prefix -> log p(. | prefix) BV, and the new state."""
        return self._mix([member.step(part, token_B) for member, part in zip(self.members, state, strict=True)])

    def prefill(self, state: tuple[State, ...], tokens_BT: Tensor) -> tuple[Tensor, tuple[State, ...]]:
        """Append T ≥ 1 tokens to each prefix -> log p(. | prefix) BV after the last, and the new state."""
        return self._mix([member.prefill(part, tokens_BT) for member, part in zip(self.members, state, strict=True)])

    def select(self, state: tuple[State, ...], rows_K: Tensor) -> tuple[State, ...]:
        """The rows rows_K of every member's state."""
        return tuple(member.select(part, rows_K) for member, part in zip(self.members, state, strict=True))

    def _mix(self, predictions: list[tuple[Tensor, State]]) -> tuple[Tensor, tuple[State, ...]]:
        sizes = sorted({log_probs_BV.shape[1] for log_probs_BV, _ in predictions})
        if len(sizes) > 1:
            raise ConfigError(
                f"the members of the ensemble have vocabularies of {sizes[0]} and {sizes[-1]} tokens; expected one "
                "vocabulary: train them with one tokeniser"
            )
        weighted = [row_BV + math.log(weight) for (row_BV, _), weight in zip(predictions, self.weights, strict=True)]
        return torch.stack(weighted).logsumexp(0), tuple(state for _, state in predictions)


def _normalise(weights: Sequence[float], members: int) -> list[float]:
    """The weights of the members, scaled to sum to one."""
    if not members:
        raise ConfigError("the ensemble has no members; give at least 1")
    if len(weights) != members:
        raise ConfigError(
            f"the ensemble has {len(weights)} weights for {members} members; give one weight per member, or none for "
            "equal weights"
        )
    for weight in weights:
        if not (math.isfinite(weight) and weight > 0):
            raise ConfigError(
                f"a member of the ensemble has the weight {weight}; expected a positive number: leave out a member "
                "that should not count"
            )
    return [weight / math.fsum(weights) for weight in weights]
