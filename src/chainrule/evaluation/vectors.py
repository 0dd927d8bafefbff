"""Evaluation of word vectors: similarity of word pairs, and analogies.

Similarity (Finkelstein et al., "Placing Search in Context", 2002): the correlation of cosines with human ratings.
Analogies (Mikolov et al., "Efficient Estimation of Word Representations in Vector Space", 2013): a is to b as c is to
which word? The answer is the word nearest to b - a + c (3CosAdd), other than these three. Case is ignored: of words
that differ only in case, the first one of the table is used, as in gensim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.tables import show_fields
from chainrule.errors import DataError
from chainrule.evaluation.measurement import Measurement
from chainrule.text.readers import lines_in, open_texts

BLOCK = 1 << 15
"""Words compared with the queries at once."""
QUESTIONS = 256
"""Analogies answered together."""
MAX_WORDS = 300_000
"""Only this many words of a table, the most frequent ones, are used."""
ANSWERS = 5
"""Nearest words that are searched for an answer: the nearest may be one of the three in another case."""


# The nearest words


def vector_norms(vectors_VD: Array) -> Array:
    """Return the norm of each vector, V, block by block: the table may be memory-mapped and larger than memory."""
    norms_V = np.empty(len(vectors_VD), np.float32)
    for start in range(0, len(vectors_VD), BLOCK):
        norms_V[start : start + BLOCK] = np.linalg.norm(vectors_VD[start : start + BLOCK], axis=1)
    return norms_V


def unit_vectors(vectors_ND: Array) -> Array:
    """Return the vectors scaled to norm 1; zero vectors stay zero."""
    norms_N1 = np.linalg.norm(vectors_ND, axis=-1, keepdims=True)
    scaled: Array = (vectors_ND / np.where(norms_N1 > 0, norms_N1, 1)).astype(np.float32)
    return scaled


def nearest(vectors_VD: Array, norms_V: Array, queries_QD: Array, top: int) -> tuple[Array, Array]:
    """Return the words with the largest cosines to each query -> their indices QK and the cosines QK, descending.

    The cosine with a zero vector is zero.
    """
    queries_QD = unit_vectors(queries_QD)
    indices_QK: Array = np.empty((len(queries_QD), 0), np.int64)
    cosines_QK: Array = np.empty((len(queries_QD), 0), np.float32)
    for start in range(0, len(vectors_VD), BLOCK):
        norms_R = norms_V[start : start + BLOCK]
        cosines_QR = queries_QD @ vectors_VD[start : start + BLOCK].T / np.where(norms_R > 0, norms_R, 1)
        best_QK = _largest(cosines_QR, top)
        cosines_QK = np.concatenate([cosines_QK, np.take_along_axis(cosines_QR, best_QK, 1)], 1)
        indices_QK = np.concatenate([indices_QK, best_QK + start], 1)
        kept_QK = _largest(cosines_QK, top)
        cosines_QK = np.take_along_axis(cosines_QK, kept_QK, 1)
        indices_QK = np.take_along_axis(indices_QK, kept_QK, 1)
    order_QK = np.lexsort((indices_QK, -cosines_QK), axis=1)
    return np.take_along_axis(indices_QK, order_QK, 1), np.take_along_axis(cosines_QK, order_QK, 1)


def _largest(values_QR: Array, count: int) -> Array:
    """The columns of the largest values of each row, in any order -> QK."""
    if count >= values_QR.shape[1]:
        return np.broadcast_to(np.arange(values_QR.shape[1]), values_QR.shape)
    return np.argpartition(values_QR, -count, axis=1)[:, -count:]


def analogy_queries(vectors_VD: Array, norms_V: Array, words_Q3: Array) -> Array:
    """Return b - a + c of three words each, given by index, with vectors of norm 1 -> QD."""
    norms_Q3 = norms_V[words_Q3]
    units_Q3D = vectors_VD[words_Q3] / np.where(norms_Q3 > 0, norms_Q3, 1)[..., None]
    queries_QD: Array = units_Q3D[:, 1] - units_Q3D[:, 0] + units_Q3D[:, 2]
    return queries_QD


# Correlation


def pearson(first_P: Sequence[float] | Array, second_P: Sequence[float] | Array) -> float:
    """Return the correlation of two rows of numbers; NaN if one of them is constant."""
    x_P, y_P = (np.asarray(row, np.float64) - np.mean(row) for row in (first_P, second_P))
    lengths = float(np.linalg.norm(x_P) * np.linalg.norm(y_P))
    return float(x_P @ y_P) / lengths if lengths > 0 else float("nan")


def spearman(first_P: Sequence[float] | Array, second_P: Sequence[float] | Array) -> float:
    """Return the correlation of their ranks; equal values share the mean of their ranks."""
    return pearson(ranks(first_P), ranks(second_P))


def ranks(values_P: Sequence[float] | Array) -> Array:
    """Return the ranks from 1 for the smallest; equal values share the mean of their ranks."""
    _, group_P, sizes = np.unique(np.asarray(values_P, np.float64), return_inverse=True, return_counts=True)
    ends = np.cumsum(sizes)
    shared_P: Array = ((2 * ends - sizes + 1) / 2)[group_P]
    return shared_P


# Similarity


@dataclass(frozen=True)
class Similarity(Measurement):
    """Correlation of cosines with human ratings of word pairs."""

    pearson: float
    spearman: float
    pairs: int  # pairs of known words
    oov: float  # share of the other pairs

    def figures(self) -> dict[str, Any]:
        return {f"similarity {name}": value for name, value in super().figures().items()}


class RatedPair(NamedTuple):
    """Two words and their rated similarity."""

    first: str
    second: str
    score: float


def read_pairs(path: str | Path) -> Iterator[RatedPair]:
    """Yield the pairs of a file: word, word and score per line, separated by tabs or spaces; # and a header skipped."""
    began = False
    for number, line in enumerate(lines_in(open_texts([path])), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.split("\t") if "\t" in line else line.split()
        score = _number(parts[2]) if len(parts) == 3 else None
        if score is not None:
            yield RatedPair(parts[0].strip(), parts[1].strip(), score)
        elif began:
            raise DataError(
                f"{path}: line {number} is {line.strip()!r}; expected word, word and score separated by tabs; "
                "correct the line, or put a # before it"
            )
        began = True


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def similarity(words: Sequence[str], vectors_VD: Array, path: str | Path) -> Similarity:
    """Return the correlation of the cosines of a table with the scores of a file of word pairs."""
    known, norms_V = _index_uppercase(words), vector_norms(vectors_VD)
    ratings, cosines, missing = [], [], 0
    for pair in read_pairs(path):
        indices = [known.get(word.upper()) for word in (pair.first, pair.second)]
        if None in indices:
            missing += 1
            continue
        x_D, y_D = (vectors_VD[index].astype(np.float64) for index in indices)
        norms = float(norms_V[indices[0]]) * float(norms_V[indices[1]])
        cosines.append(float(x_D @ y_D) / norms if norms else 0.0)
        ratings.append(pair.score)
    if len(ratings) < 2:
        raise DataError(
            f"{path}: both words are known in only {len(ratings)} of {len(ratings) + missing} pairs, but at least 2 "
            "pairs are needed; use a run with more words, or another file"
        )
    oov = missing / (len(ratings) + missing)
    return Similarity(pearson(ratings, cosines), spearman(ratings, cosines), len(ratings), oov)


def _index_uppercase(words: Sequence[str]) -> dict[str, int]:
    """The index of each word in upper case; the first one of equal words."""
    return {words[index].upper(): index for index in range(min(len(words), MAX_WORDS) - 1, -1, -1)}


# Analogies


@dataclass(frozen=True)
class AnalogySection:
    """Results of one kind of analogy."""

    section: str
    accuracy: float
    correct: int
    questions: int


@dataclass(frozen=True)
class Analogies(Measurement):
    """How many analogies word vectors complete."""

    accuracy: float
    correct: int
    questions: int  # questions of four known words
    skipped: int  # the other questions
    sections: list[AnalogySection]

    def figures(self) -> dict[str, Any]:
        return {f"analogies {name}": value for name, value in super().figures().items()}

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per section."""
        return [asdict(one) for one in self.sections]

    def show(self) -> str:
        """Return the figures and a line per section as text."""
        sections = [f"  {one.section}  {one.correct:,} of {one.questions:,}" for one in self.sections]
        return "\n".join([show_fields(self.figures()), *sections])


class Question(NamedTuple):
    """a is to b as c is to the answer."""

    section: int
    words: tuple[str, str, str, str]


def read_questions(path: str | Path) -> tuple[list[str], list[Question]]:
    """Return the sections and questions of a file: `: name` begins a section, a line of four words is a question."""
    sections: list[str] = []
    questions = []
    for number, line in enumerate(lines_in(open_texts([path])), start=1):
        words = line.split()
        if line.startswith(":"):
            sections.append(line[1:].strip())
        elif words and not sections:
            raise DataError(f"{path}: line {number} is before the first section; begin one with a line ': name'")
        elif words and len(words) != 4:
            raise DataError(
                f"{path}: line {number} has {len(words)} words; a question has four, as in Athens Greece Oslo Norway"
            )
        elif words:
            questions.append(Question(len(sections) - 1, (words[0], words[1], words[2], words[3])))
    return sections, questions


def analogies(words: Sequence[str], vectors_VD: Array, path: str | Path) -> Analogies:
    """Return how many questions of a file are answered by the word nearest to b - a + c."""
    known, (sections, questions) = _index_uppercase(words), read_questions(path)
    asked = [one for one in questions if all(word.upper() in known for word in one.words)]
    if not asked:
        raise DataError(
            f"{path}: none of the {len(questions)} questions has only known words; use a run with more words, or "
            "another file"
        )
    correct: list[int] = []  # the section of each question that is answered correctly
    vectors_VD = vectors_VD[:MAX_WORDS]
    norms_V = vector_norms(vectors_VD)
    for start in range(0, len(asked), QUESTIONS):
        part = asked[start : start + QUESTIONS]
        answers = _check_answers(part, known, words, vectors_VD, norms_V)
        correct += [one.section for one, is_correct in zip(part, answers, strict=True) if is_correct]
    results = []
    for number, name in enumerate(sections):
        count, hits = sum(one.section == number for one in asked), correct.count(number)
        results.append(AnalogySection(name, hits / count if count else float("nan"), hits, count))
    return Analogies(len(correct) / len(asked), len(correct), len(asked), len(questions) - len(asked), results)


def _check_answers(
    questions: Sequence[Question], known: dict[str, int], words: Sequence[str], vectors_VD: Array, norms_V: Array
) -> Iterator[bool]:
    """Yield whether each question is answered correctly."""
    given_Q3 = np.array([[known[word.upper()] for word in one.words[:3]] for one in questions])
    queries_QD = analogy_queries(vectors_VD, norms_V, given_Q3)
    nearest_QK, _ = nearest(vectors_VD, norms_V, queries_QD, ANSWERS + 3)
    for question, given_3, nearest_K in zip(questions, given_Q3, nearest_QK, strict=True):
        asked = [word.upper() for word in question.words]
        found = [words[index].upper() for index in nearest_K if index not in given_3][:ANSWERS]
        yield next((word for word in found if word not in asked[:3]), found[-1] if found else "") == asked[3]
