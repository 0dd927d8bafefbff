"""Continuing a prompt with a language model: greedily, by beam or by sampling, with drafts and stop strings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from chainrule.base.devices import physical_cores, threads
from chainrule.base.lazy import torch
from chainrule.base.modes import evaluating
from chainrule.decoding import (
    ControlledArrays,
    ControlledStepper,
    Drafter,
    DraftStatistics,
    Hypothesis,
    beam_search,
    stream,
    stream_blocks,
    stream_with_drafts,
)
from chainrule.decoding.over_arrays import SteppingArrays, beam_search_arrays, stream_arrays
from chainrule.decoding.stop_strings import StopStrings
from chainrule.inference.drafts import Draft, check_mode, open_draft, repetition_draft
from chainrule.inference.generation_options import GenerationOptions
from chainrule.inference.pieces import TextPieces, end_token, last_line
from chainrule.inference.subject import TextModel
from chainrule.types import ArrayModel

if TYPE_CHECKING:
    from torch import Tensor


End = Literal["eos", "stop", "length"]
"""Why a text ends: with its `eos`, before a stop string, or at the maximum length."""


@dataclass(frozen=True)
class Generated:
    """A generated text, with its log-probability in nats where the search knows it."""

    text: str
    tokens: int
    log_prob: float | None = None
    drafted: DraftStatistics | None = None  # statistics of the passes, where one may give several tokens
    end: End = "length"


@dataclass
class Progress:
    """How far a text is that comes in pieces."""

    tokens: int = 0
    end: End = "length"


def generate_texts(subject: TextModel, prompt: str, options: GenerationOptions) -> list[Generated]:
    """Continuations of a prompt, which is part of the result."""
    options.check()
    walk = _open(subject, prompt, options)
    single = options.num_beams * options.num_return_sequences == 1
    with threads(1 if single else physical_cores()), evaluating(subject.model):
        return walk.texts()


def stream_text(
    subject: TextModel,
    prompt: str,
    options: GenerationOptions,
    drafted: DraftStatistics | None = None,
    progress: Progress | None = None,
) -> Iterator[str]:
    """The prompt, then its continuation in pieces; joined, they are what `generate_texts` gives.

    `drafted` is kept up to date with the statistics of the passes, and `progress` with the tokens.
    """
    options.check()
    return _open(subject, prompt, options).pieces(drafted, progress or Progress())


def _open(subject: TextModel, prompt: str, options: GenerationOptions) -> _Generation:
    """The continuation of a prompt: without torch where the model computes without it."""
    check_mode(subject, options.mode)
    if options.mode != "ar":
        return _ParallelGeneration(subject, prompt, options)
    native = subject.model.arrays
    if native is not None:
        return _ArrayGeneration(subject, prompt, options, native)
    return _TensorGeneration(subject, prompt, options)


class _Generation(ABC):
    """One prompt and the options to continue it."""

    def __init__(self, subject: TextModel, prompt: str, options: GenerationOptions) -> None:
        self.subject, self.options = subject, options
        self.model, self.tokenizer = subject.model, subject.tokenizer
        self.start: list[int] = self.tokenizer.encode_block(prompt).tolist()
        self.stops, self.eos = StopStrings(options.stop), self._end_token()
        self.controls = options.chain(eos=self.eos, unk=self.tokenizer.unk, prompt=len(self.start))
        self.draft: Draft | None = None if options.draft is None else open_draft(subject, options.draft)

    @abstractmethod
    def _beam(self) -> list[Hypothesis]:
        """The best hypotheses of a beam search."""

    @abstractmethod
    def _steps(self, rows: int, statistics: DraftStatistics | None) -> Iterator[list[int]]:
        """The tokens that are chosen for each row, step by step; `statistics` is for passes of several tokens."""

    @abstractmethod
    def _drafted_tokens(self, draft: Draft, statistics: DraftStatistics | None) -> Iterator[int]:
        """The tokens of one text, computed with drafts."""

    def _end_token(self) -> int | None:
        return end_token(self.tokenizer, self.options.stop_at_eos)

    # Whole texts

    def texts(self) -> list[Generated]:
        plain = self.draft is None and self.options.mode == "ar"
        drafted = None if plain else DraftStatistics()
        found: list[tuple[list[int], float | None]]
        if self.options.num_beams > 1:
            found = [(list(one.tokens), one.log_prob) for one in self._beam()]
        elif self.draft is not None:
            steps = ([token] for token in self._drafted_tokens(self.draft, drafted))
            found = [(row, None) for row in self._until_stop(steps)]
        else:
            found = [(row, None) for row in self._rows(drafted)]
        before = self.start
        written, texts = len(self.tokenizer.decode(before)), list[Generated]()
        for new, log_prob in found:
            whole = self.tokenizer.decode([*before, *new])
            text = self.stops.cut(whole, written)
            ended: End = "eos" if self.eos is not None and new[-1:] == [self.eos] else "length"
            end: End = "stop" if len(text) < len(whole) else ended
            texts.append(Generated(text, len(new), log_prob, drafted, end))
        return texts

    def _rows(self, drafted: DraftStatistics | None) -> list[list[int]]:
        """The new tokens of each text, up to and including its first eos."""
        rows, eos = self._until_stop(self._steps(self.options.num_return_sequences, drafted)), self.eos
        return [row if eos not in row else row[: row.index(eos) + 1] for row in rows]

    def _until_stop(self, steps: Iterator[list[int]]) -> list[list[int]]:
        """Rows that grow by one token per step, until every one contains a stop string."""
        if not self.stops:
            return [list(row) for row in zip(*steps, strict=True)]
        line = self._last_line()
        decode = self.tokenizer.decode
        return self.stops.collect_rows(steps, lambda row: decode([*line, *row]), len(decode(line)))

    # Pieces

    def pieces(self, drafted: DraftStatistics | None, progress: Progress) -> Iterator[str]:
        whole = self.tokenizer.decode(self.start)
        if whole:
            yield whole
        if self.draft is None:
            steps: Iterator[int] = (row[0] for row in self._steps(1, drafted))
        else:
            steps = self._drafted_tokens(self.draft, drafted)
        pieces = self._new_text(steps, progress)
        if not self.stops:
            yield from pieces
        elif (yield from self.stops.cut_pieces(pieces)):
            progress.end = "stop"

    def _new_text(self, steps: Iterator[int], progress: Progress) -> Iterator[str]:
        """The text of tokens that come one by one after the prompt, in pieces of whole characters."""
        pieces = TextPieces(self.tokenizer, self._last_line())
        for token in steps:
            progress.tokens += 1
            if token == self.eos:
                progress.end = "eos"
            if piece := pieces.feed(token):
                yield piece

    def _last_line(self) -> list[int]:
        """The tokens of the prompt after its last eos."""
        return last_line(self.tokenizer, self.start)


class _TensorGeneration(_Generation):
    """Continues a prompt with any model."""

    @property
    def stepper(self) -> Any:
        """The model, controlled if there are controls."""
        return ControlledStepper(self.model, self.controls, self.eos) if self.controls else self.model

    @property
    def fed_1T(self) -> Tensor:  # noqa: N802
        """The prompt after the `eos` before it, as one row."""
        return torch.tensor([[self.tokenizer.eos, *self.start]], device=self.subject.device)

    def _beam(self) -> list[Hypothesis]:
        stepper = self.stepper
        return beam_search(
            stepper,
            stepper.start(1),
            self.fed_1T,
            eos=self.eos,
            beams=self.options.num_beams,
            max_new_tokens=self.options.max_new_tokens,
            length_penalty=self.options.length_penalty,
            num_return_sequences=self.options.num_return_sequences,
        )[0]

    def _steps(self, rows: int, statistics: DraftStatistics | None) -> Iterator[list[int]]:
        steps = stream(
            self.stepper,
            torch.tensor(self.start, dtype=torch.int64),
            eos=self.eos,
            bos=self.tokenizer.eos,
            max_new_tokens=self.options.max_new_tokens,
            choose=self.options.chooser(self.model),
            num_return_sequences=rows,
        )
        return (token_B.tolist() for token_B in steps)

    def _drafted_tokens(self, draft: Draft, statistics: DraftStatistics | None) -> Iterator[int]:
        return self._checked_tokens(draft.for_text(), statistics)

    def _checked_tokens(
        self, drafter: Drafter, statistics: DraftStatistics | None, *, own: bool = False
    ) -> Iterator[int]:
        stepper = self.stepper
        with evaluating(self.model):
            state = stepper.start(1)
        return stream_with_drafts(
            stepper,
            state,
            self.fed_1T,
            drafter,
            eos=self.eos,
            max_new_tokens=self.options.max_new_tokens,
            choose=self.options.chooser(self.model),
            draft_tokens=self.options.draft_tokens,
            own=own,
            statistics=statistics,
        )


class _ParallelGeneration(_TensorGeneration):
    """Continues a prompt in a parallel mode of the model: whole blocks, or drafts of its own."""

    def __init__(self, subject: TextModel, prompt: str, options: GenerationOptions) -> None:
        super().__init__(subject, prompt, options)
        with evaluating(self.model):  # compiles its kernels now, not when the first block is waited for
            self.model.predict_block(self.fed_1T[:, :1])

    def _steps(self, rows: int, statistics: DraftStatistics | None) -> Iterator[list[int]]:
        if self.options.mode == "draft":
            return ([token] for token in self._checked_tokens(repetition_draft(), statistics, own=True))
        blocks = stream_blocks(
            self.model,
            torch.tensor(self.start, dtype=torch.int64),
            eos=self.eos,
            bos=self.tokenizer.eos,
            max_new_tokens=self.options.max_new_tokens,
            choose=self.options.chooser(self.model),
            num_return_sequences=rows,
            statistics=statistics,
        )
        return (column for tokens_BT in blocks for column in tokens_BT.T.tolist())


class _ArrayGeneration(_TensorGeneration):
    """Continues a prompt with a model that computes without torch; its drafts are checked as those of any model."""

    def __init__(self, subject: TextModel, prompt: str, options: GenerationOptions, native: ArrayModel) -> None:
        super().__init__(subject, prompt, options)
        self.native: SteppingArrays = ControlledArrays(native, self.controls, self.eos) if self.controls else native

    def _beam(self) -> list[Hypothesis]:
        return beam_search_arrays(
            self.native,
            [self.tokenizer.eos, *self.start],
            eos=self.eos,
            beams=self.options.num_beams,
            max_new_tokens=self.options.max_new_tokens,
            length_penalty=self.options.length_penalty,
            num_return_sequences=self.options.num_return_sequences,
        )

    def _steps(self, rows: int, statistics: DraftStatistics | None) -> Iterator[list[int]]:
        return stream_arrays(
            self.native,
            self.start,
            eos=self.eos,
            bos=self.tokenizer.eos,
            max_new_tokens=self.options.max_new_tokens,
            choose=self.options.array_chooser(),
            num_return_sequences=rows,
        )
