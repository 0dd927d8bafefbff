"""What all Transformers share: scaled embeddings with positions, a sequence of blocks, the final norm, initialisation.

`TransformerStack` is a mixin: the parts become attributes of the model or encoder itself, which keeps the names of its
parameters short (`blocks.0.project_in.weight`). The parts are created in a fixed order, since it determines the random
draws and so the weights that belong to a seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from chainrule.layers.attention.positions import AddedPositions, Rotary
from chainrule.layers.attention.source_memory import SourceMemory
from chainrule.layers.blocks import Block, BlockShape
from chainrule.types import State


class TransformerStack(nn.Module):
    """Positions, blocks and final norm. A subclass calls `build_stack`, or `build_blocks` alone, when it is created."""

    positions: AddedPositions | None
    scale: float  # of the embeddings, before positions are added
    block_list: list[Block]  # the blocks as a plain list, which is faster to iterate
    blocks: nn.ModuleList
    norm: nn.Module

    def build_stack(
        self,
        shape: BlockShape,
        layers: int,
        window: int,
        positions: str,
        *,
        scale: float | None = None,
        make_block: Callable[..., Block] = Block,
        reads_source: bool = False,
    ) -> None:
        """Create all parts. `positions` is "rotary", "sinusoidal" or "learned"; any other name adds no positions.

        Without a `scale`, embeddings are scaled by √D for sinusoidal positions, whose table has entries of size 1, as
        published, and not at all for others.
        """
        rotary = Rotary(window, shape.attention_width // shape.heads) if positions == "rotary" else None
        added = positions in ("learned", "sinusoidal")
        self.positions = AddedPositions(positions, window, shape.width) if added else None
        if scale is None:
            scale = math.sqrt(shape.width) if positions == "sinusoidal" else 1.0
        self.scale = scale
        self.build_blocks(shape, layers, rotary, make_block=make_block, reads_source=reads_source)
        self.norm = shape.make_norm() if shape.pre else nn.Identity()

    def build_blocks(
        self,
        shape: BlockShape,
        layers: int,
        rotary: Rotary | None = None,
        *,
        make_block: Callable[..., Block] = Block,
        reads_source: bool = False,
    ) -> None:
        """Create the blocks; `make_block` takes the arguments of `Block`."""
        self.block_list = [make_block(shape, rotary, reads_source=reads_source) for _ in range(layers)]
        self.blocks = nn.ModuleList(self.block_list)

    def add_positions(self, embedded_BTD: Tensor, before: int) -> Tensor:
        """Scaled embeddings with the positions that follow the first `before` ones -> BTD."""
        stream_BTD = embedded_BTD * self.scale if self.scale != 1.0 else embedded_BTD
        return stream_BTD if self.positions is None else self.positions(stream_BTD, before)

    def run_blocks(
        self,
        stream_ND: Tensor,
        batch: int,
        caches: Sequence[State] | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = True,
        memory: SourceMemory | None = None,
    ) -> tuple[Tensor, list[State]]:
        """The stream after the last block, ND, and the longer caches. The arguments are those of `Block.forward`."""
        longer = []
        for number, block in enumerate(self.block_list):
            cache = caches[number] if caches else None
            stream_ND, cache = block(stream_ND, batch, cache, mask=mask, causal=causal, memory=memory, layer=number)
            longer.append(cache)
        return stream_ND, longer

    def start_caches(self, batch: int, window: int, like: Tensor) -> list[State]:
        """The caches of `batch` empty prefixes, one per block."""
        return [block.start(batch, window, like) for block in self.block_list]


def initialise(module: nn.Module, layers: int | None = None) -> None:
    """Normal weights with standard deviation 0.02, and zero biases.

    Matrices that write to the residual stream start smaller by the root of the number of writers, two per layer
    (Radford et al., 2019); `layers` None: they do not.
    """
    writers = ("project_out.weight", "project_source.weight", "narrow.weight")
    writer_std = 0.02 / math.sqrt(2 * layers) if layers else 0.02
    for name, parameter in module.named_parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=writer_std if name.endswith(writers) else 0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
