"""chainrule neighbours"""

from __future__ import annotations

from typing import Annotated

import typer

from chainrule.cli.common import Json, RunPath, print_json


def neighbours(
    run: RunPath,
    word: Annotated[str | None, typer.Argument(help="Word whose neighbours are printed.")] = None,
    top: Annotated[int, typer.Option(help="Number of neighbours to show.")] = 10,
    analogy: Annotated[
        tuple[str, str, str] | None,
        typer.Option(metavar="A B C", help="Show the words nearest to A - B + C; king man woman gives queen."),
    ] = None,
    json: Json = False,
) -> None:
    """Print the words nearest to a word or an analogy.

    Nearest means that the cosine between the word vectors is largest.
    """
    from chainrule import api
    from chainrule.errors import ConfigError

    if (word is None) == (analogy is None):
        raise ConfigError("neighbours needs either a word or --analogy A B C; give one of them")
    loaded = api.load(run)
    found = loaded.analogy(*analogy, top=top) if analogy else loaded.neighbours(word or "", top)
    if json:
        query = {"analogy": list(analogy)} if analogy else {"word": word}
        print_json({**query, "neighbours": [one._asdict() for one in found]})
        return
    for one in found:
        print(f"{one.word}\t{one.cosine:.4f}")
