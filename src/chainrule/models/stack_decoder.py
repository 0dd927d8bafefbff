"""Translators whose encoder and decoder are stacks of blocks, which the decoding engine computes where it can.

In evaluation mode and without gradients, on a CPU and in single precision, the state of a prefix is that of the engine
(`engines/decode/stack.py`). Anywhere else it is what the model's own `begin` and `read_layers` make of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

from torch import Tensor

from chainrule.base.choosing import TokenChooser
from chainrule.engines.decode.stack import CompiledStack, StackState, Wanted
from chainrule.engines.decode.weights import StackWeights
from chainrule.errors import ConfigError
from chainrule.layers.compiled import PackedModel, choose_continuations, predict, read_features
from chainrule.models.translator import Translator
from chainrule.types import State


def check_length(tokens: int, window: int) -> None:
    """Refuse a text that is longer than the window."""
    if tokens > window:
        raise ConfigError(
            f"got {tokens} tokens, but the model reads at most model.context = {window}; shorten the line or "
            "train with a larger context"
        )


class StackDecoder(Translator, TokenChooser):
    """A translator with a stack of blocks on either side. Subclasses define `begin`, `read_layers` and the weights."""

    window: int

    def compiled_decoder(self) -> StackWeights | None:
        """The decoder in the form of the engine; None: the engine does not compute it."""
        return None

    def compiled_encoder(self) -> StackWeights | None:
        """The encoder in the form of the engine; None: the engine does not compute it."""
        return None

    def read_layers(self, state: Any, tokens_BT: Tensor) -> tuple[Tensor, State]:
        """`read` by torch."""
        raise TypeError(f"{type(self).__name__} must define read_layers")

    @cached_property
    def _packed_encoder(self) -> PackedModel:
        """The compiled form of the encoder."""
        return PackedModel()

    def train(self, mode: bool = True) -> Self:
        self._packed_encoder.forget()
        return super().train(mode)

    def decoder_engine(self) -> CompiledStack | None:
        """The compiled decoder as the model is now."""
        return self._packed.engine(self, self.precision, self.compiled_decoder)

    def encoder_engine(self) -> CompiledStack | None:
        """The compiled encoder as the model is now."""
        return self._packed_encoder.engine(self, self.precision, self.compiled_encoder)

    # Stepping

    def prefill(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        if not (isinstance(state, StackState) and state.predicts):
            return super().prefill(state, tokens_BT)
        return self._predict(state, tokens_BT, "last")

    def extend(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        if not (isinstance(state, StackState) and state.predicts):
            return super().extend(state, tokens_BT)
        return self._predict(state, tokens_BT, "all")

    def _predict(self, state: StackState, tokens_BT: Tensor, wanted: Wanted) -> tuple[Tensor, StackState]:
        check_length(state.longest + tokens_BT.shape[1], self.window)
        return predict(state, tokens_BT, wanted)

    def read(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        if not isinstance(state, StackState):
            return self.read_layers(state, tokens_BT)
        check_length(state.longest + tokens_BT.shape[1], self.window)
        return read_features(state, tokens_BT)

    def continue_greedily(
        self, state: State, token_1: Tensor, count: int, eos: int | None
    ) -> tuple[Sequence[int], State] | None:
        """Append a token and then the most probable ones: several in one call of the engine, where it computes."""
        if not (isinstance(state, StackState) and state.predicts):
            return None
        check_length(state.longest + 1, self.window)
        chosen, after = state.continue_greedily(int(token_1), count, -1 if eos is None else eos)
        return chosen.tolist(), after

    def best_continuations(
        self, state: State, token_R: Tensor, log_prob_AW: Tensor, count: int
    ) -> tuple[Tensor, Tensor, State] | None:
        """The best continuations of a beam, where the engine computes them."""
        if not (isinstance(state, StackState) and state.predicts):
            return None
        check_length(state.longest + 1, self.window)
        return choose_continuations(state, token_R, log_prob_AW, count)

    def rewindable(self, state: State) -> int | None:
        return state.room if isinstance(state, StackState) and state.rewinds else None

    def rewind(self, state: State, count: int) -> State:
        return state.remove_last(count)
