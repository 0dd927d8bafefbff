"""chainrule neighbours"""

from __future__ import annotations

from typing import Annotated

import typer

from chainrule.cli.common import Json, RunPath, print_json


def neighbours(
    run: RunPath,
    word: Annotated[str | None, typer.Argument(help="The word whose neighbours to print.")] = None,
    top: Annotated[int, typer.Option(help="So many neighbours.")] = 10,
    analogy: Annotated[
        tuple[str, str, str] | None,
        typer.Option(metavar="A B C", help="The words nearest to A - B + C: king man woman gives queen."),
    ] = None,
    json: Json = False,
) -> None:
    """Print the words whose vectors have the largest cosine with that of a word, or with a sum of three."""
    from chainrule import api
    from chainrule.errors import ConfigError

    if (word is None) == (analogy is None):
        raise ConfigError("neighbours takes a word or --analogy with three, one or the other")
    loaded = api.load(run)
    found = loaded.analogy(*analogy, top=top) if analogy else loaded.neighbours(word or "", top)
    if json:
        asked = {"analogy": list(analogy)} if analogy else {"word": word}
        print_json({**asked, "neighbours": [one._asdict() for one in found]})
        return
    for one in found:
        print(f"{one.word}\t{one.cosine:.4f}")
