"""Verbs of a run over a column of a Ray dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chainrule.distributed.bulk import BulkJob, with_columns


class Verb:
    """A verb of a run, for `Dataset.map_batches` with batch_format="pyarrow"; an actor loads the run once.

    A text that cannot be processed has a message in the column `error`; all others have none there.

    Args:
        run: The folder of the run, on a disk that all actors share.
        verb: "score" (adds `log_prob` and `tokens`), "translate" (`translation`), "classify" (`label` and
            `probability`) or "embed" (`vector`).
        column: Name of the column with the texts.
        prefix: Put before the names of the new columns.
        **options: Options of the verb, as in Python: num_beams=5 of translate, pooling="max" of embed.
    """

    def __init__(self, run: str | Path, verb: str, *, column: str = "text", prefix: str = "", **options: Any) -> None:
        self._job, self._column = BulkJob.of(run, verb, options, prefix), column

    def __call__(self, batch: Any) -> Any:
        """A table of Arrow with the new columns."""
        self._job.check_columns(self._column, batch.column_names)
        return with_columns(batch, self._job, self._column)


def map(
    dataset: Any,
    run: str | Path,
    verb: str,
    *,
    column: str = "text",
    prefix: str = "",
    workers: int = 1,
    batch_size: int = 256,
    **options: Any,
) -> Any:
    """Add the results of a verb for every text of a column, with `Verb`.

    Args:
        dataset: A Dataset of Ray.
        run: The folder of the run, on a disk that all workers share.
        verb: "score", "translate", "classify" or "embed".
        column: Name of the column with the texts.
        prefix: Put before the names of the new columns.
        workers: Number of actors, each with one core.
        batch_size: Number of rows that an actor gets at once.
        **options: Options of the verb, as in Python.

    Returns:
        A Dataset with the new columns; computed, as always with Ray Data, when it is used.
    """
    BulkJob.of(run, verb, options, prefix).check_columns(column, dataset.columns())
    given = {"run": str(Path(run).resolve()), "verb": verb, "column": column, "prefix": prefix, **options}
    return dataset.map_batches(
        Verb,
        fn_constructor_kwargs=given,
        batch_format="pyarrow",
        batch_size=batch_size,
        concurrency=workers,
        num_cpus=1,
    )
