"""Rows of tokens are the lines of a text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chainrule.data.rows import Rows
from chainrule.data.store import open_store
from chainrule.text import text_of, train_tokenizer

TOKENIZER = train_tokenizer("char", text_of("abcdefghij0123456789\n"))
EOS = TOKENIZER.eos


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ab\nc\n", ["ab", "c"]),
        ("ab\nc", ["ab", "c"]),
        ("\n\nab\n\n", ["", "", "ab", ""]),
        ("a", ["a"]),
        ("\n", [""]),
    ],
)
def test_rows_are_the_lines(text: str, expected: list[str]) -> None:
    rows = Rows(open_store(text_of(text), TOKENIZER).tokens, EOS)
    assert len(rows) == len(expected)
    assert [TOKENIZER.decode(rows.row(number)) for number in range(len(rows))] == expected
    assert rows.lengths_P.tolist() == [len(line) for line in expected]


def test_no_tokens_are_no_rows() -> None:
    assert len(Rows(np.zeros(0, np.uint8), EOS)) == 0


def test_rows_are_padded_with_eos() -> None:
    rows = Rows(open_store(text_of("ab\n\nabcde"), TOKENIZER).tokens, EOS)
    a, b, c, d, e = TOKENIZER.encode("abcde")
    tokens_BT, mask_BT = rows.padded(np.array([2, 0, 1, 0]))
    assert tokens_BT.tolist() == [
        [a, b, c, d, e, EOS],
        [a, b, EOS, EOS, EOS, EOS],
        [EOS] * 6,
        [a, b, EOS, EOS, EOS, EOS],
    ]
    assert mask_BT.sum(1).tolist() == [6, 3, 1, 3]
    assert mask_BT.int().diff(dim=1).max() <= 0  # padding is on the right
    assert tokens_BT.dtype == torch.int64
    cut_BT, mask_BT = rows.padded(np.array([2, 0]), max_tokens=4)
    assert cut_BT.tolist() == [[a, b, c, EOS], [a, b, EOS, EOS]]
    assert mask_BT.sum(1).tolist() == [4, 3]
