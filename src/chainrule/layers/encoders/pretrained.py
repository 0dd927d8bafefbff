"""An encoder inside another model, trained before or from scratch: it turns a source into features.

The states of the encoder are E wide, the features D.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from chainrule.layers.encoders.base import BaseShape
from chainrule.layers.encoders.build import make_encoder
from chainrule.types import Source


class PretrainedFeatures(nn.Module):
    """The features of a source by an encoder, which is trained with the rest of the model (`tuned`) or frozen.

    The layers of an ELMo are mixed with learned weights; other encoders give their last layer. Given a `width`, the
    features are projected to it; None: they are as wide as the encoder's states.
    """

    def __init__(self, shape: BaseShape, width: int | None, *, tuned: bool) -> None:
        super().__init__()
        self.tuned = tuned
        self.width = shape.width if width is None else width
        self.encoder = make_encoder(shape).requires_grad_(tuned)
        self.mix = self.encoder.make_layer_mix()
        self.project = None if width is None else nn.Linear(shape.width, width)

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

    def forward(self, source: Source) -> Tensor:
        """A source in the tokens of the encoder -> the features of each token, BSD."""
        with torch.set_grad_enabled(self.tuned and torch.is_grad_enabled()):
            layers = self._read(*source)
        states_BSE = layers[-1] if self.mix is None else self.mix(layers)
        features_BSD = states_BSE if self.project is None else self.project(states_BSE)
        return features_BSD.to(next(self.parameters()).dtype)  # full precision under autocast, like an embedding

    def _read(self, tokens_BS: Tensor, mask_BS: Tensor) -> list[Tensor]:
        """The last states of the encoder, or the states of all layers if they are mixed, BSE each.

        The encoder's token before every text is added, and its states are removed again.
        """
        first = self.encoder.shape.first
        if first is not None:
            tokens_BS = torch.cat([tokens_BS.new_full((len(tokens_BS), 1), first), tokens_BS], 1)
            mask_BS = torch.cat([mask_BS.new_ones(len(mask_BS), 1), mask_BS], 1)
        layers = [self.encoder(tokens_BS, mask_BS)] if self.mix is None else self.encoder.layers(tokens_BS, mask_BS)
        return layers if first is None else [layer_BSE[:, 1:] for layer_BSE in layers]
