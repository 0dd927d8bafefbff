"""log p of lines, each scored separately."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.devices import physical_cores
from chainrule.base.modes import evaluating
from chainrule.base.over_arrays import over_arrays
from chainrule.base.parallel import ordered_map
from chainrule.data.grouping import by_length, in_windows, map_batches
from chainrule.inference.subject import TextModel
from chainrule.inference.unknown_words import UNK_ONLY, UnknownWords
from chainrule.text.readers import Texts
from chainrule.text.tokenizers.base import Ids

BATCH_TOKENS = 8192
"""Tokens scored together."""

LINES = 512
"""Lines read together, to be grouped by length."""


@dataclass(frozen=True)
class LineScore:
    """The log-probability of one line, its `<eos>` and what its unknown words are charged included."""

    log_prob: float  # nats
    tokens: int
    pieces: list[str]
    log_probs: list[float]


def score_lines(subject: TextModel, lines: Iterable[str], unknown: UnknownWords = UNK_ONLY) -> Iterator[LineScore]:
    """The score of each line, in the order given; lines are read and scored in groups."""
    tokenizer = subject.tokenizer
    for group in in_windows(lines, LINES):
        rows = [[*tokenizer.encode(line), tokenizer.eos] for line in group]
        charges = [unknown.charges(tokenizer, line, row) for line, row in zip(group, rows, strict=True)]
        yield from _score_rows(subject, rows, charges)


def _score_rows(subject: TextModel, rows: list[list[int]], charges: list[Array]) -> list[LineScore]:
    def score(batch: list[int]) -> Iterator[LineScore]:
        some = [rows[index] for index in batch]
        for index, log_probs_N in zip(batch, _log_probs(subject, some), strict=True):
            pieces = [subject.tokenizer.piece(token) for token in rows[index]]
            log_probs = (log_probs_N + charges[index]).tolist()
            yield LineScore(sum(log_probs), len(log_probs), pieces, log_probs)

    batches = by_length([len(row) for row in rows], max_tokens=BATCH_TOKENS, longest_first=False)
    return map_batches(batches, score)


def _log_probs(subject: TextModel, rows: list[list[int]]) -> list[Array]:
    """log p of each token of rows of unequal length; padding comes last and has no effect."""
    tokens_BT = np.full((len(rows), max(map(len, rows))), subject.tokenizer.eos, np.int64)
    for index, row in enumerate(rows):
        tokens_BT[index, : len(row)] = row
    with evaluating(subject.model):
        log_probs_BT = over_arrays(subject.model).log_probs(tokens_BT).astype(np.float64)
    return [log_probs_BT[index, : len(row)] for index, row in enumerate(rows)]


def score_text(
    subject: TextModel, texts: Texts, threads: int | None = None, unknown: UnknownWords = UNK_ONLY
) -> Iterator[tuple[list[float], list[int]]]:
    """log p and number of tokens of each line of a text, in order, a block of lines at a time."""
    tokenizer, scorer = subject.tokenizer, subject.model.line_scorer
    blocks = _whole_lines(texts.strings(any_bytes=tokenizer.any_bytes))
    if scorer is None:
        for block in blocks:
            scored = list(score_lines(subject, block.removesuffix("\n").split("\n"), unknown))
            yield [one.log_prob for one in scored], [one.tokens for one in scored]
        return

    def encode(block: str) -> tuple[str, Ids]:
        whole = block if block.endswith("\n") else block + "\n"
        return whole, tokenizer.encode_block(whole)

    def score(encoded: tuple[str, Ids]) -> tuple[list[float], list[int]]:
        block, tokens_N = encoded
        nats_M, counts_M = scorer.score_lines(tokens_N)
        charges_N = unknown.charges(tokenizer, block, tokens_N)
        if charges_N.any():
            nats_M = nats_M + np.add.reduceat(charges_N, np.cumsum(counts_M) - counts_M)
        return nats_M.tolist(), counts_M.tolist()

    if tokenizer.concurrent:
        yield from ordered_map(lambda block: score(encode(block)), blocks, threads or physical_cores())
    else:
        yield from ordered_map(score, map(encode, blocks), threads or physical_cores())


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
