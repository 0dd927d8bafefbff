"""Span corruption: of plain text a translator reads all but some gaps, and learns to fill them.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", 2020. The pairs come
from data/spans.py; on them the loss is the likelihood's.
"""

from __future__ import annotations

from pydantic import Field

from chainrule.objectives.likelihood import Likelihood
from chainrule.registry import OBJECTIVES


@OBJECTIVES.register("spans", task="spans")
class Spans(Likelihood):
    """The model reads a text with gaps and is to write what was in them."""

    class Config(Likelihood.Config):
        """How much of the text goes into gaps, and how long these are."""

        noise: float = Field(0.15, gt=0, lt=1, description="share of the tokens that go into gaps")
        mean_span: float = Field(3.0, ge=1, description="tokens in a gap, on average")
