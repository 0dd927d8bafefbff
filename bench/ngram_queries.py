"""Querying an n-gram model against KenLM's Python module, on the same model: text in and scores out.

The model is estimated by the project, exported to ARPA and loaded by kenlm, which keeps it in its probing structure,
the quicker of its two. Both score every line of a text file: the project with `Run.score_text`, kenlm with
`Model.score` line by line. Their scores must agree, else this stops. Loading and sampling follow. A text is handed to
the threads in blocks of a MiB, so several threads show what they can do on a text of several megabytes only.
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
from ngram_size import estimated

from chainrule.interop.formats import export
from chainrule.runs.language_model import Run

MOST_DIFFERENCE = 1e-4
"""Of the log10 of a line, relative to it: kenlm adds up in single precision, the file has seven digits."""
WORDS = 1000
KENLM = "kenlm"


def load_peer(arpa: Path) -> Any:
    """The ARPA file in kenlm's probing structure, without a word about it."""
    config = kenlm.Config()
    config.show_progress, config.arpa_complain = False, kenlm.ARPALoadComplain.NONE
    return kenlm.Model(str(arpa), config)


def project_scores(run: Run, text: Path, count: int) -> list[float]:
    """log p of each line in nats, by `count` threads."""
    scores: list[float] = []
    for nats_L, _ in run.score_text(text, threads=count):
        scores += nats_L
    return scores


def peer_scores(model: Any, text: Path) -> list[float]:
    """log10 p of each line."""
    with text.open(encoding="utf-8", newline="\n") as file:
        return [model.score(line) for line in file]


def largest_difference(run: Run, model: Any, text: Path) -> float:
    """How far the two are apart on any line, relative to log p; it stops if they disagree.

    Here kenlm gets the words that `str.split` finds. By itself it takes white space outside ASCII for letters.
    """
    with text.open(encoding="utf-8", newline="\n") as file:
        theirs_L = np.array([model.score(" ".join(line.split())) for line in file])
    ours_L = np.array(project_scores(run, text, 1)) / np.log(10)
    if len(ours_L) != len(theirs_L):
        raise SystemExit(f"{len(ours_L)} lines were scored by the project, {len(theirs_L)} by kenlm")
    apart_L = np.abs(ours_L - theirs_L) / np.maximum(1.0, np.abs(theirs_L))
    worst = int(apart_L.argmax())
    if not apart_L[worst] <= MOST_DIFFERENCE:
        raise SystemExit(f"line {worst + 1} has log10 p {ours_L[worst]} by the project, {theirs_L[worst]} by kenlm")
    return float(apart_L[worst])


def scoring(run: Run, model: Any, text: Path, count: int, repeats: int) -> list[Figure]:
    """One thread against kenlm, and `count` threads against one."""
    tokens = sum(sum(tokens_L) for _, tokens_L in run.score_text(text))
    contestants: dict[str, Callable[[], object]] = {
        KENLM: partial(peer_scores, model, text),
        "1": partial(project_scores, run, text, 1),
    }
    if count > 1:
        contestants[f"{count}"] = partial(project_scores, run, text, count)
    times = alternate(contestants, repeats)

    def figure(ours: str, other: str, bar: float | None, note: str) -> Figure:
        name, value = f"scoring, {ours} thread(s)", speed(times, ours, tokens)
        peer, ratio = speed(times, other, tokens), speed_up(times, ours, other)
        return Figure(name, value, "tokens/s", peer, ratio, at_least=bar, note=note)

    alone = figure("1", KENLM, 1.0, f"against kenlm, {tokens:,} tokens a round, line ends among them")
    several = [figure(f"{count}", "1", 1.6 if count == 2 else None, "against one thread")] if count > 1 else []
    return [alone, *several]


def loading(folder: Path, arpa: Path, repeats: int) -> Figure:
    """Milliseconds to a model that answers: of the run's folder, and of the ARPA file."""
    times = alternate({"run": lambda: Run(folder).model, KENLM: lambda: load_peer(arpa)}, repeats)
    ours, theirs = (1000 * median(times[name]) for name in ("run", KENLM))
    return Figure("loading", ours, "ms", theirs, 1 / speed_up(times, "run", KENLM), note="the run; kenlm: the ARPA")


def sampling(run: Run, repeats: int) -> Figure:
    """Seconds to draw words one after the other, going on after a line end."""
    draw = partial(run.generate, max_new_tokens=WORDS, temperature=1.0, seed=1, stop_at_eos=False)
    return Figure(f"sampling {WORDS:,} words", median(alternate({"run": draw}, repeats)["run"]), "s")


def main() -> None:
    parser = arguments(__doc__, repeats=9)
    parser.add_argument("train", type=Path, help="a text of words between white space, a sentence a line")
    parser.add_argument("text", type=Path, help="the text to score")
    parser.add_argument("--order", type=int, default=5, help="(default: %(default)s)")
    options = begin(parser)
    order = 2 if options.quick else options.order
    with tempfile.TemporaryDirectory() as place:
        os.environ["CHAINRULE_CACHE"] = f"{place}/cache"
        folder, arpa = Path(place, "run"), Path(place, "model.arpa")
        run = estimated(options.train, options.text, folder, order=order)
        export(folder, arpa)
        model = load_peer(arpa)
        apart = largest_difference(run, model, options.text)
        figures = scoring(run, model, options.text, options.threads, options.repeats)
        del model  # its memory is wanted for the next one
        figures += [loading(folder, arpa, min(3, options.repeats)), sampling(run, options.repeats)]
        ngrams = sum(run.result["ngrams"])
    report(figures, options, order=order, ngrams=f"{ngrams:,}", largest_difference=f"{apart:.1e}", peer=KENLM)


if __name__ == "__main__":
    main()
