"""Why: the reasons of one token."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pydantic import Field

from chainrule.base.results import json_value
from chainrule.inference.inspect import TOP
from chainrule.server.kinds import language_model, translator
from chainrule.server.library import LoadedRun
from chainrule.server.limits import Limits
from chainrule.server.lines import Answer
from chainrule.server.views.bits import TextRequest

if TYPE_CHECKING:
    from chainrule.inference.target_choices import TargetToken


class WhyRequest(TextRequest):
    """A token of a text, or of the translation of a text."""

    translation: str | None = None
    position: int = -1
    top: int = Field(TOP, ge=1, le=50)

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        yield []
        if self.translation is None:
            found = language_model("score", loaded.run).why(self.text, self.position, top=self.top)
        else:
            found = translator("translate", loaded.run).why(self.text, self.translation, self.position, top=self.top)
        return {**found.to_dict(), "run": loaded.name}


class ForcedRequest(TextRequest):
    """A text and a translation of it, which is scored token by token."""

    translation: str | None = None
    top: int = Field(TOP, ge=1, le=50)

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        yield []
        run = translator("translate", loaded.run)
        translation = run.translate(self.text) if self.translation is None else self.translation
        yield []
        tokens = [_placed(one) for one in run.choices(self.text, translation, top=self.top)]
        return {"model": loaded.name, "translation": translation, "tokens": tokens}


def _placed(one: TargetToken) -> dict[str, Any]:
    """A token of a translation as the page shows tokens."""
    best = [{"token": choice.piece, "probability": math.exp(choice.log_prob)} for choice in one.choices]
    bits = json_value(-one.log_prob / math.log(2))
    return {"token": one.piece, "bits": bits, "probability": math.exp(one.log_prob), "rank": one.rank, "best": best}
