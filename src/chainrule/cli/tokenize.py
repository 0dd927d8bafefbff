"""chainrule tokenize"""

from __future__ import annotations

from typing import Annotated

import typer

from chainrule.cli.common import Field, Json, print_json


def tokenize(
    tokenizer: Annotated[
        str,
        typer.Argument(metavar="RUN|FILE|KIND", help="A run, a tokenizer file, or a kind that is fitted to the text."),
    ],
    file: Annotated[str, typer.Argument(help="Text file; - is standard input.")] = "-",
    vocab_size: Annotated[int | None, typer.Option(help="Maximum number of tokens of a kind that is fitted.")] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print token ids instead of pieces.")] = False,
    field: Field = None,
    json: Json = False,
) -> None:
    """Print the tokens of a text, one output line per input line."""
    from chainrule.text.readers import open_texts
    from chainrule.text.tokenizers import train_tokenizer

    texts = open_texts([file], field=field or "text")
    fitted = train_tokenizer(tokenizer, texts, vocab_size=vocab_size)
    for block in fitted.blocks(texts):
        for line in block.split("\n")[: -1 if block.endswith("\n") else None]:
            encoded = [int(token) for token in fitted.encode(line)]
            pieces = [fitted.piece(token) for token in encoded]
            if json:
                print_json({"ids": encoded, "pieces": pieces})
            else:
                print(" ".join(map(str, encoded) if ids else pieces))
