"""Translate: the best translations of a line, what the model attended to, the beam as a tree, and other choices."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from chainrule.base.results import json_value
from chainrule.server.errors import invalid
from chainrule.server.kinds import translator
from chainrule.server.library import LoadedRun
from chainrule.server.limits import Limits
from chainrule.server.lines import Answer
from chainrule.server.views.bits import TextRequest

if TYPE_CHECKING:
    from chainrule.inference.translate import Translation
    from chainrule.runs.translator import TranslatorRun


class TranslationRequest(TextRequest):
    """A line to be translated."""

    mode: Literal["ar", "nar", "draft"] = "ar"
    num_beams: int | None = Field(None, ge=1)
    length_penalty: float | None = None
    prefix: list[int] = Field([], max_length=1000)  # target tokens
    lengths: int = Field(1, ge=1, le=10)  # mode nar
    refine: int = Field(0, ge=0, le=10)  # mode nar
    top: int = Field(10, ge=1, le=50)  # choices at each position

    def check(self, limits: Limits) -> None:
        super().check(limits)
        limits.check("num_beams", self.num_beams or 1, limits.beams)
        if "\n" in self.text:
            raise invalid("text has a newline; give one line", "text")

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        run = translator("translate", loaded.run)
        yield []
        began = time.perf_counter()
        found = next(run.translate_lines(self.text, **self._search(run)))
        seconds = time.perf_counter() - began
        yield []
        best = found[0]
        choices = run.choices(self.text, best.target, top=self.top) if best.passes else []
        return {
            "model": loaded.name,
            "mode": self.mode,
            "modes": list(run.model.modes),
            "num_beams": run.search_options(self._search(run)).num_beams,
            "seconds": seconds,
            "passes": best.passes,
            "prefix": len(self.prefix),
            "translations": json_value([_record(run, one) for one in found]),
            "attention": asdict(best.attention) if best.attention else None,
            "tree": best.trace.to_dict() if best.trace else None,
            "choices": json_value(
                [{**asdict(one), "choices": [other._asdict() for other in one.choices]} for one in choices]
            ),
        }

    def _search(self, run: TranslatorRun) -> Mapping[str, Any]:
        """The options of the search."""
        shared = {"attention": run.model.attends, "prefix": self.prefix, "mode": self.mode}
        if self.mode != "ar":
            parallel = {"lengths": self.lengths, "refine": self.refine} if self.mode == "nar" else {}
            return {**shared, **parallel, "num_beams": 1}
        given = {"num_beams": self.num_beams, "length_penalty": self.length_penalty}
        wanted: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        beams = run.search_options(wanted).num_beams
        return {**shared, **wanted, "num_return_sequences": beams, "trace": True}


def _record(run: TranslatorRun, one: Translation) -> dict[str, Any]:
    return {
        "text": one.text,
        "score": one.score,
        "log_prob": one.log_prob,
        "tokens": one.target,
        "pieces": [run.tokenizer.piece(token) for token in one.target],
    }
