"""Side by side: one text under several runs, aligned over characters."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from starlette.requests import Request

from chainrule.inference.alignment import align
from chainrule.inference.surprise import Surprise
from chainrule.server.kinds import language_model
from chainrule.server.library import LoadedRun
from chainrule.server.lines import Answer
from chainrule.server.server import Server
from chainrule.server.views.bits import TextRequest


class AlignRequest(TextRequest):
    """A text for several runs."""

    models: list[str] = Field(min_length=1, max_length=8)


class _SurpriseOf(TextRequest):
    """The part of one run."""

    def answer(self, loaded: LoadedRun, limits: Any) -> Answer:
        yield []
        return language_model("score", loaded.run).surprise(self.text, top=0)


async def aligned(server: Server, request: Request, wanted: AlignRequest) -> dict[str, Any]:
    """The bits of each word under every run."""
    wanted.check(server.limits)
    found: list[Surprise] = []
    for name in wanted.models:
        found.append(await server.compute(request, name, _SurpriseOf(text=wanted.text)))
    record = align(found).to_dict()
    tokens = [len(one.tokens) for one in found]
    return {**record, "models": wanted.models, "tokens": tokens, "tokenizers": [one.tokenizer for one in found]}
