"""A translator's own translations: drawn without gradient, then scored with it.

Legend: B sources, S source time, W rows of a source, N = B·W rows, R rows not yet ended, G greedy ones, P rows read
together, T time, V vocabulary, D width, M tokens of all rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chainrule.types import Batch, Source

TABLE_ENTRIES = 2**23
"""The most entries of a table of tokens by words that is made to draw from: 32 MB."""

MOST_ROWS = 1024
"""Rows that are written at once: more would be no quicker, and their states would fill memory."""

ALIVE = 0.75
"""Ended rows are dropped once no more than this share still goes on: moving a state costs about as much as a step."""

ALIKE = 0.75
"""Rows are read together that are at least so long, as a share of the longest of them …"""

FEW_TOKENS = 512
"""… or that are together no more than this: so few are read no quicker in two parts."""


class Drawn(NamedTuple):
    """Target sequences as rows, without the `eos` that stands before the first token."""

    tokens_NT: Tensor  # after the first eos: eos
    weights_NT: Tensor  # 1 up to and with the first eos, then 0

    def rows(self, row_K: Tensor) -> Drawn:
        """Some of the rows."""
        return Drawn(self.tokens_NT[row_K], self.weights_NT[row_K])


@torch.no_grad()
def draw(
    model: Any, source: Source, limit: int, *, eos: int, samples: int = 1, greedy: bool = False, temperature: float = 1
) -> Drawn:
    """Draw `samples` translations of each source, after the greedy one if that is wanted too -> N = B·W rows.

    The rows of a source are adjacent. A row ends with `eos` or at the limit on tokens (or the model's window). The
    model draws as it would translate, without dropout.
    """
    W, B = samples + greedy, len(source.tokens_BS)
    together = max(1, min(MOST_ROWS, TABLE_ENTRIES // int(model.output.size)) // W)
    limit = min(limit, model.window or limit)
    tokens_NT = source.tokens_BS.new_full((B * W, limit), eos)
    longest = 0
    with at_rest(model):
        for first in range(0, B, together):
            some = Source(*(part[first : first + together] for part in source))
            rows_NT = tokens_NT[first * W : (first + together) * W]
            longest = max(longest, _write(model, some, rows_NT, eos, greedy=greedy, temperature=temperature))
    return drawn_from(tokens_NT[:, :longest], eos)


def _write(model: Any, source: Source, tokens_NT: Tensor, eos: int, *, greedy: bool, temperature: float) -> int:
    """Write rows of tokens over those given, which are all `eos` -> how long the longest came to be."""
    N, limit = tokens_NT.shape
    W, open_R = N // len(source.tokens_BS), torch.arange(N, device=tokens_NT.device)
    state = model.select(model.start(source), open_R // W)
    token_R, ended_R = torch.full_like(open_R, eos), torch.zeros_like(open_R, dtype=torch.bool)
    for t in range(limit):
        log_probs_RV, state = model.step(state, token_R)
        token_R = pick(log_probs_RV, temperature)
        if greedy:
            first_G = (open_R % W == 0).nonzero()[:, 0]
            token_R[first_G] = log_probs_RV[first_G].argmax(1)
        token_R = token_R.masked_fill(ended_R, eos)
        tokens_NT[open_R, t] = token_R
        ended_R = token_R == eos
        going = len(ended_R) - int(ended_R.sum())
        if not going:
            return t + 1
        if going <= ALIVE * len(ended_R):
            keep_R = (~ended_R).nonzero()[:, 0]
            state = model.select(state, keep_R)
            open_R, token_R, ended_R = open_R[keep_R], token_R[keep_R], ended_R[keep_R]
    return limit


def drawn_from(tokens_NT: Tensor, eos: int) -> Drawn:
    """Rows that are `eos` to the end once they have ended -> the same with their weights."""
    ends_NT = tokens_NT == eos
    return Drawn(tokens_NT, (ends_NT.cumsum(1) - ends_NT.long() == 0).float())


def pick(log_probs_NV: Tensor, temperature: float = 1.0) -> Tensor:
    """One token of each row by its probability, raised to the power 1/temperature -> N.

    Inverts the distribution function at one uniform number a row, where `torch.multinomial` draws one a word and takes
    ten times as long. Single precision loses words of a probability below 1e-7, which no training would meet.
    """
    log_probs_NV = log_probs_NV.float()
    chance_NV = log_probs_NV.exp() if temperature == 1 else (log_probs_NV / temperature).softmax(1)
    below_NV = chance_NV.cumsum(1)
    # 1 - u lies in (0, 1]: a level above 0 and at most the total never lands on a word of probability 0.
    level_N1 = (1 - torch.rand(len(below_NV), 1, device=below_NV.device)) * below_NV[:, -1:]
    return torch.searchsorted(below_NV, level_N1)[:, 0]


@contextlib.contextmanager
def at_rest(model: Any) -> Iterator[None]:
    """The model in evaluation mode, and afterwards each of its modules in the mode it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def sequences(drawn: Drawn, eos: int) -> list[list[int]]:
    """The tokens of each row without `eos`."""
    lengths = (drawn.weights_NT * (drawn.tokens_NT != eos)).sum(1).long().tolist()
    return [row[:length] for row, length in zip(drawn.tokens_NT.tolist(), lengths, strict=True)]


def forced(model: Any, source: Source, source_N: Tensor, drawn: Drawn, eos: int) -> Tensor:
    """log p(y | x) of each row y with gradient -> N, where source_N says which row of the source is its x.

    One parallel pass for all rows of like length, so that a few long ones do not make padding of the others.
    """
    parts = alike(drawn.weights_NT.sum(1).long().tolist())
    order_N = torch.tensor([row for part in parts for row in part], device=source_N.device)
    rows = order_N.split([len(part) for part in parts])
    scores = [_forced_alike(model, source, source_N[row_P], drawn.rows(row_P), eos) for row_P in rows]
    return torch.cat(scores)[order_N.argsort()]


def alike(lengths: list[int]) -> list[list[int]]:
    """Row numbers in parts of like length, the longest first."""
    parts: list[list[int]] = []
    longest = tokens = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if not parts or (tokens > FEW_TOKENS and lengths[row] < ALIKE * longest):
            parts.append([])
            longest, tokens = lengths[row], 0
        parts[-1].append(row)
        tokens += longest
    return parts


def _forced_alike(model: Any, source: Source, source_P: Tensor, drawn: Drawn, eos: int) -> Tensor:
    T = int(drawn.weights_NT.sum(1).max())
    tokens_PT, weights_PT = drawn.tokens_NT[:, :T], drawn.weights_NT[:, :T]
    inputs_PT = torch.cat([tokens_PT.new_full((len(tokens_PT), 1), eos), tokens_PT[:, :-1]], 1)
    mask_PS = source.mask_BS[source_P]
    S = int(mask_PS.any(0).nonzero().max()) + 1
    read = Source(source.tokens_BS[source_P, :S], mask_PS[:, :S])
    hidden_PTD = model(Batch(inputs_PT, tokens_PT, weights_PT, read)).hidden_BTD
    real_PT = weights_PT > 0
    log_prob_M: Tensor = model.output.log_prob(hidden_PTD[real_PT], tokens_PT[real_PT])
    return log_prob_M.new_zeros(len(tokens_PT)).index_add(0, real_PT.nonzero()[:, 0], log_prob_M)


def in_parts(output: Any, rows_M: Tensor) -> tuple[Tensor, ...]:
    """Rows in parts whose table of rows by words stays small."""
    return torch.split(rows_M, max(1, TABLE_ENTRIES // int(output.size)))
