"""chainrule embed"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from chainrule.cli.common import Field, Json, RunPath, counting, print_fields, print_json, tell_warnings

if TYPE_CHECKING:
    from chainrule.evaluation.vectors import Array
    from chainrule.inference.embed import Tokens
    from chainrule.runs.language_model import Run
    from chainrule.text.readers import Texts

    Found = Iterator[Array | Tokens]

What = Literal["sentences", "words", "tokens"]


def embed(
    run: RunPath,
    file: Annotated[Path, typer.Argument(help="A text, a vector a line; - or nothing: standard input.")] = Path("-"),
    what: Annotated[
        What, typer.Option(help="Take lines as sentences, as words, or give a vector for each of their tokens.")
    ] = "sentences",
    pooling: Annotated[
        Literal["mean", "max", "first", "last"], typer.Option(help="How the vectors of a sentence become one.")
    ] = "mean",
    normalise: Annotated[bool, typer.Option("--normalise", help="Bring every vector to length one.")] = False,
    layer: Annotated[
        int | None, typer.Option(help="The states of this layer: 0 the embedding, -1 the last (default: the last).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the vectors to this .npy file.")] = None,
    field: Field = None,
    json: Json = False,
) -> None:
    """Print the vector of each line, or write all of them to a file that numpy reads."""
    from chainrule import api
    from chainrule.inference.embed import save_npy
    from chainrule.text.readers import lines_in, open_texts

    tell_warnings()
    loaded = api.load(run)
    texts = open_texts([file], field=field or loaded.config.data.field)
    read, told = tee(lines_in(texts))
    found = _vectors(loaded, read, what, {"pooling": pooling, "normalise": normalise, "layer": layer})
    if out is None:
        for text, one in zip(told, found, strict=True):
            _print(text, one, json)
        return
    rows, width = save_npy(out, (_array(one) for one in _counted(found, texts, file)))
    result = {"out": str(out), "rows": rows, "width": width}
    print_json(result) if json else print_fields(result)


def _vectors(run: Run, lines: Iterator[str], what: What, options: dict[str, Any]) -> Found:
    """The vector of each line, or of each of its tokens."""
    from chainrule.errors import ConfigError
    from chainrule.inference.embed import embed_lines, embed_tokens, embed_words

    if what == "sentences":
        return embed_lines(run, lines, **options)
    if options.pop("pooling") != "mean":
        raise ConfigError(f"--pooling makes one vector of a sentence's; {what} keep their own: leave it out")
    if what == "tokens":
        return embed_tokens(run, lines, **options)
    if options.pop("layer") is not None:
        raise ConfigError("--layer is of the states of sentences; words are looked up in the embedding: leave it out")
    return embed_words(run, lines, **options)


def _array(one: Array | Tokens) -> Array:
    return one.vectors_SD if isinstance(one, tuple) else one


def _counted(found: Found, texts: Texts, file: Path) -> Found:
    """The vectors, while progress is shown."""
    from chainrule.text.readers import lines_in

    whole = sum(1 for _ in lines_in(texts)) if file.is_file() else 0
    with counting("embedding", "lines") as progress:
        for number, one in enumerate(found, start=1):
            yield one
            progress(number, max(whole, number))


def _print(text: str, one: Array | Tokens, json: bool) -> None:
    if not isinstance(one, tuple):
        if json:
            print_json({"text": text, "vector": _numbers(one)})
        else:
            print(f"{text}\t{' '.join(map(str, _numbers(one)))}", flush=True)
        return
    vectors = [_numbers(vector_D) for vector_D in one.vectors_SD]
    if json:
        print_json({"text": text, "tokens": one.pieces, "vectors": vectors})
        return
    for piece, numbers in zip(one.pieces, vectors, strict=True):
        print(f"{piece}\t{' '.join(map(str, numbers))}")
    print(flush=True)  # an empty line between the lines


def _numbers(vector_D: Array) -> list[float]:
    """In no more digits than single precision has."""
    return [float(str(number)) for number in vector_D]
