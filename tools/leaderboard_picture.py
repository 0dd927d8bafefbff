"""Draw a leaderboard as it looks in a terminal: `python tools/leaderboard_picture.py demo.json docs/leaderboard.svg`.

The first argument is the output of `chainrule demo --json` or `chainrule compare --json`. The picture asks for no font
from elsewhere.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from rich.console import Console

from chainrule.experiments.compare import Row
from chainrule.reports import leaderboard


def main() -> None:
    """Read rows, print the table into a recorded console, and write it as SVG."""
    source, target = map(Path, sys.argv[1:3])
    record = json.loads(source.read_text(encoding="utf-8").splitlines()[-1])
    rows = [Row(**row) for row in (record["rows"] if isinstance(record, dict) else record)]
    console = Console(record=True, width=100, file=open("/dev/null", "w"), force_terminal=True)  # noqa: SIM115
    leaderboard.show(rows, console=console)
    picture = console.export_svg(title="chainrule demo")
    picture = re.sub(r"@font-face \{.*?\}\n", "", picture, flags=re.DOTALL)
    picture = picture.replace("Fira Code", "Menlo, Consolas, DejaVu Sans Mono")
    target.write_text(re.sub(r"https://\S*rich\S*", "", picture), encoding="utf-8")


if __name__ == "__main__":
    main()
