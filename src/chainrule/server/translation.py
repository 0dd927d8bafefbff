"""/translate and /languages in the form of LibreTranslate, with scores and attention as further fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import chain, islice
from typing import Any, Literal

from pydantic import Field

from chainrule.runs.base import Run
from chainrule.server.errors import invalid
from chainrule.server.kinds import translator
from chainrule.server.library import Entry, LoadedRun
from chainrule.server.limits import Limits
from chainrule.server.lines import SLICE, Answer, in_slices, texts_above
from chainrule.server.requests import Fields
from chainrule.text.documents import Document, HtmlText, PlainText

FORMATS: dict[str, Callable[[str], Document]] = {"text": PlainText, "html": HtmlText}
"""What a text is, by the name of its format."""


class TranslateRequest(Fields):
    """Texts to be translated."""

    q: str | list[str]
    source: str = "auto"
    target: str = ""
    format: Literal["text", "html"] = "text"
    alternatives: int = Field(0, ge=0)
    api_key: str | None = None
    num_beams: int | None = Field(None, ge=1)
    scores: bool = False
    attention: bool = False

    @cached_property
    def texts(self) -> list[Document]:
        """The texts, each with its lines."""
        return [FORMATS[self.format](text) for text in ([self.q] if isinstance(self.q, str) else self.q)]

    @cached_property
    def lines(self) -> list[str]:
        """The lines of all texts."""
        return list(chain.from_iterable(text.lines for text in self.texts))

    def check(self, limits: Limits) -> None:
        """Refuse what is above the limits."""
        limits.check_prompts("q", [0] * len(self.lines))
        limits.check("alternatives", self.alternatives, limits.n)
        limits.check("num_beams", self.num_beams or 1, limits.beams)
        if not (self.alternatives or self.scores or self.attention):
            return
        if self.format != "text":
            raise invalid("alternatives, scores and attention need the format text; leave them out", "format")
        if len(self.lines) > len(self.texts):
            raise invalid(
                "q has a text of several lines, and alternatives, scores and attention are those of one line; "
                "give a list with one line each",
                "q",
            )

    def long_texts(self, limits: Limits) -> list[str]:
        return texts_above(self.lines, limits.tokens)

    def check_tokens(self, run: Run, limits: Limits) -> None:
        tokenizer = translator("translate", run).source_tokenizer
        counts = [len(tokenizer.encode_block(line)) for line in self.long_texts(limits)]
        limits.check_lines("q", counts, limits.tokens)

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        """Translate on the engine."""
        run = translator("translate", loaded.run)
        count = self.alternatives + 1
        search: dict[str, Any] = {"num_return_sequences": count, "attention": self.attention}
        if self.num_beams is not None or count > 1:
            search["num_beams"] = max(count, self.num_beams or run.search_options({}).num_beams)

        def compute(some: Sequence[str]) -> list[Any]:
            return list(run.translate_lines(list(some), **search))

        found = yield from in_slices(self.lines, SLICE, compute)
        return self._record(loaded, found)

    def _record(self, loaded: LoadedRun, found: list[Any]) -> dict[str, Any]:
        single = isinstance(self.q, str)

        def shown(values: list[Any]) -> Any:
            return values[0] if single else values

        lines = iter(best[0].text for best in found)
        whole = [text.joined(list(islice(lines, len(text.lines)))) for text in self.texts]
        record: dict[str, Any] = {"translatedText": shown(whole)}
        if self.alternatives:
            record["alternatives"] = shown([[one.text for one in best[1:]] for best in found])
        if self.scores:
            record["scores"] = shown([[one.score for one in best] for best in found])
            record["log_probs"] = shown([[one.log_prob for one in best] for best in found])
        if self.attention:
            record["attention"] = shown([best[0].attention and asdict(best[0].attention) for best in found])
        return record | {"model": loaded.name, "system_fingerprint": loaded.fingerprint}


class Languages:
    """Which run translates from which language into which."""

    def __init__(self, pairs: dict[str, tuple[str, str]]) -> None:
        self._pairs = pairs  # by name of the run

    def run_for(self, request: TranslateRequest, translators: Sequence[Entry]) -> str:
        """The run that a request means: by name, else by its languages, else the only one."""
        if request.model is not None:
            return request.model
        wanted = [
            name
            for name, (source, target) in self._pairs.items()
            if request.source in (source, "auto") and request.target in (target, "")
        ]
        if len(wanted) == 1:
            return wanted[0]
        if not self._pairs and len(translators) == 1 and not request.target:
            return translators[0].name
        sources = dict.fromkeys(self._pairs[name][0] for name in wanted)
        if request.source == "auto" and request.target and len(sources) > 1:
            raise invalid(
                f"source is 'auto', but languages are not detected, and this server translates to {request.target!r} "
                f"from {', '.join(sources)}; give source",
                "source",
                "unknown_language",
            )
        known = ", ".join(f"{name} ({source} to {target})" for name, (source, target) in self._pairs.items())
        raise invalid(
            f"no single run translates from {request.source!r} to {request.target!r}; "
            + (f"this server has {known}; give" if known else "start the server with --languages, or give")
            + " the name of a run as model",
            "target",
            "unknown_language",
        )

    def assumed(self, request: TranslateRequest, name: str) -> dict[str, Any]:
        """The source language that a run was chosen with, if the request leaves it open.

        It is not detected: the run has no other. Clients read it as LibreTranslate's `detectedLanguage`, in which an
        undetected language has confidence 0.
        """
        if request.source != "auto" or name not in self._pairs:
            return {}
        record = {"language": self._pairs[name][0], "confidence": 0.0}
        return {"detectedLanguage": record if isinstance(request.q, str) else [record] * len(request.q)}

    def listing(self) -> list[dict[str, Any]]:
        """The languages in the form of LibreTranslate."""
        sources = dict.fromkeys(source for source, _ in self._pairs.values())
        return [
            {"code": code, "name": code, "targets": [end for begin, end in self._pairs.values() if begin == code]}
            for code in sources
        ]
