"""Speed of `chainrule.kenlm` and `run.score` against KenLM's Python module: the same model, calls and lines.

The project estimates the model and exports it to ARPA; kenlm loads it into its probing structure, the faster of its
two. The contestants take turns in one process, each on one thread. A figure is microseconds of CPU time per line; the
ratio is that of the speeds, so more is better. The script stops if a score differs.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import kenlm
from harness import Figure, alternate, arguments, begin, report, speed_up
from ngram_queries import MOST_DIFFERENCE, load_peer
from ngram_size import estimate_run

import chainrule.kenlm as ours
from chainrule.interop.formats import export

STATEFUL = 500
"""Lines that are scored word by word."""


def stepwise(module: Any, model: Any, lines: list[str]) -> Callable[[], None]:
    """Score lines word by word, with two states that change places."""

    def score() -> None:
        for line in lines:
            state, after = module.State(), module.State()
            model.BeginSentenceWrite(state)
            for word in line.split():
                model.BaseScore(state, word, after)
                state, after = after, state

    return score


def check(model: Any, peer: Any, lines: list[str]) -> None:
    for line, score in zip(lines, model.score_lines(lines), strict=True):
        expected = peer.score(line)
        for found in (score, model.score(line)):
            if abs(found - expected) > MOST_DIFFERENCE * max(1.0, abs(expected)):
                raise SystemExit(f"log10 p is {found}, kenlm gives {expected}: {line}")


def main() -> None:
    parser = arguments(__doc__, repeats=9)
    parser.add_argument("train", type=Path, help="training text of words between white space, one sentence per line")
    parser.add_argument("text", type=Path, help="text to score")
    parser.add_argument("--order", type=int, default=5, help="order of the model (default: %(default)s)")
    options = begin(parser)
    order = 2 if options.quick else options.order
    lines = options.text.read_text(encoding="utf-8").splitlines()
    some = lines[:STATEFUL]
    with tempfile.TemporaryDirectory() as place:
        os.environ["CHAINRULE_CACHE"] = f"{place}/cache"
        folder, arpa = Path(place, "run"), Path(place, "model.arpa")
        run = estimate_run(options.train, options.text, folder, order=order)
        export(folder, arpa)
        model, peer = ours.Model(folder), load_peer(arpa)
        check(model, peer, lines)
        contestants: dict[str, Callable[[], object]] = {
            "kenlm": lambda: [peer.score(line) for line in lines],
            "score": lambda: [model.score(line) for line in lines],
            "score_lines": lambda: model.score_lines(lines),
            "run.score": lambda: run.score(lines),
            "kenlm full": lambda: [list(peer.full_scores(line)) for line in lines],
            "full_scores": lambda: [list(model.full_scores(line)) for line in lines],
            "kenlm states": stepwise(kenlm, peer, some),
            "BaseScore": stepwise(ours, model, some),
        }
        times = alternate(contestants, options.repeats, time.process_time)

    def figure(name: str, other: str, count: int, target: float | None, note: str) -> Figure:
        mine, theirs = (1e6 * median(times[one]) / count for one in (name, other))
        return Figure(name, mine, "µs/line", theirs, speed_up(times, name, other), at_least=target, note=note)

    figures = [
        figure("score", "kenlm", len(lines), 0.7, "one line per call, against kenlm.Model.score"),
        figure("score_lines", "kenlm", len(lines), 1.0, "a list of lines, against one kenlm call per line"),
        figure("run.score", "kenlm", len(lines), 1.0, "a list of lines, against one kenlm call per line"),
        figure("full_scores", "kenlm full", len(lines), None, "list(full_scores(line)) of both"),
        figure("BaseScore", "kenlm states", len(some), None, "word by word with states, both"),
    ]
    words = sum(len(line.split()) for line in lines)
    report(figures, options, order=order, lines=f"{len(lines):,}", words=f"{words:,}", peer="kenlm")


if __name__ == "__main__":
    main()
