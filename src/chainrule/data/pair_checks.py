"""Signs that the files of pairs are not what they should be: swapped, out of step, of unlike lengths, of one language.

Lines that belong together have related lengths; a shift by a few lines, or the order reversed, shows in a higher
correlation of the lengths there. Two texts of one language have similar frequencies of short character sequences, so
the sides of validation or test pairs resemble those of the training pairs, unless they are swapped. Both are signs
only, so they are reported, never refused, and tasks in which nothing is wrong (sorting digits, labels as targets)
cause no report.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chainrule.base.grammar import plural
from chainrule.data.pairs import PairStore
from chainrule.data.rows import Indices
from chainrule.text.formats.pairs import Pairs
from chainrule.text.readers import lines_in

SAMPLE = 3000
"""The number of pairs whose letters are counted, and of those whose alignment is checked separately."""

LEAST = 30
"""Fewer pairs allow no judgement."""

LAGS = (-3, -2, -1, 1, 2, 3)
"""Numbers of lines by which the target may be shifted."""

REVERSED = 0
"""Stands for the reverse order among the lags."""

RELATED = 0.5
"""A correlation of lengths above which lines belong together. Translations have more, except of short phrases."""

USUAL = 2.5
"""Translations are at most this many times as long as their sources, or as much shorter."""

UNLIKE = 5
"""Files whose typical length ratio is beyond this, or as much below, are reported unless the lengths are related."""

UNUSUAL = 8
"""A pair is an outlier if its length ratio is this many times the median, or as much smaller."""

LONG = 20
"""Tokens of the longer side of an outlier; the ratios of shorter lines vary."""

SHARE, FEW = 0.02, 5
"""Share and number of outliers up to which there is no warning."""

Lengths = NDArray[np.float64]


def check_pairs(pairs: Pairs, store: PairStore, train: Pairs | None = None) -> list[str]:
    """The warnings about some pairs, given the pairs of the training if they are others."""
    source_P, target_P = store.source_rows.lengths_P, store.target_rows.lengths_P
    title = title_of(pairs)
    aligned = check_alignment(source_P, target_P, title) or check_alignment(
        source_P[-SAMPLE:], target_P[-SAMPLE:], f"the last {SAMPLE:,} lines of {title}"
    )
    lengths = check_lengths(source_P, target_P, title)
    return [*aligned, *lengths, *(check_languages(pairs) if train is None else check_direction(pairs, train))]


def title_of(pairs: Pairs) -> str:
    """The names of the files."""
    source, target = pairs.source.name, pairs.target.name
    return f"the sides of {source}" if source == target else f"{source} and {target}"


# Lines that do not belong together


def check_alignment(sources_P: Indices, targets_P: Indices, title: str) -> list[str]:
    """A warning if the lines at the same place do not belong together, as far as their lengths in tokens show it."""
    source_P, target_P = np.log1p(sources_P), np.log1p(targets_P)
    if len(source_P) < LEAST or min(source_P.std(), target_P.std()) < 0.1:
        return []  # lines of one length, for example labels
    here, chance = correlation(source_P, target_P), 5 / np.sqrt(len(source_P))  # five standard deviations
    if here > RELATED:
        return []
    found = f"the lengths of their lines have a correlation of {here:.2f}"
    others = {lag: correlation(*_shift(source_P, target_P, lag)) for lag in LAGS}
    others[REVERSED] = correlation(source_P, target_P[::-1])
    best = max(others, key=lambda lag: others[lag])
    if others[best] > max(here, 0.2) + chance:
        return [f"{title} seem to be {_order(best)}: {found}, and of {others[best]:.2f} {_remedy(best)}"]
    ratio = np.exp(target_P.mean() - source_P.mean())
    if abs(here) < min(0.1, chance) and 1 / USUAL < ratio < USUAL:
        return [f"{title} seem not to match line by line: {found}; that of translations is above {RELATED}"]
    return []


def check_lengths(sources_P: Indices, targets_P: Indices, title: str) -> list[str]:
    """A warning if one side is far longer than translations are, and one if the ratio of some pairs is far off."""
    source_P, target_P = np.log1p(sources_P), np.log1p(targets_P)
    if len(source_P) < LEAST or min(source_P.std(), target_P.std()) < 0.1:
        return []  # lines of one length, for example labels
    ratio_P, warnings = target_P - source_P, []
    usual = float(np.exp(np.median(ratio_P)))
    # Where the lengths are related, a large ratio belongs to the task, for example digits and their names.
    if not 1 / UNLIKE < usual < UNLIKE and correlation(source_P, target_P) < RELATED:
        longer, factor = ("target", usual) if usual > 1 else ("source", 1 / usual)
        warnings.append(
            f"{title} have unlike lengths: the {longer} is typically {factor:.1f} times as long in tokens, and "
            f"translations at most {USUAL} times; check that the files belong together"
        )
    far_P = np.abs(ratio_P - np.median(ratio_P)) > np.log(UNUSUAL)
    outliers = np.flatnonzero(far_P & (np.maximum(sources_P, targets_P) >= LONG))
    if len(outliers) > max(FEW, SHARE * len(ratio_P)):
        warnings.append(
            f"{len(outliers) / len(ratio_P):.1%} of the pairs in {title} have a length ratio {UNUSUAL} times larger or "
            f"smaller than usual, the first in line {outliers[0] + 1:,}; they are probably no translations: remove them"
        )
    return warnings


def _order(lag: int) -> str:
    return "in opposite orders" if lag == REVERSED else f"out of step by {plural(abs(lag), 'line')}"


def _remedy(lag: int) -> str:
    if lag == REVERSED:
        return "if one of them is reversed"
    return f"if line {1 + max(0, -lag)} of the source goes with line {1 + max(0, lag)} of the target"


def _shift(source_P: Lengths, target_P: Lengths, lag: int) -> tuple[Lengths, Lengths]:
    """The rows that meet if row i of the source goes with row i + lag of the target."""
    if lag < 0:
        return source_P[-lag:], target_P[:lag]
    return source_P[: len(source_P) - lag], target_P[lag:]


def correlation(first_N: Lengths, second_N: Lengths) -> float:
    """Pearson's correlation; 0 where one of them is constant."""
    first_N, second_N = first_N - first_N.mean(), second_N - second_N.mean()
    norm = np.sqrt((first_N @ first_N) * (second_N @ second_N))
    return float(first_N @ second_N / norm) if norm else 0.0


# Languages


def check_languages(pairs: Pairs) -> list[str]:
    """A warning if both sides are the same, or of one language though their names differ, as in train.en, train.de."""
    sources, targets = _sample(pairs)
    if len(sources) < LEAST:
        return []
    same = np.mean([source == target for source, target in zip(sources, targets, strict=False)])
    if same > 0.9:
        return [f"{title_of(pairs)} are the same in {same:.0%} of the lines"]
    alike = similarity(profile(sources), profile(targets))
    if alike > 0.9 and _language(pairs.source.name) != _language(pairs.target.name):
        return [f"{title_of(pairs)} seem to be of one language: the similarity of their letter pairs is {alike:.2f}"]
    return []


def check_direction(pairs: Pairs, train: Pairs) -> list[str]:
    """A warning if the source of some pairs looks like the target of the training pairs, and the other way round."""
    samples = [*_sample(pairs), *_sample(train)]
    if min(map(len, samples)) < LEAST:
        return []
    source, target, train_source, train_target = map(profile, samples)
    margins = [
        similarity(source, train_target) - similarity(source, train_source),
        similarity(target, train_source) - similarity(target, train_target),
    ]
    if min(margins) <= 0.1:
        return []
    return [
        f"{title_of(pairs)} seem to be swapped: the source resembles the target of the training pairs, and the target "
        "their source"
    ]


def _sample(pairs: Pairs) -> tuple[list[str], list[str]]:
    """The first lines of source and target."""
    source, target = (list(islice(lines_in(side, any_bytes=True), SAMPLE)) for side in pairs)
    return source, target


def profile(lines: list[str]) -> Counter[str]:
    """How often each pair of neighbouring characters occurs, spaces at the ends of lines included."""
    return Counter(first + second for line in lines for first, second in pairwise(f" {line.lower()} "))


def similarity(first: Counter[str], second: Counter[str]) -> float:
    """The cosine of two profiles, 0 to 1."""
    product = sum(count * second[name] for name, count in first.items() if name in second)
    norms = [np.sqrt(sum(count * count for count in one.values())) for one in (first, second)]
    return float(product / norms[0] / norms[1]) if all(norms) else 0.0


def _language(name: str) -> str | None:
    """The ending of a file that names its language, de of train.de.gz; None where it is another."""
    endings = [suffix[1:] for suffix in Path(name.partition(" (")[0]).suffixes]
    return next((ending for ending in endings if ending.isalpha() and len(ending) == 2 and ending != "gz"), None)
