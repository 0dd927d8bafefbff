"""Counting n-grams of a text ten times as large as the memory bound: private memory, and whether the model is the same.

The text is made of another one: copies of it, in which every twentieth word is replaced by a random one of the same
text, until it has ten times the bound. Three whole processes of `chainrule train` count it, or its first lines:

    fixed       the first 100 KB with the bound: interpreter, libraries, compiled kernels
    bounded     the whole text with the bound
    unbounded   the whole text without

Private memory (RssAnon) is sampled every few milliseconds (Linux). What the bound promises is that `bounded` minus
`fixed` minus the vocabulary, which is always in memory, stays below it. `unbounded` has the reference model.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from harness import Figure, arguments, begin, report
from ngram_estimation import VALID_LINES, beginning, run_watched

from chainrule.config import parse_bytes

SHORT_BYTES = 100_000
QUICK_BYTES = 1_000_000
REPLACED = 20
"""One word of so many is replaced."""

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Counted:
    """What counting a text took, and a digest of the model."""

    seconds: float
    private: int  # bytes
    model: str
    words: int  # of the vocabulary


def write_copies(source: Path, target: Path, size: int) -> None:
    """Write copies of a text, each changed in other places, until there are `size` bytes."""
    rng, written = np.random.default_rng(1), 0
    lines = [line.split(b" ") for line in source.read_bytes().splitlines()]
    some = [word for line in lines[:: max(1, len(lines) // 10_000)] for word in line if word]
    with target.open("wb") as file:
        while written < size:
            for line in lines:
                for place in np.flatnonzero(rng.integers(REPLACED, size=len(line)) == 0) if written else ():
                    line = [*line[:place], some[rng.integers(len(some))], *line[place + 1 :]]
                written += file.write(b" ".join(line) + b"\n")
                if written >= size:
                    return


def count(text: Path, valid: Path, order: int, threads: int, memory: str | None) -> Counted:
    """Count a text in a new process with an empty cache."""
    with tempfile.TemporaryDirectory(dir=text.parent) as place:
        environment = {**os.environ, "CHAINRULE_CACHE": f"{place}/cache", "OMP_NUM_THREADS": str(threads)}
        program, out = str(Path(sys.executable).with_name("chainrule")), Path(place, "run")
        command = [program, "train", str(text), "--valid", str(valid), "--model", "ngram", "--order", str(order)]
        command += ["--tokenizer", "word", "--out", str(out), *(["--memory", memory] if memory else [])]
        seconds, (_, private) = run_watched(command, environment)
        result = json.loads((out / "result.json").read_text(encoding="utf-8"))
        with (out / "model.safetensors").open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Counted(seconds, private, digest, result["ngrams"][0])


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("text", type=Path, help="text of words between white space, one sentence per line")
    parser.add_argument("--memory", default="64M", help="memory bound (default: %(default)s)")
    parser.add_argument("--order", type=int, default=3, help="order of the model (default: %(default)s)")
    parser.add_argument("--place", type=Path, help="folder for temporary files, on a disk")
    options = begin(parser)
    bound = parse_bytes(options.memory)
    with tempfile.TemporaryDirectory(dir=options.place) as folder:
        place = Path(folder)
        source, text = options.text, place / "text"
        if options.quick:
            source, bound = beginning(source, place / "source", size=QUICK_BYTES), QUICK_BYTES
        write_copies(source, text, 10 * bound)
        valid = beginning(text, place / "valid", lines=VALID_LINES)
        short = beginning(text, place / "short", size=SHORT_BYTES)
        fixed, bounded, unbounded = (
            count(one, valid, options.order, options.threads, memory)
            for one, memory in ((short, str(bound)), (text, str(bound)), (text, None))
        )
        size = text.stat().st_size
    if bounded.model != unbounded.model:
        raise SystemExit("the models differ")
    growth = (bounded.private - fixed.private) / MEGABYTE
    figures = [
        Figure("fixed", fixed.private / MEGABYTE, "MB"),
        Figure("bounded, beyond fixed", growth, "MB", bound / MEGABYTE, growth * MEGABYTE / bound,
               note=f"{bounded.seconds:.0f} s, vocabulary {bounded.words:,}; the model is that of unbounded counting"),
        Figure("unbounded, beyond fixed", (unbounded.private - fixed.private) / MEGABYTE, "MB",
               note=f"{unbounded.seconds:.0f} s"),
    ]  # fmt: skip
    report(figures, options, text_megabytes=round(size / MEGABYTE), bound_megabytes=bound / MEGABYTE)


if __name__ == "__main__":
    main()
