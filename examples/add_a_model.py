"""Add a language model: one feature layer and one registration.

The layer computes a moving average of the embeddings with a learned rate per component, and reads it together with the
current word. In the package it would be a file in `models/`; here it is registered when this file runs. Suffixes such
as `_BTD` state shapes: batch, time, width (see `src/chainrule/types.py`).
"""

from __future__ import annotations

from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor, nn

import chainrule as cr
from chainrule.models.feature_layer import FeatureLayer, LanguageModelConfig
from chainrule.models.language_model import language_model
from chainrule.text.samples.texts import english_text


# CONTRIBUTING.md shows the code from here …
class MovingAverageConfig(LanguageModelConfig):
    """The shape of a moving-average language model."""

    hidden: int = Field(64, ge=1, description="width of the hidden layer")


@language_model("moving-average", family="example")
class MovingAverage(FeatureLayer):
    """m_t = a∘m_{t-1} + (1 - a)∘e_t with a learned, h_t = tanh(W [e_t; m_t] + b)."""

    Config = MovingAverageConfig

    def __init__(self, config: MovingAverageConfig, embedding: nn.Embedding) -> None:
        super().__init__(config, embedding)
        self.width = config.hidden
        self.rate_D = nn.Parameter(torch.linspace(-3.0, 3.0, config.embedding))  # from short memories to long ones
        self.hidden = nn.Linear(2 * config.embedding, config.hidden)

    def start(self, batch: int) -> Tensor:
        """The empty memory -> BD."""
        return self.rate_D.new_zeros(batch, len(self.rate_D))

    def forward(self, embedded_BTD: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Read T more embeddings -> features BTD and the memory after them."""
        memory_BD = self.start(len(embedded_BTD)) if state is None else state
        path, keep_D = [], torch.sigmoid(self.rate_D)
        for embedded_BD in embedded_BTD.unbind(1):
            memory_BD = keep_D * memory_BD + (1 - keep_D) * embedded_BD
            path.append(memory_BD)
        return torch.tanh(self.hidden(torch.cat([embedded_BTD, torch.stack(path, 1)], 2))), memory_BD


# … to here.


def main() -> None:
    text = english_text()
    Path("book.txt").write_text(text[:60_000], encoding="utf-8")
    Path("test.txt").write_text(text[60_000:65_000], encoding="utf-8")
    run = cr.train("book.txt", model="moving-average", steps=60, seed=1, out="runs/moving-average")
    print(f"{run.parameters:,} parameters, {run.evaluate('test.txt').bits_per_byte:.3f} bits per byte")
    print(repr(run.generate("The ", max_new_tokens=40)[0].text))


if __name__ == "__main__":
    main()
