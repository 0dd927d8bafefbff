"""/v1/completions: prompts continued, scored, or both, as generators on the engine.

One token at a time, texts are rows of the run's continuous batch. A beam, drafts and parallel modes are one call of the
verb, in which a text takes part alone.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.modes import evaluating
from chainrule.decoding.continuous import Opening, Row
from chainrule.inference.generate import End, Progress, generate_texts, stream_text
from chainrule.inference.generation_options import GenerationOptions
from chainrule.inference.subject import TextModel
from chainrule.server.choices import LEAST, Choice, TokenLog, seed_of, top_of
from chainrule.server.completion_request import CompletionRequest, Prompt, residue_bits
from chainrule.server.engine import Moves, Work
from chainrule.server.kinds import language_model
from chainrule.server.library import LoadedRun
from chainrule.server.limits import Limits
from chainrule.text.tokenizers import Tokenizer

CHUNK = 64
"""Positions of a prompt that are scored at once; a distribution over all tokens is computed for each."""

READ_CHUNK = 512
"""Positions of a prompt that are read at once; the texts of others go on in between."""

Part = dict[str, Any]
"""A choice of an answer, or a part of one that is streamed."""


class _Start(NamedTuple):
    """Texts to begin: a prompt, its place among the prompts, and the numbers of some of its samples."""

    place: int
    prompt: Prompt
    numbers: range


class Completion:
    """A request for completions of a loaded run."""

    def __init__(self, loaded: LoadedRun, request: CompletionRequest, limits: Limits, draft: LoadedRun | None) -> None:
        run = language_model("generate", loaded.run)
        request.check(limits)
        self.loaded, self.request, self.limits = loaded, request, limits
        self.run, self.draft = run, None if draft is None else draft.run
        self.prompts = request.prompts(run.tokenizer, limits)
        self.id, self.created = f"cmpl-{secrets.token_hex(12)}", int(time.time())
        self.prompt_tokens = sum(len(prompt.ids) for prompt in self.prompts)
        self.completion_tokens = 0
        self.first_token: float | None = None  # when it was chosen
        self.finished: list[str] = []
        self._check_options()

    def _check_options(self) -> None:
        """Refuse wrong options and biases before the request is queued."""
        self._choice(0, self.prompts[0], 0)
        options = self.request.options(None)
        if self.request.searches:
            replace(options, draft=self._draft_subject()).check()

    @property
    def _scores(self) -> bool:
        """Whether the tokens of the prompts are scored."""
        return self.request.echo and self.request.logprobs is not None

    @property
    def rows(self) -> int:
        """Texts that it generates at the same time."""
        wanted = len(self.prompts) * self.request.samples if self.request.max_tokens else 1
        return max(1, min(wanted, self.limits.rows))

    @property
    def tokens(self) -> int:
        """Tokens that it may read and write."""
        return self.prompt_tokens + len(self.prompts) * self.request.samples * self.request.max_tokens

    def work(self) -> Work:
        """The request for the engine."""
        steps = self._search if self.request.searches else self._steps
        return Work(steps, self.loaded.batch, rows=self.rows, tokens=self.tokens)

    # On the engine

    def _steps(self, work: Work) -> Generator[Moves, None, Part]:
        """Score the prompts if they are echoed, and continue them, as many at a time as there are rows."""
        chosen: list[Part] = []
        starts = deque(self._starts())
        live: list[tuple[Choice, Row]] = []
        batch, done = self.loaded.batch, dict[int, list[Choice]]()
        try:
            while starts or live:
                if starts and len(live) + len(starts[0].numbers) <= self.rows:
                    begun = yield from self._begin(work, starts, self.rows - len(live))
                    live += [(choice, row) for choice, row in begun if row is not None]
                    for choice in [choice for choice, row in begun if row is None]:
                        chosen += self._collect(work, choice, done)
                moves = [(row, self._advance(choice, row)) for choice, row in live]
                for choice, row in live:
                    if self.request.stream:
                        self._send(work, choice)
                    if choice.finish:
                        batch.close(row)
                        chosen += self._collect(work, choice, done)
                live = [(choice, row) for choice, row in live if not choice.finish]
                kept = {row for _, row in live}
                yield [(row, token) for row, token in moves if row in kept]
        finally:
            for _, row in live:
                batch.close(row)
        return self.answer(sorted(chosen, key=lambda one: one["index"]))

    def _advance(self, choice: Choice, row: Row) -> int:
        if self.first_token is None:
            self.first_token = time.monotonic()
        token = choice.choose(row.log_probs_V) if row.sampler is None else self.loaded.batch.choose(row)
        choice.accept(token, row.log_probs_V)
        return token

    def _starts(self) -> Iterator[_Start]:
        """The texts of each prompt, as many together as there are rows."""
        for place, prompt in enumerate(self.prompts):
            for first in range(0, self.request.samples, self.rows):
                yield _Start(place, prompt, range(first, min(first + self.rows, self.request.samples)))

    def _begin(
        self, work: Work, starts: deque[_Start], room: int
    ) -> Generator[Moves, None, list[tuple[Choice, Row | None]]]:
        """Begin texts: those of several short prompts at once, or those of one -> each with its row, if it has one."""
        if not self._is_short(starts[0]):
            return (yield from self._begin_in_parts(work, starts.popleft()))
        texts, size = list[list[Choice]](), 0
        while starts and self._is_short(starts[0]) and len(starts[0].numbers) <= room:
            size += len(starts[0].prompt.read)
            if texts and size > READ_CHUNK:
                break
            room -= len(starts[0].numbers)
            texts.append(self._choices(work, starts.popleft(), TokenLog()))
        openings = [Opening(some[0].prompt.read, [choice.sampler for choice in some]) for some in texts]
        work.openings = openings
        try:
            yield []
        except GeneratorExit:
            for row in [row for opening in openings for row in opening.rows]:
                self.loaded.batch.close(row)
            raise
        rows = [row for opening in openings for row in opening.rows]
        return list(zip([choice for some in texts for choice in some], rows, strict=True))

    def _is_short(self, start: _Start) -> bool:
        """Whether the engine reads the prompt at once, perhaps with others."""
        return bool(self.request.max_tokens) and not self._scores and len(start.prompt.read) <= READ_CHUNK

    def _begin_in_parts(self, work: Work, start: _Start) -> Generator[Moves, None, list[tuple[Choice, Row | None]]]:
        """Begin the texts of a prompt that is scored, or long, or not read at all."""
        log, found = TokenLog(), None
        for part, after in self._read(start.prompt):
            log, found = log + part, after
            yield []
        choices = self._choices(work, start, log)
        if found is None or not self.request.max_tokens:
            return [(choice, None) for choice in choices]
        return [(choice, self.loaded.batch.open(*found, choice.sampler)) for choice in choices]

    def _choices(self, work: Work, start: _Start, log: TokenLog) -> list[Choice]:
        """The texts of a prompt; `log` is that of the prompt."""
        first = start.place * self.request.n
        choices = [self._choice(first + number, start.prompt, number) for number in start.numbers]
        for choice in choices:
            choice.prompt_log = log
            if self.request.stream and self.request.echo:
                work.emit(self._part(choice, start.prompt.text, log, None))
        return choices

    def _choice(self, index: int, prompt: Prompt, number: int) -> Choice:
        arrays = self.run.model.arrays is not None
        return Choice(index, self.request, prompt, self.run.tokenizer, arrays=arrays, number=number)

    def _read(self, prompt: Prompt) -> Iterator[tuple[TokenLog, tuple[Array, Any]]]:
        """Read a prompt in parts, and score it if asked to -> log of each part, distribution and state after it."""
        model, arrays, request = self.run.model, self.loaded.batch.model, self.request
        with evaluating(model):  # in this mode the state is that of the decoding engine, where the model has one
            state = arrays.start(1)
        if not self._scores:
            for begin in range(0, len(prompt.read) if request.max_tokens else 0, READ_CHUNK):
                with evaluating(model):
                    log_probs_1V, state = arrays.prefill(state, np.array([prompt.read[begin : begin + READ_CHUNK]]))
                yield TokenLog(), (log_probs_1V[0], state)
            return
        scored = [*prompt.scored, None]  # nothing is scored after the last token
        offsets = iter(_offsets(self.run.tokenizer, prompt))
        for begin in range(0, len(prompt.read), CHUNK):
            read = prompt.read[begin : begin + CHUNK]
            log = TokenLog()
            if not begin and prompt.begun:
                log.add(prompt.read[0], self.run.tokenizer, None, None, 0)
            with evaluating(model):
                log_probs_1TV, state = arrays.extend(state, np.array([read]))
            for log_probs_V, token in zip(log_probs_1TV[0], scored[begin : begin + CHUNK], strict=True):
                if token is not None:
                    top = top_of(log_probs_V, token, request.logprobs or 0, self.run.tokenizer)
                    log.add(token, self.run.tokenizer, float(log_probs_V[token]), top, next(offsets))
            yield log, (log_probs_1TV[0, -1], state)

    def _collect(self, work: Work, choice: Choice, done: dict[int, list[Choice]]) -> list[Part]:
        """The choices of a prompt that are returned, once all its texts have ended."""
        self.completion_tokens += choice.tokens
        place = choice.index // self.request.n if self.request.samples == self.request.n else None
        if place is not None:
            if self.request.stream and not self.request.max_tokens:
                self._send(work, choice)
            return [self._whole(choice)]
        group = done.setdefault(id(choice.prompt), [])
        group.append(choice)
        if len(group) < self.request.samples:
            return []
        best = sorted(group, key=lambda one: -one.mean_log_prob)[: self.request.n]
        first = min(one.index for one in group)
        return [{**self._whole(one), "index": first + rank} for rank, one in enumerate(best)]

    # Beams, drafts and parallel modes

    def _draft_subject(self) -> TextModel | str | None:
        if self.draft is None:
            return "lookup" if self.request.draft else None
        return language_model("generate", self.draft).subject

    def _search(self, work: Work) -> Generator[Moves, None, Part]:
        """Continue the prompts by calls of the verb; others compute after each piece of a text, and after a beam."""
        parts: list[Part] = []
        for place, prompt in enumerate(self.prompts):
            options = replace(self.request.options(seed_of(self.request, 0)), draft=self._draft_subject())
            if options.num_beams * options.num_return_sequences > 1:
                parts += self._search_texts(place, prompt, options)
            else:
                parts.append((yield from self._search_text(work, place, prompt, options)))
            yield []
        return self.answer(parts)

    def _search_texts(self, place: int, prompt: Prompt, options: GenerationOptions) -> Iterator[Part]:
        """The texts of a prompt that end together."""
        written = len(self.run.tokenizer.decode(prompt.ids))
        for number, one in enumerate(generate_texts(self.run.subject, prompt.text, options)):
            self.completion_tokens += one.tokens
            text = one.text[written:].removesuffix("\n") if one.end == "eos" else one.text[written:]
            finish = self._finish(one.end)
            shown = prompt.text + text if self.request.echo else text
            extra = {} if one.log_prob is None else {"log_prob": one.log_prob}
            yield _choice_record(place * self.request.n + number, shown, None, finish) | extra

    def _search_text(
        self, work: Work, place: int, prompt: Prompt, options: GenerationOptions
    ) -> Generator[Moves, None, Part]:
        """The only text of a prompt, piece by piece."""
        progress, texts = Progress(), [prompt.text] if self.request.echo else []
        pieces = stream_text(self.run.subject, prompt.text, options, progress=progress)
        if self.run.tokenizer.decode(prompt.ids):
            next(pieces, None)  # the prompt
        if self.request.stream and self.request.echo:
            work.emit(self.chunk([_choice_record(place, prompt.text, None, None)]))
        for piece in pieces:
            texts.append(piece.removesuffix("\n") if progress.end == "eos" else piece)
            if self.request.stream:
                work.emit(self.chunk([_choice_record(place, texts[-1], None, None)]))
            yield []
        self.completion_tokens += progress.tokens
        finish = self._finish(progress.end)
        if self.request.stream:
            work.emit(self.chunk([_choice_record(place, "", None, finish)]))
        return _choice_record(place, "".join(texts), None, finish)

    def _finish(self, end: End) -> str:
        """Count a finished text -> the reason as clients know it."""
        finish = "length" if end == "length" else "stop"
        self.finished.append(finish)
        return finish

    # Answers

    def _send(self, work: Work, choice: Choice) -> None:
        """Stream what is new of a text."""
        text, log = choice.unsent()
        if text or log.tokens or choice.finish:
            work.emit(self._part(choice, text, log, choice.finish))

    def _part(self, choice: Choice, text: str, log: TokenLog, finish: str | None) -> Part:
        lists = None if self.request.logprobs is None else log.to_dict()
        return self.chunk([_choice_record(choice.index, text, lists, finish)])

    def _whole(self, choice: Choice) -> Part:
        """A choice of an answer that is not streamed."""
        self.finished.append(choice.finish or "length")
        text = choice.prompt.text + choice.text if self.request.echo else choice.text
        if self.request.logprobs is None:
            return _choice_record(choice.index, text, None, choice.finish)
        log = choice.prompt_log + choice.log if self.request.echo else choice.log
        record = _choice_record(choice.index, text, log.to_dict(), choice.finish)
        return record | {"bits_per_byte": self._bits_per_byte(choice, text, log)}

    def _bits_per_byte(self, choice: Choice, text: str, log: TokenLog) -> float | None:
        """The length of a code for the text: its tokens, and what the tokens of the prompt leave open."""
        known = [one for one in log.token_logprobs if one is not None]
        if not text or not self.run.model.normalised or LEAST in known:
            return None
        prompt, tokenizer = choice.prompt, self.run.tokenizer
        residue = residue_bits(tokenizer, prompt.text, prompt.scored) if self.request.echo else 0.0
        from chainrule.evaluation.perplexity import bits_per_byte

        return bits_per_byte(-sum(known), residue, len(text.encode(errors="surrogatepass")))

    def answer(self, parts: list[Part]) -> Part:
        """The whole answer."""
        return self.chunk(parts) | {"usage": self.usage}

    def chunk(self, parts: list[Part]) -> Part:
        """An answer, or a part of one, with some choices."""
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.loaded.name,
            "choices": parts,
            "system_fingerprint": self.loaded.fingerprint,
        }

    @property
    def usage(self) -> dict[str, int]:
        """Tokens read and written."""
        total = self.prompt_tokens + self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": total,
        }


def _choice_record(index: int, text: str, logprobs: Any, finish: str | None) -> Part:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _offsets(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """Where the text of each token of a prompt begins, in characters."""
    from chainrule.inference.pieces import TextPieces

    pieces, place, found = TextPieces(tokenizer), 0, []
    for token in prompt.scored:
        found.append(min(place, len(prompt.text)))
        place += len(pieces.feed(token))
    return found
