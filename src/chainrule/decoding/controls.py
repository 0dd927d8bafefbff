"""Controls of decoding: what may not be written, or is written less readily, given the text so far.

    controls = Controls(no_unk=True, no_repeat_ngram_size=3).chain(eos=eos, unk=unk, prompt=len(prompt))
    stepper = ControlledStepper(model, controls, eos)

A control changes log p(. | prefix), so a controlled model is again a stepper (or an `ArrayModel`), and greedy search,
sampling, beam search, streaming and checked drafts work with it unchanged. Names and meanings are those of the logits
processors of transformers, applied to log-probabilities in their order. Scores are not renormalised: tokens that remain
possible keep their log-probability, except those that a repetition penalty makes less probable.

The text consists of the prompt and the new tokens; the `eos` before the prompt is not part of it. Where a control would
leave no token at all, the text may end; if nothing ends it, the model's own scores stand.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.lazy import torch
from chainrule.errors import ConfigError
from chainrule.types import ArrayModel, State, Stepper, SteppingModel

if TYPE_CHECKING:
    from torch import Tensor, nn

Scores = TypeVar("Scores", bound=Any)
"""log p of every token after each prefix, RV: a tensor or an array. Both take arrays of row and token numbers."""


FLOOR = -100.0
"""log p in nats that an end has at least where nothing else is possible."""


class Control(ABC):
    """One change of the scores."""

    @abstractmethod
    def apply(self, text_RT: Array, scores_RV: Any) -> None:
        """Change in place the scores of what follows each text."""


@dataclass(frozen=True)
class RepetitionPenalty(Control):
    """Scores of tokens that occur in the text are multiplied by the penalty (Keskar et al., 2019).

    Scores above 0, which log-probabilities never are, are divided by it.
    """

    penalty: float

    def apply(self, text_RT: Array, scores_RV: Any) -> None:
        row_R1 = np.arange(len(text_RT))[:, None]
        old_RT = scores_RV[row_R1, text_RT]
        new_RT = old_RT * self.penalty
        positive_RT = old_RT > 0
        new_RT[positive_RT] = old_RT[positive_RT] / self.penalty
        scores_RV[row_R1, text_RT] = new_RT


@dataclass(frozen=True)
class NoRepeatedNgrams(Control):
    """No n-gram of tokens occurs twice (Paulus et al., 2018)."""

    size: int

    def apply(self, text_RT: Array, scores_RV: Any) -> None:
        before = self.size - 1
        if text_RT.shape[1] < self.size:
            return
        windows_RTN = np.lib.stride_tricks.sliding_window_view(text_RT, self.size, 1)
        last_RN = text_RT[:, text_RT.shape[1] - before :]
        same_RT = (windows_RTN[:, :, :before] == last_RN[:, None]).all(2)
        row_N, place_N = same_RT.nonzero()
        scores_RV[row_N, windows_RTN[row_N, place_N, before]] = -math.inf


@dataclass(frozen=True)
class BannedToken(Control):
    """A token that never occurs."""

    token: int

    def apply(self, text_RT: Array, scores_RV: Any) -> None:
        scores_RV[:, self.token] = -math.inf


@dataclass(frozen=True)
class MinLength(Control):
    """The text does not end before it has `length` tokens, those of the prompt included."""

    length: int
    eos: int

    def apply(self, text_RT: Array, scores_RV: Any) -> None:
        if text_RT.shape[1] < self.length:
            scores_RV[:, self.eos] = -math.inf


@dataclass(frozen=True)
class Controls:
    """The controls as options; the defaults control nothing. The names are those of transformers."""

    repetition_penalty: float = 1.0  # above 1: tokens of the text so far become less probable
    no_repeat_ngram_size: int = 0  # no n-gram of this size occurs twice; 0: any may
    no_unk: bool = False  # never write the unknown token
    min_new_tokens: int = 0  # no end before this number of new tokens

    @property
    def controlled(self) -> list[str]:
        """The names of the options that are set."""
        return [one.name for one in fields(Controls) if getattr(self, one.name) != one.default]

    def check_controls(self) -> None:
        """Refuse values without a meaning."""
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise ConfigError(
                f"repetition_penalty is {self.repetition_penalty}; expected a number above 0 (1: no penalty)"
            )
        for name in ("no_repeat_ngram_size", "min_new_tokens"):
            if (value := getattr(self, name)) < 0:
                raise ConfigError(f"{name} is {value}; expected at least 0 (0: no such control)")

    def chain(self, *, eos: int | None, unk: int | None, prompt: int = 0) -> list[Control]:
        """The controls that are set, in the order in which they apply; `prompt` is the length of the given text."""
        found: list[Control] = []
        if self.repetition_penalty != 1:
            found.append(RepetitionPenalty(self.repetition_penalty))
        if self.no_repeat_ngram_size:
            found.append(NoRepeatedNgrams(self.no_repeat_ngram_size))
        if self.no_unk and unk is not None:
            found.append(BannedToken(unk))
        if self.min_new_tokens and eos is not None:
            found.append(MinLength(prompt + self.min_new_tokens, eos))
        return found


class ControlledState(NamedTuple):
    """The state of the model, and the text that it has read; None before the first token, which is not part of it."""

    inner: State
    text_RT: Array | None

    def read(self, tokens_RT: Array) -> Array:
        """The text with more tokens."""
        if self.text_RT is None:
            return tokens_RT[:, 1:]
        return np.concatenate([self.text_RT, tokens_RT], 1)


class _Chain:
    """Controls, one after the other."""

    def __init__(self, controls: list[Control], eos: int | None) -> None:
        self.controls, self.eos = controls, eos

    def __call__(self, text_RT: Array, scores_RV: Scores) -> Scores:
        """The changed scores, as a copy."""
        changed_RV = scores_RV + 0.0
        for control in self.controls:
            control.apply(text_RT, changed_RV)
        possible_R = (changed_RV > -math.inf).any(1)
        if not bool(possible_R.all()):
            for row in np.flatnonzero(~np.asarray(possible_R.tolist())).tolist():
                if self.eos is None:
                    changed_RV[row] = scores_RV[row]
                else:
                    changed_RV[row, self.eos] = max(float(scores_RV[row, self.eos]), FLOOR)
        return changed_RV  # type: ignore[no-any-return]


class ControlledStepper(SteppingModel):
    """A stepper whose scores are controlled."""

    def __init__(self, stepper: Stepper, controls: list[Control], eos: int | None) -> None:
        self.stepper, self.vocab_size, self._chain = stepper, stepper.vocab_size, _Chain(controls, eos)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Those of the stepper, if it has any; they show its device."""
        return self.stepper.parameters() if isinstance(self.stepper, torch.nn.Module) else iter(())

    def start(self, batch: Any) -> ControlledState:
        return ControlledState(self.stepper.start(batch), None)

    def step(self, state: ControlledState, token_B: Tensor) -> tuple[Tensor, ControlledState]:
        scores_BV, inner = self.stepper.step(state.inner, token_B)
        return self._control(scores_BV, inner, state.read(_array(token_B[:, None])))

    def prefill(self, state: ControlledState, tokens_BT: Tensor) -> tuple[Tensor, ControlledState]:
        scores_BV, inner = self.stepper.prefill(state.inner, tokens_BT)
        return self._control(scores_BV, inner, state.read(_array(tokens_BT)))

    def _control(self, scores_BV: Tensor, inner: State, text_BT: Array) -> tuple[Tensor, ControlledState]:
        return self._chain(text_BT, scores_BV), ControlledState(inner, text_BT)

    def extend(self, state: ControlledState, tokens_BT: Tensor) -> tuple[Tensor, ControlledState]:
        scores_BTV, inner = self.stepper.extend(state.inner, tokens_BT)
        text_BT, T = state.read(_array(tokens_BT)), tokens_BT.shape[1]
        first = text_BT.shape[1] - T + 1  # length of the text after the first of these tokens
        rows = [self._chain(text_BT[:, : first + place], scores_BTV[:, place]) for place in range(T)]
        return torch.stack(rows, 1), ControlledState(inner, text_BT)

    def select(self, state: ControlledState, rows_K: Tensor) -> ControlledState:
        text_RT = None if state.text_RT is None else state.text_RT[_array(rows_K)]
        return ControlledState(self.stepper.select(state.inner, rows_K), text_RT)

    def rewindable(self, state: ControlledState) -> int | None:
        return self.stepper.rewindable(state.inner)

    def rewind(self, state: ControlledState, count: int) -> ControlledState:
        assert state.text_RT is not None
        return ControlledState(self.stepper.rewind(state.inner, count), state.text_RT[:, : -count or None])


class ControlledArrays:
    """An `ArrayModel` whose scores are controlled: what decoding over arrays uses of it."""

    def __init__(self, model: ArrayModel, controls: list[Control], eos: int | None) -> None:
        self.model, self._chain = model, _Chain(controls, eos)

    def start(self, batch: int) -> ControlledState:
        return ControlledState(self.model.start(batch), None)

    def prefill(self, state: ControlledState, tokens_BT: Array) -> tuple[Array, ControlledState]:
        scores_BV, inner = self.model.prefill(state.inner, tokens_BT)
        text_BT = state.read(tokens_BT)
        return self._chain(text_BT, scores_BV), ControlledState(inner, text_BT)

    def select(self, state: ControlledState, rows_K: Array) -> ControlledState:
        text_RT = None if state.text_RT is None else state.text_RT[rows_K]
        return ControlledState(self.model.select(state.inner, rows_K), text_RT)


def _array(tokens: Tensor) -> Array:
    return tokens.cpu().numpy()
