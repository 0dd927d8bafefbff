"""The reasons of a model, by its class. A further kind of model is a further function here or in a file of its own."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from chainrule.inference.why.records import Reason, Situation


@singledispatch
def reasons(model: Any, situation: Situation) -> list[Reason]:
    """What is known of how a model predicts a token; nothing for a kind of model without a function of its own."""
    return []
