"""The simplest feature of a prefix: a weighted average of its embeddings.

    h_t = Σ_{i≤t} α_ti e_i        uniform: α_ti = 1/t        attention: α_ti = softmax_i((W e_t + b)·(U e_i) / √D)

With attention, the newest token is the query and all tokens of the prefix are the keys.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.layers.attention.dot_product import causal_mask, causal_weights
from chainrule.layers.attention.kv_cache import KeyValueCache
from chainrule.layers.fused.linear import Linear
from chainrule.models.feature_layer import FeatureLayer, LanguageModelConfig
from chainrule.models.language_model import language_model
from chainrule.types import State


class AverageConfig(LanguageModelConfig):
    """Options of an average of embeddings."""

    weights: Literal["uniform", "attention"] = Field("uniform", description="how the tokens are weighted")
    context: int = Field(64, ge=2, description="largest number of tokens in the average")


@language_model("average", family="average")
class Average(FeatureLayer):
    """A weighted average of the prefix's embeddings."""

    suggestions = (
        "model.weights=attention to learn the weights",
        "chainrule compare TEXT --models average,feedforward,lstm to see what word order is worth",
    )

    Config = AverageConfig
    anchor: Tensor

    def __init__(self, config: AverageConfig, embedding: nn.Embedding) -> None:
        super().__init__(config, embedding)
        self.width, self.window = config.embedding, config.context
        if config.weights == "attention":
            self.query: Linear | None = Linear(config.embedding, config.embedding)
            self.key: Linear | None = Linear(config.embedding, config.embedding, bias=False)
        else:
            self.query = self.key = None
        self.register_buffer("anchor", torch.zeros(()), persistent=False)

    def start(self, batch: int) -> State:
        if self.query is not None:
            return KeyValueCache.empty(batch, 1, self.window or 0, self.width, self.query.weight)
        return self.anchor.new_zeros(batch, self.width), 0

    def forward(self, embedded_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        return self._uniform(embedded_BTD, state) if self.query is None else self._attend(embedded_BTD, state)

    def _uniform(self, embedded_BTD: Tensor, state: tuple[Tensor, int] | None) -> tuple[Tensor, State]:
        sum_BTD = embedded_BTD.cumsum(1)
        before = 0
        if state is not None:
            sum_BD, before = state
            sum_BTD = sum_BTD + sum_BD[:, None]
        count_T = torch.arange(1, embedded_BTD.shape[1] + 1, device=embedded_BTD.device) + before
        after = None if state is None else (sum_BTD[:, -1], before + embedded_BTD.shape[1])
        return sum_BTD / count_T[:, None], after

    def _attend(self, embedded_BTD: Tensor, cache: KeyValueCache | None) -> tuple[Tensor, State]:
        assert self.query is not None
        assert self.key is not None
        query_B1TE, key_B1TE = self.query(embedded_BTD)[:, None], self.key(embedded_BTD)[:, None]
        value_B1TD, before, new = embedded_BTD[:, None], 0, embedded_BTD.shape[1]
        if cache is not None:
            before = cache.length
            cache = cache.append(torch.stack([key_B1TE, value_B1TD], 1))
            key_B1TE, value_B1TD = cache.keys_and_values()
        mask = causal_mask(new, before, embedded_BTD.device)
        return F.scaled_dot_product_attention(query_B1TE, key_B1TE, value_B1TD, attn_mask=mask)[:, 0], cache

    def attention_weights(self, embedded_BTD: Tensor) -> list[Tensor] | None:
        if self.query is None or self.key is None:
            return None
        return [causal_weights(self.query(embedded_BTD)[:, None], self.key(embedded_BTD)[:, None])]
