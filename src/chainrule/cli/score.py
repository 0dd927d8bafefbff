"""chainrule score"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chainrule.cli.common import Field, Json, RunPath, print_json

if TYPE_CHECKING:
    from chainrule.text.tokenizers import Tokenizer


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

    loaded = api.load(run)
    if not tokens:
        for log_probs, counts in loaded.score_text(str(file), field=field):
            lines = map('{{"log_prob": {!r}, "tokens": {}}}'.format if json else "{:.4f}".format, log_probs, counts)
            print("\n".join(lines).replace(": -inf,", ": null,"), flush=True)  # which JSON lacks
        return
    for scored in loaded.score(_lines(loaded.tokenizer, file, field or loaded.config.data.field)):
        if json:
            names = {"pieces": scored.pieces, "log_probs": scored.log_probs}
            print_json({"log_prob": scored.log_prob, "tokens": scored.tokens, **names})
        else:
            print("\t".join(f"{piece} {nats:.4f}" for piece, nats in zip(scored.pieces, scored.log_probs, strict=True)))


def _lines(tokenizer: Tokenizer, file: Path, field: str) -> Iterator[str]:
    """The lines of a file as strings; a line too long for one piece is joined again."""
    from chainrule.text.readers import open_texts

    rest = ""
    for block in open_texts([str(file)], field=field).strings(any_bytes=tokenizer.any_bytes):
        *whole, last = (rest + block).split("\n")
        yield from whole
        rest = last
    if rest:
        yield rest
