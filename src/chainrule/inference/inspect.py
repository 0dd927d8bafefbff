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
from chainrule.evaluation.tracks import Tracks, choose_tracks, cut_tracks
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
    tokenizer = subject.tokenizer
    for line in lines:
        tokens_N = np.array([*tokenizer.encode(line), tokenizer.eos], np.int64)
        charges_N = unknown.charges(tokenizer, line, tokens_N)
        pieces = [*tokenizer.written_pieces(line), tokenizer.piece(tokenizer.eos)]
        yield Results(inspect_tokens(subject, tokens_N, pieces, charges_N, top))


class _Distributions(NamedTuple):
    """What is kept of the distributions before the tokens of a text."""

    log_probs_N: Array
    ranks_N: Array
    bits_N: Array  # entropies
    best_NK: Array
    best_probs_NK: Array


def inspect_tokens(
    subject: TextModel, tokens_N: Array, pieces: Sequence[str], charges_N: Array, top: int
) -> Iterator[TokenDetails]:
    """The details of the tokens of a text that is read from the first token to the last, in the tracks of `eval`.

    Args:
        subject: The model and its tokeniser.
        tokens_N: The tokens.
        pieces: The tokens as they are displayed.
        charges_N: What is added to log p of each token in nats, at most 0.
        top: Number of alternatives per token.
    """
    tokenizer, normalised = subject.tokenizer, subject.model.normalised
    read = _read(subject, tokens_N, min(top, subject.model.vocab_size))
    log_probs = (read.log_probs_N + charges_N).tolist()
    orders = _orders(subject, tokens_N)
    entropies, ranks = read.bits_N.tolist(), read.ranks_N.tolist()
    best, best_probs = read.best_NK.tolist(), read.best_probs_NK.tolist()
    shown = {token: tokenizer.piece(token) for token in np.unique(read.best_NK).tolist()}
    for n, token in enumerate(tokens_N.tolist()):
        yield TokenDetails(
            token=pieces[n],
            oov=token == tokenizer.unk,
            rank=ranks[n],
            probability=math.exp(log_probs[n]),
            log_prob=log_probs[n],
            bits=-log_probs[n] / math.log(2),
            entropy=entropies[n] if normalised else None,
            order=None if orders is None else orders[n],
            best=[Alternative(shown[other], p) for other, p in zip(best[n], best_probs[n], strict=True)],
        )


def _orders(subject: TextModel, tokens_N: Array) -> list[int] | None:
    """Length of the n-gram that gave each token its probability; None: the model counts no n-grams."""
    layout, arrays = _layout(subject, tokens_N), over_arrays(subject.model)
    orders_BT = arrays.matched_orders(layout.read(tokens_N, 0, layout.columns, subject.tokenizer.eos))
    if orders_BT is None:
        return None
    orders_N = np.zeros(len(tokens_N), np.int64)
    layout.write(orders_N, 0, orders_BT)
    orders: list[int] = orders_N.tolist()
    return orders


def _layout(subject: TextModel, tokens_N: Array) -> Tracks:
    return cut_tracks(len(tokens_N), choose_tracks(subject.model, len(tokens_N)))


def _read(subject: TextModel, tokens_N: Array, top: int) -> _Distributions:
    """Read a text after `eos`, some columns of its tracks at a time."""
    arrays, layout, eos = over_arrays(subject.model), _layout(subject, tokens_N), subject.tokenizer.eos
    read = _empty(len(tokens_N), top)
    columns = max(1, CELLS // (layout.count * subject.model.vocab_size))
    with evaluating(subject.model):
        state, last_B1 = arrays.start(layout.count), np.full((layout.count, 1), eos, np.int64)
        for begin, end in layout.chunks(columns):
            tokens_BT = layout.read(tokens_N, begin, end, eos)
            log_probs_BTV, state = arrays.extend(state, np.concatenate([last_B1, tokens_BT[:, :-1]], 1))
            last_B1 = tokens_BT[:, -1:]
            found = _summarise(log_probs_BTV.reshape(-1, log_probs_BTV.shape[2]), tokens_BT.reshape(-1), top)
            for whole_N, part_M in zip(read, found, strict=True):
                layout.write(whole_N, begin, part_M.reshape(*tokens_BT.shape, *part_M.shape[1:]))
    return read


def _empty(tokens: int, top: int) -> _Distributions:
    return _Distributions(
        np.zeros(tokens),
        np.zeros(tokens, np.int64),
        np.zeros(tokens),
        np.zeros((tokens, top), np.int64),
        np.zeros((tokens, top)),
    )


def _summarise(log_probs_MV: Array, tokens_M: Array, top: int) -> _Distributions:
    log_probs_MV = log_probs_MV.astype(np.float64)
    own_M = log_probs_MV[np.arange(len(tokens_M)), tokens_M]
    probs_MV = np.exp(log_probs_MV)
    finite_MV = np.where(probs_MV > 0, log_probs_MV, 0)
    best_MK = best_tokens(log_probs_MV, top)
    return _Distributions(
        own_M,
        1 + (log_probs_MV > own_M[:, None]).sum(1),
        -(probs_MV * finite_MV).sum(1) / math.log(2),
        best_MK,
        np.take_along_axis(probs_MV, best_MK, 1),
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
