"""The features of a source by an encoder that was trained before, brought to the width of the model that reads them.

Legend: B batch, S source time, D width of the features, P width of the encoder.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from chainrule.layers.bert import BertEncoder, BertShape
from chainrule.types import Source


class PretrainedFeatures(nn.Module):
    """A projection of what a BERT makes of a source; the BERT itself is tuned with the rest, or stays as it is."""

    def __init__(self, shape: BertShape, width: int, *, tuned: bool) -> None:
        super().__init__()
        self.tuned = tuned
        self.encoder = BertEncoder(shape).requires_grad_(tuned)
        self.project = nn.Linear(shape.width, width)

    @property
    def window(self) -> int:
        """The most source tokens that can be read."""
        return self.encoder.shape.source_window

    def train(self, mode: bool = True) -> Self:
        """An encoder that stays as it is drops nothing either: it says the same of a text every time."""
        super().train(mode)
        self.encoder.train(mode and self.tuned)
        return self

    def forward(self, source: Source) -> Tensor:
        """A source, its tokens those of the encoder's own tokeniser -> the features of each, BSD."""
        with torch.set_grad_enabled(self.tuned and torch.is_grad_enabled()):
            states_BSP = self._read(*source)
        features_BSD: Tensor = self.project(states_BSP)
        return features_BSD.to(
            self.project.weight.dtype
        )  # whole, as those of a table are, whatever the products are in

    def _read(self, tokens_BS: Tensor, mask_BS: Tensor) -> Tensor:
        """The encoder's states, BSP. What it has before every text is put there, and its state left out again."""
        first = self.encoder.shape.first
        if first is None:
            return self.encoder(tokens_BS, mask_BS)  # type: ignore[no-any-return]
        tokens_BS = torch.cat([tokens_BS.new_full((len(tokens_BS), 1), first), tokens_BS], 1)
        mask_BS = torch.cat([mask_BS.new_ones(len(mask_BS), 1), mask_BS], 1)
        states_BSP: Tensor = self.encoder(tokens_BS, mask_BS)[:, 1:]
        return states_BSP
