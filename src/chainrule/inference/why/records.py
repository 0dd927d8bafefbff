"""What explains the probability of a token, as records; `kind` names them in JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from chainrule.base.results import json_value


class Situation(NamedTuple):
    """A token in its place."""

    before: list[int]  # what the model has read: `eos`, and the tokens since
    token: int
    piece: Callable[[int], str]
    top: int  # number of alternatives to list

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Tokens as they are displayed."""
        return [self.piece(token) for token in tokens]


@dataclass(frozen=True)
class Expected:
    """A token that could have followed, and its probability."""

    token: str
    probability: float


@dataclass(frozen=True)
class Reason:
    """A part of an explanation."""

    kind: str


@dataclass(frozen=True)
class TriedContext:
    """A context that an n-gram model looked up, and what it found."""

    context: list[str]
    in_table: bool  # whether the context was seen in training
    probability: float | None  # of the token, if it was seen after this context: the search ended here
    backoff: float | None  # else the factor with which the next shorter context counts


@dataclass(frozen=True)
class BackoffPath(Reason):
    """The contexts of an n-gram model, the longest first; the product of the factors is the probability."""

    order: int  # number of words of the n-gram whose probability was used
    largest: int  # the order of the model
    tried: list[TriedContext]


@dataclass(frozen=True)
class Share:
    """A component of a mixture: share = weight · probability / Σ."""

    name: str
    weight: float
    probability: float  # of the token, by this component alone
    share: float
    reasons: list[Reason]


@dataclass(frozen=True)
class Shares(Reason):
    """The components of a mixture, in their order; weight · probability adds up to `mixed`."""

    components: list[Share]
    mixed: float
    temperature: float  # the mixture is raised to the power 1/τ and normalised
    bucket: int  # number of the set of weights


@dataclass(frozen=True)
class Remembered:
    """A token in a cache and its part of the cache's probability."""

    token: str
    weight: float
    ago: int | None  # continuous caches: number of tokens since


@dataclass(frozen=True)
class CacheMemory(Reason):
    """What a cache has remembered, the heaviest first."""

    cache: str  # unigram or continuous
    tokens: int  # number of tokens it has read, or keeps
    remembered: list[Remembered]


@dataclass(frozen=True)
class AttentionRow(Reason):
    """What the position that predicts the token reads: weights[layer][head][position], each row sums to one."""

    tokens: list[str]
    weights: list[list[list[float]]]


@dataclass(frozen=True)
class LayerTrace:
    """One recurrent layer over the last positions: the mean of each gate, the size of the state, and its change."""

    gates: dict[str, list[float]]
    size: list[float]  # root mean square of the state
    change: list[float]  # root mean square of the difference to the state before


@dataclass(frozen=True)
class RecurrentTrace(Reason):
    """The gates and states of a recurrent model while it read the last tokens."""

    cell: str
    tokens: list[str]
    layers: list[LayerTrace]


@dataclass(frozen=True)
class Branches(Reason):
    """What the two branches of a hybrid say: p = (1 - γ) p_AR + γ p_NAR."""

    gamma: float
    ar: float
    nar: float
    ar_best: list[Expected]
    nar_best: list[Expected]


@dataclass(frozen=True)
class ContextCurve(Reason):
    """Bits of the token if only the last tokens before it are known, after an `eos`."""

    known: list[int]  # number of tokens, ascending; the last is all of them
    bits: list[float]


@dataclass(frozen=True)
class Why:
    """Why a token of a text has its probability under a run."""

    run: str
    model: str
    text: str
    position: int  # of the token in the text
    token: str
    before: list[str]  # the last tokens before it
    probability: float
    bits: float
    rank: int
    best: list[Expected]
    reasons: list[Reason]

    def to_dict(self) -> dict[str, Any]:
        """All values for JSON, infinite ones as None."""
        record: dict[str, Any] = json_value(asdict(self))
        return record
