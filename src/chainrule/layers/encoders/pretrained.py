"""An encoder inside another model, trained before or from scratch: it turns a source into features.

The states of the encoder are E wide, the features D.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from chainrule.layers.encoders.base import BaseShape
from chainrule.layers.encoders.build import make_encoder
from chainrule.layers.encoders.frozen_cache import FrozenStateCache
from chainrule.layers.fused.linear import Linear
from chainrule.types import Source


class EncodedText(NamedTuple):
    """What an encoder computes for texts."""

    states_BSD: Tensor  # features of each token; also of the token before the text, if `shape.keeps_first`
    mask_BS: Tensor  # False at padding
    parts_BS: Tensor | None  # index of the text of a pair of each token; None: single texts
    pooled_BE: Tensor  # the pooled output, or the state of the token before the text, or the mean of the states


class PretrainedFeatures(nn.Module):
    """The features of a source by an encoder, which is trained with the rest of the model (`tuned`) or frozen.

    The layers of an ELMo are mixed with learned weights; other encoders give their last layer. With an `embedding`, a
    trained vector x of this width of each token is concatenated: [x; h]. Given a `width`, the features are projected
    to it; None: they are as wide as before.
    """

    def __init__(self, shape: BaseShape, width: int | None, *, tuned: bool, embedding: int = 0) -> None:
        super().__init__()
        self.tuned = tuned
        joined = shape.width + embedding
        self.width = joined if width is None else width
        self.encoder = make_encoder(shape).requires_grad_(tuned)
        self.mix = self.encoder.make_layer_mix()
        self.table = nn.Embedding(shape.vocab_size, embedding) if embedding else None
        self.project = None if width is None else Linear(joined, width)
        self.cache: FrozenStateCache | None = None

    @property
    def window(self) -> int | None:
        """Largest number of source tokens that can be read; None: any number."""
        window: int | None = self.encoder.shape.source_window
        return window

    def train(self, mode: bool = True) -> Self:
        """A frozen encoder stays in evaluation mode, so that its states of a text are always the same."""
        super().train(mode)
        self.encoder.train(mode and self.tuned)
        return self

    def cache_states(self) -> None:
        """From now on, keep the states of a frozen encoder: training reads the same texts repeatedly."""
        if not self.tuned and self.mix is None and self.cache is None:
            self.cache = FrozenStateCache(self._last_states)

    def forward(self, source: Source) -> Tensor:
        """A source in the tokens of the encoder -> the features of each token, BSD."""
        states_BSE = self._states(self._prepend_first(source), None)
        first = self.encoder.shape.first
        return self._join(source.tokens_BS, states_BSE if first is None else states_BSE[:, 1:])

    def encode(self, source: Source, parts_BS: Tensor | None = None) -> EncodedText:
        """Texts, or pairs of texts with the index of the text of each token -> features, and the pooled output."""
        shape, begun = self.encoder.shape, self._prepend_first(source)
        if shape.first is not None and parts_BS is not None:
            parts_BS = torch.cat([parts_BS.new_zeros(len(parts_BS), 1), parts_BS], 1)
        states_BSE = self._states(begun, parts_BS if shape.reads_types else None)
        pooled_BE = self._pool(states_BSE, begun.mask_BS)
        tokens_BS, mask_BS = begun
        if shape.first is not None and not shape.keeps_first:
            states_BSE, tokens_BS, mask_BS = states_BSE[:, 1:], tokens_BS[:, 1:], mask_BS[:, 1:]
            parts_BS = None if parts_BS is None else parts_BS[:, 1:]
        return EncodedText(self._join(tokens_BS, states_BSE), mask_BS, parts_BS, pooled_BE)

    def _pool(self, states_BSE: Tensor, mask_BS: Tensor) -> Tensor:
        """The pooled output of an encoder with a pooler; else the state of its first token, or the mean, BE."""
        if self.encoder.shape.first is None:
            kept_BSE = states_BSE.masked_fill(~mask_BS[:, :, None], 0.0)
            return kept_BSE.sum(1) / mask_BS.sum(1, keepdim=True).clamp_min(1)
        first_BE = states_BSE[:, 0]
        pooled_BE = self.encoder.pool(first_BE)
        return first_BE if pooled_BE is None else pooled_BE

    def _prepend_first(self, source: Source) -> Source:
        """The source after the token that the encoder reads before every text, if there is one."""
        tokens_BS, mask_BS = source
        if (first := self.encoder.shape.first) is None:
            return source
        tokens_BS = torch.cat([tokens_BS.new_full((len(tokens_BS), 1), first), tokens_BS], 1)
        return Source(tokens_BS, torch.cat([mask_BS.new_ones(len(mask_BS), 1), mask_BS], 1))

    def _states(self, source: Source, types_BS: Tensor | None) -> Tensor:
        """The states of the encoder, BSE: the last ones, or the mix of all layers."""
        if self.cache is not None and source.tokens_BS.device.type == "cpu":
            return self.cache(source, types_BS)
        if self.mix is None:
            return self._last_states(source, types_BS)
        with torch.set_grad_enabled(self.tuned and torch.is_grad_enabled()):
            layers = self.encoder.layers(*source)
        mixed_BSE: Tensor = self.mix(layers)
        return mixed_BSE

    def _last_states(self, source: Source, types_BS: Tensor | None) -> Tensor:
        with torch.set_grad_enabled(self.tuned and torch.is_grad_enabled()):
            if types_BS is not None:
                return self.encoder.encode_pairs(*source, types_BS)
            states_BSE: Tensor = self.encoder(*source)
            return states_BSE

    def _join(self, tokens_BS: Tensor, states_BSE: Tensor) -> Tensor:
        """The states with the vectors of their tokens, projected, BSD."""
        joined = states_BSE if self.table is None else torch.cat([self.table(tokens_BS), states_BSE], 2)
        features_BSD = joined if self.project is None else self.project(joined)
        return features_BSD.to(next(self.parameters()).dtype)  # full precision under autocast, like an embedding
