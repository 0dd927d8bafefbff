"""The contract every model keeps, and the records that pass between the parts.

Suffixes state shapes, and a letter means the same in every file:

    A  groups: the sources being decoded, each with W decoder rows
    B  batch: sequences processed side by side
    C  classes: labels or tags
    D  model width
    E  width of a part: one head, one direction, an encoder inside a model
    F  filters, features or statistics per item
    G  gate rows of a recurrent layer (gates × U)
    H  attention heads
    I  ids of the tokeniser, where V is a subset of them
    J  nodes of a tree or trie
    K  alternatives: beams, kept rows, candidates, draws, components of a mixture, resamples
    L  positions before the current ones: contents of a cache or window
    M  selected members of N: a chunk, masked positions
    N  items in one flat list: positions of a batch (B·T), tokens of a text, lines of a file
    O  n-gram orders
    P  examples of a data set: texts, pairs, sentences
    Q  queries
    R  rows of a decoder (A·W), or rows gathered from a table
    S  source positions: those of a text that is read, not predicted
    T  time: positions of the sequence that is predicted
    U  units of a recurrent state
    V  vocabulary
    W  decoder rows per group
    X  columns of several parts side by side (3·H·E, …)
    Y  contexts of an n-gram model
    Z  buckets

A digit is a size: row_1V is one row of V values.

Tokens are integers. One token, `eos`, ends a line and also stands before the first token of a text, so the
distribution over the first token is `step(start(B), eos)`, and `log_probs(x)` scores x[0] given `eos`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

State = Any
"""What a model remembers of a prefix: a nest of tuples, lists and dicts whose tensors all have the batch first, or of
objects that offer `map_tensors(change)`. Anything else in it (an int, None) is the same for every row."""


@runtime_checkable
class Scorer(Protocol):
    """Answers log p(x_t | x_<t) of given tokens, all at once."""

    def log_probs(self, tokens_BT: Tensor) -> Tensor:
        """tokens_BT -> log p(x_t | eos, x_<t) in nats, BT."""
        ...


@runtime_checkable
class Stepper(Protocol):
    """Walks one token at a time; the decoder needs nothing else."""

    def start(self, batch: Any) -> State:
        """The empty prefix, `batch` times; a translator takes a Source, and gives a prefix for each of its rows."""
        ...

    def step(self, state: State, token_B: Tensor) -> tuple[Tensor, State]:
        """Append a token to each prefix; log p(. | prefix) as BV in nats, and the new state."""
        ...

    def select(self, state: State, rows_K: Tensor) -> State:
        """The state whose row k is row rows_K[k] of the given one."""
        ...


@runtime_checkable
class Trainable(Protocol):
    """Turns a batch into features for an objective."""

    def forward(self, batch: Batch, state: State = None) -> Outputs: ...


@runtime_checkable
class Encoder(Protocol):
    """Makes vectors of a text's tokens."""

    def encode(self, source: Source) -> Tensor:
        """The vector of each token, which may know those around it, BSD; those of padding mean nothing."""
        ...


class Source(NamedTuple):
    """The text that a translator reads: tokens, each row ended by `eos`, and which of them are no padding."""

    tokens_BS: Tensor
    mask_BS: Tensor  # bool


class Batch(NamedTuple):
    """Tokens for one training step. `inputs` is what the model sees at t, `targets` what it must predict there."""

    inputs_BT: Tensor
    targets_BT: Tensor
    weights_BT: Tensor | None = None  # 0 where a target is padding; None: every target counts
    source: Source | None = None  # what a translator reads beside
    parts_BS: Tensor | None = (
        None  # of labelled text, for each source token: the text of a pair, or the word, by number
    )


class Outputs(NamedTuple):
    """What a model makes of a batch: features of each position, and the state after the last."""

    hidden_BTD: Tensor
    state: State
    extra: Tensor | None = None  # what the model adds to the loss in training: a sum in nats, e.g. of a length foretold


@dataclass(frozen=True)
class Loss:
    """A sum and what it was summed over, never a mean, so that totals stay exact when pieces are added."""

    total: Tensor
    count: int
    state: State = None


@dataclass(frozen=True)
class Vocabulary:
    """What a model must know of the tokens it speaks."""

    size: int
    eos: int
    counts_V: np.ndarray[Any, Any]  # occurrences in the training text, int64
    source: Vocabulary | None = None  # of a translator: that of the text it reads, None if it is this one
    read_V: np.ndarray[Any, Any] | None = None  # of a translator with one vocabulary: occurrences in what it reads
    pieces: tuple[str, ...] | None = None  # the tokens as they are shown to people; None: nobody knows

    @property
    def read_counts(self) -> np.ndarray[Any, Any]:
        """How often each token of the source's vocabulary came in the sources."""
        if self.source is not None:
            return self.source.counts_V
        return self.counts_V if self.read_V is None else self.read_V


class OutputChoice(NamedTuple):
    """Which output layer a model is to end in, with which options."""

    layer: Any  # a class of layers/outputs
    config: Any


def map_state(change: Callable[[Tensor], Tensor], state: State) -> State:
    """Apply `change` to every tensor of a state."""
    if isinstance(state, tuple):
        parts = [map_state(change, part) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    if isinstance(state, list):
        return [map_state(change, part) for part in state]
    if isinstance(state, dict):
        return {key: map_state(change, part) for key, part in state.items()}
    if hasattr(state, "map_tensors"):
        return state.map_tensors(change)
    return change(state) if hasattr(state, "index_select") else state


def select_rows(state: State, rows_K: Tensor) -> State:
    """Reorder every tensor of a state by its first dimension."""
    return map_state(lambda tensor: tensor.index_select(0, rows_K), state)


def detach_state(state: State) -> State:
    """Cut a state from the graph that made it, as truncated back-propagation does between chunks."""
    return map_state(lambda tensor: tensor.detach(), state)


def prefill(stepper: Stepper, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
    """Append T ≥ 1 known tokens to each prefix -> log p(. | prefix) BV after the last, and the longer state.

    A stepper may offer `prefill(state, tokens_BT)` that reads them all in parallel; otherwise they are stepped through.
    """
    if tokens_BT.shape[1] > 1 and hasattr(stepper, "prefill"):
        log_probs_BV, state = stepper.prefill(state, tokens_BT)
        return log_probs_BV, state
    for token_B in tokens_BT.unbind(1):
        log_probs_BV, state = stepper.step(state, token_B)
    return log_probs_BV, state


def extend(stepper: Stepper, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
    """Append T ≥ 1 known tokens to each prefix -> log p(. | prefix) after each of them, BTV, and the longer state.

    A stepper may offer `extend(state, tokens_BT)` that reads them all in parallel; otherwise they are stepped through.
    """
    if tokens_BT.shape[1] > 1 and hasattr(stepper, "extend"):
        log_probs_BTV, state = stepper.extend(state, tokens_BT)
        return log_probs_BTV, state
    import torch  # here, since who only needs the records should not wait for it

    rows = []
    for token_B in tokens_BT.unbind(1):
        log_probs_BV, state = stepper.step(state, token_B)
        rows.append(log_probs_BV)
    return torch.stack(rows, 1), state
