"""The protocols: what each part may ask of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from chainrule.types.records import Batch, Outputs, Source
from chainrule.types.states import State

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    Array = np.ndarray[Any, Any]


@runtime_checkable
class Scorer(Protocol):
    """Scores given tokens in parallel."""

    def log_probs(self, tokens_BT: Tensor) -> Tensor:
        """tokens_BT -> log p(x_t | eos, x_<t) in nats, BT."""
        ...


@runtime_checkable
class Stepper(Protocol):
    """Predicts one token at a time; all that decoding needs. `SteppingModel` has defaults for what may be faster."""

    vocab_size: int

    def start(self, batch: Any) -> State:
        """The empty prefix, `batch` times; a translator takes a Source and gives one prefix per row of it."""
        ...

    def step(self, state: State, token_B: Tensor) -> tuple[Tensor, State]:
        """Append a token to each prefix -> log p(. | prefix) in nats, BV, and the new state."""
        ...

    def select(self, state: State, rows_K: Tensor) -> State:
        """The state whose row k is row rows_K[k] of the given one."""
        ...

    def prefill(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        """Append T ≥ 1 known tokens to each prefix -> log p(. | prefix) after the last, BV, and the new state."""
        ...

    def extend(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        """Append T ≥ 1 known tokens to each prefix -> log p(. | prefix) after each, BTV, and the new state."""
        ...

    def rewindable(self, state: State) -> int | None:
        """How many tokens can be read now and then removed by `rewind`; None: never any."""
        ...

    def rewind(self, state: State, count: int) -> State:
        """The state without its last `count` tokens, all of them read since `rewindable` was asked."""
        ...

    def propose(self, state: State, tokens_1T: Tensor, count: int, threshold: float) -> tuple[list[int], State]:
        """Append T ≥ 1 tokens to one prefix -> its most probable continuation, and the state after those T tokens.

        The continuation has at most `count` tokens and ends where its log p would fall below `threshold`.
        """
        ...

    def predict_block(self, tokens_BT: Tensor) -> Tensor:
        """log p of each of the next tokens after texts that begin with `eos`, without the tokens between -> BTV.

        For models with the modes nar and draft, as the next method.
        """
        ...

    def predict_rest(self, state: State, token_B: Tensor) -> tuple[Tensor, State]:
        """log p of tokens after the prefix and `token_B`, without those between -> BTV, with T ≥ 1.

        The returned state is that of the prefix, prepared to read `token_B` next.
        """
        ...


class StreamScorer(Protocol):
    """Scores text of any length piece by piece. The attributes are those of `Model`."""

    normalised: bool
    across_lines: bool
    tracks: int | None
    chunk: int | None

    def start(self, batch: int) -> State:
        """The state before the first token."""
        ...

    def score(self, tokens_BT: Tensor, state: State) -> tuple[Tensor, State]:
        """log p of each token given all before it (initially `eos`) -> BT in nats, and the state after them."""
        ...


@runtime_checkable
class Trainable(Protocol):
    """Turns a batch into features for an objective."""

    def forward(self, batch: Batch, state: State = None) -> Outputs: ...


class LineScorer(Protocol):
    """Scores many short lines in one call."""

    def score_lines(self, tokens_N: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """log p in nats and number of tokens of each line, scored separately; the last line may lack its eos."""
        ...

    def score_tokens(self, tokens_N: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """log p in nats of each token of lines that are scored separately, N in double precision."""
        ...


class ArrayModel(Protocol):
    """A language model over numpy arrays: what evaluation and scoring need. `base/over_arrays.py` makes one of any."""

    def start(self, batch: int) -> State: ...

    def log_probs(self, tokens_BT: Array) -> Array:
        """log p(x_t | eos, x_<t) in nats, BT."""
        ...

    def score(self, tokens_BT: Array, state: State) -> tuple[Array, State]:
        """log p of each token given all before it (initially `eos`) -> BT in nats, and the state after them."""
        ...

    def step_probs(self, state: State, token_B: Array) -> tuple[Array, State]:
        """Append a token to each prefix -> p(. | prefix), BV in double precision, and the new state."""
        ...

    def step(self, state: State, token_B: Array) -> tuple[Array, State]: ...

    def prefill(self, state: State, tokens_BT: Array) -> tuple[Array, State]: ...

    def extend(self, state: State, tokens_BT: Array) -> tuple[Array, State]: ...

    def matched_orders(self, tokens_BT: Array, state: State = None) -> Array | None:
        """Length of the n-gram whose probability each token of a text has -> BT; None: it counts no n-grams."""
        ...

    def follow(self, state: State, tokens_BT: Array) -> Array:
        """Append T ≥ 2 known tokens to each prefix -> log p of all but the first given those before, B(T-1)."""
        ...

    def select(self, state: State, rows_K: Array) -> State: ...


class ContextDepths(Protocol):
    """Knows how much of a context it has seen in training."""

    def depths(self, tokens_BT: Tensor, state: State) -> Tensor:
        """The number of context words found before each token, given the state before them -> BT."""
        ...

    def depth_rows(self, state: State) -> Tensor:
        """The number of context words that the next token has -> B."""
        ...


class TextEncoder(Protocol):
    """Makes one vector per token of a text."""

    @property
    def first(self) -> int | None:
        """The token before every text, such as [CLS], whose vector is part of the result; None: there is none."""
        ...

    @property
    def reads_eos(self) -> bool:
        """Whether `eos` is read after the text."""
        ...

    @property
    def max_tokens(self) -> int | None:
        """Number of tokens that can be read at once, `first` and `eos` included; None: any number."""
        ...

    def encode_text(self, source: Source) -> Tensor:
        """The vector of each token, BSD; those of padding have no meaning."""
        ...

    def layers(self, tokens_BS: Tensor, mask_BS: Tensor) -> list[Tensor] | None:
        """The embeddings and every layer's states, BSD each; None: the layers cannot be read separately."""
        ...

    def pool(self, first_BD: Tensor) -> Tensor | None:
        """The pooled output of texts from the vectors of their first tokens, BD; None: it has no pooler."""
