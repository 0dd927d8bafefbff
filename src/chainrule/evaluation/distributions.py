"""The whole distribution before each token of a text, in bounded memory: ranks, entropies and alternatives.

Where a model has features, they are computed for a chunk at once and only the output layer runs in parts. Any other
model is asked token by token, or as its `extend` does it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chainrule.base.arrays import Array
from chainrule.base.devices import device_of
from chainrule.base.progress import Progress
from chainrule.evaluation.perplexity import CHUNK, ScoredTokens, unpadded
from chainrule.evaluation.tracks import choose_tracks, cut_tracks
from chainrule.types import State

CELLS = 1 << 22
"""Probabilities held at once."""


class ReadingState(NamedTuple):
    """The state of a model, and the last token, which it has not read yet; None: that is up to the model."""

    model: State
    last_B: Tensor | None


class DistributionReader:
    """Reads tokens and gives the distribution before each of them."""

    def __init__(self, model: Any, batch: int) -> None:
        self._model: Any = model
        self._has_features = model.feature_width is not None
        last_B = None if self._has_features else torch.full((batch,), model.eos, device=device_of(model))
        self._state = ReadingState(model.start(batch), last_B)

    def read(self, tokens_BT: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield log p(. | all tokens before) and the tokens themselves, some columns at a time -> BTV, BT."""
        columns = max(1, CELLS // (len(tokens_BT) * self._model.vocab_size))
        if not self._has_features:
            for part_BT in tokens_BT.split(columns, 1):
                yield self._extend(part_BT), part_BT
            return
        hidden_BTD, state = self._model.predictors(tokens_BT, self._state.model)
        self._state = ReadingState(state, None)
        for hidden_BMD, part_BT in zip(hidden_BTD.split(columns, 1), tokens_BT.split(columns, 1), strict=True):
            log_probs_NV = self._model.output.log_probs(hidden_BMD.flatten(0, 1))
            yield log_probs_NV.view(*part_BT.shape, -1), part_BT

    def _extend(self, tokens_BT: Tensor) -> Tensor:
        assert self._state.last_B is not None
        inputs_BT = torch.cat([self._state.last_B[:, None], tokens_BT[:, :-1]], 1)
        log_probs_BTV, state = self._model.extend(self._state.model, inputs_BT)
        self._state = ReadingState(state, tokens_BT[:, -1])
        result: Tensor = log_probs_BTV
        return result


def ranks(log_probs_BTV: Tensor, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
    """log p of each token and its rank: 1 if no other token is more probable -> BT, int64 BT."""
    own_BT1 = log_probs_BTV.gather(2, tokens_BT[:, :, None])
    return own_BT1[:, :, 0], 1 + (log_probs_BTV > own_BT1).sum(2)


def rank_stream(
    model: Any, tokens: Array, *, eos: int, chunk: int | None = None, progress: Progress | None = None
) -> Iterator[ScoredTokens]:
    """Yield every token of a stream once with its log p and its rank, in the tracks of `score_stream`."""
    layout = cut_tracks(len(tokens), choose_tracks(model, len(tokens)))
    reader, device, done = DistributionReader(model, layout.count), device_of(model), 0
    for begin, end in layout.chunks(chunk or model.chunk or CHUNK):
        tokens_BT = torch.from_numpy(layout.read(tokens, begin, end, eos)).to(device)
        parts = [ranks(log_probs_BTV, part_BT) for log_probs_BTV, part_BT in reader.read(tokens_BT)]
        log_probs_BT, ranks_BT = (torch.cat(part, 1) for part in zip(*parts, strict=True))
        whole = end - begin - (layout.rows_at(end - 1) < layout.count)
        rows = layout.rows_at(end - 1)
        arrays = (part_BT.cpu().numpy() for part_BT in (tokens_BT, log_probs_BT, ranks_BT))
        yield ScoredTokens(*(unpadded(part_BT, whole, rows) for part_BT in arrays))
        done += layout.count * (end - begin)
        if progress:
            progress(min(done, len(tokens)), len(tokens))
