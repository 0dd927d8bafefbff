"""A finished n-gram model as flat arrays that are used directly from the mapped file, without unpacking.

Nodes are numbered as in the trie (`trie.py`): the children of a node are adjacent and sorted by word. The arrays are

    words       of the nodes from level 2 on, two bytes each where the vocabulary allows
    first       child of each context: absolute for words; above them, relative to the first of a group of 64 contexts
    probs       log10 p of every node
    backoffs    log10 of the back-off weight of every context, usually as codes into a table of the distinct values

In a quantised model, probabilities and back-off weights are bytes: codes into a table per level, whose entries are the
means of the values nearest to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chainrule.base.arrays import Array, open_arrays, write_arrays
from chainrule.errors import RunError

FORMAT = "chainrule n-grams 1"
SHIFT = 6
GROUP = 1 << SHIFT
BINS = 256
LN10 = float(np.log(10))


class TableArrays(NamedTuple):
    """The arrays that the kernels read; the field names are the names in the file."""

    starts: Array  # int64, O + 1: the first node of each level, and the number of nodes
    words: Array  # uint16 or uint32, of nodes from V on
    first_words: Array  # uint32, V
    first_groups: Array  # uint32, one for every 64 contexts from V on
    first_steps: Array  # uint16 or uint32, one for every context from V on, and one more
    probs: Array  # float32, or uint8 codes into the table
    prob_table: Array  # float32, O × 256, or empty
    backoffs: Array  # float32, or uint8 or uint16 codes into the table
    backoff_table: Array  # float32: O × 256 for bytes, otherwise one table for all levels


@dataclass
class NgramTable:
    """The arrays of an n-gram model, and what a query has to know about them."""

    arrays: TableArrays
    eos: int
    across_lines: bool
    normalised: bool  # whether the numbers are probabilities, not just scores
    absent: float  # log10 of the back-off weight of contexts that are not in the table

    @property
    def order(self) -> int:
        return len(self.arrays.starts) - 1

    @property
    def vocab_size(self) -> int:
        return int(self.arrays.starts[1])

    @property
    def sizes(self) -> list[int]:
        """The number of n-grams of each order."""
        return [int(size) for size in np.diff(self.arrays.starts)]

    def save(self, path: Path, extra: dict[str, Array]) -> None:
        """Write to a file, together with other arrays of the model."""
        about = {
            "format": FORMAT,
            "eos": str(self.eos),
            "across_lines": str(int(self.across_lines)),
            "normalised": str(int(self.normalised)),
            "absent": repr(self.absent),
        }
        write_arrays(path, {**self.arrays._asdict(), **extra}, about)


def value(codes: Array, table: Array, level: int, node: int) -> float:
    """The number stored for a node of a level (0 to O - 1): plain, or a code into the table of all or of each level."""
    if codes.dtype == np.float32:
        return float(codes[node])
    return float(table[(level * BINS if codes.dtype == np.uint8 else 0) + int(codes[node])])


def load_table(path: Path) -> tuple[NgramTable, dict[str, Array]]:
    """The table in a file, mapped into memory, and the other arrays of the file."""
    arrays, about = open_arrays(path)
    if about.get("format") != FORMAT or not arrays.keys() >= set(TableArrays._fields):
        raise RunError(f"{path} is not the file of an n-gram model; restore the original file of the run")
    own = TableArrays(*(np.asarray(arrays.pop(name)) for name in TableArrays._fields))
    across_lines, normalised = bool(int(about["across_lines"])), bool(int(about["normalised"]))
    return NgramTable(own, int(about["eos"]), across_lines, normalised, float(about["absent"])), arrays
