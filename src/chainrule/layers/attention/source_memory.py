"""An encoded source as a decoder attends to it: stored once for all hypotheses that translate it.

A beam has several rows per sentence. Copying keys and values for each row would cost memory and time, so each row only
records which source it belongs to, and the rows of one source attend to it together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from chainrule.layers.attention.dot_product import dot_product_attention
from chainrule.types import TensorHolder


class SourceMemory(TensorHolder):
    """Keys and values of A sources, a pair AHSE for each layer of the decoder.

    Rows 0 … W-1 belong to the first source, the next W to the second, and so on.
    """

    __slots__ = ("mask_A11S", "pairs", "rows")

    def __init__(self, pairs: Sequence[tuple[Tensor, Tensor]], mask_A11S: Tensor | None, rows: int = 1) -> None:
        self.pairs, self.mask_A11S, self.rows = pairs, mask_A11S, rows

    @property
    def count(self) -> int:
        """The number of sources, A."""
        return len(self.pairs[0][0])

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> SourceMemory:
        """Apply a change of rows to their sources; sources without rows are removed."""
        source_A, rows = regroup(change, self.count, self.rows, self.pairs[0][0].device)
        if source_A is None:
            return SourceMemory(self.pairs, self.mask_A11S, rows)
        pairs = [(key.index_select(0, source_A), value.index_select(0, source_A)) for key, value in self.pairs]
        mask = None if self.mask_A11S is None else self.mask_A11S.index_select(0, source_A)
        return SourceMemory(pairs, mask, rows)


def regroup(
    change: Callable[[Tensor], Tensor], count: int, rows: int, device: torch.device
) -> tuple[Tensor | None, int]:
    """What a change of rows does to their groups: `count` sources with `rows` rows each.

    Returns the sources that remain, None if all stay in place, and the new number of rows per source.
    """
    before_A = torch.arange(count, device=device)
    source_R = change(before_A.repeat_interleave(rows))
    if len(source_R) and len(source_R) % count == 0 and bool((source_R.view(count, -1) == before_A[:, None]).all()):
        return None, len(source_R) // count
    source_A, count_A = source_R.unique_consecutive(return_counts=True)
    rows = int(count_A[0]) if len(count_A) else 1
    return (source_A, rows) if bool((count_A == rows).all()) else (source_R, 1)


def source_mask(mask_BS: Tensor) -> Tensor | None:
    """The attention mask of a source, B11S, True where a position is visible; None without padding, which is faster."""
    return None if bool(mask_BS.all()) else mask_BS[:, None, None, :]


def attend_source(
    query_ND: Tensor, memory: SourceMemory, layer: int, dropout: float = 0.0, scale: float | None = None
) -> Tensor:
    """Attention of R = A·W rows of T queries each, concatenated row by row, to their sources -> ND."""
    key_AHSE, value_AHSE = memory.pairs[layer]
    A, H, _, E = key_AHSE.shape
    query_AHQE = query_ND.view(A, -1, H, E).transpose(1, 2)  # Q = W·T: the queries of all rows of one source
    mixed_AHQE = dot_product_attention(query_AHQE, key_AHSE, value_AHSE, memory.mask_A11S, dropout, scale=scale)
    return mixed_AHQE.transpose(1, 2).reshape(query_ND.shape[0], H * E)


def source_weights(query_ND: Tensor, memory: SourceMemory, layer: int, scale: float | None = None) -> Tensor:
    """The weights of that attention for one row per source, averaged over the heads -> ATS."""
    key_AHSE, _ = memory.pairs[layer]
    A, H, _, E = key_AHSE.shape
    query_AHTE = query_ND.view(A, -1, H, E).transpose(1, 2)
    scores_AHTS = query_AHTE @ key_AHSE.transpose(2, 3) * (E**-0.5 if scale is None else scale)
    if memory.mask_A11S is not None:
        scores_AHTS = scores_AHTS.masked_fill(~memory.mask_A11S, -torch.inf)
    return scores_AHTS.softmax(-1).mean(1)
