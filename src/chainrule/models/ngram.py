"""The n-gram model: p(x_t | x_<t) from the counts of the last n-1 tokens and what followed them.

    p(w | context) = p*(w | context)  if the n-gram was counted,  else  backoff(context) · p(w | shorter context)

Shannon, "A Mathematical Theory of Communication", 1948; Chen & Goodman, "An Empirical Study of Smoothing Techniques for
Language Modeling", 1998. Counting, smoothing and look-up are in `engines/ngram/`; over arrays (`arrays`) it works
without torch, and this file adapts it to tensors, the contract of models. There are no weights to train: `estimate`
creates a model from tokens, `save` and `load` use a file that is mapped into memory. In suffixes O is the order n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from chainrule.base.arrays import Array
from chainrule.base.lazy import torch
from chainrule.engines.ngram.model import NgramArrays
from chainrule.engines.ngram.table import NgramTable, load_table
from chainrule.errors import ConfigError, unknown_name
from chainrule.registry import MODELS
from chainrule.types import ContextDepths, LineScorer, SteppingModel, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor, nn

    from chainrule.engines.ngram.estimate import EstimationPlan
    from chainrule.engines.ngram.segments import Counts, Shape

Smoothing = Literal[
    "mle",
    "additive",
    "katz",
    "witten-bell",
    "absolute",
    "kneser-ney",
    "modified-kneser-ney",
    "jelinek-mercer",
    "stupid-backoff",
    "imported",
]


class NgramConfig(BaseModel):
    """Options of an n-gram model."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    order: int = Field(5, ge=1, le=8, description="n: the next token is predicted from the last n-1")
    smoothing: Smoothing = Field(
        "modified-kneser-ney", description="smoothing method, which gives unseen n-grams a probability"
    )
    delta: float = Field(1.0, gt=0, le=1, description="additive smoothing: number of occurrences added to every token")
    prune: tuple[int, ...] = Field(
        (), description="drop n-grams that occur at most N times, one N per order; the last holds for higher orders"
    )
    across_lines: bool | None = Field(
        None, description="contexts continue across line ends (default: unless the tokens are words)"
    )
    quantize: bool = Field(False, description="store probabilities in 8 bits: half the size, slightly less exact")

    @field_validator("smoothing", mode="before")
    @classmethod
    def _check_smoothing(cls, name: Any) -> Any:
        if isinstance(name, str) and name not in get_args(Smoothing):
            raise unknown_name("smoothing", name, [known for known in get_args(Smoothing) if known != "imported"])
        return name

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.delta != 1 and self.smoothing != "additive":
            raise ConfigError(f"delta is {self.delta}, but {self.smoothing} does not use it; add --smoothing additive")
        if not self.prune:
            return self
        given = " ".join(map(str, self.prune))
        if self.prune[0] != 0:
            raise ConfigError(
                f"prune is {given}, but single words cannot be pruned: the first number must be 0; limit the "
                "vocabulary with vocab_size"
            )
        if list(self.prune) != sorted(self.prune) or len(self.prune) > self.order:
            raise ConfigError(
                f"prune is {given}; expected at most {self.order} numbers (the order), none smaller than the one "
                "before it, for example 0 0 1"
            )
        if any(self.prune) and self.smoothing in ("additive", "katz"):
            raise ConfigError(f"prune is {given}, but {self.smoothing} does not support it; choose another smoothing")
        return self


@MODELS.register("ngram", family="ngram", task="lm", fitting="counting")
class Ngram(SteppingModel):
    """An n-gram table as a language model."""

    suggestions = (
        "model.order=3 for small texts, 5 for large ones",
        "model.smoothing=witten-bell for characters or small vocabularies",
        "--memory 1G for texts larger than memory; --prune 0 0 1 for a smaller model",
    )

    Config: ClassVar[type[NgramConfig]] = NgramConfig
    stores_arrays = True
    tracks = 1  # text is scored in one piece: parallel tracks would not be faster, and would cut contexts
    chunk = 16384
    training = False

    def __init__(self, config: NgramConfig, table: NgramTable, counts_V: Array) -> None:
        self.config, self.table = config, table
        self.eos, self.vocab_size = table.eos, table.vocab_size
        self.across_lines, self.normalised = table.across_lines, table.normalised
        self.counts_V = np.asarray(counts_V, np.int64)
        self._arrays = NgramArrays(table)

    @classmethod
    def estimate(
        cls,
        config: NgramConfig,
        vocabulary: Vocabulary,
        tokens: Array,
        valid: Array,
        *,
        memory: int | None = None,
        scratch: Path | None = None,
        threads: int = 1,
        note: Callable[[str], None] = lambda text: None,
    ) -> Self:
        """Count the n-grams of a text and smooth them; some smoothings are fitted on the text `valid`."""
        from chainrule.engines.ngram.estimate import estimate  # its kernels take a while to import

        table = estimate(
            plan_of(config),
            tokens,
            valid,
            eos=vocabulary.eos,
            vocab_size=vocabulary.size,
            memory=memory,
            scratch=scratch,
            threads=threads,
            note=note,
        )
        return cls(config, table, vocabulary.counts_V)

    @classmethod
    def from_counts(
        cls,
        config: NgramConfig,
        parts: list[Counts],
        shape: Shape,
        valid: Array,
        *,
        scratch: Path,
        memory: int | None = None,
        threads: int = 1,
        note: Callable[[str], None] = lambda text: None,
    ) -> Self:
        """The model of a text that was counted in parts, given in the order of the text; as `estimate` makes it."""
        from chainrule.engines.ngram.estimate import estimate_from_counts

        table, counts_V = estimate_from_counts(
            plan_of(config), parts, shape, valid, scratch=scratch, memory=memory, threads=threads, note=note
        )
        return cls(config, table, counts_V)

    def save(self, path: Path) -> None:
        """Write the model to a file."""
        self.table.save(path, {"unigram_counts": self.counts_V})

    @classmethod
    def load(cls, config: NgramConfig, path: Path) -> Self:
        """The model in a file, mapped into memory."""
        table, others = load_table(path)
        return cls(config, table, np.array(others["unigram_counts"]))

    @property
    def parameter_count(self) -> int:
        """One probability per n-gram, one back-off weight per context."""
        return len(self.table.arrays.probs) + len(self.table.arrays.backoffs)

    @property
    def unigram_counts(self) -> Tensor:
        """Occurrences of each token in the training text, V."""
        return torch.from_numpy(self.counts_V)

    @property
    def arrays(self) -> NgramArrays:
        return self._arrays

    @property
    def line_scorer(self) -> LineScorer:
        return self._arrays

    @property
    def context_depths(self) -> ContextDepths:
        return self

    # As a module without weights: it has no mode and no device

    def eval(self) -> Self:
        return self

    def train(self, mode: bool = True) -> Self:
        return self

    def to(self, device: Any) -> Self:
        return self

    def parameters(self) -> Iterator[nn.Parameter]:
        return iter(())

    # Stepping: states stay on the CPU

    def start(self, batch: int) -> Tensor:
        """The empty prefix -> BO; `engines/ngram/query.py` describes the rows."""
        return torch.from_numpy(self._arrays.start(batch))

    def step(self, state: Tensor, token_B: Tensor) -> tuple[Tensor, Tensor]:
        """Append a token to each prefix -> log p(. | prefix) BV, and the new state."""
        return self.prefill(state, token_B[:, None])

    def prefill(self, state: Tensor, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Append T tokens to each prefix -> log p(. | prefix) after the last, BV, and the new state."""
        log_probs_BV, states_BO = self._arrays.prefill(state.numpy(), _to_array(tokens_BT))
        return torch.from_numpy(log_probs_BV).to(tokens_BT.device), torch.from_numpy(states_BO)

    def extend(self, state: Tensor, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Append T tokens to each prefix -> log p(. | prefix) after each of them, BTV, and the new state."""
        log_probs_BTV, states_BO = self._arrays.extend(state.numpy(), _to_array(tokens_BT))
        return torch.from_numpy(log_probs_BTV).to(tokens_BT.device), torch.from_numpy(states_BO)

    def independent_rows(self, state: Any) -> bool:
        """Yes: a row is looked up by itself."""
        return True

    def propose(self, state: Tensor, tokens_1T: Tensor, count: int, threshold: float) -> tuple[list[int], Tensor]:
        """Append tokens to one prefix -> its most probable continuation, and the new state.

        The result is that of the default implementation, without creating tensors at each step.
        """
        draft, states_1O = self._arrays.propose(state.numpy(), _to_array(tokens_1T), count, threshold)
        return draft, torch.from_numpy(states_1O)

    def select(self, state: Tensor, rows_K: Tensor) -> Tensor:
        """Row k of the result is row rows_K[k] of the state."""
        return torch.from_numpy(self._arrays.select(state.numpy(), _to_array(rows_K)))

    # Scoring

    def log_probs(self, tokens_BT: Tensor) -> Tensor:
        """log p(x_t | eos, x_<t) -> BT."""
        return torch.from_numpy(self._arrays.log_probs(_to_array(tokens_BT))).to(tokens_BT.device)

    def score(self, tokens_BT: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """log p of each token given all before it -> BT, and the state after them."""
        log_probs_BT, states_BO = self._arrays.score(_to_array(tokens_BT), state.numpy())
        return torch.from_numpy(log_probs_BT).to(tokens_BT.device), torch.from_numpy(states_BO)

    def depths(self, tokens_BT: Tensor, state: Tensor) -> Tensor:
        """The number of context words found before each token, 0 to n-1 -> BT."""
        _, depths_BT, _ = self._arrays.full_score(_to_array(tokens_BT), state.numpy())
        return torch.from_numpy(depths_BT).to(tokens_BT.device)

    def depth_rows(self, state: Tensor) -> Tensor:
        """The number of context words that the next token has -> B."""
        return (state[:, 1:] >= 0).sum(1)

    def score_lines(self, tokens_N: Array) -> tuple[Array, Array]:
        """log p in nats and number of tokens of each of M lines, scored separately; the last line may lack its eos."""
        return self._arrays.score_lines(tokens_N)


def plan_of(config: NgramConfig) -> EstimationPlan:
    """The settings of an estimation."""
    from chainrule.engines.ngram.estimate import EstimationPlan

    return EstimationPlan(
        config.order, config.smoothing, config.delta, config.prune, bool(config.across_lines), config.quantize
    )


def _to_array(tokens: Tensor) -> Array:
    return np.ascontiguousarray(tokens.cpu().numpy(), np.int64)
