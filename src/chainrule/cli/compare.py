"""chainrule compare"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chainrule.cli.common import Field, Json, Seed, Settings, print_json, say, training_display


def compare(
    data: Annotated[list[str], typer.Argument(metavar="DATA…", help="Files, folders, - or hf:NAME/CONFIG:SPLIT.")],
    models: Annotated[
        str | None,
        typer.Option(
            help="Names with commas between; MODEL:OUTPUT for another output layer, ngram(order=3) for options."
        ),
    ] = None,
    valid: Annotated[list[str] | None, typer.Option(help="Validation text (default: the last 5% of DATA).")] = None,
    test: Annotated[list[str] | None, typer.Option(help="Text to measure on (default: the validation text).")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="As in train.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="As in train.")] = None,
    mix: Annotated[
        bool, typer.Option("--mix", help="Add the mixture of the best counted model and the best network.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file of options for all of them, or a recipe with contenders.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Of a recipe: this contender alone; may be repeated.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Of a recipe: draw quality against time, an .svg file.")] = None,
    settings: Settings = None,
    minutes: Annotated[float | None, typer.Option(help="Budget of each model (default: 5).")] = None,
    steps: Annotated[int | None, typer.Option(help="Budget of each model in steps.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Budget of each model in passes over the text.")] = None,
    seed: Seed = None,
    field: Field = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the runs (default: runs/compare-TEXT).")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    json: Json = False,
) -> None:
    """Train several models at the same budget and print one leaderboard; what is finished is not trained again."""
    from chainrule.config import parse_settings
    from chainrule.experiments.compare import compare as run_comparison
    from chainrule.report import leaderboard

    if models is None:
        budget = {"minutes": minutes, "steps": steps, "epochs": epochs}
        _weigh(data, config, valid or [], test or [], parse_settings(settings or []), budget, only, out, plot, json)
        return
    with training_display() as listener:
        rows = run_comparison(
            *data,
            models=models,
            valid=valid or (),
            test=test or (),
            mix=mix,
            tokenizer=tokenizer,
            vocab_size=vocab_size,
            config=config,
            settings=parse_settings(settings or []),
            minutes=minutes,
            steps=steps,
            epochs=epochs,
            seed=seed,
            field=field,
            out=out,
            listener=listener,
            done=lambda row: listener.note(f"{row.model}: {leaderboard.bits(row)} bits per byte"),
        )
    if json:
        print_json([row.to_dict() for row in rows])
    elif markdown:
        print(leaderboard.markdown(rows), end="")
    else:
        leaderboard.show(rows)
        say(rows[0].protocol)


def _weigh(
    data: list[str],
    recipe: Path | None,
    valid: list[str],
    test: list[str],
    settings: dict[str, Any],
    budget: dict[str, float | None],
    only: list[str] | None,
    out: Path | None,
    plot: Path | None,
    json: bool,
) -> None:
    """A recipe's contenders in all their ways: quality and time in one table, and in one picture."""
    from chainrule.api import text_name
    from chainrule.base.files import write_atomically
    from chainrule.config import merge
    from chainrule.errors import ConfigError
    from chainrule.experiments.speed_quality import weigh
    from chainrule.report import speed_quality as tradeoff

    if recipe is None:
        raise ConfigError("compare needs to know whom: give --models lstm,ngram or a recipe with contenders (--config)")
    given = {name: value for name, value in budget.items() if value is not None}
    with training_display() as listener:
        points = weigh(
            *data,
            recipe=recipe,
            valid=valid,
            test=test or valid,
            only=only or (),
            out=out or Path("runs") / f"compare-{text_name(data[0])}",
            settings=merge(settings, {"training": given}),
            listener=listener,
        )
    if plot:
        write_atomically(plot, tradeoff.picture(points))
    if json:
        print_json([point.to_dict() for point in points])
    else:
        print(tradeoff.markdown(points), end="")
