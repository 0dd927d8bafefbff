"""Similarity and analogies of word vectors, against gensim on the same vectors and files, and against plain loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chainrule.errors import DataError
from chainrule.evaluation import vectors
from chainrule.evaluation.vectors import (
    analogies,
    nearest,
    pearson,
    ranks,
    similarity,
    spearman,
    unit_vectors,
    vector_norms,
)

WORDS = ["the", "king", "man", "queen", "woman", "King", "KING", "paris", "france", "rome", "italy"]
WORDS += ["oslo", "norway", "tiger", "cat", "love", "sex"]


def some_vectors(count: int, width: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


# Nearest


@pytest.mark.parametrize("block", [1, 3, 100])
def test_the_nearest_are_those_of_a_loop(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "BLOCK", block)
    table_VD, queries_QD = some_vectors(20), some_vectors(4, seed=1)
    indices_QK, cosines_QK = nearest(table_VD, vector_norms(table_VD), queries_QD, 5)
    for query_D, indices_K, cosines_K in zip(queries_QD, indices_QK, cosines_QK, strict=True):
        cosines = [
            float(query_D @ row_D / np.linalg.norm(query_D) / np.linalg.norm(row_D)) for row_D in table_VD.astype(float)
        ]
        order = sorted(range(20), key=lambda place: -cosines[place])[:5]
        assert indices_K.tolist() == order
        assert cosines_K == pytest.approx([cosines[place] for place in order], abs=1e-6)


def test_more_neighbours_than_words_and_vectors_of_length_zero() -> None:
    table_VD = np.array([[0, 0], [1, 0], [0, 0], [-2, 0]], np.float32)
    indices_QK, cosines_QK = nearest(table_VD, vector_norms(table_VD), np.array([[3.0, 0]]), 9)
    assert indices_QK.tolist() == [[1, 0, 2, 3]]  # ties in their order
    assert cosines_QK.tolist() == [[1, 0, 0, -1]]
    assert unit_vectors(table_VD).tolist() == [[0, 0], [1, 0], [0, 0], [-1, 0]]


# Correlation


def test_ranks_share_ties_and_correlations_agree_with_scipy() -> None:
    scipy = pytest.importorskip(
        "scipy.stats", reason="scipy comes with gensim, and neither is needed to use the package"
    )
    assert ranks([3.0, 1.0, 3.0, 2.0]).tolist() == [3.5, 1.0, 3.5, 2.0]
    rng = np.random.default_rng(0)
    for _ in range(20):
        first, second = rng.integers(0, 5, 12), rng.normal(size=12).round(1)
        assert spearman(first, second) == pytest.approx(scipy.spearmanr(first, second).statistic, abs=1e-12)
        assert pearson(first, second) == pytest.approx(scipy.pearsonr(first, second).statistic, abs=1e-12)


def test_a_constant_correlates_with_nothing() -> None:
    assert np.isnan(pearson([1, 1, 1], [1, 2, 3]))
    assert np.isnan(spearman([1, 2, 3], [4, 4, 4]))


# Against gensim, on files that it ships and on vectors of most of their words


def gensim_vectors(words: list[str], vectors_VD: np.ndarray) -> object:
    keyed = pytest.importorskip("gensim.models", reason="gensim is what the numbers are compared with").KeyedVectors(
        vectors_VD.shape[1]
    )
    keyed.add_vectors(words, vectors_VD)
    return keyed


def shipped(name: str) -> Path:
    utils = pytest.importorskip("gensim.test.utils", reason="gensim ships the files that are asked")
    return Path(utils.datapath(name))


def words_of(path: Path, share: float = 0.8) -> list[str]:
    """Words of a file in its own and in other cases, without some."""
    words = dict.fromkeys(path.read_text(encoding="utf-8").split())
    varied = dict.fromkeys([*(word.lower() for word in words), *words, *(word.upper() for word in list(words)[::3])])
    rng = np.random.default_rng(0)
    return [word for word in varied if rng.random() < share]


def test_similarity_is_that_of_gensim() -> None:
    path = shipped("wordsim353.tsv")
    words = words_of(path)
    vectors_VD = some_vectors(len(words), 10)
    theirs_pearson, theirs_spearman, oov = gensim_vectors(words, vectors_VD).evaluate_word_pairs(str(path))
    ours = similarity(words, vectors_VD, path)
    assert ours.pearson == pytest.approx(theirs_pearson[0], abs=1e-6)
    assert ours.spearman == pytest.approx(theirs_spearman[0], abs=1e-5)
    assert 0 < oov < 60
    assert 100 * ours.oov == pytest.approx(oov)
    assert ours.pairs == round(353 * (1 - ours.oov))


def test_analogies_are_those_of_gensim(tmp_path: Path) -> None:
    whole = shipped("questions-words.txt").read_text(encoding="utf-8").splitlines()
    path = tmp_path / "questions.txt"
    path.write_text("\n".join(line for n, line in enumerate(whole) if line.startswith(":") or n % 40 == 0) + "\n")
    words = words_of(path, 0.97)
    # Words that differ in case alone, and countries and capitals, lie close together: so some answers are right.
    vectors_VD = some_vectors(len(words), 8)
    place = {}
    for number, word in enumerate(words):
        vectors_VD[number] = vectors_VD[place.setdefault(word.upper(), number)] + 0.05 * vectors_VD[number]
    for line in path.read_text().splitlines():
        a, b, c, d = line.upper().split() if not line.startswith(":") else [""] * 4
        if {a, b, c, d} <= set(place):
            vectors_VD[place[d]] += 0.5 * (vectors_VD[place[b]] - vectors_VD[place[a]] + vectors_VD[place[c]])
    score, theirs = gensim_vectors(words, vectors_VD).evaluate_word_analogies(str(path))
    ours = analogies(words, vectors_VD, path)
    assert 0.05 < score < 0.9
    assert ours.accuracy == pytest.approx(score)
    assert (ours.correct, ours.questions) == (len(theirs[-1]["correct"]), ours.correct + len(theirs[-1]["incorrect"]))
    assert [(one.section, one.correct, one.questions) for one in ours.sections] == [
        (one["section"], len(one["correct"]), len(one["correct"]) + len(one["incorrect"])) for one in theirs[:-1]
    ]
    asked = sum(not line.startswith(":") for line in path.read_text().splitlines())
    assert ours.skipped == asked - ours.questions > 0


# By hand


def test_similarity_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("word1\tword2\tscore\n# a comment\nCat\ttiger\t8\ncat\tlove\t2.5\n\ncat\tdog\t9\nlove\tsex\t2.5\n")
    vectors_VD = np.zeros((len(WORDS), 2), np.float32)
    for word, vector in (("cat", (1, 0)), ("tiger", (2, 0)), ("love", (0, 3)), ("sex", (1, 1))):
        vectors_VD[WORDS.index(word)] = vector
    measured = similarity(WORDS, vectors_VD, path)
    assert (measured.pairs, measured.oov) == (3, 0.25)
    assert measured.spearman == pytest.approx(spearman([8, 2.5, 2.5], [1, 0, 0.7071]))
    assert measured.to_dict() == {"pearson": measured.pearson, "spearman": measured.spearman, "pairs": 3, "oov": 0.25}
    assert measured.show().splitlines()[2:] == ["similarity pairs     3", "similarity oov       0.2500"]


def test_the_answer_is_none_of_the_three(tmp_path: Path) -> None:
    """Neither are the same words in another case."""
    path = tmp_path / "questions.txt"
    path.write_text(": family\nman king woman queen\n: places\nparis france rome Italy\nparis france rome berlin\n")
    vectors_VD = np.zeros((len(WORDS), 4), np.float32)
    rows = {"man": (1, 0, 0, 0), "woman": (1, 1, 0, 0), "king": (1, 0, 1, 0), "King": (1, 0.1, 1, 0)}
    rows |= {"KING": (1, 0.2, 1, 0), "queen": (1, 0.6, 0.9, 0), "paris": (0, 0, 1, 0), "france": (0, 0, 1, 1)}
    rows |= {"rome": (0, 1, 0, 0), "italy": (0, 1, 0, 1)}
    for word, vector in rows.items():
        vectors_VD[WORDS.index(word)] = vector
    measured = analogies(WORDS, vectors_VD, path)
    assert (measured.correct, measured.questions, measured.skipped, measured.accuracy) == (2, 2, 1, 1.0)
    assert measured.to_dict()["sections"] == [
        {"section": "family", "accuracy": 1.0, "correct": 1, "questions": 1},
        {"section": "places", "accuracy": 1.0, "correct": 1, "questions": 1},
    ]
    assert measured.show() == (
        "analogies accuracy   1.0000\nanalogies correct    2\nanalogies questions  2\nanalogies skipped    1\n"
        "  family  1 of 1\n  places  1 of 1"
    )


@pytest.mark.parametrize(
    ("measure", "text", "sentence"),
    [
        (
            similarity,
            "cat\ttiger\t1\ncat\tlove\tmuch\n",
            "line 2 is 'cat\\tlove\\tmuch'; expected word, word and score separated by tabs; correct the line, or put "
            "a # before it",
        ),
        (
            similarity,
            "cat\tdog\t1\ncat\tlove\t2\n",
            "both words are known in only 1 of 2 pairs, but at least 2 pairs are needed; use a run with more words, or "
            "another file",
        ),
        (analogies, "a b c d\n", "line 1 is before the first section; begin one with a line ': name'"),
        (
            analogies,
            ": x\na b c\n",
            "line 2 has 3 words; a question has four, as in Athens Greece Oslo Norway",
        ),
        (
            analogies,
            ": x\na b c d\n",
            "none of the 1 questions has only known words; use a run with more words, or another file",
        ),
    ],
)
def test_files_that_cannot_be_used(measure: object, text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        measure(WORDS, some_vectors(len(WORDS)), path)
    assert str(caught.value) == f"{path}: {sentence}"
