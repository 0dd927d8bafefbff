"""Labelled texts and tagged sentences as batches, against loops over lists."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chainrule.data.labels import LabelBatches, LabelledTexts
from chainrule.data.rows import Rows
from chainrule.data.tags import TaggedWords, cut_sentences
from chainrule.text.formats.labels import Labels

EOS, FILLER = 1, 0


def rows(*texts: list[int]) -> Rows:
    return Rows(np.asarray([token for text in texts for token in (*text, EOS)]), EOS)


def labels(*each: list[int], names: int = 4, multiple: bool = False) -> Labels:
    flat = [number for numbers in each for number in numbers]
    return Labels(tuple("abcdefgh"[:names]), np.asarray(flat, np.int32), np.cumsum([*map(len, each)]), multiple)


FIRST = ([5, 6], [7], [], [2, 3, 4, 5, 6])
SECOND = ([8, 9, 8], [9], [2, 3], [7])


def test_single_texts() -> None:
    batch = LabelledTexts(rows(*FIRST), None, labels([2], [0], [1], [3])).batch(np.asarray([3, 0, 2]))
    assert batch.inputs_BT.tolist() == [[2, 3, 4, 5, 6, 1], [5, 6, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]
    assert batch.source is not None
    assert batch.source.mask_BS.sum(1).tolist() == [6, 3, 1]
    assert batch.targets_BT.tolist() == [[3], [2], [1]]
    assert batch.parts_BS is None


def test_the_second_text_follows_the_first() -> None:
    batch = LabelledTexts(rows(*FIRST), rows(*SECOND), labels([2], [0], [1], [3])).batch(np.asarray([0, 2]))
    assert batch.inputs_BT.tolist() == [[5, 6, 1, 8, 9, 8, 1], [1, 2, 3, 1, 1, 1, 1]]
    assert batch.source is not None
    assert batch.parts_BS is not None
    assert batch.source.mask_BS.tolist() == [[True] * 7, [True] * 4 + [False] * 3]
    assert batch.parts_BS.tolist() == [[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1]]


@pytest.mark.parametrize("most", range(2, 12))
def test_pairs_are_cut_the_longer_text_first(most: int) -> None:
    """Against a loop that removes tokens one by one from the longer text."""
    texts = LabelledTexts(rows(*FIRST), rows(*SECOND), labels([2], [0], [1], [3]), most)
    cut = 0
    for number, (first, second) in enumerate(zip(FIRST, SECOND, strict=True)):
        a, b = len(first) + 1, len(second) + 1
        whole = a + b
        while a + b > most:
            a, b = (a - 1, b) if a > b or (a == b and most % 2 == 0) else (a, b - 1)
        cut += a + b < whole
        wanted = [*first[: a - 1], EOS, *second[: b - 1], EOS]
        batch = texts.batch(np.asarray([number]))
        assert batch.inputs_BT.shape[1] == min(whole, most)
        if whole <= most:
            assert batch.inputs_BT.tolist() == [wanted]
        assert batch.parts_BS is not None
        assert batch.inputs_BT[0, -1] == EOS
        kept = [int((batch.parts_BS == part).sum()) for part in (0, 1)]
        assert abs(kept[0] - a) <= 1
        assert abs(kept[1] - b) <= 1
    assert texts.cut == cut


def test_single_texts_are_cut_and_counted() -> None:
    texts = LabelledTexts(rows(*FIRST), None, labels([2], [0], [1], [3]), 3)
    assert texts.batch(np.asarray([3])).inputs_BT.tolist() == [[2, 3, EOS]]
    assert texts.cut == 1


def test_several_labels() -> None:
    texts = LabelledTexts(rows(*FIRST), None, labels([2, 0], [], [1], [3, 2, 1], multiple=True))
    wanted = [[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 1]]
    assert texts.batch(np.arange(4)).targets_BT.tolist() == wanted
    assert texts.targets().tolist() == wanted


# Sentences: words of 1, 2, 0 and 3 tokens; tags by word
WORDS = ([5], [6, 7], [], [8, 9, 2], [3])
SENTENCES = labels([2, 0, 1], [3, 3])


def naive(words: range, most: int | None = None) -> tuple[list[int], list[int]]:
    tokens, parts = [], []
    for place, number in enumerate(words):
        for token in (WORDS[number] or [FILLER])[: None if most is None else max(1, most - 1)]:
            tokens.append(token)
            parts.append(place)
    return [*tokens, EOS], [*parts, -1]


def test_words_and_their_pieces() -> None:
    batch = TaggedWords(rows(*WORDS), SENTENCES, FILLER).batch(np.asarray([1, 0]))
    (long, long_parts), (short, short_parts) = naive(range(3, 5)), naive(range(3))
    assert batch.inputs_BT.tolist() == [long, short]
    assert batch.parts_BS is not None
    assert batch.weights_BT is not None
    assert batch.parts_BS.tolist() == [long_parts, short_parts]
    assert batch.targets_BT.tolist() == [[3, 3, 0], [2, 0, 1]]
    assert batch.weights_BT.tolist() == [[1, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize("most", [2, 3, 4, 5, 6])
def test_long_sentences_are_read_in_pieces(most: int) -> None:
    words = TaggedWords(rows(*WORDS), SENTENCES, FILLER, most)
    predicted = np.full(5, -1)
    for number in range(len(words)):
        batch = words.batch(np.asarray([number]))
        assert batch.inputs_BT.shape[1] <= most
        assert int(words.lengths()[number]) == batch.inputs_BT.shape[1]
        words.scatter(predicted, np.asarray([number]), batch.targets_BT.numpy())
    assert predicted.tolist() == [2, 0, 1, 3, 3]  # every word is read once, in its place
    tokens = [sum(max(1, len(word)) for word in part) for part in (WORDS[:3], WORDS[3:])]
    assert words.cut == sum(count > most - 1 for count in tokens)


def test_cuts_are_greedy() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        tokens_N = rng.integers(1, 5, 30)
        ends_P = np.asarray([7, 8, 20, 30])
        begins, ends = cut_sentences(ends_P, tokens_N, 6)
        wanted, begin = [], 0
        for end in ends_P:
            total = 0
            for word in range(begin, end):
                if total + tokens_N[word] > 6:
                    wanted.append(word)
                    total = 0
                total += tokens_N[word]
            wanted.append(end)
            begin = end
        assert ends.tolist() == wanted
        assert begins.tolist() == [0, *wanted[:-1]]


# Batches


def many(count: int) -> LabelledTexts:
    rng = np.random.default_rng(2)
    texts = [[2] * int(length) for length in rng.integers(0, 30, count)]
    return LabelledTexts(rows(*texts), None, labels(*([number % 4] for number in range(count))))


def test_every_text_comes_once_per_epoch_with_texts_of_similar_length() -> None:
    texts = many(1000)
    batches = LabelBatches(texts, np.arange(5, 1000), 32, seed=3)
    assert batches.per_epoch == -(-995 // 32)
    for epoch in (0, 1):
        groups = batches.groups(epoch)
        assert sorted(number for group in groups for number in group.tolist()) == list(range(5, 1000))
        spans = [np.ptp(texts.lengths()[group]) for group in groups]
        assert np.mean(spans) <= 1.5  # of 30
    again = LabelBatches(texts, np.arange(5, 1000), 32, seed=3)
    late = batches.per_epoch + 7
    assert torch.equal(again.batch(late)[0].inputs_BT, batches.batch(late)[0].inputs_BT)
    other = LabelBatches(texts, np.arange(5, 1000), 32, seed=4)
    assert any(a.tolist() != b.tolist() for a, b in zip(other.groups(), batches.groups(), strict=True))
