"""chainrule mix"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chainrule.cli.common import Field, Json, counting, print_fields, print_json, say

if TYPE_CHECKING:
    from chainrule.runs.language_model import Run


def mix(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Runs of language models with one vocabulary.")],
    valid: Annotated[list[str], typer.Option(help="The text that the weights are fitted on.")],
    out: Annotated[Path, typer.Option(help="The mixture's folder.")],
    caches: Annotated[
        list[str] | None, typer.Option("--cache", help="Add a cache: unigram, continuous; may be repeated.")
    ] = None,
    buckets: Annotated[bool, typer.Option("--buckets", help="Weights by how well the context is known.")] = False,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="cache.decay, cache.theta or cache.window, e.g. cache.theta=0.1."
        ),
    ] = None,
    field: Field = None,
    json: Json = False,
) -> None:
    """Mix runs, and caches, by the weights that fit a text best; the result is a run."""
    from chainrule.config import parse_settings
    from chainrule.experiments.mix import mix as mix_runs

    with counting("mixing") as progress:
        run = mix_runs(
            runs,
            valid=valid,
            out=out,
            caches=caches or (),
            buckets=buckets,
            settings=parse_settings(options or []),
            field=field,
            note=say,
            progress=progress,
        )
    _report(run, valid, field, json)


def _report(run: Run, valid: list[str], field: str | None, json: bool) -> None:
    """What the mixing came to."""
    with counting("evaluating") as progress:
        measured = run.evaluate(valid, field=field, progress=progress).to_dict()
    keys = ("steps", "seconds", "parameters", "tokens_per_second", "peak_memory", "weights")
    result = {"run": str(run.folder.path), **{key: run.result[key] for key in keys}}
    if json:
        print_json({**result, "valid": measured})
        return
    weights = {f"weight of {name}": value for name, value in result.pop("weights").items()}
    shown = {f"valid {key}": measured[key] for key in ("perplexity", "bits_per_byte")}
    print_fields({**result, **weights, **shown})
    say(measured["protocol"])
