"""Next token: the distribution after a text, for the page to filter as sampling would."""

from __future__ import annotations

import base64

import numpy as np
from pydantic import Field

from chainrule.server.kinds import language_model
from chainrule.server.library import LoadedRun
from chainrule.server.limits import Limits
from chainrule.server.lines import Answer
from chainrule.server.views.bits import TextRequest


class NextTokenRequest(TextRequest):
    """A text, and tokens that were chosen after it."""

    tokens: list[int] = Field(default_factory=list)
    top: int = Field(100, ge=1, le=1000)

    def check(self, limits: Limits) -> None:
        limits.check("text", len(self.text) + len(self.tokens), limits.prompt_tokens)

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        yield []
        found = language_model("generate", loaded.run).next_token(self.text, tokens=self.tokens)
        log_probs = base64.b64encode(np.asarray(found.log_probs_V, "<f4").tobytes()).decode()
        return {**found.to_dict(self.top), "log_probs": log_probs, "eos": found.tokenizer.eos, "model": loaded.name}
