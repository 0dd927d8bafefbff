"""What all encoders of several layers share: a walk through the layers, of which the last is what they give."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn


class Layered(nn.Module):
    """Tokens to vectors, layer by layer. Subclasses give `walk`. Legend: B batch, S places of the text, P width."""

    def forward(self, tokens_BS: Tensor, mask_BS: Tensor) -> Tensor:
        """Tokens, and which of them are no padding -> the last layer's states, BSP; those of padding mean nothing."""
        for states_BSP in self.walk(tokens_BS, mask_BS):
            last_BSP = states_BSP
        return last_BSP

    def layers(self, tokens_BS: Tensor, mask_BS: Tensor) -> list[Tensor]:
        """What is walked through, the embeddings first where they count, the last layer's states last, BSP each."""
        return list(self.walk(tokens_BS, mask_BS))

    def walk(self, tokens_BS: Tensor, mask_BS: Tensor) -> Iterator[Tensor]:
        raise TypeError(f"{type(self).__name__} must define walk")
