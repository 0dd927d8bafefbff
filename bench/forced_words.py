"""Speed of `translate` with forced words and with protected strings, against the same run without them.

Without --run a small `seq2seq-attention` of characters is trained first on built-in dates and numbers (1 minute). The
contestants take turns in one process on one thread. A figure is lines per second of CPU time; the ratio is that of the
speeds, so more is better.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from harness import Figure, alternate, arguments, begin, report, speed, speed_up

import chainrule as cr
from chainrule.text.samples.phrases import write_phrase_pairs

MINUTES = 1.0


def train(place: Path, minutes: float) -> Any:
    files = write_phrase_pairs(place / "phrases", "en", "de", {"train": 2000, "valid": 100})
    return cr.train(
        *files["train"], valid=files["valid"], model="seq2seq-attention", minutes=minutes, out=place / "run"
    )


def main() -> None:
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("--run", type=Path, help="a translator, to measure it instead")
    parser.add_argument("--lines", type=Path, help="with --run: source lines with numbers")
    parser.add_argument("--force", default="Euro", help="the forced word (default: %(default)s)")
    parser.add_argument("--count", type=int, default=32, help="number of lines (default: %(default)s)")
    options = begin(parser)
    torch.set_num_threads(1)
    count = 4 if options.quick else options.count
    with tempfile.TemporaryDirectory() as place:
        run: Any = cr.load(options.run) if options.run else train(Path(place), 0.05 if options.quick else MINUTES)
        if options.lines:
            lines = options.lines.read_text(encoding="utf-8").splitlines()[:count]
        else:
            lines = [f"{1 + number % 28} May {1980 + number}" for number in range(count)]
        contestants = {
            "plain": lambda: run.translate(lines),
            "keep": lambda: run.translate(lines, keep=True),
            "force": lambda: run.translate(lines, force=[options.force]),
        }
        times = alternate(contestants, options.repeats, time.process_time)
    plain = speed(times, "plain", count)
    notes = {"keep": ("numbers of the source are kept", 0.5), "force": (f"'{options.force}' in every line", 0.2)}
    figures = [
        Figure(name, speed(times, name, count), "lines/s", plain, speed_up(times, name, "plain"), target, note=note)
        for name, (note, target) in notes.items()
    ]
    report(figures, options, lines=count)


if __name__ == "__main__":
    main()
