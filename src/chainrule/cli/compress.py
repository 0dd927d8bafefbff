"""chainrule compress and decompress"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.common import Json, LiveSettings, RunPath, print_fields, print_json, print_note, show_progress

Portable = Annotated[
    bool,
    typer.Option("--portable", help="Compute the same bits on every CPU, so that any computer can decompress; slower."),
]


def compress(
    run: RunPath,
    file: Annotated[Path, typer.Argument(help="Text file to compress.")],
    out: Annotated[Path, typer.Option(help="File to write.")],
    portable: Portable = False,
    settings: LiveSettings = None,
    json: Json = False,
) -> None:
    """Compress a text with a language model.

    Its compressed size is the bits per byte that `chainrule eval` reports, plus a few dozen bytes.
    """
    from chainrule.config import parse_settings
    from chainrule.runs.language_model import LanguageModelRun
    from chainrule.runs.load import load_for

    loaded = load_for("compress", LanguageModelRun, run, settings=parse_settings(settings or []))
    with show_progress("compressing") as progress:
        done = loaded.compress(file, out, portable=portable, progress=progress)
    record = {"bytes": done.bytes, "compressed_bytes": done.compressed_bytes, "bits_per_byte": done.bits_per_byte}
    print_json(record) if json else print_fields(record)


def decompress(
    run: RunPath,
    file: Annotated[Path, typer.Argument(help="File written by compress.")],
    out: Annotated[Path, typer.Option(help="Text file to write.")],
    settings: LiveSettings = None,
    json: Json = False,
) -> None:
    """Restore a compressed text, byte for byte.

    The file records the settings it was compressed with; --set is not needed, and another value is an error.
    """
    from chainrule.config import parse_settings
    from chainrule.runs.language_model import LanguageModelRun
    from chainrule.runs.load import load_for

    loaded = load_for("decompress", LanguageModelRun, run, settings=parse_settings(settings or []))
    with show_progress("decompressing") as progress:
        done = loaded.decompress(file, out, note=print_note, progress=progress)
    record = {"bytes": done.bytes, "compressed_bytes": done.compressed_bytes}
    print_json(record) if json else print_fields(record)
