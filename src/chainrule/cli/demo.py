"""chainrule demo"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.common import Json, print_json, say, training_display


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the text and the runs.")] = Path("runs/demo"),
    seconds: Annotated[float, typer.Option(help="Training time of each model.")] = 18.0,
    translation_seconds: Annotated[float, typer.Option(help="Training time of each translator.")] = 75.0,
    json: Json = False,
) -> None:
    """Train a spread of models on text that every Python has, and two translators; show leaderboards and samples."""
    from chainrule.experiments.demo import run_demo, run_translation_demo
    from chainrule.report import leaderboard

    with training_display() as listener:
        rows, sample = run_demo(out, seconds, listener)
        translators, translated = run_translation_demo(out, translation_seconds, listener)
    if json:
        told = {"rows": [row.to_dict() for row in rows], "sample": sample}
        print_json({**told, "translators": [row.to_dict() for row in translators], "translated": dict(translated)})
        return
    leaderboard.show(rows, title="pydoc topics, test text")
    say(rows[0].protocol)
    print(f"\nA sample from the best, {rows[0].model}:\n\n{sample}\n")
    leaderboard.show(translators, title="English to German numbers, dates, times and prices, test pairs")
    print()
    for line, translation in translated:
        print(f"{line} -> {translation}")
