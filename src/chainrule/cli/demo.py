"""chainrule demo"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.common import Json, Verbose, print_json, print_note, training_display
from chainrule.cli.serve import check_installed, serve_page


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the data and the runs.")] = Path("runs/demo"),
    effort: Annotated[float, typer.Option(help="Multiply the training steps of all networks by this number.")] = 1.0,
    seconds: Annotated[float, typer.Option(help="Maximum training time of each language model, in seconds.")] = 90.0,
    translation_seconds: Annotated[
        float, typer.Option(help="Maximum training time of each translator, in seconds.")
    ] = 170.0,
    open_page: Annotated[
        bool, typer.Option("--open", help="At the end serve the runs and open the page over them in a browser.")
    ] = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Train small models on built-in data and compare them.

    The language models learn the help topics of Python, and two translators learn numbers, dates, times and prices.
    """
    if open_page:
        check_installed()
    from chainrule.experiments.demo import run_demo, run_translation_demo
    from chainrule.reports import leaderboard

    with training_display() as listener:
        rows, sample = run_demo(out, listener, effort=effort, seconds=seconds)
        translators, translated = run_translation_demo(out, listener, effort=effort, seconds=translation_seconds)
    if json:
        record = {"rows": [row.to_dict() for row in rows], "sample": sample}
        print_json({**record, "translators": [row.to_dict() for row in translators], "translated": dict(translated)})
    else:
        leaderboard.show(rows, title="Python help topics, test text")
        if verbose:
            print_note(rows[0].protocol)
        print(f"\nSample from the best model, {rows[0].model}:\n\n{sample}\n")
        leaderboard.show(translators, title="Numbers, dates, times and prices from English to German, test pairs")
        print()
        for line, translation in translated:
            print(f"{line} -> {translation}")
    if open_page:
        serve_page([out])
