"""The full softmax: exact, its cost proportional to the vocabulary."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from chainrule.layers.outputs.base import OutputConfig, WordVectors
from chainrule.layers.outputs.fused import linear_cross_entropy
from chainrule.registry import OUTPUTS
from chainrule.types import Vocabulary


class SoftmaxConfig(OutputConfig):
    """The options of the softmax."""

    label_smoothing: float = Field(default=0.0, ge=0.0, lt=1.0)
    bias: bool = True


@OUTPUTS.register("softmax")
class Softmax(WordVectors):
    """p(w | h) = exp(w·h + b_w) / Σ_v exp(v·h + b_v)."""

    Config = SoftmaxConfig
    name = "softmax"
    config: SoftmaxConfig

    def __init__(self, config: SoftmaxConfig, width: int, vocabulary: Vocabulary) -> None:
        super().__init__(config, width, vocabulary)
        if not config.bias:
            self.bias_V = None

    def loss(self, hidden_ND: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
        smoothing = self.config.label_smoothing if self.training else 0.0
        return linear_cross_entropy(
            hidden_ND, self.weight_VD, self.bias_V, targets_N, weights_N, label_smoothing=smoothing
        )
