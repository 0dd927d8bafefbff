"""Built-in texts as sources."""

from __future__ import annotations

import pytest

from chainrule.errors import ConfigError, DataError
from chainrule.text.readers import lines_in, open_texts
from chainrule.text.samples.phrases import phrase_pairs
from chainrule.text.samples.texts import SAMPLES, SPLITS, sample_text


@pytest.mark.parametrize("name", SAMPLES)
def test_the_splits_of_a_sample_are_its_lines_in_order(name: str) -> None:
    whole = list(lines_in(open_texts([f"sample:{name}"])))
    parts = [list(lines_in(open_texts([f"sample:{name}:{split}"]))) for split in SPLITS]
    assert [line for part in parts for line in part] == whole
    assert len(parts[0]) == pytest.approx(0.8 * len(whole), abs=1)


def test_the_poems_are_lines_of_chinese_characters() -> None:
    lines = sample_text("sample:poems").splitlines()
    assert len(lines) >= 40
    assert all("\u4e00" <= line[0] <= "\u9fff" and line.endswith("。") for line in lines)


def test_parallel_samples_are_the_sides_of_the_same_phrases() -> None:
    sources, targets = (sample_text(f"sample:en-digits.{style}:test").splitlines() for style in ("en", "digits"))
    assert len(sources) == len(targets) == 1000
    drawn = dict(phrase_pairs("en", "digits", 10_000))  # before they are shuffled
    assert [drawn[source] for source in sources] == targets
    assert not set(sources) & set(sample_text("sample:en-digits.en:train").splitlines())


def test_an_unknown_sample_or_split_is_an_error() -> None:
    with pytest.raises(ConfigError, match="unknown sample text 'engish': did you mean 'english'"):
        sample_text("sample:engish")
    with pytest.raises(DataError, match=r"expected one of the splits train, valid, test, as in sample:english:train"):
        sample_text("sample:english:dev")
