"""Kneser–Ney smoothing as aggregations of Spark, for tables that no single machine can hold.

Chen & Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling", 1998. The numbers are those of
`engines/ngram/smoothing.py`, bit for bit: sums are of integers, and what is rounded is computed in the same order.

    raw         windows -> their beginnings, added up: the count of every n-gram of every order
    adjusted    n-grams -> their suffixes: below the highest order, the number of different words before an n-gram
    discounts   the n-grams of each order with an adjusted count of 1, 2, 3 and 4, collected: a few numbers
    contexts    n-grams -> without the last word: total, freed mass and number of continuations of every context
    level k     n-grams of k words, joined with their contexts and with level k - 1 by suffix

Every table is written before the next one reads it, so that a lost worker costs its own tasks alone. The words of the
vocabulary, level 1, are computed by the driver, which has the tokeniser in memory too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chainrule.base.arrays import Array
from chainrule.distributed.counts_folder import CountsFolder
from chainrule.distributed.spark.keys import WORD, keys_of
from chainrule.distributed.spark.tasks import Batches, import_arrow, import_functions, use_one_thread
from chainrule.engines.ngram import smoothing_kernels as kernels
from chainrule.engines.ngram.estimate import EstimationPlan
from chainrule.engines.ngram.merging import merge_runs
from chainrule.engines.ngram.segments import Counts, Shape, join
from chainrule.engines.ngram.smoothing import DISCOUNT_RULES, Note
from chainrule.engines.ngram.sorted_runs import SortedRun
from chainrule.engines.ngram.windows import NOTHING

LEVEL = "ngram binary, raw bigint, prob float, backoff float, children bigint"


@dataclass(frozen=True)
class ReadRuns:
    """The n-grams of all orders that begin the windows of runs, with their counts; equal ones may come in parts."""

    runs: tuple[SortedRun, ...]
    shape: Shape

    def __call__(self, batches: Batches) -> Iterator[Any]:
        use_one_thread()
        arrow, order = import_arrow(), self.shape.order
        for batch in batches:
            for number in batch.column("number").to_pylist():
                for windows in merge_runs([self.runs[number]], order, self.shape.vocab_size):
                    rows, counts = windows.ids.reshape(-1, order), windows.counts
                    for k in range(1, order + 1):
                        yield self._beginnings(arrow, rows, windows.shared, counts, k)

    def _beginnings(self, arrow: Any, rows: Array, shared: Array, counts: Array, k: int) -> Any:
        """The distinct beginnings of k words of a block of windows."""
        new = shared < k
        new[0] = True
        begins = np.flatnonzero(new)
        sums = np.add.reduceat(counts, begins)
        ngrams = rows[begins, :k]
        # A window that ended earlier is no n-gram of k words; it shares nothing with those after it at this depth.
        whole = ngrams[:, -1] != NOTHING
        return arrow.RecordBatch.from_arrays(
            [keys_of(ngrams[whole], arrow), arrow.array(sums[whole])], ["ngram", "raw"]
        )


class Estimation:
    """The tables of one estimation, in a folder that driver and workers share."""

    def __init__(
        self, session: Any, counted: list[CountsFolder], plan: EstimationPlan, folder: Path, note: Note
    ) -> None:
        self.session, self.plan, self.folder, self.note = session, plan, folder, note
        self.shape, self.sql = counted[0].counts.shape, import_functions()
        self.whole: Counts = join([one.counts for one in counted], self.shape, folder / "ends.bin", finish=True)
        self.discounts: list[list[float]] = []

    def run(self) -> None:
        """Write the tables `level-1` to `level-N`."""
        self._write("raw", self._raw())
        self._write("adjusted", self._adjusted())
        self._estimate_discounts()
        if self.plan.order > 1:
            self._write("contexts", self._contexts())
        self._write_words()
        for k in range(2, self.plan.order + 1):
            self._write(f"level-{k}", self._level(k))

    def read(self, name: str) -> Any:
        """A table that is written."""
        return self.session.read.parquet(str(self.folder / name))

    def _write(self, name: str, table: Any) -> None:
        table.write.mode("overwrite").parquet(str(self.folder / name))

    def _raw(self) -> Any:
        numbers = self.session.range(len(self.whole.runs), numPartitions=len(self.whole.runs)).toDF("number")
        ngrams = numbers.mapInArrow(ReadRuns(self.whole.runs, self.shape), "ngram binary, raw bigint")
        counts = ngrams.groupBy("ngram").agg(self.sql.sum("raw").alias("raw"))
        before_text = self.sql.col("ngram") == self.sql.lit(self._key(self.shape.eos))
        return counts.withColumn("raw", self.sql.col("raw") - before_text.cast("bigint"))  # that eos is not predicted

    def _adjusted(self) -> Any:
        """An n-gram without its first word gets one for each different first word."""
        sql, order = self.sql, self.plan.order
        raw = self.read("raw").withColumn("n", (sql.length("ngram") / WORD).cast("int"))
        own = raw.where(sql.col("n") < order).select("ngram", "n", "raw", sql.lit(0).cast("bigint").alias("lefts"))
        suffixes = raw.where(sql.col("n") > 1).select(
            sql.expr(f"substring(ngram, {WORD + 1})").alias("ngram"),
            (sql.col("n") - 1).alias("n"),
            sql.lit(0).cast("bigint").alias("raw"),
            sql.lit(1).cast("bigint").alias("lefts"),
        )
        sums = [sql.sum(name).alias(name) for name in ("raw", "lefts")]
        both = own.unionAll(suffixes).groupBy("ngram", "n").agg(*sums)
        count = sql.col("lefts")
        if not self.shape.across_lines:  # an n-gram that begins a line has no left neighbour and keeps its count
            begins_line = sql.expr(f"substring(ngram, 1, {WORD})") == sql.lit(self._key(self.shape.eos))
            count = sql.when(begins_line & (sql.col("n") > 1), sql.col("raw")).otherwise(count)
        else:
            count = count + sql.col("ngram").isin(self._beginnings()).cast("bigint")
        highest = raw.where(sql.col("n") == order).select("ngram", "n", "raw", sql.col("raw").alias("count"))
        return both.select("ngram", "n", "raw", count.alias("count")).unionAll(highest)

    def _beginnings(self) -> list[bytearray]:
        """Across lines, the n-grams that begin the text: its beginning is their left neighbour."""
        words = (self.shape.eos, *self.whole.segment.opening)
        return [self._key(*words[:n]) for n in range(2, min(self.plan.order, len(words) + 1))]

    def _estimate_discounts(self) -> None:
        sql = self.sql
        few = self.read("adjusted").where(sql.col("count").between(1, 4))
        found = {
            (row.n, row["count"]): row.number
            for row in few.groupBy("n", "count").agg(sql.count("*").alias("number")).collect()
        }
        rule: Callable[[list[int], int, Note], list[float]] = DISCOUNT_RULES[self.plan.smoothing]
        for k in range(1, self.plan.order + 1):
            self.discounts.append(rule([0, *(found.get((k, r), 0) for r in range(1, 5))], k, self.note))

    def _discount(self, count: Any, discounts: list[float]) -> Any:
        """The discount of an adjusted count."""
        sql, (one, two, more) = self.sql, map(float, discounts)
        return sql.when(count == 0, 0.0).when(count == 1, one).when(count == 2, two).otherwise(sql.lit(more))

    def _contexts(self) -> Any:
        """Total and back-off weight of each context, and the number of its n-grams that are not pruned."""
        sql, adjusted = self.sql, self.read("adjusted").where("n > 1")
        least = sql.element_at(sql.array(*map(sql.lit, self.plan.thresholds)), sql.col("n"))
        kept, count = sql.col("raw") > least, sql.col("count")

        def number(which: Any) -> Any:
            return sql.sum((kept & which).cast("bigint"))

        sums = adjusted.groupBy(sql.expr(f"substring(ngram, 1, length(ngram) - {WORD})").alias("context")).agg(
            sql.first("n").alias("n"),
            sql.sum("count").alias("total"),
            sql.sum(sql.when(kept, 0).otherwise(count)).alias("pruned"),
            number(count == 1).alias("ones"),
            number(count == 2).alias("twos"),
            number(count > 2).alias("more"),
            sql.sum(kept.cast("bigint")).alias("children"),
        )
        by_order = [sql.array(*map(sql.lit, map(float, discounts))) for discounts in self.discounts]
        chosen = sql.element_at(sql.array(*by_order), sql.col("n"))
        parts = [sql.col(name) * sql.element_at(chosen, r) for r, name in enumerate(("ones", "twos", "more"), 1)]
        freed = sql.col("pruned").cast("double") + ((parts[0] + parts[1]) + parts[2])
        backoff = freed / sql.col("total").cast("double")
        return sums.select("context", "n", "total", backoff.alias("backoff"), "children")

    def _write_words(self) -> None:
        """Level 1: all words of the vocabulary, seen or not, interpolated with the uniform distribution."""
        arrow, size = import_arrow(), self.shape.vocab_size
        words = self.read("adjusted").where("n = 1").select("ngram", "raw", "count").toArrow()
        raw_V, counts_V, children_V = (np.zeros(size, np.int64) for _ in range(3))
        ids = _last_words(words.column("ngram"))
        raw_V[ids], counts_V[ids] = words.column("raw").to_numpy(), words.column("count").to_numpy()
        probs_V, backoffs_V = np.empty(size, np.float32), np.ones(size, np.float32)
        discounts_4, weights_Z = np.array([0.0, *self.discounts[0]]), np.ones(1)
        kernels.interpolate_words(counts_V, discounts_4, 0, weights_Z, probs_V)
        if self.plan.order > 1:
            contexts = self.read("contexts").where("n = 2").select("context", "backoff", "children").toArrow()
            ids = _last_words(contexts.column("context"))
            backoffs_V[ids] = contexts.column("backoff").to_numpy()
            children_V[ids] = contexts.column("children").to_numpy()
        keys = keys_of(np.arange(size, dtype=np.uint32)[:, None], arrow)
        columns = [keys, *map(arrow.array, (raw_V, probs_V, backoffs_V, children_V))]
        table = arrow.Table.from_arrays(columns, ["ngram", "raw", "prob", "backoff", "children"])
        place = self.folder / "level-1"
        place.mkdir()
        arrow.parquet.write_table(table, place / "part-0.parquet")

    def _level(self, k: int) -> Any:
        """The n-grams of k words, in sorted order: from their contexts and the level below."""
        sql = self.sql
        contexts = self.read("contexts")
        above = contexts.where(sql.col("n") == k).select("context", "total", sql.col("backoff").alias("weight"))
        own = contexts.where(sql.col("n") == k + 1).select(sql.col("context").alias("ngram"), "backoff", "children")
        lower = self.read(f"level-{k - 1}").select(sql.col("ngram").alias("suffix"), sql.col("prob").alias("lower"))
        ngrams = (
            self.read("adjusted")
            .where(sql.col("n") == k)
            .select(
                "ngram",
                "raw",
                "count",
                sql.expr(f"substring(ngram, 1, {WORD * (k - 1)})").alias("context"),
                sql.expr(f"substring(ngram, {WORD + 1})").alias("suffix"),
            )
        )
        count = sql.col("count")
        share = (count - self._discount(count, self.discounts[k - 1])) / sql.col("total")
        prob = share + sql.col("weight") * sql.col("lower").cast("double")
        joined = ngrams.join(above, "context").join(lower, "suffix")
        if k == self.plan.order:  # no n-gram continues these
            joined = joined.withColumns({"backoff": sql.lit(1.0), "children": sql.lit(0)})
        else:
            joined = joined.join(own, "ngram", "left")
        chosen = joined.select(
            "ngram",
            "raw",
            prob.cast("float").alias("prob"),
            sql.coalesce(sql.col("backoff"), sql.lit(1.0)).cast("float").alias("backoff"),
            sql.coalesce(sql.col("children"), sql.lit(0)).cast("bigint").alias("children"),
        )
        return chosen.repartitionByRange("ngram").sortWithinPartitions("ngram")

    def _key(self, *words: int) -> bytearray:
        return bytearray(np.array([word + 1 for word in words], ">u4").tobytes())


def _last_words(keys: Any) -> Array:
    """The last word of each key, which is its only one."""
    return np.array([int.from_bytes(key, "big") - 1 for key in keys.to_pylist()], np.int64)
