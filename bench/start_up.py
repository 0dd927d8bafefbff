"""Start-up: the whole process of `chainrule score` for five lines with an n-gram model, against a script with kenlm.

Both processes load the same model: chainrule its run, kenlm the ARPA file. Each begins afresh, so a figure includes
Python and all imports; files are in the cache of the operating system, and Python has its compiled modules. A figure is
the median of the CPU seconds of a process, which are those of the clock on an idle core: there is nothing to wait for.
`chainrule --help` and `python -c pass` are for comparison.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from harness import Figure, alternate, arguments, begin, report
from ngram_size import estimate_run

from chainrule.interop.formats import export

LINES = 5
SECONDS = 0.7
"""Target of `chainrule score`."""
PEER = "import kenlm, sys; m = kenlm.Model(sys.argv[1]); print(*(m.score(s) for s in open(sys.argv[2])), sep='\\n')"
COMMAND = "from chainrule.cli.main import main; main()"


def cpu_seconds() -> float:
    """CPU time of all processes that were started and have ended."""
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    parser = arguments(__doc__, repeats=11)
    parser.add_argument("train", type=Path, help="training text of words between white space, one sentence per line")
    parser.add_argument("text", type=Path, help="text whose first lines are scored")
    parser.add_argument("--order", type=int, default=5, help="order of the model (default: %(default)s)")
    options = begin(parser)
    with tempfile.TemporaryDirectory() as place:
        surroundings = {**os.environ, "CHAINRULE_CACHE": f"{place}/cache", "PYTHONPYCACHEPREFIX": f"{place}/modules"}
        surroundings.pop("PYTHONDONTWRITEBYTECODE", None)
        run, arpa, five = Path(place, "run"), Path(place, "model.arpa"), Path(place, "five.txt")
        estimate_run(options.train, options.text, run, order=2 if options.quick else options.order)
        export(run, arpa)
        five.write_text("\n".join(options.text.read_text(encoding="utf-8").splitlines()[:LINES]) + "\n")

        def call(code: str, *given: str | Path) -> None:
            command = [sys.executable, "-c", code, *map(str, given)]
            subprocess.run(command, env=surroundings, capture_output=True, check=True)

        times = alternate(
            {
                "chainrule score": lambda: call(COMMAND, "score", run, five),
                "chainrule --help": lambda: call(COMMAND, "--help"),
                "kenlm": lambda: call(PEER, arpa, five),
                "python": lambda: call("pass"),
            },
            options.repeats,
            cpu_seconds,
        )
    seconds = {name: median(some) for name, some in times.items()}
    share = seconds["chainrule score"] / SECONDS
    figures = [
        Figure(
            "chainrule score", seconds["chainrule score"], "s", SECONDS, share, at_most=1.0, note="peer: the target"
        ),
        Figure("chainrule --help", seconds["chainrule --help"], "s"),
        Figure("kenlm, from an ARPA file", seconds["kenlm"], "s"),
        Figure("python -c pass", seconds["python"], "s"),
    ]
    report(figures, options, lines=LINES, order=options.order)


if __name__ == "__main__":
    main()
