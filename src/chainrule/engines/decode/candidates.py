"""The best continuations of the hypotheses of a beam, chosen while each number is read once."""

from __future__ import annotations

import numpy as np

from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.vectors import LANES, largest

BLOCK = 4
"""Vectors whose largest number is compared with the worst candidate so far, before any of them is looked at."""

LOWEST = np.float32(-np.inf)


@compiled
def choose_continuations(log_prob_AW, scores, step, words, shift_R, best_AM, cell_AM):  # type: ignore[no-untyped-def]
    """The M most probable of the W·V continuations of each prompt, best first; of equals, the first.

    scores    log p of word v after row r is scores[r · step + v] - shift_R[r]
    cell_AM   receives row · V + word
    """
    A, W = log_prob_AW.shape
    for a in range(A):
        best, cells, filled = best_AM[a], cell_AM[a], 0
        for w in range(W):
            row = a * W + w
            log_prob, shift = log_prob_AW[a, w], shift_R[row]
            filled = _add_row(scores, row * step, words, log_prob, shift, row * words, best, cells, filled)


@compiled
def _add_row(scores, at, words, log_prob, shift, cell, best, cells, filled):  # type: ignore[no-untyped-def]
    """Enter the continuations of one row -> the number of candidates."""
    M, word = len(best), 0
    while word < words:
        end = min(word + BLOCK * LANES, words)
        top = largest(scores, at + word, BLOCK) if end - word == BLOCK * LANES else -LOWEST
        if filled < M or log_prob + (top - shift) > best[M - 1]:
            for v in range(word, end):
                total = log_prob + (scores[at + v] - shift)
                if filled < M or total > best[M - 1]:
                    filled = min(filled + 1, M)
                    _insert(best, cells, filled, total, cell + v)
        word = end
    return filled


@compiled
def _insert(best, cells, filled, total, cell):  # type: ignore[no-untyped-def]
    """Put a candidate behind those that are as good; the last of `filled` is replaced."""
    place = filled - 1
    while place > 0 and best[place - 1] < total:
        best[place], cells[place] = best[place - 1], cells[place - 1]
        place -= 1
    best[place], cells[place] = total, cell
