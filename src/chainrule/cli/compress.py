"""chainrule compress and decompress"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.common import Json, RunPath, counting, print_fields, print_json


def compress(
    run: RunPath,
    file: Annotated[Path, typer.Argument(help="The text to compress.")],
    out: Annotated[Path, typer.Option(help="Where to write it.")],
    json: Json = False,
) -> None:
    """Compress a text with a model; its size is what `eval` says in bits per byte."""
    from chainrule import api

    with counting("compressing") as progress:
        done = api.load(run).compress(file, out, progress=progress)
    record = {"bytes": done.bytes, "compressed_bytes": done.compressed_bytes, "bits_per_byte": done.bits_per_byte}
    print_json(record) if json else print_fields(record)


def decompress(
    run: RunPath,
    file: Annotated[Path, typer.Argument(help="What compress wrote.")],
    out: Annotated[Path, typer.Option(help="Where to write the text.")],
    json: Json = False,
) -> None:
    """Give back the text that compress took, byte for byte."""
    from chainrule import api

    with counting("decompressing") as progress:
        done = api.load(run).decompress(file, out, progress=progress)
    record = {"bytes": done.bytes, "compressed_bytes": done.compressed_bytes}
    print_json(record) if json else print_fields(record)
