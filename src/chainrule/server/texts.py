"""Requests that are one call of a verb: score, classify, tag, fill, neighbours, embeddings, tokens.

The JSON of a line is that of the verb's `--json`.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, Strict

from chainrule.evaluation.perplexity import bits_per_byte
from chainrule.inference.score import LineScore, score_text
from chainrule.inference.unknown_words import OovKind, UnknownWords
from chainrule.server.completion_request import check_ids
from chainrule.server.errors import invalid
from chainrule.server.kinds import classifier, filler, language_model, tagger
from chainrule.server.library import LoadedRun
from chainrule.server.limits import Limits
from chainrule.server.lines import SLICE, Answer, Lines, characters, in_slices
from chainrule.server.requests import Fields, JsonBytes, to_json
from chainrule.text.coding.residue_meter import ResidueMeter
from chainrule.text.readers import text_of
from chainrule.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from chainrule.runs.language_model import LanguageModelRun

SCORED_SLICE = 1024
"""Lines that are scored together where that is fast."""

Pair = Annotated[tuple[str, str], Strict(False)]
"""Two texts, which are a list in JSON."""


class ScoreRequest(Lines):
    """log p of lines, each scored separately, its end included."""

    tokens: bool = False
    oov: OovKind = "unk"
    oov_penalty: float | None = None

    def check(self, limits: Limits) -> None:
        super().check(limits)
        if "\n" in "".join(self.lines):
            raise invalid("input has a text with a newline; /score takes lines, one text each", "input")

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        run = language_model("score", loaded.run)
        code = _Code(run)
        compute = self._with_tokens if self.tokens else self._totals
        size = SCORED_SLICE if run.model.line_scorer is not None else SLICE
        data = yield from in_slices(self.lines, size, lambda some: [to_json(compute(run, some, code))[1:-1]])
        return {
            "object": "list",
            "model": loaded.name,
            "data": JsonBytes(b"[" + b",".join(data) + b"]"),
            "bits_per_byte": code.bits_per_byte(spelled=self.oov != "unk"),
            "system_fingerprint": loaded.fingerprint,
        }

    def _totals(self, run: LanguageModelRun, lines: Sequence[str], code: _Code) -> list[dict[str, Any]]:
        text = code.add_text(lines)
        records: list[dict[str, Any]] = []
        unknown = UnknownWords(self.oov, self.oov_penalty)
        # Bytes are never a path, as a list given to a run may be.
        for log_probs, counts in score_text(run.subject, text_of(text), 1, unknown, code.meter):
            code.log_probs += log_probs
            records += [{"log_prob": nats, "tokens": count} for nats, count in zip(log_probs, counts, strict=True)]
        return records

    def _with_tokens(self, run: LanguageModelRun, lines: Sequence[str], code: _Code) -> list[dict[str, Any]]:
        code.meter.add(*run.tokenizer.encode_words(code.add_text(lines).decode()))
        found = list(run.score(list(lines), oov=self.oov, oov_penalty=self.oov_penalty))
        code.log_probs += [one.log_prob for one in found]
        return [_scored(one) for one in found]


class _Code:
    """The length of a code for the lines that were scored."""

    def __init__(self, run: LanguageModelRun) -> None:
        self.meter = ResidueMeter(run.tokenizer)
        self.log_probs: list[float] = []
        self._normalised, self._bytes = run.model.normalised, 0

    def add_text(self, lines: Sequence[str]) -> bytes:
        """The text of lines, whose bytes are counted."""
        text = "\n".join([*lines, ""]).encode()
        self._bytes += len(text)
        return text

    def bits_per_byte(self, *, spelled: bool) -> float | None:
        """None if it is not a number. With `spelled` the scores include unknown words, which are not spelled again."""
        self.meter.finish()
        nats = -sum(self.log_probs)
        if not self.log_probs or not self._normalised or not math.isfinite(nats):
            return None
        return bits_per_byte(nats, 0.0 if spelled else self.meter.bits, self._bytes)


def _scored(one: LineScore) -> dict[str, Any]:
    return {
        "log_prob": one.log_prob,
        "tokens": one.tokens,
        "pieces": one.pieces,
        "log_probs": one.log_probs,
        "bits": [-value / math.log(2) for value in one.log_probs],
    }


class ClassifyRequest(Lines):
    """Labels of texts, or of pairs of texts."""

    input: str | list[str] | list[Pair]  # type: ignore[assignment]

    @property
    def texts(self) -> list[str]:
        return [text for given in self.lines for text in ([given] if isinstance(given, str) else given)]

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        run = classifier("classify", loaded.run)

        def compute(lines: Sequence[Any]) -> list[Any]:
            return [
                {
                    "label": best[0].label,
                    "probability": best[0].probability,
                    "probabilities": {one.label: one.probability for one in best},
                }
                for best in run.classify(list(lines), top=len(run.labels))
            ]

        data = yield from in_slices(self.lines, SLICE, compute, characters)
        return listed(loaded, data)


class TagRequest(Lines):
    """Tags of the words of sentences, given with spaces between the words or as lists of words."""

    input: str | list[str] | list[list[str]]  # type: ignore[assignment]

    @property
    def texts(self) -> list[str]:
        return [given if isinstance(given, str) else " ".join(given) for given in self.lines]

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        run = tagger("tag", loaded.run)
        sentences = [one.split() if isinstance(one, str) else one for one in self.lines]

        def compute(some: Sequence[list[str]]) -> list[Any]:
            found = run.tag([list(words) for words in some])
            return [{"words": words, "tags": tags} for words, tags in zip(some, found, strict=True)]

        data = yield from in_slices(sentences, SLICE, compute, characters)
        return listed(loaded, data)


class FillRequest(Lines):
    """The most probable words for every [MASK] of texts."""

    top: int = Field(5, ge=1, le=1000)

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        run = filler("fill", loaded.run)

        def compute(some: Sequence[str]) -> list[Any]:
            filled = ((text, run.fill(text, self.top)) for text in some)
            return [{"text": text, "filled": [asdict(one)["guesses"] for one in found]} for text, found in filled]

        data = yield from in_slices(self.lines, 1, compute)
        return listed(loaded, data)


class NeighboursRequest(Fields):
    """The words nearest to a word, or to an analogy a - b + c."""

    word: str | None = None
    analogy: list[str] | None = Field(None, min_length=3, max_length=3)
    top: int = Field(10, ge=1, le=1000)

    def check(self, limits: Limits) -> None:
        """Refuse both or none of word and analogy."""
        if (self.word is None) == (self.analogy is None):
            raise invalid("neighbours needs either word or analogy: [a, b, c]; give one of them", "word")

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        """Compute the answer on the engine."""
        yield []
        run = loaded.run
        if self.analogy is not None:
            first, second, third = self.analogy
            found, query = run.analogy(first, second, third, top=self.top), {"analogy": self.analogy}
        else:
            found, query = run.neighbours(self.word or "", self.top), {"word": self.word}  # type: ignore[dict-item]
        return {**query, "neighbours": [one._asdict() for one in found], "model": loaded.name}


class EmbeddingsRequest(Lines):
    """Vectors of texts, as OpenAI's clients ask for them."""

    input: str | list[str] | list[int] | list[list[int]]  # type: ignore[assignment]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
    user: str | None = None
    pooling: Literal["mean", "max", "first", "last"] = "mean"
    normalise: bool = False
    layer: int | None = None

    @property
    def lines(self) -> list[Any]:
        """The texts, some of them as ids."""
        single = isinstance(self.input, str) or (bool(self.input) and isinstance(self.input[0], int))
        return [self.input] if single else list(self.input)

    @property
    def texts(self) -> list[str]:
        return [given for given in self.lines if isinstance(given, str)]

    def check(self, limits: Limits) -> None:
        super().check(limits)
        ids = [len(given) for given in self.lines if not isinstance(given, str)]
        limits.check_lines("input", ids, limits.prompt_tokens)

    def answer(self, loaded: LoadedRun, limits: Limits) -> Answer:
        run = loaded.run
        texts = [_text(run.tokenizer, one) for one in self.lines]
        if not texts:
            raise invalid("input is an empty list; give at least one text", "input")

        tokens = 0

        def compute(some: Sequence[str]) -> list[Any]:
            nonlocal tokens
            tokens += sum(len(run.tokenizer.encode_block(text)) for text in some)
            return list(run.embed(list(some), pooling=self.pooling, normalise=self.normalise, layer=self.layer))

        vectors = yield from in_slices(texts, SLICE, compute)
        width = len(vectors[0])
        if self.dimensions not in (None, width):
            raise invalid(f"dimensions is {self.dimensions}; this model has {width}, leave it out", "dimensions")
        encode = _base64 if self.encoding_format == "base64" else _floats
        data = [
            {"object": "embedding", "index": place, "embedding": encode(vector)} for place, vector in enumerate(vectors)
        ]
        return {**listed(loaded, data), "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


def _text(tokenizer: Tokenizer, given: str | list[int]) -> str:
    if isinstance(given, str):
        return given
    check_ids(given, tokenizer, "input")
    return tokenizer.decode(given)


def _floats(vector_D: Any) -> list[float]:
    values: list[float] = vector_D.tolist()
    return values


def _base64(vector_D: Any) -> str:
    return base64.b64encode(np.asarray(vector_D, "<f4").tobytes()).decode()


def listed(loaded: LoadedRun, data: list[Any]) -> dict[str, Any]:
    """An answer of one record per line."""
    return {"object": "list", "model": loaded.name, "data": data, "system_fingerprint": loaded.fingerprint}


class TokenizeRequest(Fields):
    """A text to be split."""

    prompt: str
    add_special_tokens: bool = False

    def tokens(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """The ids; the token that ends a text is recognised by its name where it is not the newline."""
        if self.add_special_tokens:
            raise invalid("add_special_tokens is true, but texts have none here; set it to false", "add_special_tokens")
        ends = self.prompt == eos_text(tokenizer)
        ids = [tokenizer.eos] if ends else tokenizer.encode_block(self.prompt).tolist()
        return {"tokens": ids, "count": len(ids), "pieces": [tokenizer.piece(token) for token in ids]}


class DetokenizeRequest(Fields):
    """Ids to be joined."""

    tokens: list[int]

    def text(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """The text of the ids."""
        check_ids(self.tokens, tokenizer, "tokens")
        return {"prompt": tokenizer.decode(self.tokens)}


def eos_text(tokenizer: Tokenizer) -> str:
    """The text of `eos`: the newline, or the name of the token that ends whole texts."""
    return "\n" if tokenizer.ends_lines else tokenizer.piece(tokenizer.eos)


def tokenizer_info(loaded: LoadedRun) -> dict[str, Any]:
    """What a client needs to know of a tokeniser."""
    tokenizer = loaded.run.tokenizer
    return {
        "tokenizer_class": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "eos_token": eos_text(tokenizer),
        "eos_token_id": tokenizer.eos,
        "bos_token": None,
        "pad_token": None,
        "unk_token": None if tokenizer.unk is None else tokenizer.piece(tokenizer.unk),
        "model": loaded.name,
    }
