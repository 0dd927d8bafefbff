"""Seconds of portable compression against plain compression, in CPU time, and the bytes of both archives."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import chainrule as cr


def main() -> None:
    """Compress one text with each run, plain and portable in turn, and print one line per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, help="text to compress")
    parser.add_argument("runs", type=Path, nargs="+", help="runs to compress it with")
    parser.add_argument("--repeats", type=int, default=3, help="rounds after the first, which is not counted")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for path in options.runs:
            run = cr.load(path)
            seconds: dict[bool, list[float]] = {False: [], True: []}
            sizes = {}
            for _ in range(options.repeats + 1):
                for portable in (False, True):
                    began = time.process_time()
                    done = run.compress(options.text, Path(folder) / "archive", portable=portable)
                    seconds[portable].append(time.process_time() - began)
                    sizes[portable] = done.compressed_bytes
            ratio = statistics.median(b / a for a, b in zip(seconds[False][1:], seconds[True][1:], strict=True))
            plain, slow = (statistics.median(seconds[portable][1:]) for portable in (False, True))
            print(f"{path.name}: {plain:.2f} s, portable {slow:.2f} s, {ratio:.1f} times; ", end="")
            print(f"{sizes[False]:,} bytes, portable {sizes[True]:,} bytes", flush=True)


if __name__ == "__main__":
    main()
