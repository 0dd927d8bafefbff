"""chainrule tune"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from chainrule.cli.common import Json, RunPath, print_json, print_note, print_warnings, source_names


def tune(
    run: RunPath,
    valid: Annotated[
        list[str] | None,
        typer.Option(help="Validation data, as for train; repeatable (default: that of the training)."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Option to tune, for example model.gamma; repeatable (default: all)."),
    ] = None,
    by: Annotated[
        Literal["loss", "bleu"], typer.Option(help="Translators: what selects the options of the model.")
    ] = "loss",
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Validation tokens or pairs to use (default: 200,000 tokens, 500 pairs)."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the result without saving it.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also print every trial.")] = False,
    json: Json = False,
) -> None:
    """Fit, on validation data, the options of a finished run that need no training.

    These are γ and the thresholds of a model, beam width and length penalty of a translator, and the weights of a
    mixture. The result is saved in the run and used by all verbs.
    """
    from chainrule.experiments import tune as tuning

    print_warnings()
    done = tuning.tune(
        run,
        valid=source_names(valid) or None,
        options=option,
        by=by,
        limit=limit,
        dry_run=dry_run,
        note=print_note if verbose else lambda text: None,
    )
    print_json(done.to_dict()) if json else print(done.show())
