"""Warnings about pairs that are swapped, out of step or of one language, and none where nothing is wrong."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import chainrule as cr
from chainrule.data.pair_checks import check_alignment, check_direction, check_languages, check_lengths, correlation
from chainrule.text.formats.pairs import Pairs
from chainrule.text.readers import Texts
from chainrule.text.samples.phrases import phrase_pairs
from chainrule.text.sources import TextSource
from chainrule.training.fitting.fitting import TrainingListener

Lines = tuple[list[str], list[str]]


def phrases(count: int, seed: int, styles: tuple[str, str] = ("en", "de")) -> Lines:
    pairs = list(phrase_pairs(*styles, count, seed=seed))
    return [source for source, _ in pairs], [target for _, target in pairs]


def pairs_of(lines: Lines, names: tuple[str, str] = ("p.en", "p.de")) -> Pairs:
    def text(name: str, side: list[str]) -> Texts:
        return Texts([TextSource(name, lambda: iter(["".join(f"{line}\n" for line in side).encode()]))])

    return Pairs(*(text(name, side) for name, side in zip(names, lines, strict=True)))


def aligned(source: list[str], target: list[str]) -> list[str]:
    sides = [np.array([len(line) for line in side]) for side in (source, target)]
    return check_alignment(*sides, "a and b")


def test_correlation_is_that_of_numpy() -> None:
    first_N, second_N = np.random.default_rng(1).normal(size=(2, 50))
    assert correlation(first_N, second_N) == pytest.approx(np.corrcoef(first_N, second_N)[0, 1])
    assert correlation(first_N, np.ones(50)) == 0


@pytest.mark.parametrize(("shift", "lines"), [(1, (2, 1)), (-1, (1, 2)), (3, (4, 1))])
def test_a_shifted_side_is_noticed(shift: int, lines: tuple[int, int]) -> None:
    source, target = phrases(400, seed=1)
    assert aligned(source, target) == []
    shifted = target[shift:] + target[:shift]
    [warning] = aligned(source, shifted)
    assert warning.startswith(f"a and b seem to be out of step by {abs(shift)} line{'s' * (abs(shift) > 1)}: the ")
    assert warning.endswith(f"if line {lines[0]} of the source goes with line {lines[1]} of the target")


def lengths(source: list[str], target: list[str]) -> list[str]:
    return check_lengths(*(np.array([len(line.split()) for line in side]) for side in (source, target)), "a and b")


def test_unlike_lengths_are_noticed() -> None:
    source, target = phrases(400, seed=1)
    assert lengths(source, target) == []
    rng = random.Random(0)
    long = [" ".join(rng.choices(target, k=rng.randint(4, 24))) for _ in target]
    [warning] = lengths(source, long)
    assert warning.startswith("a and b have unlike lengths: the target is typically ")
    assert warning.endswith(
        "times as long in tokens, and translations at most 2.5 times; check that the files belong together"
    )
    [warning] = lengths(long, source)
    assert "the source is typically" in warning
    assert lengths(source, [f"{line} {line} {line} {line}" for line in source]) == []  # a task with long targets
    assert lengths(long, ["label"] * len(long)) == []
    assert lengths(source[:20], long[:20]) == []


def test_pairs_of_a_far_ratio_are_noticed() -> None:
    source, target = phrases(400, seed=1)
    some = [" ".join([line] * 30) if number % 20 == 7 else line for number, line in enumerate(target)]
    assert lengths(source, some) == [
        "3.5% of the pairs in a and b have a length ratio 8 times larger or smaller than usual, the first in line 8; "
        "they are probably no translations: remove them"
    ]
    assert lengths(source, [*some[:60], *target[60:]]) == []  # 3 of 400


def test_a_reversed_and_a_shuffled_side_are_noticed() -> None:
    source, target = phrases(600, seed=1)
    [warning] = aligned(source, target[::-1])
    assert warning.startswith("a and b seem to be in opposite orders: the lengths of their lines have a correlation of")
    random.Random(1).shuffle(target)
    [warning] = aligned(source, target)
    assert warning.startswith("a and b seem not to match line by line: ")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("styles", [("en", "de"), ("zh", "en"), ("digits", "de"), ("en", "digits")])
def test_built_in_phrases_cause_no_warning_and_swapped_ones_do(styles: tuple[str, str], seed: int) -> None:
    names = (f"p.{styles[0][:2]}", f"p.{styles[1][:2]}")
    lines, valid = phrases(1000, 10 + seed, styles), phrases(100, 20 + seed, styles)
    train = pairs_of(lines, names)
    assert [*aligned(*lines), *aligned(*valid), *check_languages(train)] == []
    assert check_direction(pairs_of(valid, names), train) == []
    [warning] = check_direction(pairs_of(valid[::-1], names[::-1]), train)
    assert warning == (
        f"{names[1]} and {names[0]} seem to be swapped: the source resembles the target of the training pairs, and the "
        "target their source"
    )


@pytest.mark.parametrize("length", [(8, 8), (3, 12)], ids=["one length", "several lengths"])
@pytest.mark.parametrize("rule", [sorted, lambda digits: digits[::-1]], ids=["sorted", "reversed"])
def test_digits_cause_no_warning(rule: Callable[[list[str]], list[str]], length: tuple[int, int]) -> None:
    for seed in range(5):
        draw = random.Random(seed)
        rows = [draw.choices("0123456789", k=draw.randint(*length)) for _ in range(340)]
        lines = [" ".join(row) for row in rows], [" ".join(rule(row)) for row in rows]
        train, valid = (pairs_of((lines[0][part], lines[1][part])) for part in (slice(300), slice(300, None)))
        assert [*aligned(*lines), *check_direction(valid, train)] == []
        assert check_languages(pairs_of(lines, ("p.src", "p.tgt"))) == []


def test_labels_as_targets_cause_no_warning() -> None:
    sources = phrases(400, seed=1)[0]
    draw = random.Random(1)
    assert aligned(sources, [draw.choice(["yes", "not at all"]) for _ in sources]) == []


def test_one_language_on_both_sides_is_noticed() -> None:
    source, other = phrases(400, seed=1)[0], phrases(400, seed=2)[0]
    assert check_languages(pairs_of((source, source), ("t.en", "t.en"))) == [
        "the sides of t.en are the same in 100% of the lines"
    ]
    [warning] = check_languages(pairs_of((source, other), ("t.en", "t.de")))
    assert warning.startswith("t.en and t.de seem to be of one language: the similarity of their letter pairs is ")


def test_train_and_evaluate_print_the_warnings(tmp_path: Path) -> None:
    for name, lines in (("train", phrases(300, seed=1)), ("valid", phrases(60, seed=2))):
        for ending, side in zip(("en", "de"), lines, strict=True):
            (tmp_path / f"{name}.{ending}").write_text("".join(f"{line}\n" for line in side))
    train, valid = ([tmp_path / f"{name}.{ending}" for ending in ("en", "de")] for name in ("train", "valid"))
    notes: dict[str, list[str]] = {"right": [], "swapped": []}
    for name, given in (("right", valid), ("swapped", valid[::-1])):
        run = cr.train(
            *train,
            valid=given,
            model="seq2seq-rnn",
            tokenizer="char",
            steps=1,
            out=tmp_path / name,
            settings={"model": {"embedding": 4, "hidden": 4}},
            listener=TrainingListener(note=notes[name].append),
        )
    expected = f"{valid[1]} and {valid[0]} seem to be swapped: "
    assert not any(note.startswith("warning") for note in notes["right"])
    assert any(note.startswith(f"warning: {expected}") for note in notes["swapped"])
    with pytest.warns(UserWarning, match="seem to be swapped: "):
        next(run.score_pairs(valid[::-1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(run.score_pairs(valid))
