"""chainrule eval"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from chainrule.cli.common import Field, Json, RunPath, counting, print_fields, print_json, say


def evaluate(
    run: RunPath,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT…", help="Files, folders, - or hf:NAME/CONFIG:SPLIT.")],
    field: Field = None,
    json: Json = False,
) -> None:
    """Measure a run on a text: tokens, OOV, perplexity, cross-entropy, bits per byte."""
    from chainrule import api

    loaded = api.load(run)
    with counting("evaluating") as progress:
        measured = loaded.evaluate(texts, field=field, progress=progress)
    if json:
        print_json(measured.to_dict())
        return
    print_fields({name: value for name, value in asdict(measured).items() if name != "protocol"})
    say(measured.protocol)
