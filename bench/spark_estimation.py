"""Modified Kneser–Ney smoothing by aggregations of Spark against `merge` on one machine: seconds, and equal bytes.

TEXT is counted in shards by `chainrule count`. Then `chainrule.spark.estimate` makes a model of the counts, in a local
session, and `chainrule merge` makes another. The script stops if the models differ. Seconds of the processor include
those of the Java machine and of its Python workers; a table that is written is reported with its seconds.

    python bench/spark_estimation.py debdocs.txt --cores 2 --driver-memory 8g
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from counting_growth import PROGRAM
from harness import Figure, arguments, begin, report
from ngram_estimation import QUICK_BYTES, beginning, processor_seconds

import chainrule.spark
from chainrule.distributed.spark.estimate import Estimation

TICKS = os.sysconf("SC_CLK_TCK")


def descendants_seconds() -> float:
    """The processor seconds of the processes that this one has started, and of those that they have started."""
    times, children = dict[int, float](), dict[int, list[int]]()
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        children.setdefault(int(fields[1]), []).append(int(place.name))
        times[int(place.name)] = sum(map(int, fields[11:15])) / TICKS
    pending, seconds = list(children.get(os.getpid(), [])), 0.0
    while pending:
        process = pending.pop()
        seconds += times[process]
        pending += children.get(process, [])
    return seconds


def own_seconds() -> float:
    """The processor seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def report_tables() -> None:
    """Print the seconds of every table that is written."""
    write = Estimation._write

    def timed(self: Estimation, name: str, table: Any) -> None:
        began, before = time.perf_counter(), descendants_seconds()
        write(self, name, table)
        seconds, processor = time.perf_counter() - began, descendants_seconds() - before
        size = sum(part.stat().st_size for part in (self.folder / name).iterdir())
        line = f"{name}: {seconds:.1f} s, processor {processor:.1f} s, {size / 1e6:.1f} MB"
        print(line, file=sys.stderr, flush=True)

    Estimation._write = timed  # type: ignore[method-assign]


def count_shards(text: Path, folder: Path, shards: int) -> list[Path]:
    """Count a text in shards -> the folders of counts."""
    (folder / "shards").mkdir()
    subprocess.run(["split", "-n", f"l/{shards}", "-d", "-a", "4", text, f"{folder / 'shards'}/"], check=True)
    subprocess.run([PROGRAM, "count", text, "--vocabulary", "word", "--out", folder / "words"], check=True)
    subprocess.run([PROGRAM, "merge", folder / "words", "--vocabulary", "--out", folder / "tokenizer"], check=True)
    found = []
    for shard in sorted((folder / "shards").iterdir()):
        found.append(folder / "counts" / shard.name)
        command = [PROGRAM, "count", shard, "--tokenizer", folder / "tokenizer", "--out", found[-1]]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return found


def estimate(counts: list[Path], folder: Path, options: Any) -> tuple[float, float]:
    """Make the model on Spark -> seconds of the clock and of the processor, the start of the session included."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the interpreter of the workers
    began, before, before_others = time.perf_counter(), own_seconds(), descendants_seconds()
    settings = {
        "spark.driver.memory": options.driver_memory,
        "spark.sql.shuffle.partitions": str(options.partitions),
        "spark.local.dir": str(folder / "spark"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(f"local[{options.cores}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    report_tables()
    chainrule.spark.estimate(counts, session, out=folder / "estimated", note=print)
    processor = own_seconds() - before + descendants_seconds() - before_others
    seconds = time.perf_counter() - began
    session.stop()
    return seconds, processor


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("text", type=Path, help="text of words between white space, one sentence per line")
    parser.add_argument("--shards", type=int, default=8, help="number of shards (default: %(default)s)")
    parser.add_argument("--cores", type=int, default=2, help="tasks at a time (default: %(default)s)")
    parser.add_argument("--partitions", type=int, default=32, help="parts of a shuffle (default: %(default)s)")
    parser.add_argument("--driver-memory", default="4g", help="heap of the Java machine (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="folder for all files (default: a temporary one)")
    options = begin(parser)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        text = beginning(options.text, folder / "text", size=QUICK_BYTES) if options.quick else options.text
        counts = count_shards(text, folder, options.shards)
        before, began = processor_seconds(), time.perf_counter()
        command = [PROGRAM, "merge", *counts, "--out", folder / "merged"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        merging = time.perf_counter() - began, processor_seconds() - before
        estimating = estimate(counts, folder, options)
        ours, theirs = ((folder / run / "model.safetensors").read_bytes() for run in ("estimated", "merged"))
        if ours != theirs:
            raise SystemExit("the model of Spark differs from that of merge")
        shutil.rmtree(folder / "estimated")
    figures = [
        Figure(f"estimate on Spark, {way}", ours, "s", theirs, ours / theirs, note="equal bytes")
        for way, ours, theirs in zip(("clock", "processor"), estimating, merging, strict=True)
    ]
    report(figures, options, shards=options.shards, cores=options.cores, peer="chainrule merge")


if __name__ == "__main__":
    main()
