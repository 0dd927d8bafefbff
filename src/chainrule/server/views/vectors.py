"""Vectors: the neighbours of a word or of an analogy, and a map of words or of texts in two dimensions."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from chainrule.inference.vector_map import map_vectors
from chainrule.server.errors import invalid
from chainrule.server.library import LoadedRun
from chainrule.server.limits import Limits
from chainrule.server.lines import Answer
from chainrule.server.requests import Fields

MOST_TEXTS = 500
"""Words or texts on a map, at most."""


class VectorsRequest(Fields):
    """Words to add and to subtract, and what the map shows: their neighbours, given words, or given texts."""

    positive: list[str] = Field([], max_length=20)
    negative: list[str] = Field([], max_length=20)
    words: list[str] = Field([], max_length=MOST_TEXTS)  # shown on the map beside the neighbours
    texts: list[str] = Field([], max_length=MOST_TEXTS)  # instead of words
    top: int = Field(30, ge=3, le=MOST_TEXTS)

    def check(self, limits: Limits) -> None:
        """Refuse long texts, and words beside texts."""
        limits.check("texts", max(map(len, self.texts), default=0), limits.prompt_tokens)
        if self.texts and (self.positive or self.negative or self.words):
            raise invalid("the map shows texts or words; give one of them", "texts")

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        yield []
        run = loaded.run
        if self.texts:
            placed = map_vectors(self.texts, run.embed(self.texts))
            return {"model": loaded.name, "neighbours": [], "map": placed.to_dict()}
        table = run.word_table
        known = [word for word in self.positive + self.negative + self.words if table.place(word) >= 0]
        near: list[Any] = []
        if self.positive or self.negative:
            near = table.most_similar(self.positive, self.negative, topn=self.top)
        yield []
        shown = [*known, *(one.word for one in near)] or list(table.words[: self.top])
        return {
            "model": loaded.name,
            "vocabulary": len(table),
            "neighbours": [one._asdict() for one in near],
            "map": table.map(shown).to_dict() if len(set(shown)) > 2 else None,
        }
