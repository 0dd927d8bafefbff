"""What registered models and objectives inherit: every attribute and optional capability, each with a default."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from chainrule.types.protocols import ArrayModel, ContextDepths, LineScorer, TextEncoder
from chainrule.types.records import Batch, Loss, WordVectors
from chainrule.types.states import State, select_rows

if TYPE_CHECKING:
    from torch import Tensor, nn


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
