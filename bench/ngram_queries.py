"""Speed of querying an n-gram model against KenLM's Python module on the same model: text in, scores out.

The project estimates the model and exports it to ARPA; kenlm loads it into its probing structure, the faster of its
two. Both score every line of a text file: the project with `LanguageModelRun.score_text`, kenlm with `Model.score` line
by line. The script stops if the scores differ. Loading and sampling follow. Threads receive blocks of 1 MiB, so several
threads need a text of several megabytes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import kenlm
import numpy as np
from harness import Figure, alternate, arguments, begin, report, speed, speed_up
from ngram_size import estimate_run

from chainrule.interop.formats import export
from chainrule.runs.language_model import LanguageModelRun
from chainrule.runs.load import load_for

MOST_DIFFERENCE = 1e-4
"""Largest relative difference of log10 p of a line: kenlm sums in single precision, and the file has seven digits."""
WORDS = 1000
KENLM = "kenlm"


def load_peer(arpa: Path) -> Any:
    """Load an ARPA file into kenlm's probing structure, without messages."""
    config = kenlm.Config()
    config.show_progress, config.arpa_complain = False, kenlm.ARPALoadComplain.NONE
    return kenlm.Model(str(arpa), config)


def project_scores(run: LanguageModelRun, text: Path, count: int) -> list[float]:
    """Return log p of each line in nats, computed on `count` threads."""
    scores: list[float] = []
    for nats_N, _ in run.score_text(text, threads=count):
        scores += nats_N
    return scores


def peer_scores(model: Any, text: Path) -> list[float]:
    """Return log10 p of each line."""
    with text.open(encoding="utf-8", newline="\n") as file:
        return [model.score(line) for line in file]


def largest_difference(run: LanguageModelRun, model: Any, text: Path) -> float:
    """Return the largest difference on any line, relative to log p; stop if it is too large.

    Here kenlm gets the words of `str.split`; on its own it treats white space outside ASCII as letters.
    """
    with text.open(encoding="utf-8", newline="\n") as file:
        theirs_N = np.array([model.score(" ".join(line.split())) for line in file])
    ours_N = np.array(project_scores(run, text, 1)) / np.log(10)
    if len(ours_N) != len(theirs_N):
        raise SystemExit(f"the project scored {len(ours_N)} lines, kenlm {len(theirs_N)}")
    difference_N = np.abs(ours_N - theirs_N) / np.maximum(1.0, np.abs(theirs_N))
    worst = int(difference_N.argmax())
    if not difference_N[worst] <= MOST_DIFFERENCE:
        raise SystemExit(f"line {worst + 1}: log10 p is {ours_N[worst]}, kenlm gives {theirs_N[worst]}")
    return float(difference_N[worst])


def scoring(run: LanguageModelRun, model: Any, text: Path, count: int, repeats: int) -> list[Figure]:
    """Compare one thread with kenlm, and `count` threads with one."""
    tokens = sum(sum(tokens_N) for _, tokens_N in run.score_text(text))
    contestants: dict[str, Callable[[], object]] = {
        KENLM: partial(peer_scores, model, text),
        "1": partial(project_scores, run, text, 1),
    }
    if count > 1:
        contestants[f"{count}"] = partial(project_scores, run, text, count)
    times = alternate(contestants, repeats)

    def figure(ours: str, other: str, target: float | None, note: str) -> Figure:
        name, value = f"scoring, {ours} thread(s)", speed(times, ours, tokens)
        peer, ratio = speed(times, other, tokens), speed_up(times, ours, other)
        return Figure(name, value, "tokens/s", peer, ratio, at_least=target, note=note)

    alone = figure("1", KENLM, 1.0, f"against kenlm, {tokens:,} tokens per round including line ends")
    several = [figure(f"{count}", "1", 1.6 if count == 2 else None, "against one thread")] if count > 1 else []
    return [alone, *several]


def loading(folder: Path, arpa: Path, repeats: int) -> Figure:
    """Compare the time to load the run folder and the ARPA file."""
    times = alternate(
        {"run": lambda: load_for("score", LanguageModelRun, folder).model, KENLM: lambda: load_peer(arpa)}, repeats
    )
    ours, theirs = (1000 * median(times[name]) for name in ("run", KENLM))
    return Figure("loading", ours, "ms", theirs, 1 / speed_up(times, "run", KENLM), note="run folder; kenlm: ARPA file")


def sampling(run: LanguageModelRun, repeats: int) -> Figure:
    """Measure the seconds to sample words, continuing after line ends."""
    draw = partial(run.generate, max_new_tokens=WORDS, temperature=1.0, seed=1, stop_at_eos=False)
    return Figure(f"sampling {WORDS:,} words", median(alternate({"run": draw}, repeats)["run"]), "s")


def main() -> None:
    parser = arguments(__doc__, repeats=9)
    parser.add_argument("train", type=Path, help="training text of words between white space, one sentence per line")
    parser.add_argument("text", type=Path, help="text to score")
    parser.add_argument("--order", type=int, default=5, help="order of the model (default: %(default)s)")
    options = begin(parser)
    order = 2 if options.quick else options.order
    with tempfile.TemporaryDirectory() as place:
        os.environ["CHAINRULE_CACHE"] = f"{place}/cache"
        folder, arpa = Path(place, "run"), Path(place, "model.arpa")
        run = estimate_run(options.train, options.text, folder, order=order)
        export(folder, arpa)
        model = load_peer(arpa)
        difference = largest_difference(run, model, options.text)
        figures = scoring(run, model, options.text, options.threads, options.repeats)
        del model  # frees its memory for the next one
        figures += [loading(folder, arpa, min(3, options.repeats)), sampling(run, options.repeats)]
        ngrams = sum(run.result["ngrams"])
    report(figures, options, order=order, ngrams=f"{ngrams:,}", largest_difference=f"{difference:.1e}", peer=KENLM)


if __name__ == "__main__":
    main()
