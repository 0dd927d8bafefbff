"""Options that several models share: each model gets those that have an effect on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chainrule.config import TrainingConfig
from chainrule.training.fitting.fitting import BUDGET, fitting_of


def held_out_options(model: str) -> dict[str, Any]:
    """The options with which a model learns nothing from the text that others are validated with."""
    return {"training": {"count_all": False}} if fitting_of(model).name == "counting" else {}


def options_for(model: str, shared: Mapping[str, Any]) -> dict[str, Any]:
    """The shared options without those of the section `training` that have no effect on a model.

    An n-gram model, for example, is counted in one pass and has no batch size. Unknown options are kept, so that a
    misspelt name is still an error.
    """
    fitting, training = fitting_of(model), shared.get("training")
    if fitting.training_options is None or not isinstance(training, Mapping):
        return dict(shared)
    unused = set(TrainingConfig.model_fields) - set(fitting.training_options)
    unused |= set() if fitting.extends else set(BUDGET)
    return {**shared, "training": {name: value for name, value in training.items() if name not in unused}}
