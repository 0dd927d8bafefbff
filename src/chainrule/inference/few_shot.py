"""Few-shot choices: which of several alternatives a language model finds most probable after a prompt.

Brown et al., "Language Models are Few-Shot Learners", 2020. Prompt and alternative are tokenised together, because
tokens depend on the text around them. The tokens that the prompt alone and the prompt with each alternative have in
common are the context; all later tokens are scored. So every alternative continues the same context, and nothing is
left out where a token spans the end of the prompt.

    log p(choice | prompt) = Σ log p(token | all before it) + log p(spelling of unknown words)

A long alternative has more factors below one than a short one, so the sum can be divided by the number of its tokens
or bytes. The common beginning of all prompts, for example the examples before each of them, is read once, and each
prompt is read once for all of its alternatives.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.modes import evaluating
from chainrule.base.over_arrays import over_arrays
from chainrule.data.grouping import by_equal_length, in_windows, map_batches
from chainrule.errors import ConfigError, DataError
from chainrule.inference.subject import TextModel
from chainrule.inference.unknown_words import SPELLED, UnknownWords
from chainrule.text.readers import lines_in, open_texts
from chainrule.text.sources import JSON_SUFFIXES, file_chunks, kind_of, lines_of
from chainrule.types import ArrayModel, State

Normalise = Literal["none", "token", "byte"]
NORMALISE = ("none", "token", "byte")
QUESTIONS = 128
"""Number of questions that are read together, to be grouped by length."""
MAX_PROBABILITIES = 1 << 25
"""Maximum number of probabilities in memory at once: rows times positions times vocabulary."""


@dataclass(frozen=True)
class Question:
    """A prompt and the alternatives that may follow it."""

    prompt: str
    choices: tuple[str, ...]
    answer: int | None = None  # index of the correct alternative; None: unknown


@dataclass(frozen=True)
class Choice:
    """An alternative and its probability after a prompt."""

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
        """The value by which alternatives are ranked."""
        return {"none": self.log_prob, "token": self.per_token, "byte": self.per_byte}[normalise]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "per_token": self.per_token, "per_byte": self.per_byte}


def best_of(choices: Sequence[Choice], normalise: Normalise = "none") -> int:
    """The index of the most probable alternative; the first of equal ones."""
    if normalise not in NORMALISE:
        raise ConfigError(f"normalise is {normalise!r}; expected one of {', '.join(NORMALISE)}")
    return max(range(len(choices)), key=lambda index: choices[index].score(normalise))


def choose(
    subject: TextModel, questions: Iterable[Question], unknown: UnknownWords = SPELLED
) -> Iterator[list[Choice]]:
    """The alternatives of each question with their probabilities, all in the order given.

    By default an unknown word is charged its spelling: alternatives are compared, and nonsense must not win.
    """
    for window in in_windows(questions, QUESTIONS):
        tokenized = [_tokenize(subject, question, unknown) for question in window]
        scores = _score(subject, tokenized)
        for question, tokens, log_probs in zip(window, tokenized, scores, strict=True):
            scored = zip(question.choices, log_probs, tokens.charges, tokens.rows, strict=True)
            yield [Choice(text, log_prob + charge, len(row)) for text, log_prob, charge, row in scored]


# Tokens


@dataclass(frozen=True)
class _QuestionTokens:
    """A question as tokens: the context of every alternative, which begins with `eos`, and the alternatives."""

    context: list[int]
    rows: list[list[int]]
    charges: list[float]  # of the unknown words of each alternative, nats


def _tokenize(subject: TextModel, question: Question, unknown: UnknownWords) -> _QuestionTokens:
    if not question.choices:
        raise DataError(f"the prompt {_quote(question.prompt)} has no alternatives; give at least one with --choices")
    whole = [_encode(subject, question.prompt + choice) for choice in question.choices]
    common = shared_length([_encode(subject, question.prompt), *whole])
    for choice, ids in zip(question.choices, whole, strict=True):
        if len(ids) == common:
            raise DataError(
                f"the alternative {_quote(choice)} adds no token to the prompt; give one with text that the tokeniser "
                "keeps"
            )
    charges = [
        float(unknown.charges(subject.tokenizer, question.prompt + choice, ids)[common:].sum())
        for choice, ids in zip(question.choices, whole, strict=True)
    ]
    return _QuestionTokens([subject.tokenizer.eos, *whole[0][:common]], [ids[common:] for ids in whole], charges)


def _encode(subject: TextModel, text: str) -> list[int]:
    ids: list[int] = subject.tokenizer.encode_block(text).tolist()
    return ids


def shared_length(rows: Sequence[list[int]]) -> int:
    """The length of the longest common prefix of all rows."""
    first, last = min(rows), max(rows)  # in sorted order, these two have the shortest common prefix
    return next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def _quote(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "…")


# Probabilities


def _score(subject: TextModel, questions: list[_QuestionTokens]) -> list[list[float]]:
    """log p of every alternative of some questions."""
    contexts = [one.context for one in questions]
    common = min(shared_length(contexts), min(map(len, contexts)) - 1)
    groups = by_equal_length([len(context) for context in contexts])
    batches = (batch for group in groups for batch in _batches(questions, group, subject.tokenizer.vocab_size))
    arrays = over_arrays(subject.model)
    with evaluating(subject.model):
        state = arrays.start(1)
        if common:
            _, state = arrays.prefill(state, np.array([contexts[0][:common]]))
        return map_batches(
            batches, lambda batch: _score_batch(subject, arrays, state, [questions[index] for index in batch], common)
        )


def _batches(questions: list[_QuestionTokens], group: list[int], vocab_size: int) -> Iterator[list[int]]:
    """Cut a group of questions so that the rows of a batch have at most `MAX_PROBABILITIES` probabilities."""
    batch: list[int] = []
    rows = longest = 0
    for index in group:
        rows += len(questions[index].rows)
        longest = max(longest, *map(len, questions[index].rows))
        if batch and rows * longest * vocab_size > MAX_PROBABILITIES:
            yield batch
            batch, rows, longest = [], len(questions[index].rows), max(map(len, questions[index].rows))
        batch.append(index)
    yield batch


def _score_batch(
    subject: TextModel, arrays: ArrayModel, state: State, questions: list[_QuestionTokens], common: int
) -> Iterator[list[float]]:
    """log p of the alternatives of questions whose contexts have one length; `state` is after `common` tokens."""
    rest_BS = np.array([one.context[common:] for one in questions])
    first_BV, state = arrays.prefill(arrays.select(state, np.zeros(len(questions), np.int64)), rest_BS)
    counts = [len(one.rows) for one in questions]
    prompt_R = np.repeat(np.arange(len(questions)), counts)
    rows = [row for one in questions for row in one.rows]
    totals_R = _score_rows(arrays, state, first_BV, prompt_R, rows, subject.tokenizer.eos)
    return (part.tolist() for part in np.split(totals_R, np.cumsum(counts)[:-1]))


def _score_rows(
    arrays: ArrayModel, state: State, first_BV: Array, prompt_R: Array, rows: list[list[int]], pad: int
) -> Array:
    """log p of each row after its prompt, R; `first_BV` are the log p of the first token after each prompt."""
    lengths_R = np.array([len(row) for row in rows])
    tokens_RT = np.full((len(rows), lengths_R.max()), pad, np.int64)
    for index, row in enumerate(rows):
        tokens_RT[index, : len(row)] = row
    log_probs_RT = first_BV[prompt_R, tokens_RT[:, 0]][:, None]
    if tokens_RT.shape[1] > 1:
        log_probs_RT = np.concatenate([log_probs_RT, arrays.follow(arrays.select(state, prompt_R), tokens_RT)], 1)
    inside_RT = np.arange(tokens_RT.shape[1]) < lengths_R[:, None]
    return np.asarray(np.where(inside_RT, log_probs_RT.astype(np.float64), 0.0).sum(1))


# Questions in files


def is_json_lines(path: Path) -> bool:
    """Whether the name of a file is that of JSON lines."""
    return kind_of(path) in JSON_SUFFIXES


def contains_questions(path: Path) -> bool:
    """Whether a file contains questions: JSON lines, the first of which has a prompt and choices."""
    if not is_json_lines(path) or not path.is_file():
        return False
    first = next((line for line in lines_of(file_chunks(path)) if line.strip()), b"")
    return b'"choices"' in first and b'"prompt"' in first


def read_questions(path: Path, choices: Sequence[str] = (), examples: str = "") -> Iterator[Question]:
    """The questions of a file of JSON lines: prompt, choices, answer (an index or a text; may be missing).

    `choices` are the alternatives of lines that have none, `examples` is a text before every prompt.
    """
    for number, line in enumerate(lines_of(file_chunks(path)), start=1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where} is not JSON ({error}); expected one object per line; correct it") from None
        if not isinstance(record, dict) or not isinstance(record.get("prompt"), str):
            raise DataError(f'{where} has no prompt; expected {{"prompt": "…", "choices": ["…", "…"], "answer": 0}}')
        given = record.get("choices", list(choices))
        if not isinstance(given, list) or not given or not all(isinstance(one, str) for one in given):
            raise DataError(f"{where} has no list of choices; add it, or give the choices of all lines with --choices")
        yield Question(examples + record["prompt"], tuple(given), _answer(record.get("answer"), given, where))


def _answer(answer: Any, choices: list[str], where: str) -> int | None:
    if answer is None:
        return None
    if isinstance(answer, str) and answer in choices:
        return choices.index(answer)
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        return answer
    raise DataError(
        f"{where}: the answer is {answer!r}; expected the index of a choice, 0 to {len(choices) - 1}, or its text"
    )


def read_choices(given: Sequence[str]) -> list[str]:
    """The alternatives as given; the lines of a file if there is only one and it is the name of a file."""
    if len(given) != 1 or not Path(given[0]).is_file():
        return list(given)
    return [line for line in lines_in(open_texts([given[0]])) if line]


class Tally:
    """Number of correctly answered questions under each of the three normalisations."""

    def __init__(self) -> None:
        self.questions = 0
        self.correct: dict[Normalise, int] = {"none": 0, "token": 0, "byte": 0}

    def add(self, question: Question, choices: Sequence[Choice]) -> None:
        """Count a question whose answer is known."""
        if question.answer is not None:
            self.questions += 1
            for normalise in self.correct:
                self.correct[normalise] += best_of(choices, normalise) == question.answer

    def accuracy(self, normalise: Normalise) -> float:
        return self.correct[normalise] / self.questions if self.questions else math.nan

    def to_dict(self, normalise: Normalise) -> dict[str, Any]:
        """The figures under one normalisation, and the accuracies under all three."""
        return {
            "accuracy": self.accuracy(normalise),
            "correct": self.correct[normalise],
            "questions": self.questions,
            "normalise": normalise,
            "accuracies": {name: self.accuracy(name) for name in self.correct},
        }
