"""chainrule report"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.common import Field, print_note, print_warnings, source_names
from chainrule.cli.translate import BatchSize, Beams, LengthPenalty, Lengths, Mode, Refine, given_options

if TYPE_CHECKING:
    from chainrule.reports.document import Report

Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN…", help="Folders or packed files of runs of one task; with --diff two JSON files."),
]
TestData = Annotated[
    list[str] | None,
    typer.Option("--data", help="Test data, as for eval; repeatable (default: the validation data of each training)."),
]
Out = Annotated[Path | None, typer.Option(help="Page to write, one self-contained file.")]
MarkdownFile = Annotated[Path | None, typer.Option("--markdown", metavar="FILE", help="Write the report as Markdown.")]
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write all figures as JSON, for --diff; - prints them."),
]
Interactive = Annotated[
    bool, typer.Option("--interactive", help="Charts that can be zoomed; the page grows by about 1 MB.")
]
Speed = Annotated[bool, typer.Option("--speed", help="Also time decoding; the same command then gives other figures.")]
Diff = Annotated[bool, typer.Option("--diff", help="Report what changed between two JSON files of reports.")]


def report(
    runs: Runs,
    data: TestData = None,
    out: Out = None,
    markdown: MarkdownFile = None,
    json: JsonFile = None,
    interactive: Interactive = False,
    title: Annotated[str | None, typer.Option(help="Heading of the report.")] = None,
    speed: Speed = False,
    diff: Diff = False,
    field: Field = None,
    num_beams: Beams = None,
    length_penalty: LengthPenalty = None,
    batch_size: BatchSize = None,
    mode: Mode = None,
    lengths: Lengths = None,
    refine: Refine = None,
) -> None:
    """Write a report on runs: one page that needs no network.

    It has a leaderboard with intervals and tests, learning curves, where the bits go, what is hard, calibration and
    more, and states how every figure was measured. Without --out, --markdown and --json, it prints the Markdown.
    """
    from chainrule.reports.build import report as build

    print_warnings()
    given = {
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "batch_size": batch_size,
        "mode": mode,
        "lengths": lengths,
        "refine": refine,
    }
    search = given_options(given)
    if diff:
        refused = {"data": data, "title": title, "speed": speed, "field": field, **search}
        write(_difference(runs, refused), out, markdown, json, interactive)
        return
    made = build(*runs, data=source_names(data), title=title, field=field, speed=speed, note=print_note, **search)
    write(made, out, markdown, json, interactive)


def _difference(files: list[Path], refused: dict[str, Any]) -> Report:
    from chainrule.errors import ConfigError
    from chainrule.reports.difference import difference

    for name, value in refused.items():
        if value:
            raise ConfigError(f"--{name.replace('_', '-')} has no effect with --diff; leave it out")
    if len(files) != 2:
        raise ConfigError(f"--diff got {len(files)} files; expected two JSON files of chainrule report --json")
    return difference(*files)


def write(made: Report, out: Path | None, markdown: Path | None, json: Path | None, interactive: bool) -> None:
    """Write the files that are asked for; print Markdown if there is none."""
    printed = json is not None and str(json) == "-"
    made.save(out, markdown=markdown, json=None if printed else json, interactive=interactive)
    if printed:
        print(made.json(), end="")
    elif out is None and markdown is None and json is None:
        print(made.markdown(), end="")
    for path in (out, markdown, None if printed else json):
        if path is not None:
            print_note(f"{path}: {path.stat().st_size:,} bytes")
