"""chainrule tokenize"""

from __future__ import annotations

from typing import Annotated

import typer

from chainrule.cli.common import Field, Json, print_json


def tokenize(
    tokenizer: Annotated[
        str, typer.Argument(metavar="RUN|FILE|KIND", help="A run, a tokenizer file, or a kind to fit.")
    ],
    file: Annotated[str, typer.Argument(help="The text; - or nothing: standard input.")] = "-",
    vocab_size: Annotated[int | None, typer.Option(help="When a kind is fitted: most tokens it may know.")] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print numbers instead of pieces.")] = False,
    field: Field = None,
    json: Json = False,
) -> None:
    """Show how text becomes tokens, a line for a line."""
    from chainrule.text.readers import open_texts
    from chainrule.text.tokenizers import train_tokenizer

    texts = open_texts([file], field=field or "text")
    made = train_tokenizer(tokenizer, texts, vocab_size=vocab_size)
    for block in made.blocks(texts):
        for line in block.split("\n")[: -1 if block.endswith("\n") else None]:
            encoded = [int(token) for token in made.encode(line)]
            pieces = [made.piece(token) for token in encoded]
            if json:
                print_json({"ids": encoded, "pieces": pieces})
            else:
                print(" ".join(map(str, encoded) if ids else pieces))
