"""chainrule models, explain and info"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from chainrule.cli.common import Json, RunPath, print_fields, print_json
from chainrule.cli.train import SHOWN


def models(json: Json = False) -> None:
    """List the available models."""
    from chainrule.registry import MODELS, TASKS

    kinds = {entry.name: entry.kind for entry in TASKS.peek()}
    listed = [
        {
            "name": entry.name,
            "family": entry.family,
            "task": kinds[entry.task],
            **({} if entry.fitting == "gradients" else {"made_by": entry.fitting}),
            **({"counterpart": entry.counterpart} if entry.counterpart else {}),
            **({"objective": entry.objective} if entry.objective else {}),
            "about": entry.summary,
        }
        for entry in MODELS.peek()
    ]
    if json:
        print_json(listed)
        return
    for one in listed:
        print(f"{one['name']:<20} {one['task']:<10} {one['family']:<16} {one['about']}")


def explain(
    model: Annotated[str, typer.Argument(help="Name of a model; `chainrule models` lists them.")], json: Json = False
) -> None:
    """Explain a model: formula, paper, options with their defaults, what to try."""
    from dataclasses import asdict

    from chainrule.experiments.explain import explain

    explanation = explain(model)
    if json:
        print_json(asdict(explanation))
    else:
        print(explanation)


def info(
    run: RunPath,
    check: Annotated[
        bool, typer.Option("--check", help="Read all files and compare them with their checksums.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the model, tokeniser, size and training of a run."""
    from chainrule.runs.load import load

    loaded = load(run)
    checked = {"checked": loaded.folder.check()} if check else {}
    record: dict[str, Any] = {**loaded.info(), **checked}
    if json:
        print_json(record)
    else:
        print_fields(_for_people(record))


def _for_people(record: dict[str, Any]) -> dict[str, Any]:
    """The fields of one level, without the steps of what was not trained by gradient steps."""
    kept = {name: value for name, value in record.items() if name != "steps" or value}
    signature, valid = kept.pop("signature"), kept.pop("valid", {})
    figures = {f"valid {name}": valid[name] for name in SHOWN if name in valid}
    return {**kept, **figures, **{f"signature {name}": value for name, value in signature.items()}}
