"""The contract every model implements, and the records that pass between the parts.

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

A digit is a size: row_1V is one row of V values. Tokens are integers. One token, `eos`, ends a line and also precedes
the first token of a text, so the distribution over the first token is `step(start(B), eos)`, and `log_probs(x)` scores
x[0] given `eos`.

A registered model inherits `Model`, or `SteppingModel` if it predicts token by token. These classes declare every
attribute and optional capability that other code relies on, each with a default, so nothing has to be probed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    Array = np.ndarray[Any, Any]

State = Any
"""A model's memory of a prefix: a nest of tuples, lists and dicts whose tensors all have the batch first, or of objects
with `map_tensors(change)` (see `TensorHolder`). Anything else in it (an int, None) is the same for every row."""


# Protocols


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


class WordVectors(NamedTuple):
    """The tokens of words and their vectors, row by row."""

    ids_V: np.ndarray[Any, Any]
    vectors_VD: np.ndarray[Any, Any]  # float32; may be mapped


class TensorHolder:
    """A part of a state that maps its own tensors, for example because rows share them."""

    __slots__ = ()

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Any:
        """The same part with `change` applied to its tensors, as if every row had its own."""
        raise TypeError(f"{type(self).__name__} must define map_tensors")

    def form(self) -> Hashable:
        """Equal for parts that `join` can join; by default a part is like no other."""
        return id(self)

    @property
    def independent(self) -> bool:
        """Whether what is computed from a row never depends on the other rows, bit by bit, however many there are."""
        return False

    def separate(self) -> Any:
        """The same rows, none of which shares storage with another; by default rows never do."""
        return self

    def join(self, others: Sequence[Any]) -> Any:
        """The rows of this part, then those of others of the same form."""
        raise TypeError(f"{type(self).__name__} cannot be joined")


# What models inherit


@dataclass(frozen=True)
class Preferences:
    """How a model prefers to be trained where the user leaves the choice open. Each model file states its own."""

    optimizer: Literal["adamw", "muon"] = "adamw"
    max_dropout: float = 1.0  # limit of the dropout that is chosen from the size of the text
    parallel: bool = False  # reads all positions of a row in parallel: few long rows instead of many short ones
    context_by_vocabulary: bool = False  # characters get a longer context than words
    streams_context: bool = False  # has a context and yet reads contiguous text with carried state


class Model:
    """What every registered model declares; the values here are the defaults."""

    Config: ClassVar[type[Any]]  # the record of its options
    prefers: ClassVar[Preferences] = Preferences()
    suggestions: ClassVar[tuple[str, ...]] = ()  # what to try, for `chainrule explain`
    stores_arrays: ClassVar[bool] = False  # whether it saves and loads arrays of its own (`save`, `load`)
    has_parts: ClassVar[bool] = False  # whether it combines the models of other runs
    modes: ClassVar[tuple[str, ...]] = ("ar",)  # decoding modes
    attends: ClassVar[bool] = False  # whether `attention` gives weights over the source
    shardable: ClassVar[bool] = False  # whether its weights can be divided among processes (`training.shard`)
    further_verbs: ClassVar[tuple[str, ...]] = ()  # verbs of its runs beside those of its task

    config: Any
    vocab_size: int
    window: int | None = None  # tokens it can read at once; None: any number
    normalised: bool = True  # False: it gives scores that do not sum to one
    across_lines: bool = True  # whether context crosses line ends when a text is scored
    tracks: int | None = None  # parallel tracks in which a text is scored; None: chosen by its length
    chunk: int | None = None  # columns scored at once; None: the default of `evaluation/perplexity.py`
    precision: Literal["float32", "int8"] = "float32"  # of the weights with which a loaded model predicts

    @classmethod
    def outdated(cls, names: Collection[str]) -> str | None:
        """Why weights with these names, of an earlier version, cannot be used; None: they are not of one."""
        return None

    # As an encoder for other models

    encodes: ClassVar[bool] = False  # whether its runs can be the pretrained encoder of another model

    @classmethod
    def encoder_shape(cls, config: Any, vocab_size: int, eos: int) -> Any:
        """The shape of the encoder in a model with these options and tokens."""
        raise TypeError(f"{cls.__name__} is not an encoder")

    @classmethod
    def encoder_weights(cls, config: Any, weights: Mapping[str, Tensor], vocab_size: int) -> dict[str, Tensor]:
        """The weights of that encoder, under its own names, from those of the whole model."""
        raise TypeError(f"{cls.__name__} is not an encoder")

    # What the model consists of

    if TYPE_CHECKING:

        def parameters(self) -> Iterator[nn.Parameter]: ...

    @property
    def parameter_count(self) -> int:
        """Number of values the model consists of."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def tuned_parameters(self) -> list[nn.Parameter]:
        """Parameters of a pretrained part, which has its own learning rate (`training.tuned_lr`)."""
        return []

    @property
    def word_table(self) -> nn.Embedding | None:
        """The table in which the model looks up its tokens; None: it has none."""
        return None

    @property
    def word_vectors(self) -> WordVectors | None:
        """Vectors of words that are the model's result; None: the vectors of its words are those of `word_table`."""
        return None

    @property
    def source_table(self) -> nn.Embedding | None:
        """The separate table in which a translator looks up source tokens; None: it has none."""
        return None

    @property
    def feature_width(self) -> int | None:
        """Width of the features that `predictors` gives; None: it predicts without features."""
        return None

    @property
    def text_encoder(self) -> TextEncoder | None:
        """Itself as an encoder of texts; None: it gives no vector per token."""
        return None

    def pool(self, first_BD: Tensor) -> Tensor | None:
        """As an encoder of texts: the pooled output from the vectors of first tokens, BD; None: it has no pooler."""
        return None

    def attention_weights(self, tokens_BT: Tensor) -> list[Tensor] | None:
        """How each position attends to itself and those before it, BHTT for each layer; None: it has no attention."""
        return None

    @property
    def line_scorer(self) -> LineScorer | None:
        """Itself as a scorer of many lines at once; None: lines are scored in batches."""
        return None

    @property
    def arrays(self) -> ArrayModel | None:
        """Itself over numpy arrays, computed without torch; None: it computes with tensors."""
        return None

    @property
    def context_depths(self) -> ContextDepths | None:
        """Itself where it counts contexts; None: it does not."""
        return None


class SteppingModel(Model):
    """A model that predicts token by token. Subclasses give `start`, `step` and `select`; the rest may be faster."""

    eos: int

    def start(self, batch: Any) -> State:
        raise TypeError(f"{type(self).__name__} must define start")

    def step(self, state: State, token_B: Tensor) -> tuple[Tensor, State]:
        raise TypeError(f"{type(self).__name__} must define step")

    def select(self, state: State, rows_K: Tensor) -> State:
        return select_rows(state, rows_K)

    def prefill(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        for token_B in tokens_BT.unbind(1):
            log_probs_BV, state = self.step(state, token_B)
        return log_probs_BV, state

    def extend(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        import torch  # here: code that only needs the records must not wait for torch

        rows = []
        for token_B in tokens_BT.unbind(1):
            log_probs_BV, state = self.step(state, token_B)
            rows.append(log_probs_BV)
        return torch.stack(rows, 1), state

    def independent_rows(self, state: State) -> bool:
        """Whether log p of a row of this state never depends on the other rows, bit by bit, however many there are."""
        return False

    def rewindable(self, state: State) -> int | None:
        return None

    def rewind(self, state: State, count: int) -> State:
        raise TypeError(f"{type(self).__name__} cannot rewind")

    def propose(self, state: State, tokens_1T: Tensor, count: int, threshold: float) -> tuple[list[int], State]:
        log_probs_1V, read = self.prefill(state, tokens_1T)
        state, total, draft = read, 0.0, list[int]()
        while True:
            best_1, token_1 = log_probs_1V.max(1)
            total += float(best_1)
            if total < threshold:
                return draft, read
            draft.append(int(token_1))
            if len(draft) == count:
                return draft, read
            log_probs_1V, state = self.step(state, token_1)

    def predict_block(self, tokens_BT: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} predicts token by token")

    def predict_rest(self, state: State, token_B: Tensor) -> tuple[Tensor, State]:
        raise TypeError(f"{type(self).__name__} predicts token by token")


class Objective:
    """What a registered objective declares: it turns a batch into a loss."""

    Config: ClassVar[type[Any]]  # the record of its options
    needs_reward: ClassVar[bool] = False  # whether `reward` must be set before the first loss
    samples: ClassVar[bool] = False  # whether it draws tokens for the rows, so that it depends on how they are shared
    reward: Any = None  # a function of generated rows and reference rows

    def __init__(self, config: Any) -> None:
        self.config = config
        self.figures: dict[str, float] = {}  # further figures of the last batch, for the log

    def loss(self, model: Any, batch: Batch, state: State, step: int) -> Loss:
        """The loss of a batch; `step` is the number of the training step."""
        raise TypeError(f"{type(self).__name__} must define loss")


# Records


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


def map_state(change: Callable[[Tensor], Tensor], state: State) -> State:
    """Apply `change` to every tensor of a state."""
    if isinstance(state, tuple):
        parts = [map_state(change, part) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    if isinstance(state, list):
        return [map_state(change, part) for part in state]
    if isinstance(state, dict):
        return {key: map_state(change, part) for key, part in state.items()}
    if isinstance(state, TensorHolder):
        return state.map_tensors(change)
    return change(state) if hasattr(state, "index_select") else state


def select_rows(state: State, rows_K: Tensor) -> State:
    """Reorder every tensor of a state by its first dimension."""
    return map_state(lambda tensor: tensor.index_select(0, rows_K), state)


def detach_state(state: State) -> State:
    """Cut a state from the graph that made it, as truncated back-propagation does between chunks."""
    return map_state(lambda tensor: tensor.detach(), state)
