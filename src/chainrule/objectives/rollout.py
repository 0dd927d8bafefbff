"""A translator's own translations: sampled without gradient, then scored with gradient."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from chainrule.objectives.network import SteppingNetwork, TokenOutput
from chainrule.types import Batch, Source

TABLE_ENTRIES = 2**23
"""Maximum size of a table of positions by tokens that is sampled from: 32 MB."""

MAX_ROWS = 1024
"""Rows generated at once: more would not be faster, and their states would fill memory."""

ACTIVE_SHARE = 0.75
"""Ended rows are dropped once at most this share is active: selecting rows of a state costs about as much as a step."""

SIMILAR_LENGTH = 0.75
"""Rows scored together have at least this share of the length of the longest of them …"""

SMALL_GROUP = 512
"""… or at most this many tokens in total: so few would not be scored faster in two parts."""


class Samples(NamedTuple):
    """Target sequences as rows, without the `eos` before the first token."""

    tokens_RT: Tensor  # eos after the first eos
    weights_RT: Tensor  # 1 up to and including the first eos, then 0

    def select(self, rows_K: Tensor) -> Samples:
        """The rows rows_K."""
        return Samples(self.tokens_RT[rows_K], self.weights_RT[rows_K])


def make_samples(tokens_RT: Tensor, eos: int) -> Samples:
    """Add the weights to rows in which only `eos` follows the first `eos`."""
    ends_RT = tokens_RT == eos
    return Samples(tokens_RT, (ends_RT.cumsum(1) - ends_RT.long() == 0).float())


def token_lists(samples: Samples, eos: int) -> list[list[int]]:
    """The tokens of each row without `eos`."""
    lengths = (samples.weights_RT * (samples.tokens_RT != eos)).sum(1).long().tolist()
    return [row[:length] for row, length in zip(samples.tokens_RT.tolist(), lengths, strict=True)]


# Sampling


@torch.no_grad()
def sample_translations(
    model: SteppingNetwork,
    source: Source,
    limit: int,
    *,
    eos: int,
    samples: int = 1,
    greedy: bool = False,
    temperature: float = 1,
) -> Samples:
    """Sample W = `samples` translations of each source, or W = `samples` + 1 with the greedy one first -> R = B·W rows.

    The rows of a source are adjacent. A row ends with `eos` or at the limit on tokens (or the model's window). Sampling
    is without dropout, as in translation.
    """
    W, B = samples + greedy, len(source.tokens_BS)
    together = max(1, min(MAX_ROWS, TABLE_ENTRIES // model.output.size) // W)
    limit = min(limit, model.window or limit)
    tokens_RT = source.tokens_BS.new_full((B * W, limit), eos)
    longest = 0
    with evaluation_mode(model):
        for first in range(0, B, together):
            some = Source(*(part[first : first + together] for part in source))
            rows_MT = tokens_RT[first * W : (first + together) * W]
            longest = max(longest, _generate(model, some, rows_MT, eos, greedy=greedy, temperature=temperature))
    return make_samples(tokens_RT[:, :longest], eos)


def _generate(
    model: SteppingNetwork, source: Source, tokens_RT: Tensor, eos: int, *, greedy: bool, temperature: float
) -> int:
    """Overwrite the given rows, which are all `eos`, with generated tokens -> the length of the longest."""
    R, limit = tokens_RT.shape
    W, active_M = R // len(source.tokens_BS), torch.arange(R, device=tokens_RT.device)
    state = model.select(model.start(source), active_M // W)
    token_M, ended_M = torch.full_like(active_M, eos), torch.zeros_like(active_M, dtype=torch.bool)
    for t in range(limit):
        log_probs_MV, state = model.step(state, token_M)
        token_M = sample_tokens(log_probs_MV, temperature)
        if greedy:
            greedy_K = (active_M % W == 0).nonzero()[:, 0]
            token_M[greedy_K] = log_probs_MV[greedy_K].argmax(1)
        token_M = token_M.masked_fill(ended_M, eos)
        tokens_RT[active_M, t] = token_M
        ended_M = token_M == eos
        active = len(ended_M) - int(ended_M.sum())
        if not active:
            return t + 1
        if active <= ACTIVE_SHARE * len(ended_M):
            kept_K = (~ended_M).nonzero()[:, 0]
            state = model.select(state, kept_K)
            active_M, token_M, ended_M = active_M[kept_K], token_M[kept_K], ended_M[kept_K]
    return limit


def sample_tokens(log_probs_NV: Tensor, temperature: float = 1.0) -> Tensor:
    """Draw one token of each row with its probability to the power 1/temperature, normalised -> N.

    Inverts the distribution function at one uniform number per row, where `torch.multinomial` draws one per token and
    takes ten times as long. Single precision loses tokens of a probability below 1e-7, which training would not meet.
    """
    log_probs_NV = log_probs_NV.float()
    probs_NV = log_probs_NV.exp() if temperature == 1 else (log_probs_NV / temperature).softmax(1)
    below_NV = probs_NV.cumsum(1)
    # 1 - u is in (0, 1]: a level above 0 and at most the total never selects a token of probability 0.
    level_N1 = (1 - torch.rand(len(below_NV), 1, device=below_NV.device)) * below_NV[:, -1:]
    return torch.searchsorted(below_NV, level_N1)[:, 0]


def split_for_output(output: TokenOutput, hidden_ND: Tensor) -> tuple[Tensor, ...]:
    """Split features into parts whose tables of positions by tokens stay small."""
    return torch.split(hidden_ND, max(1, TABLE_ENTRIES // output.size))


@contextlib.contextmanager
def evaluation_mode(model: SteppingNetwork) -> Iterator[None]:
    """Put the model into evaluation mode; afterwards each of its modules has its previous mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


# Scoring


def score_samples(model: SteppingNetwork, source: Source, source_R: Tensor, samples: Samples, eos: int) -> Tensor:
    """log p(y | x) of each row y with gradient -> R, where source_R gives the index of its source x.

    One parallel pass for all rows of similar length, so that a few long rows do not make the others mostly padding.
    """
    groups = group_by_length(samples.weights_RT.sum(1).long().tolist())
    order_R = torch.tensor([row for group in groups for row in group], device=source_R.device)
    parts = order_R.split([len(group) for group in groups])
    scores = [_score_group(model, source, source_R[rows_M], samples.select(rows_M), eos) for rows_M in parts]
    return torch.cat(scores)[order_R.argsort()]


def group_by_length(lengths: list[int]) -> list[list[int]]:
    """Row numbers in groups of similar length, longest first."""
    groups: list[list[int]] = []
    longest = tokens = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if not groups or (tokens > SMALL_GROUP and lengths[row] < SIMILAR_LENGTH * longest):
            groups.append([])
            longest, tokens = lengths[row], 0
        groups[-1].append(row)
        tokens += longest
    return groups


def _score_group(model: SteppingNetwork, source: Source, source_R: Tensor, samples: Samples, eos: int) -> Tensor:
    """log p(y | x) of each row in one pass -> R."""
    T = int(samples.weights_RT.sum(1).max())
    tokens_RT, weights_RT = samples.tokens_RT[:, :T], samples.weights_RT[:, :T]
    inputs_RT = torch.cat([tokens_RT.new_full((len(tokens_RT), 1), eos), tokens_RT[:, :-1]], 1)
    mask_RS = source.mask_BS[source_R]
    S = int(mask_RS.any(0).nonzero().max()) + 1
    repeated = Source(source.tokens_BS[source_R, :S], mask_RS[:, :S])
    hidden_RTD = model.policy_features(Batch(inputs_RT, tokens_RT, weights_RT, repeated))
    real_RT = weights_RT > 0
    log_prob_N = model.output.log_prob(hidden_RTD[real_RT], tokens_RT[real_RT])
    return log_prob_N.new_zeros(len(tokens_RT)).index_add(0, real_RT.nonzero()[:, 0], log_prob_N)
