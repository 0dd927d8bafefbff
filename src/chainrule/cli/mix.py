"""chainrule mix"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chainrule.cli.common import Field, Json, Verbose, print_fields, print_json, print_note, show_progress, source_names

if TYPE_CHECKING:
    from chainrule.runs.language_model import LanguageModelRun


def mix(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Runs of language models with the same vocabulary.")
    ],
    valid: Annotated[list[str], typer.Option(help="Text on which the weights are fitted; repeatable.")],
    out: Annotated[Path, typer.Option(help="Folder of the mixture.")],
    caches: Annotated[
        list[str] | None, typer.Option("--cache", help="Add a cache, unigram or continuous; repeatable.")
    ] = None,
    buckets: Annotated[
        bool, typer.Option("--buckets", help="Fit separate weights for contexts seen often and rarely.")
    ] = False,
    temperature: Annotated[
        bool, typer.Option("--temperature", help="Also fit a temperature; scoring is then slower.")
    ] = False,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set cache.decay, cache.theta or cache.window, for example cache.theta=0.1; repeatable.",
        ),
    ] = None,
    field: Field = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Mix language models and caches into one run.

    The weights maximise the probability of the --valid text.
    """
    from chainrule.config import parse_settings
    from chainrule.experiments.mix import mix as mix_runs

    with show_progress("mixing") as progress:
        run = mix_runs(
            runs,
            valid=source_names(valid),
            out=out,
            caches=caches or (),
            buckets=buckets,
            temperature=temperature,
            settings=parse_settings(options or []),
            field=field,
            note=print_note,
            progress=progress,
        )
    _report(run, valid, field, verbose, json)


def _report(run: LanguageModelRun, valid: list[str], field: str | None, verbose: bool, json: bool) -> None:
    """Evaluate the mixture and print the result."""
    with show_progress("evaluating") as progress:
        measured = run.evaluate(source_names(valid), field=field, progress=progress).to_dict()
    keys = ("steps", "seconds", "parameters", "tokens_per_second", "peak_memory", "weights")
    result = {"run": str(run.folder.path), **{key: run.result[key] for key in keys}}
    if json:
        print_json({**result, "valid": measured})
        return
    weights = {f"weight of {name}": value for name, value in result.pop("weights").items()}
    shown = {f"valid {key}": measured[key] for key in ("perplexity", "bits_per_byte")}
    print_fields({**result, **weights, **shown})
    if verbose:
        print_note(measured["protocol"])
