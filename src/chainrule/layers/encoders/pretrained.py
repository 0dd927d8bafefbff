"""The features of a text by an encoder, which may have been trained before, for the model that reads them.

Legend: B batch, S source time, D width of the features, P width of the encoder.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from chainrule.layers.encoders.elmo import ElmoShape, LayerMix
from chainrule.layers.encoders.encoders import EncoderShape, make_encoder
from chainrule.types import Source


class PretrainedFeatures(nn.Module):
    """What an encoder makes of a source; the encoder itself is tuned with the rest, or stays as it is.

    The layers of an ELMo are mixed in shares that are learned; of other encoders the last layer is taken. Given a
    `width`, the features are projected to it; None: they are as wide as the encoder's states.
    """

    def __init__(self, shape: EncoderShape, width: int | None, *, tuned: bool) -> None:
        super().__init__()
        self.tuned = tuned
        self.width = shape.width if width is None else width
        self.encoder = make_encoder(shape).requires_grad_(tuned)
        self.mix = LayerMix(shape.layers + 1) if isinstance(shape, ElmoShape) else None
        self.project = None if width is None else nn.Linear(shape.width, width)

    @property
    def window(self) -> int | None:
        """The most source tokens that can be read; None: any number."""
        return self.encoder.shape.source_window

    def train(self, mode: bool = True) -> Self:
        """An encoder that stays as it is drops nothing either: it says the same of a text every time."""
        super().train(mode)
        self.encoder.train(mode and self.tuned)
        return self

    def forward(self, source: Source) -> Tensor:
        """A source, its tokens those of the encoder's own tokeniser -> the features of each, BSD."""
        with torch.set_grad_enabled(self.tuned and torch.is_grad_enabled()):
            layers = self._read(*source)
        states_BSP = layers[-1] if self.mix is None else self.mix(layers)
        features_BSD = states_BSP if self.project is None else self.project(states_BSP)
        return features_BSD.to(next(self.parameters()).dtype)  # whole, as a table's are, whatever the products are in

    def _read(self, tokens_BS: Tensor, mask_BS: Tensor) -> list[Tensor]:
        """The encoder's last states, or those of all layers where they are mixed, BSP each.

        What the encoder has before every text is put there, and its states left out again.
        """
        first = self.encoder.shape.first
        if first is not None:
            tokens_BS = torch.cat([tokens_BS.new_full((len(tokens_BS), 1), first), tokens_BS], 1)
            mask_BS = torch.cat([mask_BS.new_ones(len(mask_BS), 1), mask_BS], 1)
        layers = [self.encoder(tokens_BS, mask_BS)] if self.mix is None else self.encoder.layers(tokens_BS, mask_BS)
        return layers if first is None else [layer_BSP[:, 1:] for layer_BSP in layers]
