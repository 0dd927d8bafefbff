"""How well vectors of words agree with what people say of the words: similarity of pairs, and analogies.

Similarity (Finkelstein et al., "Placing Search in Context", 2002): the correlation of cosines with scores that people
gave. Analogies (Mikolov et al., "Efficient Estimation of Word Representations in Vector Space", 2013): a is to b as c
is to which word? The one nearest to b - a + c (3CosAdd), the three themselves left out. Words are compared without
regard to case, and of words that differ in case alone the first of the table is taken, as gensim does it.

Legend: V words, D width, Q queries, K the nearest of each, R rows of a block, P pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chainrule.errors import DataError
from chainrule.text.readers import lines_in, open_texts

Array = np.ndarray[Any, Any]

BLOCK = 1 << 15
"""Words compared with the queries at once."""
QUESTIONS = 256
"""Analogies answered together."""
MOST_WORDS = 300_000
"""Of a larger table only the first so many words are asked for and answered with: they are the most frequent."""
ANSWERS = 5
"""Nearest words among which an answer is looked for: the nearest may be one of the three in another case."""


# The nearest words


def norms_of(vectors_VD: Array) -> Array:
    """The length of each vector, V, block by block: the table may be mapped and larger than memory."""
    norms_V = np.empty(len(vectors_VD), np.float32)
    for start in range(0, len(vectors_VD), BLOCK):
        norms_V[start : start + BLOCK] = np.linalg.norm(vectors_VD[start : start + BLOCK], axis=1)
    return norms_V


def units(vectors_ND: Array) -> Array:
    """The vectors brought to length one; those of length zero stay."""
    norms_N1 = np.linalg.norm(vectors_ND, axis=-1, keepdims=True)
    scaled: Array = (vectors_ND / np.where(norms_N1 > 0, norms_N1, 1)).astype(np.float32)
    return scaled


def nearest(vectors_VD: Array, norms_V: Array, queries_QD: Array, top: int) -> tuple[Array, Array]:
    """The words whose vectors have the largest cosines with each query -> their places QK and the cosines QK, falling.

    The cosine with a vector of length zero counts as zero.
    """
    queries_QD = units(queries_QD)
    places_QK: Array = np.empty((len(queries_QD), 0), np.int64)
    cosines_QK: Array = np.empty((len(queries_QD), 0), np.float32)
    for start in range(0, len(vectors_VD), BLOCK):
        lengths_R = norms_V[start : start + BLOCK]
        cosines_QR = queries_QD @ vectors_VD[start : start + BLOCK].T / np.where(lengths_R > 0, lengths_R, 1)
        best_QK = _largest(cosines_QR, top)
        cosines_QK = np.concatenate([cosines_QK, np.take_along_axis(cosines_QR, best_QK, 1)], 1)
        places_QK = np.concatenate([places_QK, best_QK + start], 1)
        kept_QK = _largest(cosines_QK, top)
        cosines_QK = np.take_along_axis(cosines_QK, kept_QK, 1)
        places_QK = np.take_along_axis(places_QK, kept_QK, 1)
    order_QK = np.lexsort((places_QK, -cosines_QK), axis=1)
    return np.take_along_axis(places_QK, order_QK, 1), np.take_along_axis(cosines_QK, order_QK, 1)


def _largest(values_QN: Array, count: int) -> Array:
    """Where the largest values of each row stand, in any order."""
    if count >= values_QN.shape[1]:
        return np.broadcast_to(np.arange(values_QN.shape[1]), values_QN.shape)
    return np.argpartition(values_QN, -count, axis=1)[:, -count:]


def analogy_queries(vectors_VD: Array, norms_V: Array, places_Q3: Array) -> Array:
    """b - a + c of three words each, their vectors brought to length one first -> QD."""
    lengths_Q3 = norms_V[places_Q3]
    units_Q3D = vectors_VD[places_Q3] / np.where(lengths_Q3 > 0, lengths_Q3, 1)[..., None]
    queries_QD: Array = units_Q3D[:, 1] - units_Q3D[:, 0] + units_Q3D[:, 2]
    return queries_QD


# Correlation


def pearson(first_P: Sequence[float] | Array, second_P: Sequence[float] | Array) -> float:
    """The correlation of two rows of numbers; NaN where one of them is constant."""
    x_P, y_P = (np.asarray(row, np.float64) - np.mean(row) for row in (first_P, second_P))
    lengths = float(np.linalg.norm(x_P) * np.linalg.norm(y_P))
    return float(x_P @ y_P) / lengths if lengths > 0 else float("nan")


def spearman(first_P: Sequence[float] | Array, second_P: Sequence[float] | Array) -> float:
    """The correlation of their ranks; what is equal shares the mean of its ranks."""
    return pearson(ranks(first_P), ranks(second_P))


def ranks(values_P: Sequence[float] | Array) -> Array:
    """1 for the least; equal values all get the mean of the ranks that they take up."""
    _, group_P, sizes_G = np.unique(np.asarray(values_P, np.float64), return_inverse=True, return_counts=True)
    ends_G = np.cumsum(sizes_G)
    shared_P: Array = ((2 * ends_G - sizes_G + 1) / 2)[group_P]
    return shared_P


# Similarity


@dataclass(frozen=True)
class Similarity:
    """How cosines agree with the scores that people gave to pairs of words."""

    pearson: float
    spearman: float
    pairs: int  # both words of which are known
    oov: float  # the share of the others

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Pair(NamedTuple):
    """Two words, and how alike people find them."""

    first: str
    second: str
    score: float


def read_pairs(path: str | Path) -> Iterator[Pair]:
    """The pairs of a file: word, word, score a line, with tabs or spaces between; comments (#) and a header skipped."""
    began = False
    for number, line in enumerate(lines_in(open_texts([path])), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.split("\t") if "\t" in line else line.split()
        score = _number(parts[2]) if len(parts) == 3 else None
        if score is not None:
            yield Pair(parts[0].strip(), parts[1].strip(), score)
        elif began:
            raise DataError(
                f"{path}: line {number} is {line.strip()!r}; expected word, word and score with tabs between; mend the "
                "line, or put a # before it"
            )
        began = True


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def similarity(words: Sequence[str], vectors_VD: Array, path: str | Path) -> Similarity:
    """The correlation between the cosines of a table's words and the scores of a file of pairs."""
    known, norms_V = _folded(words), norms_of(vectors_VD)
    given, cosines, missing = [], [], 0
    for pair in read_pairs(path):
        places = [known.get(word.upper()) for word in (pair.first, pair.second)]
        if None in places:
            missing += 1
            continue
        x_D, y_D = (vectors_VD[place].astype(np.float64) for place in places)
        lengths = float(norms_V[places[0]]) * float(norms_V[places[1]])
        cosines.append(float(x_D @ y_D) / lengths if lengths else 0.0)
        given.append(pair.score)
    if len(given) < 2:
        raise DataError(
            f"{path}: {len(given)} of {len(given) + missing} pairs have words that the run knows; at least 2 are "
            "needed: take a run with more words, or another file"
        )
    return Similarity(pearson(given, cosines), spearman(given, cosines), len(given), missing / (len(given) + missing))


def _folded(words: Sequence[str]) -> dict[str, int]:
    """Words in capitals to their places; of those alike the first counts."""
    return {words[place].upper(): place for place in range(min(len(words), MOST_WORDS) - 1, -1, -1)}


# Analogies


@dataclass(frozen=True)
class Section:
    """One kind of analogy."""

    section: str
    accuracy: float
    correct: int
    questions: int


@dataclass(frozen=True)
class Analogies:
    """How many analogies vectors complete."""

    accuracy: float
    correct: int
    questions: int  # all four words of which are known
    skipped: int  # the others
    sections: list[Section]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Question(NamedTuple):
    """a is to b as c is to the answer."""

    section: int
    words: tuple[str, str, str, str]


def read_questions(path: str | Path) -> tuple[list[str], list[Question]]:
    """The sections and questions of a file: `: name` begins a section, four words a line are a question."""
    sections: list[str] = []
    questions = []
    for number, line in enumerate(lines_in(open_texts([path])), start=1):
        words = line.split()
        if line.startswith(":"):
            sections.append(line[1:].strip())
        elif words and not sections:
            raise DataError(f"{path}: line {number} stands before the first section; begin one with a line ': name'")
        elif words and len(words) != 4:
            raise DataError(
                f"{path}: line {number} has {len(words)} words; a question has four, such as Athens Greece Oslo Norway"
            )
        elif words:
            questions.append(Question(len(sections) - 1, (words[0], words[1], words[2], words[3])))
    return sections, questions


def analogies(words: Sequence[str], vectors_VD: Array, path: str | Path) -> Analogies:
    """The share of a file's questions whose answer is the word nearest to b - a + c."""
    known, (sections, questions) = _folded(words), read_questions(path)
    asked = [one for one in questions if all(word.upper() in known for word in one.words)]
    if not asked:
        raise DataError(
            f"{path}: none of the {len(questions)} questions has only words that the run knows; take a run with more "
            "words, or another file"
        )
    right: list[int] = []
    vectors_VD = vectors_VD[:MOST_WORDS]
    norms_V = norms_of(vectors_VD)
    for start in range(0, len(asked), QUESTIONS):
        part = asked[start : start + QUESTIONS]
        answered = _answers(part, known, words, vectors_VD, norms_V)
        right += [one.section for one, is_right in zip(part, answered, strict=True) if is_right]
    told = []
    for number, name in enumerate(sections):
        count, correct = sum(one.section == number for one in asked), right.count(number)
        told.append(Section(name, correct / count if count else float("nan"), correct, count))
    return Analogies(len(right) / len(asked), len(right), len(asked), len(questions) - len(asked), told)


def _answers(
    questions: Sequence[Question], known: dict[str, int], words: Sequence[str], vectors_VD: Array, norms_V: Array
) -> Iterator[bool]:
    """Whether each question is answered rightly."""
    places_Q3 = np.array([[known[word.upper()] for word in one.words[:3]] for one in questions])
    queries_QD = analogy_queries(vectors_VD, norms_V, places_Q3)
    places_QK, _ = nearest(vectors_VD, norms_V, queries_QD, ANSWERS + 3)
    for question, given_3, found_K in zip(questions, places_Q3, places_QK, strict=True):
        folded = [word.upper() for word in question.words]
        found = [words[place].upper() for place in found_K if place not in given_3][:ANSWERS]
        yield next((word for word in found if word not in folded[:3]), found[-1] if found else "") == folded[3]
