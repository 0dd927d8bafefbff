"""Count the n-grams of a column on Spark: the result is a folder of counts, as `count` makes it of files.

Every task tokenises the texts of its partition and counts their windows, sorted, in bounded memory. Spark shuffles the
windows by hash, adds up their counts and sorts them; then every task writes one run. What a task does is a function of
its partition alone, and files are renamed when complete, so a task that fails is simply run again.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import count as numbers
from pathlib import Path
from typing import Any

from chainrule.base.arrays import Array
from chainrule.base.files import folder_atomically
from chainrule.base.targets import check_folder
from chainrule.config import TokenizerConfig, parse_bytes
from chainrule.distributed.count import shared_tokenizer
from chainrule.distributed.counts_folder import MAX_ORDER, CountsFolder, Shard, read_counts, write_counts
from chainrule.distributed.spark.keys import WORD, keys_of, rows_of
from chainrule.distributed.spark.tasks import (
    Batches,
    Files,
    column_texts,
    import_arrow,
    import_functions,
    open_tokenizer,
    task_attempt,
    tokenizer_files,
    use_one_thread,
)
from chainrule.engines.ngram.merging import merge_rows
from chainrule.engines.ngram.segments import BYTES_PER_TOKEN, Counts, Segment, Shape, count_segment, join
from chainrule.engines.ngram.sorted_runs import BLOCK, RunWriter, SortedRun
from chainrule.errors import ConfigError
from chainrule.text.readers import text_of
from chainrule.text.tokenizers import Tokenizer

DIGEST_BITS = 128
ENDS = 999_999_999
"""The number of the run with the windows across the ends of partitions; others have the numbers of their tasks."""


def count(
    frame: Any,
    *,
    out: str | Path,
    column: str = "text",
    like: str | Path | None = None,
    tokenizer: str | Path | None = None,
    order: int = 5,
    across_lines: bool | None = None,
    order_by: str | None = None,
    memory: str = "256M",
) -> CountsFolder:
    """Count the n-grams of a text column on Spark; `chainrule.merge` or `estimate` makes a model of the counts.

    Args:
        frame: A DataFrame of Spark. Each row is a line, or several with newlines between them.
        out: New folder of the counts, on a disk that the driver and all workers share.
        column: Name of the column with the texts. Rows without a text are left out.
        like: A run whose tokeniser is used.
        tokenizer: The file or folder of a tokeniser, or "byte". Give this or `like`.
        order: Length of the n-grams.
        across_lines: Whether n-grams cross line ends. None: unless the tokens are words.
        order_by: Column that gives the order of the rows; n-grams across lines need it.
        memory: Bound of the memory for sorting, in each worker.

    Returns:
        The folder of counts.
    """
    if not 1 <= order <= MAX_ORDER:
        raise ConfigError(f"order is {order}; expected 1 to {MAX_ORDER}")
    if column not in frame.columns:
        raise ConfigError(f"the frame has no column '{column}'; it has {', '.join(frame.columns)}")
    target = check_folder(out)
    known, options = shared_tokenizer(like, tokenizer, text_of("\n"))
    across = not known.word_tokens if across_lines is None else across_lines
    if across and order_by is None:
        raise ConfigError(
            "n-grams across lines need the order of the rows, and a frame has none; give order_by=COLUMN, or "
            "across_lines=False"
        )
    texts = (frame.orderBy(order_by) if order_by is not None else frame).select(column)
    shape = Shape(order, known.eos, across, known.vocab_size)
    with folder_atomically(target) as building:
        windows = texts.mapInArrow(
            CountPartition(tokenizer_files(known), shape, column, parse_bytes(memory, "memory")),
            "window binary, count bigint",
        )
        _write(windows, shape, building, known, options)
    return read_counts(target)


def _write(windows: Any, shape: Shape, building: Path, tokenizer: Tokenizer, options: TokenizerConfig) -> None:
    """Add up equal windows, write one run for each partition, and the manifest last."""
    functions = import_functions()
    summed = windows.groupBy("window").agg(functions.sum("count").alias("count")).sortWithinPartitions("window")
    found = summed.mapInArrow(WriteRun(shape.order, building), "part string, run string").collect()
    parts = sorted((PartSummary(**json.loads(row.part)) for row in found if row.part), key=lambda one: one.partition)
    runs = sorted((_run(building, json.loads(row.run)) for row in found if row.run), key=lambda run: run.path.name)
    segments = [Counts(shape, part.segment, ()) for part in parts]
    joined = join(segments, shape, building / f"run-{ENDS}.bin")
    counts = Counts(shape, joined.segment, (*runs, *joined.runs))
    data = sum(int(part.digest, 16) for part in parts) % (1 << DIGEST_BITS)
    shard = Shard(f"{data:032x}", sum(part.size for part in parts), counts.segment.tokens)
    for left in set(building.iterdir()) - {run.path for run in counts.runs}:
        left.unlink()  # of attempts that failed
    write_counts(building, counts, tokenizer, options.model_dump(mode="json", exclude_none=True), (shard,))


def _run(folder: Path, values: dict[str, Any]) -> SortedRun:
    """A run that a task wrote."""
    return SortedRun(**{**values, "path": folder / values["path"], "sizes": tuple(values["sizes"])})


@dataclass
class PartSummary:
    """The ends and the size of the texts of a partition."""

    partition: int
    tokens: int = 0
    opening: list[int] = field(default_factory=list)
    closing: list[int] = field(default_factory=list)
    ends_line: bool = True
    size: int = 0  # bytes
    digest: str = "0"  # sum of the hashes of the texts: it does not depend on how rows are divided into partitions

    @property
    def segment(self) -> Segment:
        return Segment(self.tokens, tuple(self.opening), tuple(self.closing), self.ends_line)

    def key(self) -> bytes:
        """The summary in the place of a window: its length tells it from one."""
        text = json.dumps(asdict(self)).encode()
        return text + b" " * ((1 - len(text)) % WORD)


@dataclass(frozen=True)
class CountPartition:
    """The windows of the texts of a partition with their counts, and a summary of the partition."""

    files: Files
    shape: Shape
    column: str
    memory: int

    def __call__(self, batches: Batches) -> Iterator[Any]:
        use_one_thread()
        arrow, tokenizer = import_arrow(), open_tokenizer(self.files)
        summary = PartSummary(task_attempt()[0])
        part = max(self.shape.order, self.memory // BYTES_PER_TOKEN)
        with tempfile.TemporaryDirectory() as folder:
            names = (Path(folder, str(number)) for number in numbers())
            blocks = _encoded(column_texts(batches, self.column), tokenizer, summary)
            counted = count_segment(blocks, self.shape, names.__next__, part=part)
            for rows, counts, _ in merge_rows(counted.runs, self.shape.order, self.shape.vocab_size):
                yield arrow.RecordBatch.from_arrays([keys_of(rows, arrow), arrow.array(counts)], ["window", "count"])
        ends = counted.segment
        summary.tokens, summary.ends_line = ends.tokens, ends.ends_line
        summary.opening, summary.closing = list(ends.opening), list(ends.closing)
        yield arrow.RecordBatch.from_pydict({"window": [summary.key()], "count": [0]})


def _encoded(batches: Iterator[list[str]], tokenizer: Tokenizer, summary: PartSummary) -> Iterator[Array]:
    """The tokens of each batch; a text without its last newline gets one. Size and digest are added to the summary."""
    total = 0
    for texts in batches:
        lines = [text if text.endswith("\n") else f"{text}\n" for text in texts]
        for line in lines:
            data = line.encode(errors="surrogatepass")
            total += int.from_bytes(hashlib.blake2b(data, digest_size=DIGEST_BITS // 8).digest(), "big")
            summary.size += len(data)
        summary.digest = f"{total % (1 << DIGEST_BITS):x}"
        if lines:
            yield tokenizer.encode_block("".join(lines))


@dataclass(frozen=True)
class WriteRun:
    """Writes the sorted windows of a partition as a run; summaries pass through."""

    order: int
    folder: Path

    def __call__(self, batches: Batches) -> Iterator[Any]:
        arrow = import_arrow()
        partition, attempt = task_attempt()
        writing = self.folder / f"attempt-{attempt}.bin"
        writer = RunWriter(writing, self.order)
        for batch in batches:
            keys, counts = batch.column("window"), batch.column("count")
            lengths = arrow.compute.binary_length(keys).to_numpy(zero_copy_only=False)
            whole = arrow.array(lengths % WORD == 0)
            rows = rows_of(keys.filter(whole), self.order)
            sums = counts.filter(whole).to_numpy(zero_copy_only=False)
            for begin in range(0, len(rows), BLOCK):
                writer.add_rows(rows[begin : begin + BLOCK], sums[begin : begin + BLOCK])
            parts = [key.decode() for key in keys.filter(arrow.array(lengths % WORD == 1)).to_pylist()]
            yield _answers(arrow, parts, None)
        run, final = writer.close(), self.folder / f"run-{partition:05}.bin"
        if run.rows:
            writing.replace(final)
            yield _answers(arrow, [], json.dumps({**asdict(run), "path": final.name}))


def _answers(arrow: Any, parts: list[str], run: str | None) -> Any:
    """Rows with a summary of a partition, or with a run."""
    runs = [run] if run else []
    return arrow.RecordBatch.from_arrays(
        [
            arrow.array([*parts, *([None] * len(runs))], arrow.string()),
            arrow.array([*([None] * len(parts)), *runs], arrow.string()),
        ],
        ["part", "run"],
    )
