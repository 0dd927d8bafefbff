"""The attention of a language model: how much of each earlier position every layer and head reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.html import Html, element, table
from chainrule.base.lazy import torch
from chainrule.base.modes import evaluating
from chainrule.errors import ConfigError, DataError
from chainrule.inference.subject import TextModel

DIGITS = 4
"""Decimals of the weights in JSON."""


@dataclass(frozen=True)
class Attention:
    """The weights of one text. Row t of a head shows what position t reads; its entries up to t sum to 1."""

    tokens: list[str]  # the positions: `<eos>`, which precedes every text, and the tokens of the text
    weights: Array  # (layers, heads, T, T), float32

    def _repr_html_(self) -> str:
        """The mean over the heads of the last layer, for notebooks: row t shows what position t reads."""
        mean_TT = self.weights[-1].mean(0).tolist()
        rows = [[token, *map(_shade, row)] for token, row in zip(self.tokens, mean_TT, strict=True)]
        return table(("", *self.tokens), rows)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, with the weights rounded to 4 decimals."""
        layers, heads = self.weights.shape[:2]
        rounded = np.round(self.weights.astype(np.float64), DIGITS).tolist()
        return {"tokens": self.tokens, "layers": layers, "heads": heads, "weights": rounded}


def _shade(weight: float) -> Html:
    return element("div", f"{weight:.2f}", style=f"background:rgba(0,114,178,{weight:.3f})")


def attention_of_lines(subject: TextModel, lines: Iterable[str]) -> Iterator[Attention]:
    """The attention weights of each line, which is read separately after an `<eos>`."""
    for line in lines:
        yield _attention(subject, line)


def _attention(subject: TextModel, line: str) -> Attention:
    tokenizer, model = subject.tokenizer, subject.model
    tokens = [tokenizer.eos, *tokenizer.encode(line)]
    if model.window is not None and len(tokens) > model.window:
        raise DataError(
            f"the text has {len(tokens)} tokens with its {tokenizer.piece(tokenizer.eos)}, but {subject.name} reads at "
            f"most {model.window} at once; give a shorter text"
        )
    with evaluating(model):
        layers = model.attention_weights(torch.tensor([tokens], device=subject.device))
    if layers is None:
        raise ConfigError(f"{subject.name} has no self-attention to show; train a transformer or a conv-attention")
    pieces = [tokenizer.piece(tokenizer.eos), *tokenizer.written_pieces(line)]
    return Attention(pieces, torch.cat(layers).float().cpu().numpy())
