"""`map`: a verb of a run over a column of a Spark frame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainrule.distributed.bulk import BulkJob, Kind, with_columns
from chainrule.distributed.spark.tasks import MISSING, Batches
from chainrule.errors import ConfigError


def map(frame: Any, run: str | Path, verb: str, *, column: str = "text", prefix: str = "", **options: Any) -> Any:
    """Add the results of a verb for every text of a column.

    A text that cannot be processed has a message in the column `error`; all others have none there. Rows keep their
    other columns; their order is that of Spark. Each worker loads the run once and computes on one thread.

    Args:
        frame: A DataFrame of Spark.
        run: The folder of the run, on a disk that all workers share.
        verb: "score" (adds `log_prob` and `tokens`), "translate" (`translation`), "classify" (`label` and
            `probability`) or "embed" (`vector`).
        column: Name of the column with the texts.
        prefix: Put before the names of the new columns.
        **options: Options of the verb, as in Python: num_beams=5 of translate, pooling="max" of embed.

    Returns:
        A DataFrame with the new columns; computed, as always with Spark, when it is used.
    """
    job = BulkJob.of(run, verb, options, prefix)
    job.check_columns(column, frame.columns)
    return frame.mapInArrow(AddColumns(job, column), _schema(frame, job))


def _schema(frame: Any, job: BulkJob) -> Any:
    """The schema of a frame with the new columns."""
    try:
        from pyspark.sql import types
    except ImportError:
        raise ConfigError(MISSING) from None
    kinds: dict[Kind, Any] = {
        "float": types.DoubleType(),
        "integer": types.LongType(),
        "text": types.StringType(),
        "vector": types.ArrayType(types.FloatType()),
    }
    new = [types.StructField(name, kinds[kind]) for name, kind in job.columns.items()]
    return types.StructType([*frame.schema.fields, *new])


@dataclass(frozen=True)
class AddColumns:
    """Adds the columns of a job to batches of Arrow."""

    job: BulkJob
    column: str

    def __call__(self, batches: Batches) -> Iterator[Any]:
        for batch in batches:
            yield with_columns(batch, self.job, self.column)
