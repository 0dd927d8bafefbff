"""The records that pass between the parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from chainrule.types.states import State

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class Source(NamedTuple):
    """The text that a translator reads: tokens, each row ended by `eos`, and a mask that is False at padding."""

    tokens_BS: Tensor
    mask_BS: Tensor  # bool


class Batch(NamedTuple):
    """Tokens for one training step. `inputs` is what the model reads at t, `targets` what it must predict there."""

    inputs_BT: Tensor
    targets_BT: Tensor
    weights_BT: Tensor | None = None  # 0 where a target is padding; None: every target counts
    source: Source | None = None  # what a translator or classifier reads
    parts_BS: Tensor | None = None  # labelled text: index of the text of a pair, or of the word, of each source token


class Outputs(NamedTuple):
    """What a model computes for a batch: features of each position, and the state after the last."""

    hidden_BTD: Tensor
    state: State
    extra: Tensor | None = None  # further training losses summed in nats, for example of a predicted length


@dataclass(frozen=True)
class Loss:
    """A sum and the number of terms, never a mean, so that totals stay exact when parts are added."""

    total: Tensor
    count: int
    state: State = None


@dataclass(frozen=True)
class Vocabulary:
    """What a model needs to know of its tokens."""

    size: int
    eos: int
    counts_V: np.ndarray[Any, Any]  # occurrences in the training text, int64
    source: Vocabulary | None = None  # translators: the vocabulary of the source; None: the same
    read_V: np.ndarray[Any, Any] | None = None  # translators with one vocabulary: occurrences in the sources
    pieces: tuple[str, ...] | None = None  # the tokens as shown to people; None: unknown

    @property
    def read_counts(self) -> np.ndarray[Any, Any]:
        """Occurrences of each token of the source vocabulary in the sources."""
        if self.source is not None:
            return self.source.counts_V
        return self.counts_V if self.read_V is None else self.read_V


class OutputChoice(NamedTuple):
    """The output layer of a model, and its options."""

    layer: Any  # a class of layers/outputs
    config: Any


class WordVectors(NamedTuple):
    """The tokens of words and their vectors, row by row."""

    ids_V: np.ndarray[Any, Any]
    vectors_VD: np.ndarray[Any, Any]  # float32; may be mapped
