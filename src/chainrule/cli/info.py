"""chainrule models and info"""

from __future__ import annotations

from typing import Any

from chainrule.cli.common import Json, RunPath, print_fields, print_json


def models(json: Json = False) -> None:
    """List the models there are."""
    from chainrule.registry import MODELS

    listed = [
        {"name": entry.name, **entry.about, "about": (entry.make.__doc__ or "").partition("\n")[0]}
        for entry in MODELS.entries()
    ]
    if json:
        print_json(listed)
        return
    for one in listed:
        print(f"{one['name']:<20} {one['task']:<10} {one['family']:<16} {one['about']}")


def info(run: RunPath, json: Json = False) -> None:
    """Tell what a run is: model, tokeniser, size, training, signature."""
    from chainrule import api

    told: dict[str, Any] = api.load(run).info()
    if json:
        print_json(told)
    else:
        signature = told.pop("signature")
        print_fields({**told, **{f"signature {name}": value for name, value in signature.items()}})
