"""`estimate`: the tables that Spark computed as a run, or as Parquet where they are larger than one machine."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.targets import check_folder
from chainrule.distributed.counts_folder import CountsFolder
from chainrule.distributed.merge import merge_into_run, read_all
from chainrule.distributed.spark.estimate import Estimation
from chainrule.distributed.spark.keys import rows_of
from chainrule.distributed.spark.tasks import import_arrow
from chainrule.engines.ngram.packing import pack
from chainrule.engines.ngram.smoothing import DISCOUNT_RULES
from chainrule.engines.ngram.table import NgramTable
from chainrule.engines.ngram.trie import MAX_NODES
from chainrule.errors import ConfigError, DataError
from chainrule.models.ngram import Ngram, NgramConfig, plan_of
from chainrule.runs.base import Run

TABLES = "spark-"
"""Prefix of the temporary folder of the tables."""


def estimate(
    counts: str | Path | Sequence[str | Path],
    session: Any,
    *,
    out: str | Path | None = None,
    tables: str | Path | None = None,
    repeats: bool = False,
    note: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Run | None:
    """Estimate an n-gram model with Kneser–Ney smoothing on Spark; the model is that of `chainrule.merge`.

    Args:
        counts: A folder of counts or several, in the order of the text; from `count` here or `chainrule.count`.
        session: The SparkSession.
        out: Folder of the run, on a disk that the driver and all workers share. None: only the tables are written.
        tables: New folder that keeps the tables of all orders, `level-1` to `level-N`, as Parquet: `ngram` (each id
            plus one in four bytes, the highest first), `raw`, `prob`, `backoff`, `children`. None: they are deleted.
        repeats: Whether a shard may be among the counts more than once.
        note: Called with messages.
        **options: Options of the model: smoothing ("modified-kneser-ney", the default, or "kneser-ney"), prune,
            quantize.

    Returns:
        The run; None without `out`.
    """
    counted = read_all([counts] if isinstance(counts, str | Path) else counts, repeats)
    if (smoothing := options.get("smoothing", "modified-kneser-ney")) not in DISCOUNT_RULES:
        raise ConfigError(
            f"smoothing {smoothing} is not computed on Spark; expected {' or '.join(DISCOUNT_RULES)}; chainrule.merge "
            "has the others"
        )
    kept = check_folder(tables) if tables is not None else None
    if out is None:
        if kept is None:
            raise ConfigError("give out=RUN for a run, tables=FOLDER for the tables, or both")
        config = NgramConfig(order=counted[0].counts.shape.order, **options)
        _compute(session, counted, config, kept, note)
        return None

    def make(config: NgramConfig, scratch: Path, valid: Array) -> Ngram:
        if kept is not None:
            return _compute(session, counted, config, kept, note)
        with tempfile.TemporaryDirectory(dir=scratch, prefix=TABLES) as folder:
            return _compute(session, counted, config, Path(folder), note)

    return merge_into_run(counted, out, make, options=options, note=note)


def _compute(
    session: Any, counted: list[CountsFolder], config: NgramConfig, folder: Path, note: Callable[[str], None]
) -> Ngram:
    """Write the tables to a folder and make a model of them."""
    folder.mkdir(parents=True, exist_ok=True)
    estimation = Estimation(session, counted, plan_of(config), folder.resolve(), note)
    estimation.run()
    for name in ("raw", "adjusted", "contexts"):
        shutil.rmtree(folder / name, ignore_errors=True)
    return read_model(folder, config, estimation)


def read_model(folder: Path, config: NgramConfig, estimation: Estimation) -> Ngram:
    """The model of the tables of a folder."""
    plan, shape = estimation.plan, estimation.shape
    levels = [_Level(folder, k, plan.thresholds[k - 1] if k > 1 else -1) for k in range(1, plan.order + 1)]
    starts = np.concatenate([[0], np.cumsum([len(level.words) for level in levels])])
    if starts[-1] > MAX_NODES:
        raise DataError(
            f"the text has {starts[-1]} n-grams, more than the limit of {MAX_NODES}; use tables=FOLDER alone"
        )
    first_Y = [starts[k] + np.cumsum(level.children) - level.children for k, level in enumerate(levels[:-1], 1)]
    with np.errstate(divide="ignore"):
        probs_J = np.log10(np.concatenate([level.probs for level in levels]))
        backoffs_Y = np.log10(np.concatenate([level.backoffs for level in levels[:-1]] or [np.empty(0, np.float32)]))
    arrays = pack(
        starts,
        np.concatenate([level.words for level in levels]),
        np.concatenate([*first_Y, starts[-1:]]).astype(np.uint32),
        probs_J,
        backoffs_Y,
        quantize=plan.quantize,
    )
    table = NgramTable(arrays, shape.eos, shape.across_lines, normalised=True, absent=0.0)
    return Ngram(config, table, levels[0].raw)


class _Level:
    """The n-grams of k words that occur more than `threshold` times, in sorted order."""

    def __init__(self, folder: Path, k: int, threshold: int) -> None:
        arrow = import_arrow()
        # Files of one level are written in the order of their names, each a range of n-grams.
        names = sorted((folder / f"level-{k}").glob("part-*.parquet"))
        parts = [arrow.parquet.read_table(name) for name in names]
        parts = [part.filter(arrow.compute.greater(part.column("raw"), threshold)) for part in parts if len(part)]
        table = arrow.concat_tables(parts).combine_chunks() if parts else None
        self.words = self._words(table, k) if table is not None and len(table) else np.empty(0, np.uint32)
        self.raw, self.probs, self.backoffs, self.children = (
            table.column(name).to_numpy().astype(dtype) if table is not None else np.empty(0, dtype)
            for name, dtype in (
                ("raw", np.int64),
                ("prob", np.float32),
                ("backoff", np.float32),
                ("children", np.int64),
            )
        )

    @staticmethod
    def _words(table: Any, k: int) -> Array:
        """The last words; a chunk holds at most 2 GB of keys."""
        return np.concatenate([rows_of(chunk, k)[:, -1] for chunk in table.column("ngram").chunks])
