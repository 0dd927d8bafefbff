"""chainrule neighbours"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from chainrule.cli.common import Field, Json, RunPath, print_json, print_warnings

if TYPE_CHECKING:
    from chainrule.inference.sentence_search import Match


def neighbours(
    run: RunPath,
    word: Annotated[
        str | None, typer.Argument(help="Word whose neighbours are printed; with --texts a text to search for.")
    ] = None,
    top: Annotated[int, typer.Option(help="Number of neighbours to show.")] = 10,
    analogy: Annotated[
        tuple[str, str, str] | None,
        typer.Option(metavar="A B C", help="Show the words nearest to A - B + C; king man woman gives queen."),
    ] = None,
    texts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Show the lines of this file nearest to the text WORD.")
    ] = None,
    pooling: Annotated[
        Literal["mean", "max", "first", "last"],
        typer.Option(help="With --texts: how the vectors of a line are combined into one."),
    ] = "mean",
    field: Field = None,
    json: Json = False,
) -> None:
    """Print the words nearest to a word or an analogy, or the lines of a file nearest to a text.

    Nearest means that the cosine between the vectors is largest.
    """
    from chainrule import api
    from chainrule.errors import ConfigError

    if (word is None) == (analogy is None):
        raise ConfigError("neighbours needs either a word or --analogy A B C; give one of them")
    loaded = api.load(run)
    if texts is not None:
        if word is None:
            raise ConfigError("neighbours --texts needs the text to search for; give it after the run")
        print_warnings()
        _print_lines(word, loaded.search(word, texts, top=top, pooling=pooling, field=field), json)
        return
    if pooling != "mean" or field is not None:
        raise ConfigError("--pooling and --field apply to the lines of --texts; leave them out")
    found = loaded.analogy(*analogy, top=top) if analogy else loaded.neighbours(word or "", top)
    if json:
        query = {"analogy": list(analogy)} if analogy else {"word": word}
        print_json({**query, "neighbours": [one._asdict() for one in found]})
        return
    for one in found:
        print(f"{one.word}\t{one.cosine:.4f}")


def _print_lines(query: str, found: list[Match], json: bool) -> None:
    """Print the lines nearest to a query: cosine, number of the line, and text."""
    if json:
        print_json({"query": query, "lines": [one._asdict() for one in found]})
        return
    for one in found:
        print(f"{one.cosine:.4f}\t{one.line}\t{one.text}")
