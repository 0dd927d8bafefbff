"""chainrule score"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.common import Field, Json, RunPath, print_json


def score(
    run: RunPath,
    file: Annotated[Path, typer.Argument(help="A text, scored line by line; - or nothing: standard input.")] = Path(
        "-"
    ),
    tokens: Annotated[bool, typer.Option("--tokens", help="Show log p of every token.")] = False,
    field: Field = None,
    json: Json = False,
) -> None:
    """Print log p of each line in nats, its <eos> included; with --json one object a line."""
    from chainrule import api

    for scored in api.load(run).score(_lines(file, field or "text")):
        if json:
            record = {"log_prob": scored.log_prob, "tokens": scored.tokens}
            if tokens:
                record["pieces"], record["log_probs"] = scored.pieces, scored.log_probs  # type: ignore[assignment]
            print_json(record)
        elif tokens:
            print(
                "\t".join(f"{piece} {value:.4f}" for piece, value in zip(scored.pieces, scored.log_probs, strict=True))
            )
        else:
            print(f"{scored.log_prob:.4f}")


def _lines(file: Path, field: str) -> Iterator[str]:
    """The lines of a file as strings; a line too long for one piece is joined again."""
    from chainrule.text.readers import open_texts

    rest = ""
    for block in open_texts([str(file)], field=field).strings():
        *whole, last = (rest + block).split("\n")
        yield from whole
        rest = last
    if rest:
        yield rest
