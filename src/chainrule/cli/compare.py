"""chainrule compare"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.common import (
    Field,
    Json,
    Seed,
    Settings,
    Verbose,
    print_json,
    print_note,
    source_names,
    training_display,
)
from chainrule.cli.train import Tokenizer, VocabSize

if TYPE_CHECKING:
    from chainrule.experiments.compare import Row

Models = Annotated[
    str | None,
    typer.Option(
        help="Models to compare, separated by commas; MODEL:OUTPUT sets the output layer, ngram(order=3) options."
    ),
]
Valid = Annotated[list[str] | None, typer.Option(help="Validation data; repeatable (default: the last 5% of DATA).")]
Test = Annotated[list[str] | None, typer.Option(help="Test data; repeatable (default: the validation data).")]
Mix = Annotated[bool, typer.Option("--mix", help="Add a mixture of the best n-gram model and the best neural model.")]
Int8 = Annotated[bool, typer.Option("--int8", help="Measure each network with 8-bit weights too.")]
Config = Annotated[Path | None, typer.Option(help="TOML file of options for all models, or a recipe with contenders.")]
Plot = Annotated[
    Path | None,
    typer.Option(help="Draw the learning curves to this .svg file; with a recipe: quality against time."),
]
ReportFile = Annotated[
    Path | None,
    typer.Option("--report", help="Write a report on the runs to this .html file, as chainrule report does."),
]
Minutes = Annotated[float | None, typer.Option(help="Budget of each model in minutes of training (default: 5).")]


def compare(
    data: Annotated[list[str], typer.Argument(metavar="DATA…", help="Training data, as for chainrule train.")],
    models: Models = None,
    valid: Valid = None,
    test: Test = None,
    tokenizer: Tokenizer = None,
    vocab_size: VocabSize = None,
    mix: Mix = False,
    int8: Int8 = False,
    config: Config = None,
    only: Annotated[list[str] | None, typer.Option(help="With a recipe: only this contender; repeatable.")] = None,
    plot: Plot = None,
    report: ReportFile = None,
    settings: Settings = None,
    minutes: Minutes = None,
    steps: Annotated[int | None, typer.Option(help="Budget of each model in optimiser steps.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Budget of each model in passes over the data.")] = None,
    seed: Seed = None,
    field: Field = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs (default: runs/compare-TEXT).")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Train several models on the same budget and rank them.

    Finished runs are not trained again; rerun the same command to resume.
    """
    from chainrule.base.tables import show_value
    from chainrule.config import parse_settings
    from chainrule.errors import ConfigError
    from chainrule.experiments.compare import compare as run_comparison

    if models is None:
        _refuse_with_recipe(
            tokenizer=tokenizer, vocab_size=vocab_size, mix=mix, int8=int8, seed=seed, field=field, markdown=markdown
        )
        budget = {"minutes": minutes, "steps": steps, "epochs": epochs}
        _compare_recipe(
            data,
            config,
            source_names(valid),
            source_names(test),
            parse_settings(settings or []),
            budget,
            only,
            out,
            plot,
            report,
            json,
        )
        return
    if only:
        raise ConfigError("--only selects contenders of a recipe; shorten the list of --models instead")
    _check_files(plot, report)
    with training_display() as listener:
        rows = run_comparison(
            *data,
            models=models,
            valid=source_names(valid),
            test=source_names(test),
            mix=mix,
            int8=int8,
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
            done=lambda row: listener.note(
                f"{row.model}: {show_value('bits_per_byte', row.bits_per_byte)} bits per byte"
            ),
        )
    if report:
        _write_report(report, [row.run for row in rows], source_names(test))
    _show(rows, plot, markdown, verbose, json)


def _check_files(*files: Path | None) -> None:
    """Refuse files that cannot be written, before anything is trained."""
    from chainrule.base.targets import check_file

    for file in files:
        if file:
            check_file(file)


def _write_report(path: Path, runs: Sequence[str], test: Sequence[str]) -> None:
    """Write a report on the runs of a comparison."""
    from chainrule.reports.build import report

    report(*dict.fromkeys(runs), data=test, speed=True, note=print_note).save(path)


def _show(rows: Sequence[Row], plot: Path | None, markdown: bool, verbose: bool, json: bool) -> None:
    """Print the leaderboard and draw the learning curves."""
    from chainrule.base.files import write_atomically
    from chainrule.reports import leaderboard, learning_curves

    if plot:
        write_atomically(plot, learning_curves.picture(rows))
    if json:
        print_json([row.to_dict() for row in rows])
    elif markdown:
        print(leaderboard.markdown(rows), end="")
    else:
        leaderboard.show(rows)
        if verbose:
            print_note(rows[0].protocol)


def _refuse_with_recipe(**options: Any) -> None:
    """Refuse options that a comparison by recipe does not use."""
    from chainrule.errors import ConfigError

    for name, value in options.items():
        if value:
            flag = name.replace("_", "-")
            raise ConfigError(
                f"--{flag} has no effect on a recipe of contenders; set it in the recipe, or leave it out"
            )


def _compare_recipe(
    data: list[str],
    recipe: Path | None,
    valid: Sequence[str],
    test: Sequence[str],
    settings: dict[str, Any],
    budget: dict[str, float | None],
    only: list[str] | None,
    out: Path | None,
    plot: Path | None,
    report: Path | None,
    json: bool,
) -> None:
    """Measure quality and time of the contenders of a recipe; print a table and draw a chart."""
    from chainrule.base.files import write_atomically
    from chainrule.config import merge
    from chainrule.errors import ConfigError
    from chainrule.experiments.speed_quality import measure_tradeoffs
    from chainrule.reports import speed_quality as tradeoff
    from chainrule.training.request import text_name

    if recipe is None:
        raise ConfigError("nothing to compare: give --models lstm,ngram, or a recipe with contenders as --config")
    _check_files(plot, report)
    given = {name: value for name, value in budget.items() if value is not None}
    with training_display() as listener:
        points = measure_tradeoffs(
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
    if report:
        _write_report(report, [point.run for point in points], test or valid)
    if json:
        print_json([point.to_dict() for point in points])
    else:
        print(tradeoff.markdown(points), end="")
