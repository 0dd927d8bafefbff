"""Which source words each target position consists of, and how long the target is, before any of it is known.

    A_ts = softmax_s(q_t·k_s / √D + b_(t-s))        aligned_t = Σ_s A_ts v_s

The query q_t depends on the number t alone, keys and values on the encoded source, and b is a bias by the distance of
the two positions, so a row of A needs neither the target nor its length. Weights below a threshold are set to 0, and
the others are rescaled to sum to one.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from chainrule.base.kernels import inference_kernel_supports
from chainrule.engines.decode.allocation import AllocationWeights, CompiledAllocation
from chainrule.layers.attention.positions import sinusoidal_table
from chainrule.layers.compiled import PackedModel, as_array, linear_weights
from chainrule.layers.fused.linear import Linear

REACH = 32
"""Longer distances share one bias on either side."""

INITIAL_POSITIONS = 512
"""Positions whose sinusoids are computed at first; more are added on demand."""


class Sinusoids(nn.Module):
    """The sinusoidal vectors of the numbers 0, 1, 2, …"""

    table_CD: Tensor  # (positions, D)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("table_CD", sinusoidal_table(INITIAL_POSITIONS, width), persistent=False)

    def first(self, count: int) -> Tensor:
        """The vectors of at least the first `count` numbers -> (positions, D)."""
        if count > len(self.table_CD):
            longer = sinusoidal_table(max(count, 2 * len(self.table_CD)), self.width)
            self.table_CD = longer.to(self.table_CD)
        return self.table_CD


class AllocationSource(NamedTuple):
    """Keys and values of a source for the allocation; with zeros at their ends if they are the engine's."""

    keys_BSD: Tensor
    values_BSD: Tensor
    bias_B1S: Tensor | None  # -inf at padding; None: there is none
    tokens_B: Tensor  # number of tokens of each source
    engine: CompiledAllocation | None = None


class Allocation(nn.Module):
    """The allocation matrix A, and the features that it gives to the target positions."""

    def __init__(self, encoded: int, width: int) -> None:
        super().__init__()
        self.scale = width**-0.5
        self.sinusoids = Sinusoids(width)
        self.query = Linear(width, width, bias=False)
        self.key = Linear(encoded, width, bias=False)
        self.value = Linear(encoded, width)
        # Source and target mostly have a similar word order, so learning starts there.
        self.distance_bias = nn.Parameter(-0.5 * torch.arange(-REACH, REACH + 1).abs().float())
        self._packed = PackedModel()

    def _compiled(self) -> AllocationWeights:
        return AllocationWeights(
            positions=lambda count: as_array(self.sinusoids.first(count)),
            query=linear_weights(self.query),
            scale=self.scale,
            key=linear_weights(self.key),
            value=linear_weights(self.value),
            bias_C=as_array(self.distance_bias),
        )

    def train(self, mode: bool = True) -> Self:
        """What is packed is forgotten: see `PackedModel`."""
        self._packed.forget()
        return super().train(mode)

    def read(self, encoded_BSE: Tensor, bias_B1S: Tensor | None, tokens_B: Tensor) -> AllocationSource:
        """Keys and values of encoded sources; `bias_B1S` is -inf at padding."""
        engine = self._packed.engine(self, "float32", self._compiled)
        if engine is None or not inference_kernel_supports(encoded_BSE):
            return AllocationSource(self.key(encoded_BSE), self.value(encoded_BSE), bias_B1S, tokens_B)
        keys_BSX, values_BSX = map(torch.from_numpy, engine.read(as_array(encoded_BSE)))
        return AllocationSource(keys_BSX, values_BSX, bias_B1S, tokens_B, engine)

    def weights(self, source: AllocationSource, first: int, count: int, threshold: float) -> Tensor:
        """The rows of A for `count` positions from `first` on -> BTS, each row summing to one."""
        query_TD = self.query(self.sinusoids.first(first + count)[first : first + count]) * self.scale
        keys_BSD, S = source.keys_BSD[:, :, : query_TD.shape[1]], source.keys_BSD.shape[1]
        scores_BTS = query_TD @ keys_BSD.transpose(1, 2) + self._distance_biases(first, count, S)
        if source.bias_B1S is not None:
            scores_BTS = scores_BTS + source.bias_B1S
        return prune_weights(scores_BTS.softmax(2), threshold)

    def forward(self, source: AllocationSource, first: int, count: int, threshold: float) -> Tensor:
        """The features of `count` positions from `first` on -> BTD."""
        if source.engine is not None:
            keys, values, count_B = map(as_array, (source.keys_BSD, source.values_BSD, source.tokens_B))
            return torch.from_numpy(source.engine.align(keys, values, count_B, first, count, threshold))
        return self.weights(source, first, count, threshold) @ source.values_BSD

    def _distance_biases(self, first: int, count: int, S: int) -> Tensor:
        """The bias of target position t and source word s by t - s -> TS, a view of one line of biases."""
        distance_N = torch.arange(first - S + 1, first + count, device=self.distance_bias.device)
        bias_N = self.distance_bias[distance_N.clamp_(-REACH, REACH).add_(REACH)]
        return bias_N.unfold(0, S, 1).flip(1)


def prune_weights(weights_BTS: Tensor, threshold: float) -> Tensor:
    """Set weights below a threshold to 0, except the largest of a row, and rescale the rows to sum to one -> BTS."""
    if threshold <= 0:
        return weights_BTS
    least_BT1 = weights_BTS.detach().amax(2, keepdim=True).clamp(max=threshold)
    kept_BTS = weights_BTS.masked_fill(weights_BTS < least_BT1, 0.0)
    return kept_BTS / kept_BTS.sum(2, keepdim=True)


class LengthPredictor(nn.Module):
    """p(target length | source) as a classifier over C length differences, from -reach to reach."""

    def __init__(self, encoded: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.choose = Linear(encoded, 2 * reach + 1)

    def forward(self, encoded_BSE: Tensor, mask_BS: Tensor | None) -> Tensor:
        """Encoded sources, and a mask that is False at padding (None: no padding) -> scores of the differences, BC."""
        if mask_BS is None:
            mean_BE = encoded_BSE.mean(1)
        else:
            share_BS = mask_BS.to(encoded_BSE.dtype) / mask_BS.sum(1, keepdim=True)
            mean_BE = (share_BS.unsqueeze(1) @ encoded_BSE).squeeze(1)
        scores_BC: Tensor = self.choose(mean_BE)
        return scores_BC

    def loss(self, scores_BC: Tensor, source_B: Tensor, target_B: Tensor) -> Tensor:
        """-log p of the true lengths, summed; differences beyond the reach count as the nearest within it."""
        difference_B = (target_B - source_B).clamp(-self.reach, self.reach) + self.reach
        return nn.functional.cross_entropy(scores_BC, difference_B, reduction="sum")

    def best(self, scores_BC: Tensor, source_B: Tensor, count: int = 1) -> Tensor:
        """The `count` most probable lengths, best first -> BK, none below 0.

        For a short source several differences give length 0, so lengths may repeat if `count` is large.
        """
        if count == 1:
            class_BK = scores_BC.argmax(1, keepdim=True)
        else:
            class_BK = scores_BC.topk(min(count, scores_BC.shape[1]), 1).indices
        return (class_BK + (source_B[:, None] - self.reach)).clamp(min=0)
