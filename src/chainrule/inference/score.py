"""log p of lines, each scored separately."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.devices import physical_cores
from chainrule.base.modes import evaluating
from chainrule.base.over_arrays import over_arrays
from chainrule.base.parallel import ordered_map
from chainrule.data.grouping import by_length, in_windows, map_batches
from chainrule.errors import ConfigError
from chainrule.inference.subject import TextModel
from chainrule.inference.unknown_words import UNK_ONLY, UnknownWords
from chainrule.text.coding.residue_meter import ResidueMeter
from chainrule.text.readers import Texts
from chainrule.text.tokenizers.base import EncodedBlock, Tokenizer
from chainrule.types import LineScorer

BATCH_TOKENS = 8192
"""Tokens scored together."""

LINES, MOST_LINES = 512, 4096
"""Lines read together, to be grouped by length: at first, and later."""

BLOCK_LINES = 4096
"""Lines read together by a model that scores many lines in one call."""


class LineScore:
    """The log-probability of one line, its `<eos>` and what its unknown words are charged included.

    Args:
        log_prob: log p of the line, in nats unless another base was asked for.
        tokens: Number of its tokens.
        pieces: The tokens as they are displayed.
        log_probs: log p of each token.
    """

    __slots__ = ("_group", "_place", "log_prob", "tokens")

    def __init__(self, log_prob: float, tokens: int, pieces: list[str], log_probs: list[float]) -> None:
        self.log_prob, self.tokens = log_prob, tokens
        self._group: _Group = _Listed(pieces, log_probs)
        self._place = 0

    @classmethod
    def of_group(cls, log_probs: list[float], tokens: list[int], group: _Group) -> list[Self]:
        """The scores of the lines of a group. Their tokens are listed when they are asked for: most never are.

        Args:
            log_probs: log p of each line.
            tokens: Number of tokens of each line.
            group: The tokens of all lines, one after the other.
        """
        new, place, scores = cls.__new__, 0, list[Self]()
        for log_prob, count in zip(log_probs, tokens, strict=True):
            one = new(cls)
            one.log_prob, one.tokens, one._group, one._place = log_prob, count, group, place
            place += count
            scores.append(one)
        return scores

    @property
    def pieces(self) -> list[str]:
        return self._group.pieces(self._place, self._place + self.tokens)

    @property
    def log_probs(self) -> list[float]:
        return self._group.log_probs(self._place, self._place + self.tokens)

    def _asdict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("log_prob", "tokens", "pieces", "log_probs")}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LineScore) and self._asdict() == other._asdict()

    __hash__ = None  # type: ignore[assignment]  # it has lists

    def __repr__(self) -> str:
        return f"LineScore({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"


class _Group(Protocol):
    """The tokens of some lines, one after the other."""

    def pieces(self, first: int, last: int) -> list[str]: ...

    def log_probs(self, first: int, last: int) -> list[float]: ...


class _Listed(NamedTuple):
    """The tokens of one line, in lists."""

    given_pieces: list[str]
    given_log_probs: list[float]

    def pieces(self, first: int, last: int) -> list[str]:
        return self.given_pieces

    def log_probs(self, first: int, last: int) -> list[float]:
        return self.given_log_probs


class _Block(NamedTuple):
    """The tokens of many lines, in arrays."""

    tokenizer: Tokenizer
    tokens_N: Array
    log_probs_N: Array

    def pieces(self, first: int, last: int) -> list[str]:
        return [self.tokenizer.piece(token) for token in self.tokens_N[first:last].tolist()]

    def log_probs(self, first: int, last: int) -> list[float]:
        log_probs: list[float] = self.log_probs_N[first:last].tolist()
        return log_probs


def unit_of(base: float) -> float:
    """What a nat is in logarithms of another base: 1 / ln base."""
    if not (math.isfinite(base) and base > 1):
        raise ConfigError(f"base is {base}; expected a number above 1, for example 2, 10 or math.e")
    return 1 / math.log(base)


def score_lines(
    subject: TextModel, lines: Iterable[str], unknown: UnknownWords = UNK_ONLY, unit: float = 1.0
) -> Iterator[LineScore]:
    """The score of each line, in the order given; lines are read and scored in groups. A nat counts as `unit`."""
    tokenizer, scorer = subject.tokenizer, subject.model.line_scorer
    sizes = (LINES, MOST_LINES) if scorer is None else (BLOCK_LINES, BLOCK_LINES)
    for group in in_windows(lines, *sizes):
        block = "\n".join([*group, ""])
        if scorer is not None and block.count("\n") == len(group):
            yield from _score_block(tokenizer, scorer, block, unknown, unit)
            continue
        rows = [[*tokenizer.encode(line), tokenizer.eos] for line in group]
        charges = [unknown.charges(tokenizer, line, row) for line, row in zip(group, rows, strict=True)]
        yield from _score_rows(subject, rows, charges, unit)


def _score_block(
    tokenizer: Tokenizer, scorer: LineScorer, block: str, unknown: UnknownWords, unit: float
) -> list[LineScore]:
    """The score of each line of a block, all in one call."""
    tokens_N = tokenizer.encode_block(block)
    log_probs_N = scorer.score_tokens(tokens_N)
    if unknown.kind != "unk":
        log_probs_N = log_probs_N + unknown.charges(tokenizer, block, tokens_N)
    if unit != 1:
        log_probs_N = log_probs_N * unit
    ends_M = np.flatnonzero(tokens_N == tokenizer.eos) + 1
    counts_M = np.diff(ends_M, prepend=0)
    totals_M = np.add.reduceat(log_probs_N, ends_M - counts_M)
    return LineScore.of_group(totals_M.tolist(), counts_M.tolist(), _Block(tokenizer, tokens_N, log_probs_N))


def _score_rows(subject: TextModel, rows: list[list[int]], charges: list[Array], unit: float) -> list[LineScore]:
    def score(batch: list[int]) -> Iterator[LineScore]:
        some = [rows[index] for index in batch]
        for index, log_probs_N in zip(batch, _log_probs(subject, some), strict=True):
            pieces = [subject.tokenizer.piece(token) for token in rows[index]]
            log_probs = ((log_probs_N + charges[index]) * unit).tolist()
            yield LineScore(sum(log_probs), len(log_probs), pieces, log_probs)

    batches = by_length([len(row) for row in rows], max_tokens=BATCH_TOKENS, longest_first=False)
    return map_batches(batches, score, subject.model)


def _log_probs(subject: TextModel, rows: list[list[int]]) -> list[Array]:
    """log p of each token of rows of unequal length; padding comes last and has no effect."""
    tokens_BT = np.full((len(rows), max(map(len, rows))), subject.tokenizer.eos, np.int64)
    for index, row in enumerate(rows):
        tokens_BT[index, : len(row)] = row
    with evaluating(subject.model):
        log_probs_BT = over_arrays(subject.model).log_probs(tokens_BT).astype(np.float64)
    return [log_probs_BT[index, : len(row)] for index, row in enumerate(rows)]


def score_text(
    subject: TextModel,
    texts: Texts,
    threads: int | None = None,
    unknown: UnknownWords = UNK_ONLY,
    meter: ResidueMeter | None = None,
    unit: float = 1.0,
) -> Iterator[tuple[list[float], list[int]]]:
    """log p and number of tokens of each line of a text, in order, a block of lines at a time.

    `meter` gets the text and its tokens, for bits per byte. A nat counts as `unit`.
    """
    tokenizer, scorer = subject.tokenizer, subject.model.line_scorer
    blocks = _whole_lines(texts.strings(any_bytes=tokenizer.any_bytes))
    if scorer is None:
        for block in blocks:
            scored = list(score_lines(subject, block.removesuffix("\n").split("\n"), unknown, unit))
            if meter is not None:
                meter.add(block, tokenizer.encode_block(block))
            yield [one.log_prob for one in scored], [one.tokens for one in scored]
        return

    def encode(block: str) -> EncodedBlock:
        return tokenizer.encode_words(block if block.endswith("\n") else block + "\n")

    def score(block: EncodedBlock) -> tuple[EncodedBlock, list[float], list[int]]:
        nats_M, counts_M = scorer.score_lines(block.ids)
        charges_N = unknown.charges(tokenizer, block.text, block.ids)
        if charges_N.any():
            nats_M = nats_M + np.add.reduceat(charges_N, np.cumsum(counts_M) - counts_M)
        return block, (nats_M if unit == 1 else nats_M * unit).tolist(), counts_M.tolist()

    if tokenizer.concurrent:
        found = ordered_map(lambda block: score(encode(block)), blocks, threads or physical_cores())
    else:
        found = ordered_map(score, map(encode, blocks), threads or physical_cores())
    for encoded, log_probs, counts in found:
        if meter is not None:
            meter.add(*encoded)
        yield log_probs, counts


def _whole_lines(blocks: Iterable[str]) -> Iterator[str]:
    """The blocks of a text, each extended to the end of its last line."""
    rest: list[str] = []
    for block in blocks:
        cut = block.rfind("\n") + 1
        if cut:
            yield "".join([*rest, block[:cut]])
            rest = []
        if block[cut:]:
            rest.append(block[cut:])
    if rest:
        yield "".join(rest)
