"""chainrule export and import"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.common import Json, RunPath, counting, print_fields, print_json, say


def export(
    run: RunPath,
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The file to write; compressed if it ends in .gz.")],
    to: Annotated[str, typer.Option(help="The format: arpa.")] = "arpa",
    json: Json = False,
) -> None:
    """Write a model to a file that other tools read."""
    from chainrule.interop.arpa import export as export_run

    with counting("exporting", "n-grams") as progress:
        done = export_run(run, path, to=to, progress=progress)
    record = {"path": str(done.path), "bytes": done.bytes}
    if json:
        print_json({**record, "ngrams": done.ngrams})
        return
    print_fields({**record, **{f"{k}-grams": size for k, size in enumerate(done.ngrams, 1)}})


def import_(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A model in ARPA format, plain or compressed.")],
    out: Annotated[Path, typer.Option(help="The run's folder.")],
    json: Json = False,
) -> None:
    """Make a run of a model that another tool wrote."""
    from chainrule.interop.arpa import import_arpa

    with counting("importing", "n-grams") as progress:
        folder = import_arpa(path, out, note=say, progress=progress)
    result = folder.read_result() or {}
    record = {"run": str(folder.path), **{key: result[key] for key in ("seconds", "parameters", "peak_memory")}}
    record["vocab_size"] = result["ngrams"][0]
    if json:
        print_json({**record, "ngrams": result["ngrams"], "notes": result["notes"]})
        return
    print_fields({**record, **{f"{k}-grams": size for k, size in enumerate(result["ngrams"], 1)}})
