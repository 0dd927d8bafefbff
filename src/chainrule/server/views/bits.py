"""Text in bits: every token of a text with its bits, and the check of their sum by `eval` and `compress`."""

from __future__ import annotations

from pydantic import Field

from chainrule.inference.inspect import TOP
from chainrule.server.kinds import language_model
from chainrule.server.library import LoadedRun
from chainrule.server.limits import Limits
from chainrule.server.lines import Answer
from chainrule.server.requests import Fields


class TextRequest(Fields):
    """A view of one text."""

    text: str

    def check(self, limits: Limits) -> None:
        """Refuse more than the limits allow; a byte is at most one token."""
        limits.check("text", len(self.text), limits.prompt_tokens)

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        """Compute the answer on the engine."""
        raise TypeError(f"{type(self).__name__} must define answer")


class BitsRequest(TextRequest):
    """A text to be coloured."""

    top: int = Field(TOP, ge=0, le=50)

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        yield []
        found = language_model("score", loaded.run).surprise(self.text, top=self.top)
        return {**found.to_dict(), "normalised": found.normalised, "model": loaded.name}


class CheckRequest(TextRequest):
    """A text whose bits are measured by two other routes."""

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        yield []
        found = language_model("score", loaded.run).check_bits(self.text)
        return {**found.to_dict(), "model": loaded.name}
