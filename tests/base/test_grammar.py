"""Articles and plurals of messages."""

from __future__ import annotations

import pytest

from chainrule.base.grammar import plural, with_article


@pytest.mark.parametrize(
    "expected",
    [
        "an lstm",
        "an rnn",
        "an ngram",
        "a gru",
        "a transformer",
        "an elmo",
        "a hybrid",
        "a unigram",
        "a t5",
        "a mixture",
        "an at",
    ],
)
def test_names_have_the_right_article(expected: str) -> None:
    assert with_article(expected.split()[1]) == expected


def test_one_is_singular() -> None:
    assert [plural(count, "line") for count in (0, 1, 2, 1000)] == ["0 lines", "1 line", "2 lines", "1,000 lines"]
    assert [plural(count, "batch", "batches") for count in (1, 2)] == ["1 batch", "2 batches"]
