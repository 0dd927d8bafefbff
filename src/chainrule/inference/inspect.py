"""Every token of a text with its rank, its probability, the entropy of the distribution and the best alternatives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.modes import evaluating
from chainrule.base.over_arrays import over_arrays
from chainrule.base.results import Results
from chainrule.base.tables import show_table
from chainrule.errors import ConfigError
from chainrule.inference.subject import TextModel
from chainrule.inference.unknown_words import UNK_ONLY, UnknownWords

CELLS = 1 << 21
"""Probabilities held at once."""

TOP = 5
"""Number of alternatives unless another is given."""


class Alternative(NamedTuple):
    """A token that could have followed, and its probability."""

    token: str
    probability: float


@dataclass(frozen=True)
class TokenDetails:
    """A token of a text and the distribution that predicted it.

    `log_prob`, `probability` and `bits` include what an unknown word is charged; `rank` is that of the model's token.
    """

    token: str  # an unknown word as it is written
    oov: bool
    rank: int  # 1: no token is more probable
    probability: float
    log_prob: float  # nats
    bits: float
    entropy: float | None  # of the distribution, in bits; None: the model gives scores that do not sum to one
    order: int | None  # n-grams: number of words of the n-gram whose probability was used
    best: list[Alternative]  # the most probable tokens, best first

    def to_dict(self) -> dict[str, Any]:
        """For JSON. `order` is left out where there is none."""
        fields = {**asdict(self), "best": [one._asdict() for one in self.best]}
        return fields if self.order is not None else {name: fields[name] for name in fields if name != "order"}


def inspect_lines(
    subject: TextModel, lines: Iterable[str], top: int = TOP, unknown: UnknownWords = UNK_ONLY
) -> Iterator[Results[TokenDetails]]:
    """The details of every token of each line, `<eos>` included; lines are independent of one another."""
    if top < 0:
        raise ConfigError(f"top is {top}; expected the number of alternatives, at least 0")
    for line in lines:
        yield _inspect(subject, line, top, unknown)


class _Distributions(NamedTuple):
    """What is kept of the distributions before the T tokens of a line."""

    log_probs_T: Array
    ranks_T: Array
    bits_T: Array  # entropies
    best_TK: Array
    best_probs_TK: Array


def _inspect(subject: TextModel, line: str, top: int, unknown: UnknownWords) -> Results[TokenDetails]:
    tokenizer = subject.tokenizer
    tokens_T = np.array([*tokenizer.encode(line), tokenizer.eos], np.int64)
    read = _read(subject, tokens_T, min(top, subject.model.vocab_size))
    log_probs = (read.log_probs_T + unknown.charges(tokenizer, line, tokens_T)).tolist()
    orders_1T = over_arrays(subject.model).matched_orders(tokens_T[None])
    pieces = [*tokenizer.written_pieces(line), tokenizer.piece(tokenizer.eos)]
    best = [
        [Alternative(tokenizer.piece(token), p) for token, p in zip(tokens, probs, strict=True)]
        for tokens, probs in zip(read.best_TK.tolist(), read.best_probs_TK.tolist(), strict=True)
    ]
    return Results(
        TokenDetails(
            token=pieces[t],
            oov=int(token) == tokenizer.unk,
            rank=int(read.ranks_T[t]),
            probability=math.exp(log_probs[t]),
            log_prob=log_probs[t],
            bits=-log_probs[t] / math.log(2),
            entropy=float(read.bits_T[t]) if subject.model.normalised else None,
            order=None if orders_1T is None else int(orders_1T[0, t]),
            best=best[t],
        )
        for t, token in enumerate(tokens_T)
    )


def _read(subject: TextModel, tokens_T: Array, top: int) -> _Distributions:
    """Read a line after `eos`, some tokens at a time."""
    arrays, parts = over_arrays(subject.model), []
    inputs_T = np.concatenate([[subject.tokenizer.eos], tokens_T[:-1]])
    columns = max(1, CELLS // subject.model.vocab_size)
    with evaluating(subject.model):
        state = arrays.start(1)
        for begin in range(0, len(tokens_T), columns):
            log_probs_1TV, state = arrays.extend(state, inputs_T[None, begin : begin + columns])
            parts.append(_summarise(log_probs_1TV[0].astype(np.float64), tokens_T[begin : begin + columns], top))
    return _Distributions(*map(np.concatenate, zip(*parts, strict=True)))


def _summarise(log_probs_TV: Array, tokens_T: Array, top: int) -> _Distributions:
    own_T = log_probs_TV[np.arange(len(tokens_T)), tokens_T]
    probs_TV = np.exp(log_probs_TV)
    finite_TV = np.where(probs_TV > 0, log_probs_TV, 0)
    best_TK = best_tokens(log_probs_TV, top)
    return _Distributions(
        own_T,
        1 + (log_probs_TV > own_T[:, None]).sum(1),
        -(probs_TV * finite_TV).sum(1) / math.log(2),
        best_TK,
        np.take_along_axis(probs_TV, best_TK, 1),
    )


def best_tokens(log_probs_TV: Array, top: int) -> Array:
    """The most probable tokens of each row, best first; of equals the smaller id comes first -> TK."""
    kept_TK = np.argpartition(-log_probs_TV, top - 1, axis=1)[:, :top] if top else np.empty((len(log_probs_TV), 0), int)
    kept_TK.sort(axis=1)
    order_TK = np.argsort(-np.take_along_axis(log_probs_TV, kept_TK, 1), axis=1, kind="stable")
    return np.take_along_axis(kept_TK, order_TK, 1)


def show_details(details: Sequence[TokenDetails]) -> str:
    """A table for people, one row per token."""
    counts = any(one.order is not None for one in details)
    rows = [["token", "rank", "p", "bits", "entropy", *(["order"] if counts else [])]]
    for one in details:
        entropy = "none" if one.entropy is None else f"{one.entropy:.2f}"
        figures = [f"{one.rank:,}", f"{one.probability:.4f}", f"{one.bits:.2f}", entropy]
        mark = " (OOV)" if one.oov else ""
        rows.append([_visible(one.token) + mark, *figures, *([str(one.order)] if counts else [])])
    shown = show_table(rows).split("\n")
    if not any(one.best for one in details):
        return "\n".join(shown)
    width = max(map(len, shown))
    best = ["best", *(", ".join(f"{_visible(token)} {p:.4f}" for token, p in one.best) for one in details)]
    return "\n".join(f"{row:<{width}}  {more}" for row, more in zip(shown, best, strict=True))


def _visible(token: str) -> str:
    """The token, quoted if it is white space."""
    return token if token.strip() else repr(token)
