"""The n-gram model: p(x_t | x_<t) from how often the last few words were followed by which.

Shannon 1948; Chen & Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling", 1998. Counting,
smoothing and searching are in `engines/ngram/`; this file puts the contract around them. It has no weights to train:
`estimate` makes one from tokens, `save` and `load` keep it in a file that is mapped into memory when used.

Legend: B batch, T time, V vocabulary, N order, K kept rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import Tensor, nn

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
    """What can be chosen about an n-gram model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    order: int = Field(5, ge=1, le=8, description="N: the next word is predicted from the last N - 1")
    smoothing: Smoothing = Field("modified-kneser-ney", description="how unseen n-grams get their probability")
    delta: float = Field(
        1.0, gt=0, le=1, description="additive smoothing: how often every word is taken to come besides"
    )
    prune: tuple[int, ...] = Field(
        (), description="by order: n-grams seen so often or less are left out; the last holds for all above"
    )
    across_lines: bool | None = Field(
        None, description="contexts run on across line ends (default: unless the tokens are words)"
    )
    quantize: bool = Field(False, description="keep probabilities as bytes: half the size, a little less exact")

    @field_validator("smoothing", mode="before")
    @classmethod
    def _known(cls, name: Any) -> Any:
        if isinstance(name, str) and name not in get_args(Smoothing):
            raise unknown_name("smoothing", name, SMOOTHINGS)
        return name

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.delta != 1 and self.smoothing != "additive":
            raise ConfigError(f"delta is {self.delta}, but {self.smoothing} has none; add --smoothing additive")
        if not self.prune:
            return self
        got = " ".join(map(str, self.prune))
        if self.prune[0] != 0:
            raise ConfigError(
                f"prune got {got}, but words cannot be pruned, so the first number is 0; cut the vocabulary with "
                "vocab_size"
            )
        if list(self.prune) != sorted(self.prune) or len(self.prune) > self.order:
            raise ConfigError(
                f"prune got {got}; with order {self.order} it takes at most {self.order} numbers that never fall, "
                "such as 0 0 1"
            )
        if any(self.prune) and self.smoothing in ("additive", "katz"):
            raise ConfigError(
                f"prune got {got}, but {self.smoothing} cannot leave n-grams out; choose another smoothing"
            )
        return self


@MODELS.register("ngram", family="ngram", task="lm", fitting="counting")
class Ngram(nn.Module, SteppingModel):
    """An n-gram table as a language model."""

    Config: ClassVar[type[NgramConfig]] = NgramConfig
    stores_arrays = True
    tracks = 1  # a text is scored in one piece: it costs nothing, and no context is cut
    chunk = 16384
    unigram_counts: Tensor

    def __init__(self, config: NgramConfig, table: NgramTable, counts_V: np.ndarray[Any, Any]) -> None:
        super().__init__()
        self.config, self.table = config, table
        self.eos, self.vocab_size = table.eos, table.vocab_size
        self.across_lines, self.normalised = table.across_lines, table.normalised
        self._ending = -1 if table.across_lines else table.eos
        self.register_buffer("unigram_counts", torch.as_tensor(np.asarray(counts_V), dtype=torch.int64))

    @classmethod
    def estimate(
        cls,
        config: NgramConfig,
        vocabulary: Vocabulary,
        tokens: np.ndarray[Any, Any],
        valid: np.ndarray[Any, Any],
        *,
        memory: int | None = None,
        scratch: Path | None = None,
        threads: int = 1,
        note: Callable[[str], None] = lambda text: None,
    ) -> Self:
        """Count the n-grams of a text and smooth them. `valid` is another text, for smoothings that are fitted."""
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
        """One probability for every n-gram, one back-off weight for every context."""
        return len(self.table.arrays.probs) + len(self.table.arrays.backoffs)

    @property
    def line_scorer(self) -> LineScorer:
        return self

    @property
    def context_depths(self) -> ContextDepths:
        return self

    # Stepping

    def start(self, batch: int) -> Tensor:
        """The empty prefix -> BN; what a row means is told in `engines/ngram/query.py`."""
        return torch.full((batch, self.table.order), -1)

    def step(self, state: Tensor, token_B: Tensor) -> tuple[Tensor, Tensor]:
        """Append a token to each prefix -> log p(. | prefix) BV, and the longer prefix."""
        return self.prefill(state, token_B[:, None])

    def prefill(self, state: Tensor, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Append T tokens to each prefix -> log p(. | prefix) BV after the last, and the longer prefix."""
        states_BN, tokens = _copy(state), _numbers(tokens_BT)
        nats_BV = np.empty((len(states_BN), self.vocab_size), np.float32)
        for row, state_N in enumerate(states_BN):
            self._append(state_N, tokens[row])
            query.distribution(self.table.arrays, state_N, self.table.absent, nats_BV[row])
        return torch.from_numpy(nats_BV).to(tokens_BT.device), torch.from_numpy(states_BN)

    def extend(self, state: Tensor, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Append T tokens to each prefix -> log p(. | prefix) after each of them, BTV, and the longer prefix."""
        states_BN, tokens = _copy(state), _numbers(tokens_BT)
        nats_BTV = np.empty((*tokens.shape, self.vocab_size), np.float32)
        for row, state_N in enumerate(states_BN):
            for t in range(tokens.shape[1]):
                self._append(state_N, tokens[row, t : t + 1])
                query.distribution(self.table.arrays, state_N, self.table.absent, nats_BTV[row, t])
        return torch.from_numpy(nats_BTV).to(tokens_BT.device), torch.from_numpy(states_BN)

    def propose(self, state: Tensor, tokens_1T: Tensor, count: int, threshold: float) -> tuple[list[int], Tensor]:
        """Append tokens to one prefix -> its most probable continuation, and the longer prefix.

        Equal to steps, without the tensors of each step.
        """
        states_1N, nats_V = _copy(state), np.empty(self.vocab_size, np.float32)
        self._append(states_1N[0], _numbers(tokens_1T)[0])
        state_N, further = states_1N[0].copy(), []
        for left in range(count - 1, -1, -1):
            query.distribution(self.table.arrays, state_N, self.table.absent, nats_V)
            best = int(nats_V.argmax())
            threshold -= float(nats_V[best])
            if threshold > 0:
                break
            further.append(best)
            if left:
                self._append(state_N, np.array([best]))
        return further, torch.from_numpy(states_1N)

    def _append(self, state_N: np.ndarray[Any, Any], tokens_T: np.ndarray[Any, Any]) -> None:
        """Append T ≥ 1 tokens to a prefix, in place."""
        if state_N[0] < 0:
            query.begin(state_N, tokens_T[0])
            tokens_T = tokens_T[1:]
        query.walk(self.table.arrays, tokens_T, state_N, self._ending, 0.0)

    def select(self, state: Tensor, rows_K: Tensor) -> Tensor:
        """Row k of the result is row rows_K[k] of the state."""
        chosen: Tensor = select_rows(state, rows_K.cpu())
        return chosen

    # Scoring

    def log_probs(self, tokens_BT: Tensor) -> Tensor:
        """log p(x_t | eos, x_<t) -> BT."""
        return self.score(tokens_BT, self.start(len(tokens_BT)))[0]

    def score(self, tokens_BT: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """log p of each token given all before it -> BT, and the state after them."""
        nats_BT, _, state = self._score(tokens_BT, state)
        return nats_BT, state

    def depths(self, tokens_BT: Tensor, state: Tensor) -> Tensor:
        """How many words of context were found before each token, 0 to N - 1 -> BT."""
        return self._score(tokens_BT, state)[1]

    def depth_rows(self, state: Tensor) -> Tensor:
        """How many words of context the next token has -> B."""
        return (state[:, 1:] >= 0).sum(1)

    def _score(self, tokens_BT: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states_BN, tokens = _copy(state), _numbers(tokens_BT)
        nats_BT, depths_BT = np.empty(tokens.shape, np.float32), np.empty(tokens.shape, np.int64)
        for row, state_N in enumerate(states_BN):
            if state_N[0] < 0:
                query.begin(state_N, self.eos)
            probs_T, depths_BT[row] = query.walk(
                self.table.arrays, tokens[row], state_N, self._ending, self.table.absent
            )
            np.multiply(probs_T, query.LN10, out=nats_BT[row])
        device = tokens_BT.device
        return torch.from_numpy(nats_BT).to(device), torch.from_numpy(depths_BT).to(device), torch.from_numpy(states_BN)

    def score_lines(self, tokens: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """log p in nats and the number of tokens of each line, each by itself; the last may lack its eos."""
        state_N = np.empty(self.table.order, np.int64)
        query.begin(state_N, self.eos)
        probs_T, _ = query.walk(self.table.arrays, tokens, state_N, self.eos, self.table.absent)
        if not len(tokens):
            return np.empty(0), np.empty(0, np.int64)
        ends = np.flatnonzero(tokens == self.eos) + 1
        starts = np.concatenate([[0], ends[:-1] if len(ends) and ends[-1] == len(tokens) else ends])
        nats_L = np.add.reduceat(probs_T, starts, dtype=np.float64) * query.LN10
        return nats_L, np.diff(starts, append=len(tokens))


def _copy(state: Tensor) -> np.ndarray[Any, Any]:
    """A state that may be changed."""
    return np.array(state.cpu().numpy(), np.int64)


def _numbers(tokens_BT: Tensor) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(tokens_BT.cpu().numpy(), np.int64)
