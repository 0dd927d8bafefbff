"""Which of some alternatives a language model finds the most probable after a prompt: how it is asked few-shot.

Brown et al., "Language Models are Few-Shot Learners", 2020. An alternative is put right behind the prompt and the two
are made into tokens together, for what a tokeniser makes of a text depends on what stands beside it. Scored are the
tokens after those that the prompt alone and the prompt with each of its alternatives have in common: so every one of
them continues the same tokens, and also where a token reaches over the end of the prompt, nothing is left out.

    log p(choice | prompt) = Σ log p(token | all before it)

A long alternative has more factors below one than a short one, so the sum may be divided by its tokens or its bytes.
What prompts have in common, such as the examples before each of them, is read once, and a prompt once for all of its
alternatives.

Legend: B prompts, C rows, one an alternative, T tokens of it, R tokens of a prompt after those in common, V vocabulary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from chainrule.base.modes import evaluating
from chainrule.data.grouping import by_equal_length
from chainrule.errors import ConfigError, DataError
from chainrule.inference.subject import TextModel
from chainrule.text.readers import lines_in, open_texts
from chainrule.text.sources import JSON_SUFFIXES, file_chunks, kind_of, lines_of
from chainrule.types import State

Normalise = Literal["none", "token", "byte"]
NORMALISE = ("none", "token", "byte")
QUESTIONS = 128
"""Prompts that are read together, to be grouped by length."""
MOST_NUMBERS = 1 << 25
"""Probabilities of all tokens that are held at once."""


@dataclass(frozen=True)
class Question:
    """A prompt, what may follow it, and which of these is right where that is known."""

    prompt: str
    choices: tuple[str, ...]
    answer: int | None = None


@dataclass(frozen=True)
class Choice:
    """An alternative and how probable it is after a prompt."""

    text: str
    log_prob: float  # nats, of all its tokens
    tokens: int

    @property
    def per_token(self) -> float:
        return self.log_prob / self.tokens

    @property
    def per_byte(self) -> float:
        return self.log_prob / len(self.text.encode(errors="surrogatepass"))

    def score(self, normalise: Normalise = "none") -> float:
        """What alternatives are compared by."""
        return {"none": self.log_prob, "token": self.per_token, "byte": self.per_byte}[normalise]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "per_token": self.per_token, "per_byte": self.per_byte}


def best_of(choices: Sequence[Choice], normalise: Normalise = "none") -> int:
    """The number of the most probable alternative; of equal ones the first."""
    if normalise not in NORMALISE:
        raise ConfigError(f"normalise is {normalise!r}; expected one of {', '.join(NORMALISE)}")
    return max(range(len(choices)), key=lambda number: choices[number].score(normalise))


def choose(subject: TextModel, questions: Iterable[Question]) -> Iterator[list[Choice]]:
    """The alternatives of each question with their probabilities, all in the order given."""
    waiting = iter(questions)
    while group := list(islice(waiting, QUESTIONS)):
        asked = [_tokenized(subject, question) for question in group]
        scores = _score(subject, asked)
        for question, one, log_probs in zip(group, asked, scores, strict=True):
            told = zip(question.choices, log_probs, one.rows, strict=True)
            yield [Choice(text, log_prob, len(row)) for text, log_prob, row in told]


# Tokens


@dataclass(frozen=True)
class _Asked:
    """A question as tokens: those before every alternative, `eos` first, and those of each alternative."""

    before: list[int]
    rows: list[list[int]]


def _tokenized(subject: TextModel, question: Question) -> _Asked:
    if not question.choices:
        raise DataError(f"the prompt {_shown(question.prompt)} has no alternatives; give at least one with --choices")
    whole = [_ids(subject, question.prompt + choice) for choice in question.choices]
    common = shared_length([_ids(subject, question.prompt), *whole])
    for choice, ids in zip(question.choices, whole, strict=True):
        if len(ids) == common:
            raise DataError(
                f"the alternative {_shown(choice)} adds no token to the prompt; give one with text that the tokeniser "
                "keeps"
            )
    return _Asked([subject.tokenizer.eos, *whole[0][:common]], [ids[common:] for ids in whole])


def _ids(subject: TextModel, text: str) -> list[int]:
    ids: list[int] = subject.tokenizer.encode_block(text).tolist()
    return ids


def shared_length(rows: Sequence[list[int]]) -> int:
    """How many tokens all rows begin with alike."""
    first, last = min(rows), max(rows)  # of sorted rows these two differ the earliest
    return next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "…")


# Probabilities


def _score(subject: TextModel, asked: list[_Asked]) -> list[list[float]]:
    """log p of every alternative of some questions."""
    common = min(shared_length([one.before for one in asked]), min(len(one.before) for one in asked) - 1)
    scores: list[list[float]] = [[] for _ in asked]
    with torch.inference_mode(), evaluating(subject.model):
        state = subject.model.start(1)
        if common:
            _, state = subject.model.prefill(state, torch.tensor([asked[0].before[:common]], device=subject.device))
        for numbers in by_equal_length([len(one.before) for one in asked]):
            for some in _rows_at_once(subject, asked, numbers):
                for number, found in zip(
                    some, _score_batch(subject, state, [asked[n] for n in some], common), strict=True
                ):
                    scores[number] = found
    return scores


def _rows_at_once(subject: TextModel, asked: list[_Asked], numbers: list[int]) -> Iterator[list[int]]:
    """Questions so many at a time that the probabilities of all tokens at all places of their alternatives fit."""
    some: list[int] = []
    rows = longest = 0
    for number in numbers:
        rows += len(asked[number].rows)
        longest = max(longest, *map(len, asked[number].rows))
        if some and rows * longest * subject.tokenizer.vocab_size > MOST_NUMBERS:
            yield some
            some, rows, longest = [], len(asked[number].rows), max(map(len, asked[number].rows))
        some.append(number)
    yield some


def _score_batch(subject: TextModel, state: State, asked: list[_Asked], common: int) -> list[list[float]]:
    """log p of the alternatives of questions whose prompts are of one length; `state` is after `common` tokens."""
    copies_B = torch.zeros(len(asked), dtype=torch.int64, device=subject.device)
    rest_BR = torch.tensor([one.before[common:] for one in asked], device=subject.device)
    after_BV, state = subject.model.prefill(subject.model.select(state, copies_B), rest_BR)
    prompt_C = torch.tensor([n for n, one in enumerate(asked) for _ in one.rows], device=subject.device)
    totals = _continued(subject, state, after_BV, prompt_C, [row for one in asked for row in one.rows])
    found = iter(totals.tolist())
    return [list(islice(found, len(one.rows))) for one in asked]


def _continued(subject: TextModel, state: State, after_BV: Tensor, prompt_C: Tensor, rows: list[list[int]]) -> Tensor:
    """log p of each row after the prompt it belongs to, C."""
    longest = max(map(len, rows))
    tokens_CT = torch.full((len(rows), longest), subject.tokenizer.eos)
    real_CT = torch.zeros(len(rows), longest, dtype=torch.bool)
    for number, row in enumerate(rows):
        tokens_CT[number, : len(row)] = torch.tensor(row)
        real_CT[number, : len(row)] = True
    tokens_CT, real_CT = tokens_CT.to(subject.device), real_CT.to(subject.device)
    log_probs_CT = after_BV.index_select(0, prompt_C).gather(1, tokens_CT[:, :1])
    if longest > 1:
        rows_CTV, _ = subject.model.extend(subject.model.select(state, prompt_C), tokens_CT[:, :-1])
        later_CT = rows_CTV.gather(2, tokens_CT[:, 1:, None]).squeeze(2)
        log_probs_CT = torch.cat([log_probs_CT, later_CT], 1)
    return log_probs_CT.double().masked_fill(~real_CT, 0.0).sum(1)


# Questions in files


def are_records(path: Path) -> bool:
    """Whether a file is of JSON lines, by its name."""
    return kind_of(path) in JSON_SUFFIXES


def hold_choices(path: Path) -> bool:
    """Whether a file is of questions: JSON lines, the first of which has choices."""
    if not are_records(path) or not path.is_file():
        return False
    first = next((line for line in lines_of(file_chunks(path)) if line.strip()), b"")
    return b'"choices"' in first and b'"prompt"' in first


def read_questions(path: Path, choices: Sequence[str] = (), examples: str = "") -> Iterator[Question]:
    """The questions of a file of JSON lines: prompt, choices, answer (a number or the text; may be missing).

    `choices` are for those without their own, `examples` are put before every prompt.
    """
    for number, line in enumerate(lines_of(file_chunks(path)), start=1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where} is not JSON ({error}); expected one object a line; repair it") from None
        if not isinstance(record, dict) or not isinstance(record.get("prompt"), str):
            raise DataError(f'{where} has no prompt; expected {{"prompt": "…", "choices": ["…", "…"], "answer": 0}}')
        given = record.get("choices", list(choices))
        if not isinstance(given, list) or not given or not all(isinstance(one, str) for one in given):
            raise DataError(f"{where} has no list of choices; give them there, or for all lines with --choices")
        yield Question(examples + record["prompt"], tuple(given), _answer(record.get("answer"), given, where))


def _answer(answer: Any, choices: list[str], where: str) -> int | None:
    if answer is None:
        return None
    if isinstance(answer, str) and answer in choices:
        return choices.index(answer)
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        return answer
    raise DataError(
        f"{where}: the answer is {answer!r}; expected the number of a choice, 0 to {len(choices) - 1}, or its text"
    )


def read_choices(given: Sequence[str]) -> list[str]:
    """Alternatives as they were given; one that names a file stands for the lines of it."""
    if len(given) != 1 or not Path(given[0]).is_file():
        return list(given)
    return [line for line in lines_in(open_texts([given[0]])) if line]


class Tally:
    """How often the best alternative was the right one, by each of the three ways to compare them."""

    def __init__(self) -> None:
        self.questions = 0
        self.correct: dict[Normalise, int] = {"none": 0, "token": 0, "byte": 0}

    def add(self, question: Question, choices: Sequence[Choice]) -> None:
        """Count a question whose answer is known."""
        if question.answer is not None:
            self.questions += 1
            for way in self.correct:
                self.correct[way] += best_of(choices, way) == question.answer

    def accuracy(self, normalise: Normalise) -> float:
        return self.correct[normalise] / self.questions if self.questions else math.nan

    def to_dict(self, normalise: Normalise) -> dict[str, Any]:
        """The chosen way's numbers, and the accuracy by all three."""
        return {
            "accuracy": self.accuracy(normalise),
            "correct": self.correct[normalise],
            "questions": self.questions,
            "normalise": normalise,
            "accuracies": {way: self.accuracy(way) for way in self.correct},
        }
