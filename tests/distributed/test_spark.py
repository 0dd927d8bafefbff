"""Spark gives the models of one machine, byte for byte, also when tasks fail, and keeps bad rows from failing a job."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
import chainrule.spark
from chainrule.distributed.spark import estimate as smoothing
from chainrule.distributed.spark import windows
from chainrule.errors import ConfigError
from requirements import need

need("spark")
pytestmark = pytest.mark.filterwarnings("ignore")  # pyspark warns of pandas, and leaves sockets to the collector

LINES = [f"the cat {word} on the mat and dog {day} {word} too" for day in range(4) for word in ("sat", "lay", "is")]


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    """A local cluster of two workers that tries a task three times."""
    from pyspark.sql import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        builder = SparkSession.builder.master("local[2,3]").appName("test")
        options = {"ui.enabled": "false", "sql.shuffle.partitions": "2", "driver.memory": "512m", "log.level": "OFF"}
        for name, value in {**options, "ui.showConsoleProgress": "false"}.items():
            builder = builder.config(f"spark.{name}", value)
        made = builder.getOrCreate()
        yield made
        made.stop()


@pytest.fixture(scope="module")
def frame(session: Any) -> Any:
    """The lines with their numbers, in two partitions, neither in order."""
    rows = [(number, line) for number, line in enumerate(LINES)]
    return session.createDataFrame(rows[::2] + rows[1::2], "number long, text string").repartition(2)


def train(folder: Path, tokenizer: str, **options: Any) -> bytes:
    """The model of one process."""
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in LINES))
    valid = folder / "valid.txt"
    valid.write_text("the cat is\n")
    common: dict[str, Any] = {"model": "ngram", "valid": valid, "order": 3, "progress": False}
    cr.train(folder / "text.txt", tokenizer=tokenizer, out=folder / "whole", **common, **options)
    return model_bytes(folder / "whole")


def model_bytes(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_words_counted_and_smoothed_on_spark(
    session: Any, frame: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every first attempt of the tasks that count, of those that write and of those that read counts fails half-way."""
    wanted = train(tmp_path, "word", prune=[0, 0, 1])

    def fail_first(batches: Any) -> Iterator[Any]:
        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().attemptNumber() == 0:  # type: ignore[union-attr]
            raise RuntimeError("injected")

    class FailingWriter(windows.WriteRun):
        def __call__(self, batches: Any) -> Iterator[Any]:
            yield from super().__call__(batches)
            yield from fail_first(())

    class FailingReader(smoothing.ReadRuns):
        def __call__(self, batches: Any) -> Iterator[Any]:
            yield from super().__call__(batches)
            yield from fail_first(())

    monkeypatch.setattr(windows, "WriteRun", FailingWriter)
    monkeypatch.setattr(smoothing, "ReadRuns", FailingReader)
    failing = frame.mapInArrow(fail_first, frame.schema)
    counts = chainrule.spark.count(failing, like=tmp_path / "whole", order=3, out=tmp_path / "counts")
    assert counts.tokens == sum(len(line.split()) + 1 for line in LINES)
    assert {path.suffix for path in counts.path.iterdir()} == {".bin", ".json"}
    assert not list(counts.path.glob("attempt-*"))
    cr.merge(counts.path, out=tmp_path / "merged", prune=[0, 0, 1])
    assert model_bytes(tmp_path / "merged") == wanted
    run = chainrule.spark.estimate(counts.path, session, out=tmp_path / "estimated", prune=[0, 0, 1])
    assert model_bytes(tmp_path / "estimated") == wanted
    assert run is not None
    assert run.result["tokens"] == counts.tokens


def test_characters_across_lines_in_the_order_of_a_column(session: Any, frame: Any, tmp_path: Path) -> None:
    wanted = train(tmp_path, "char", smoothing="kneser-ney")
    whole = tmp_path / "whole"
    counts = chainrule.spark.count(frame, like=whole, order=3, order_by="number", out=tmp_path / "counts")
    options = {"out": tmp_path / "estimated", "tables": tmp_path / "tables", "smoothing": "kneser-ney"}
    chainrule.spark.estimate(counts.path, session, **options)
    assert model_bytes(tmp_path / "estimated") == wanted
    tables = {path.name for path in (tmp_path / "tables").iterdir() if path.is_dir()}
    assert tables == {"level-1", "level-2", "level-3"}


def test_a_verb_over_a_column(session: Any, tmp_path: Path) -> None:
    train(tmp_path, "word")
    texts = [LINES[0], None, "the dog"]
    rows = session.createDataFrame(list(enumerate(texts)), "number long, text string").repartition(2)
    found = chainrule.spark.map(rows, tmp_path / "whole", "score", prefix="lm_").orderBy("number").collect()
    run = cr.load(tmp_path / "whole")
    assert [row.lm_log_prob for row in found] == [text and run.score(text).log_prob for text in texts]
    assert [row.lm_tokens for row in found] == [text and len(text.split()) + 1 for text in texts]
    assert [row.lm_error for row in found] == [None, "expected a text, got none", None]


def test_the_script_for_spark_submit(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = train(tmp_path, "word")
    tokenizer, out = tmp_path / "whole" / "tokenizer.json", tmp_path / "run"
    arguments = [tmp_path / "text.txt", "--tokenizer", tokenizer, "--order", 3, "--out", out]
    monkeypatch.setattr(sys, "argv", ["spark_ngrams.py", *map(str, arguments)])
    script = Path(__file__).parents[2] / "examples" / "spark_ngrams.py"
    runpy.run_path(str(script), run_name="__main__")
    assert model_bytes(out) == wanted
    assert capsys.readouterr().out.startswith(f"{sum(len(line.split()) + 1 for line in LINES)} tokens, ")


def test_what_cannot_be_counted_or_estimated_is_refused(session: Any, frame: Any, tmp_path: Path) -> None:
    out = tmp_path / "no"
    with pytest.raises(ConfigError, match="the frame has no column 'line'; it has number, text"):
        chainrule.spark.count(frame, column="line", tokenizer="byte", out=out)
    with pytest.raises(ConfigError, match="give order_by=COLUMN, or across_lines=False"):
        chainrule.spark.count(frame, tokenizer="byte", out=out)
    counts = cr.count(write(tmp_path / "a.txt", "a b\n"), tokenizer="byte", out=tmp_path / "counts").path
    with pytest.raises(ConfigError, match="smoothing katz is not computed on Spark; expected modified-kneser-ney or"):
        chainrule.spark.estimate(counts, session, out=out, smoothing="katz")
    with pytest.raises(ConfigError, match="give out=RUN for a run, tables=FOLDER for the tables, or both"):
        chainrule.spark.estimate(counts, session)


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
