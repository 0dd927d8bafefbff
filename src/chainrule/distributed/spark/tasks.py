"""What a task of Spark needs: the libraries, the tokeniser, and one thread for each worker."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from chainrule.errors import ConfigError
from chainrule.text.tokenizers import Tokenizer, load_tokenizer

MISSING = "chainrule.spark needs pyspark and a JRE 17: pip install 'chainrule[spark]'"

Batches = Iterable[Any]
"""Record batches of Arrow."""


def import_arrow() -> Any:
    """The library pyarrow."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(MISSING) from None
    return pyarrow


def import_functions() -> Any:
    """The functions of Spark SQL."""
    try:
        from pyspark.sql import functions
    except ImportError:
        raise ConfigError(MISSING) from None
    return functions


def task_attempt() -> tuple[int, int]:
    """The partition of the running task, and the number of its attempt, which no other attempt has."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    return context.partitionId(), context.taskAttemptId()


def use_one_thread() -> None:
    """Workers are as many as cores, so each computes on one thread."""
    os.environ["OMP_NUM_THREADS"] = "1"


Files = tuple[tuple[str, bytes], ...]
"""The files of a tokeniser by name: they travel with the tasks, so no worker needs its folder."""


def tokenizer_files(tokenizer: Tokenizer) -> Files:
    """The files of a tokeniser."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(Path(folder))
        return tuple((path.name, path.read_bytes()) for path in sorted(Path(folder).iterdir()))


@lru_cache(4)
def open_tokenizer(files: Files) -> Tokenizer:
    """The tokeniser of some files; a worker reads it once."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files:
            Path(folder, name).write_bytes(data)
        return load_tokenizer(folder)


def column_texts(batches: Batches, column: str) -> Iterator[list[str]]:
    """The texts of a column, a batch at a time, without nulls."""
    for batch in batches:
        yield [text for text in batch.column(column).to_pylist() if text is not None]
