"""Verbs over a column of a table, for engines that divide tables among workers: `spark/` and `ray_data.py`.

A worker loads the run once and computes on one thread. A text that cannot be processed gets a message in the column
`error` and nothing in the others; it never fails the job.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from chainrule.errors import ChainruleError, ConfigError, unknown_name
from chainrule.runs.base import Run
from chainrule.runs.load import load

Kind = Literal["float", "integer", "text", "vector"]
Row = tuple[Any, ...]
ERROR = "error"

FAILURES = (ChainruleError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, AssertionError)
"""What a text may cause; anything else (a full disk, a killed process) is the engine's to retry."""


@dataclass(frozen=True)
class BulkVerb:
    """A verb that gives some columns for each text."""

    name: str
    columns: dict[str, Kind]
    apply: Callable[[Any, list[str], dict[str, Any]], list[Row]]


def _score(run: Any, texts: list[str], options: dict[str, Any]) -> list[Row]:
    return [(found.log_prob, found.tokens) for found in run.score(texts, **options)]


def _translate(run: Any, texts: list[str], options: dict[str, Any]) -> list[Row]:
    return [(text,) for text in run.translate(texts, **options)]


def _classify(run: Any, texts: list[str], options: dict[str, Any]) -> list[Row]:
    return [(best[0].label, best[0].probability) for best in run.classify(texts, **options)]


def _embed(run: Any, texts: list[str], options: dict[str, Any]) -> list[Row]:
    return [(vector_D.tolist(),) for vector_D in run.embed(texts, **options)]


VERBS = {
    "score": BulkVerb("score", {"log_prob": "float", "tokens": "integer"}, _score),
    "translate": BulkVerb("translate", {"translation": "text"}, _translate),
    "classify": BulkVerb("classify", {"label": "text", "probability": "float"}, _classify),
    "embed": BulkVerb("embed", {"vector": "vector"}, _embed),
}


@dataclass(frozen=True)
class BulkJob:
    """A verb of a run with its options: small, so that it can be sent to every worker."""

    run: str
    verb: str
    options: tuple[tuple[str, Any], ...] = ()
    prefix: str = ""

    @classmethod
    def of(cls, run: str | Path, verb: str, options: dict[str, Any], prefix: str = "") -> BulkJob:
        """A job whose run, verb and options fit together."""
        if verb not in VERBS:
            raise unknown_name("verb", verb, VERBS)
        opened = load(run, device="cpu")
        if verb not in opened.available_verbs:
            raise opened.missing(verb)
        try:
            inspect.signature(getattr(opened, verb)).bind([], **options)
        except TypeError as error:
            raise ConfigError(f"{verb}: {error}; see the options of run.{verb}") from None
        return cls(os.path.abspath(run), verb, tuple(sorted(options.items())), prefix)

    @property
    def columns(self) -> dict[str, Kind]:
        """The columns that it adds, the last of them for errors."""
        found: dict[str, Kind] = {**VERBS[self.verb].columns, ERROR: "text"}
        return {f"{self.prefix}{name}": kind for name, kind in found.items()}

    def check_columns(self, column: str, names: Sequence[str]) -> None:
        """Refuse a table without the column of the texts, or with columns that would be added."""
        if column not in names:
            raise ConfigError(f"the table has no column '{column}'; it has {', '.join(names)}")
        if taken := [name for name in self.columns if name in names]:
            raise ConfigError(f"the table already has a column '{taken[0]}'; give prefix=… for the new columns")

    def apply(self, texts: Sequence[object]) -> dict[str, list[Any]]:
        """The new columns for some texts."""
        run = _open_run(self.run)
        rows: list[Row] = [()] * len(texts)
        usable = [place for place, text in enumerate(texts) if isinstance(text, str)]
        for place, text in enumerate(texts):
            rows[place] = self._failed(f"expected a text, got {'none' if text is None else type(text).__name__}")
        for place, row in zip(usable, self._rows(run, [str(texts[place]) for place in usable]), strict=True):
            rows[place] = row
        return {name: [row[number] for row in rows] for number, name in enumerate(self.columns)}

    def _rows(self, run: Run, texts: list[str]) -> list[Row]:
        """The results of texts; of texts of which one fails, those of each half."""
        if not texts:
            return []
        try:
            found = VERBS[self.verb].apply(run, texts, dict(self.options))
            if len(found) != len(texts):
                raise ValueError(f"expected one result for each text, got {len(found)} for {len(texts)}")
            return [(*row, None) for row in found]
        except FAILURES as error:
            if len(texts) == 1:
                return [self._failed(str(error) or type(error).__name__)]
        middle = len(texts) // 2
        return [*self._rows(run, texts[:middle]), *self._rows(run, texts[middle:])]

    def _failed(self, message: str) -> Row:
        return (*(None for _ in VERBS[self.verb].columns), message)


@lru_cache(2)
def _open_run(path: str) -> Run:
    """The run of this worker, loaded once; workers are as many as cores, so each computes on one thread."""
    os.environ["OMP_NUM_THREADS"] = "1"
    run = load(path, device="cpu")
    run.model  # noqa: B018  # loaded now, so that texts alone can fail later
    return run


def with_columns(batch: Any, job: BulkJob, column: str) -> Any:
    """A record batch or table of Arrow with the columns of a job."""
    import pyarrow

    kinds: dict[Kind, Any] = {
        "float": pyarrow.float64(),
        "integer": pyarrow.int64(),
        "text": pyarrow.string(),
        "vector": pyarrow.list_(pyarrow.float32()),
    }
    for name, values in job.apply(batch.column(column).to_pylist()).items():
        batch = batch.append_column(name, pyarrow.array(values, kinds[job.columns[name]]))
    return batch
