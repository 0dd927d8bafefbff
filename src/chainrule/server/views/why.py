"""Why: the reasons of one token."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field

from chainrule.base.results import json_value
from chainrule.inference.inspect import TOP
from chainrule.inference.target_choices import TargetToken
from chainrule.runs.language_model import LanguageModelRun
from chainrule.runs.translator import TranslatorRun
from chainrule.server.library import LoadedRun
from chainrule.server.limits import Limits
from chainrule.server.texts import Answer, run_with
from chainrule.server.views.bits import TextRequest


class WhyRequest(TextRequest):
    """A token of a text, or of the translation of a text."""

    translation: str | None = None
    position: int = -1
    top: int = Field(TOP, ge=1, le=50)

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        yield []
        if self.translation is None:
            found = run_with("score", LanguageModelRun, loaded).why(self.text, self.position, top=self.top)
        else:
            translator = run_with("translate", TranslatorRun, loaded)
            found = translator.why(self.text, self.translation, self.position, top=self.top)
        return {**found.to_dict(), "run": loaded.name}


class ForcedRequest(TextRequest):
    """A text and a translation of it, which is scored token by token."""

    translation: str | None = None
    top: int = Field(TOP, ge=1, le=50)

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        yield []
        run = run_with("translate", TranslatorRun, loaded)
        translation = run.translate(self.text) if self.translation is None else self.translation
        yield []
        tokens = [_placed(one) for one in run.choices(self.text, translation, top=self.top)]
        return {"model": loaded.name, "translation": translation, "tokens": tokens}


def _placed(one: TargetToken) -> dict[str, Any]:
    """A token of a translation as the page shows tokens."""
    best = [{"token": choice.piece, "probability": math.exp(choice.log_prob)} for choice in one.choices]
    bits = json_value(-one.log_prob / math.log(2))
    return {"token": one.piece, "bits": bits, "probability": math.exp(one.log_prob), "rank": one.rank, "best": best}
