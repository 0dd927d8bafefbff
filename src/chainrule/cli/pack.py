"""chainrule pack and unpack"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.common import Json, RunPath, print_fields, print_json


def pack(
    run: RunPath,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, for example model.crn.")],
    json: Json = False,
) -> None:
    """Write a run as one file, which every verb reads like the folder."""
    from chainrule.checkpoint.pack import pack as pack_run

    done = pack_run(run, path)
    record = {"path": str(done.path), "bytes": done.bytes}
    print_json(record) if json else print_fields(record)


def unpack(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="File written by chainrule pack.")],
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    json: Json = False,
) -> None:
    """Write a packed run to a folder, for example to tune it."""
    from chainrule.checkpoint.pack import unpack as unpack_run

    record = {"run": str(unpack_run(path, out))}
    print_json(record) if json else print_fields(record)
