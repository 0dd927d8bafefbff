"""chainrule embed"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from chainrule.cli.common import Field, Json, RunPath, print_fields, print_json, print_warnings, show_progress

if TYPE_CHECKING:
    from chainrule.base.arrays import Array
    from chainrule.inference.embed import TokenVectors
    from chainrule.runs.base import Run
    from chainrule.text.readers import Texts

    Vectors = Iterator[Array | TokenVectors]

Unit = Literal["sentences", "words", "tokens"]


def embed(
    run: RunPath,
    file: Annotated[Path, typer.Argument(help="Text file to embed line by line; - is standard input.")] = Path("-"),
    what: Annotated[
        Unit, typer.Option(help="What a vector stands for: a line as a sentence, a line as a word, or each token.")
    ] = "sentences",
    pooling: Annotated[
        Literal["mean", "max", "first", "last", "pooled"],
        typer.Option(
            help="How the vectors of a sentence are combined into one; pooled is the pooled output of an imported BERT."
        ),
    ] = "mean",
    normalise: Annotated[bool, typer.Option("--normalise", help="Scale every vector to length one.")] = False,
    layer: Annotated[
        int | None,
        typer.Option(help="Layer whose states are used: 0 is the embedding, -1 the last layer (default: -1)."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the vectors to this .npy file instead of printing them.")
    ] = None,
    field: Field = None,
    json: Json = False,
) -> None:
    """Compute the vectors of sentences, words or tokens."""
    from chainrule import api
    from chainrule.base.targets import check_file
    from chainrule.inference.embed import save_npy
    from chainrule.text.readers import lines_in, open_texts

    print_warnings()
    if out is not None:
        check_file(out)
    loaded = api.load(run)
    texts = open_texts([file], field=field or loaded.config.data.field)
    inputs, lines = tee(lines_in(texts))
    vectors = _vectors(loaded, inputs, what, {"pooling": pooling, "normalise": normalise, "layer": layer})
    if out is None:
        for line, one in zip(lines, vectors, strict=True):
            _print(line, one, json)
        return
    rows, width = save_npy(out, (_array(one) for one in _with_progress(vectors, texts, file)))
    result = {"out": str(out), "rows": rows, "width": width}
    print_json(result) if json else print_fields(result)


def _vectors(run: Run, lines: Iterator[str], what: Unit, options: dict[str, Any]) -> Vectors:
    """The vector of each line, or the vectors of its tokens."""
    from chainrule.errors import ConfigError
    from chainrule.inference.embed import embed_lines, embed_tokens, embed_words

    if what == "sentences":
        return embed_lines(run.subject, lines, **options)
    if options.pop("pooling") != "mean":
        raise ConfigError(f"--pooling applies to sentences, not to {what}; leave it out")
    if what == "tokens":
        return embed_tokens(run.subject, lines, **options)
    if options.pop("layer") is not None:
        raise ConfigError("--layer does not apply to words, which are looked up in the embedding; leave it out")
    return embed_words(run.subject, lines, **options)


def _array(one: Array | TokenVectors) -> Array:
    return one.vectors_SD if isinstance(one, tuple) else one


def _with_progress(vectors: Vectors, texts: Texts, file: Path) -> Vectors:
    """Yield the vectors and show the progress."""
    from chainrule.text.readers import lines_in

    total = sum(1 for _ in lines_in(texts)) if file.is_file() else 0
    with show_progress("embedding", "lines") as progress:
        for number, one in enumerate(vectors, start=1):
            yield one
            progress(number, max(total, number))


def _print(text: str, one: Array | TokenVectors, json: bool) -> None:
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
    print(flush=True)  # a blank line ends the tokens of each line


def _numbers(vector_D: Array) -> list[float]:
    """The components as numbers with no more digits than single precision has."""
    return [float(str(number)) for number in vector_D]
