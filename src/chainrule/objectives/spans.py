"""Span corruption: a translator reads plain text without some spans, and learns to write these spans.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", 2020. The pairs are
made in data/spans.py; the loss on them is the likelihood.
"""

from __future__ import annotations

from pydantic import Field

from chainrule.objectives.likelihood import Likelihood
from chainrule.registry import OBJECTIVES


@OBJECTIVES.register("spans", task="spans")
class SpanCorruption(Likelihood):
    """The model reads a text with spans removed and predicts them."""

    class Config(Likelihood.Config):
        """How much of the text is removed, and how long the spans are."""

        noise: float = Field(0.15, gt=0, lt=1, description="share of the tokens that are removed")
        mean_span: float = Field(3.0, ge=1, description="mean number of tokens in a removed span")
