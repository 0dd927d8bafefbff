"""Every token has exactly one position in the tracks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.errors import ConfigError
from chainrule.evaluation.tracks import cut_tracks, track_count


@pytest.mark.parametrize(
    ("tokens", "count"), [(0, 1), (1, 1), (16383, 1), (32767, 1), (32768, 2), (82430, 5), (1 << 20, 64), (1 << 30, 64)]
)
def test_the_number_of_tracks_follows_from_the_tokens(tokens: int, count: int) -> None:
    assert track_count(tokens) == count


@settings(deadline=None)
@given(tokens=st.integers(0, 60), count=st.integers(1, 9), size=st.integers(1, 70))
def test_rows_joined_are_the_stream(tokens: int, count: int, size: int) -> None:
    stream = np.arange(100, 100 + tokens, dtype=np.uint16)
    layout = cut_tracks(tokens, count)
    rows: list[list[int]] = [[] for _ in range(layout.count)]
    copy = np.zeros_like(stream)
    for begin, end in layout.chunks(size):
        block_BT = layout.read(stream, begin, end, -1)
        assert [(block_BT[:, t] >= 0).sum() for t in range(end - begin)] == [
            layout.rows_at(t) for t in range(begin, end)
        ]
        for row, piece in zip(rows, block_BT.tolist(), strict=True):
            row.extend(token for token in piece if token >= 0)
        layout.write(copy, begin, block_BT)
    assert [token for row in rows for token in row] == stream.tolist()
    assert copy.tolist() == stream.tolist()
    assert max(map(len, rows)) - min(map(len, rows)) <= 1
    assert [len(row) for row in rows] == sorted((len(row) for row in rows), reverse=True)


def test_zero_tracks_are_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        cut_tracks(10, 0)
    assert str(caught.value) == "tracks is 0, but a stream needs at least 1."
