"""The n-gram model: p(x_t | x_<t) from the counts of the last n-1 tokens and what followed them.

    p(w | context) = p*(w | context)  if the n-gram was counted,  else  backoff(context) · p(w | shorter context)

Shannon, "A Mathematical Theory of Communication", 1948; Chen & Goodman, "An Empirical Study of Smoothing Techniques for
Language Modeling", 1998. Counting, smoothing and look-up are in `engines/ngram/`; this file implements the contract of
models. There are no weights to train: `estimate` creates a model from tokens, `save` and `load` use a file that is
mapped into memory. In suffixes O is the order n.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import Tensor, nn

from chainrule.base.arrays import Array
from chainrule.engines.ngram import query
from chainrule.engines.ngram.estimate import EstimationPlan, estimate
from chainrule.engines.ngram.smoothing import SMOOTHINGS
from chainrule.engines.ngram.table import NgramTable, load_table
from chainrule.errors import ConfigError, unknown_name
from chainrule.registry import MODELS
from chainrule.types import ContextDepths, LineScorer, SteppingModel, Vocabulary, select_rows

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
            raise unknown_name("smoothing", name, SMOOTHINGS)
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
class Ngram(nn.Module, SteppingModel):
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
    unigram_counts: Tensor

    def __init__(self, config: NgramConfig, table: NgramTable, counts_V: Array) -> None:
        super().__init__()
        self.config, self.table = config, table
        self.eos, self.vocab_size = table.eos, table.vocab_size
        self.across_lines, self.normalised = table.across_lines, table.normalised
        self._line_end = -1 if table.across_lines else table.eos  # the token that ends a context; -1: none
        self.register_buffer("unigram_counts", torch.as_tensor(np.asarray(counts_V), dtype=torch.int64))

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
        plan = EstimationPlan(
            config.order, config.smoothing, config.delta, config.prune, bool(config.across_lines), config.quantize
        )
        table = estimate(
            plan,
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

    def save(self, path: Path) -> None:
        """Write the model to a file."""
        self.table.save(path, {"unigram_counts": self.unigram_counts.numpy()})

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
    def line_scorer(self) -> LineScorer:
        return self

    @property
    def context_depths(self) -> ContextDepths:
        return self

    # Stepping

    def start(self, batch: int) -> Tensor:
        """The empty prefix -> BO; `engines/ngram/query.py` describes the rows."""
        return torch.full((batch, self.table.order), -1)

    def step(self, state: Tensor, token_B: Tensor) -> tuple[Tensor, Tensor]:
        """Append a token to each prefix -> log p(. | prefix) BV, and the new state."""
        return self.prefill(state, token_B[:, None])

    def prefill(self, state: Tensor, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Append T tokens to each prefix -> log p(. | prefix) after the last, BV, and the new state."""
        states_BO, tokens = _copy_state(state), _to_array(tokens_BT)
        log_probs_BV = np.empty((len(states_BO), self.vocab_size), np.float32)
        for row, state_O in enumerate(states_BO):
            self._append(state_O, tokens[row])
            query.distribution(self.table.arrays, state_O, self.table.absent, log_probs_BV[row])
        return torch.from_numpy(log_probs_BV).to(tokens_BT.device), torch.from_numpy(states_BO)

    def extend(self, state: Tensor, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Append T tokens to each prefix -> log p(. | prefix) after each of them, BTV, and the new state."""
        states_BO, tokens = _copy_state(state), _to_array(tokens_BT)
        log_probs_BTV = np.empty((*tokens.shape, self.vocab_size), np.float32)
        for row, state_O in enumerate(states_BO):
            for t in range(tokens.shape[1]):
                self._append(state_O, tokens[row, t : t + 1])
                query.distribution(self.table.arrays, state_O, self.table.absent, log_probs_BTV[row, t])
        return torch.from_numpy(log_probs_BTV).to(tokens_BT.device), torch.from_numpy(states_BO)

    def propose(self, state: Tensor, tokens_1T: Tensor, count: int, threshold: float) -> tuple[list[int], Tensor]:
        """Append tokens to one prefix -> its most probable continuation, and the new state.

        The result is that of the default implementation, without creating tensors at each step.
        """
        states_1O, log_probs_V = _copy_state(state), np.empty(self.vocab_size, np.float32)
        self._append(states_1O[0], _to_array(tokens_1T)[0])
        state_O, draft = states_1O[0].copy(), []
        for left in range(count - 1, -1, -1):
            query.distribution(self.table.arrays, state_O, self.table.absent, log_probs_V)
            best = int(log_probs_V.argmax())
            threshold -= float(log_probs_V[best])
            if threshold > 0:
                break
            draft.append(best)
            if left:
                self._append(state_O, np.array([best]))
        return draft, torch.from_numpy(states_1O)

    def _append(self, state_O: Array, tokens_T: Array) -> None:
        """Append T ≥ 1 tokens to a prefix, in place."""
        if state_O[0] < 0:
            query.begin(state_O, tokens_T[0])
            tokens_T = tokens_T[1:]
        query.walk(self.table.arrays, tokens_T, state_O, self._line_end, 0.0)

    def select(self, state: Tensor, rows_K: Tensor) -> Tensor:
        """Row k of the result is row rows_K[k] of the state."""
        selected: Tensor = select_rows(state, rows_K.cpu())
        return selected

    # Scoring

    def log_probs(self, tokens_BT: Tensor) -> Tensor:
        """log p(x_t | eos, x_<t) -> BT."""
        return self.score(tokens_BT, self.start(len(tokens_BT)))[0]

    def score(self, tokens_BT: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """log p of each token given all before it -> BT, and the state after them."""
        log_probs_BT, _, state = self._score(tokens_BT, state)
        return log_probs_BT, state

    def depths(self, tokens_BT: Tensor, state: Tensor) -> Tensor:
        """The number of context words found before each token, 0 to n-1 -> BT."""
        return self._score(tokens_BT, state)[1]

    def depth_rows(self, state: Tensor) -> Tensor:
        """The number of context words that the next token has -> B."""
        return (state[:, 1:] >= 0).sum(1)

    def _score(self, tokens_BT: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log p of each token BT, the number of its context words BT, and the state after the tokens."""
        states_BO, tokens = _copy_state(state), _to_array(tokens_BT)
        log_probs_BT, depths_BT = np.empty(tokens.shape, np.float32), np.empty(tokens.shape, np.int64)
        for row, state_O in enumerate(states_BO):
            if state_O[0] < 0:
                query.begin(state_O, self.eos)
            log10_T, depths_BT[row] = query.walk(
                self.table.arrays, tokens[row], state_O, self._line_end, self.table.absent
            )
            np.multiply(log10_T, query.LN10, out=log_probs_BT[row])
        device = tokens_BT.device
        return (
            torch.from_numpy(log_probs_BT).to(device),
            torch.from_numpy(depths_BT).to(device),
            torch.from_numpy(states_BO),
        )

    def score_lines(self, tokens_N: Array) -> tuple[Array, Array]:
        """log p in nats and number of tokens of each of M lines, scored separately; the last line may lack its eos."""
        state_O = np.empty(self.table.order, np.int64)
        query.begin(state_O, self.eos)
        log10_N, _ = query.walk(self.table.arrays, tokens_N, state_O, self.eos, self.table.absent)
        if not len(tokens_N):
            return np.empty(0), np.empty(0, np.int64)
        ends = np.flatnonzero(tokens_N == self.eos) + 1
        starts_M = np.concatenate([[0], ends[:-1] if len(ends) and ends[-1] == len(tokens_N) else ends])
        log_probs_M = np.add.reduceat(log10_N, starts_M, dtype=np.float64) * query.LN10
        return log_probs_M, np.diff(starts_M, append=len(tokens_N))


def _copy_state(state: Tensor) -> Array:
    """A copy of a state that may be modified."""
    return np.array(state.cpu().numpy(), np.int64)


def _to_array(tokens_BT: Tensor) -> Array:
    return np.ascontiguousarray(tokens_BT.cpu().numpy(), np.int64)
