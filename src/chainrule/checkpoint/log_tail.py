"""metrics.jsonl while it grows: what was added since the last look, and long logs in few lines.

A reader keeps the number of bytes that it has read. A line that is still being written is read when it is whole. A
training that resumes cuts its log, which a reader notices by the size: it begins again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

Record = dict[str, Any]

MOST_BYTES = 64 << 20
"""Bytes that are read at once, at most."""


class Tail(NamedTuple):
    """Lines of a log, where to continue, and whether they are those from the beginning."""

    records: list[Record]
    offset: int  # in bytes
    restarted: bool


def read_tail(path: Path, offset: int = 0, most: int = MOST_BYTES) -> Tail:
    """The whole lines of a log after an offset. A log that does not exist is empty; damaged lines are left out."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            begin = offset if 0 <= offset <= size else 0
            file.seek(begin)
            content = file.read(most)
    except FileNotFoundError:
        return Tail([], 0, True)
    whole = content[: content.rfind(b"\n") + 1]
    parsed = (_parse(line) for line in whole.splitlines())
    return Tail([one for one in parsed if one is not None], begin + len(whole), begin == 0)


def _parse(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def thin(records: Sequence[Record], buckets: int) -> list[Record]:
    """At most a few records for each of `buckets` equal parts: the smallest and the largest of every figure.

    So a curve drawn from them has the same outline as the curve of all records. The first and the last record stay.
    """
    if len(records) <= 2 * buckets:
        return list(records)
    kept = {0, len(records) - 1}
    edges = [round(part * len(records) / buckets) for part in range(buckets + 1)]
    for begin, end in pairwise(edges):
        extremes: dict[str, tuple[int, int]] = {}
        for place in range(begin, end):
            for name, value in records[place].items():
                if isinstance(value, int | float) and math.isfinite(value):
                    low, high = extremes.get(name, (place, place))
                    extremes[name] = (
                        place if value < records[low][name] else low,
                        place if value > records[high][name] else high,
                    )
        kept.update(place for pair in extremes.values() for place in pair)
    return [records[place] for place in sorted(kept)]
