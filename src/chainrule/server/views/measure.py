"""Runs: the figures of a run on its validation data, computed when nobody has kept them."""

from __future__ import annotations

from chainrule.base.results import json_value
from chainrule.server.library import LoadedRun
from chainrule.server.limits import Limits
from chainrule.server.lines import Answer
from chainrule.server.requests import Fields
from chainrule.server.run_folders import FIGURES


class MeasureRequest(Fields):
    """A run to be measured."""

    def check(self, limits: Limits) -> None:
        """Everything is allowed: a run knows how much of its validation data is enough."""

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        yield []
        figures = json_value(loaded.run.validation().to_dict())
        valid = {name: figures[name] for name in FIGURES if isinstance(figures.get(name), int | float)}
        return {"model": loaded.name, "valid": valid, "protocol": figures.get("protocol")}
