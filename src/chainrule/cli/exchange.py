"""chainrule export and import"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chainrule.cli.common import Json, RunPath, counting, print_fields, print_json, say

UNITS = {"arpa": "n-grams", "hf": "files", "word2vec": "words"}
READ_UNITS = {**UNITS, "hf": "bytes"}


def export(
    run: RunPath,
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="The file to write, compressed if it ends in .gz; of hf the folder.")
    ],
    to: Annotated[str, typer.Option(help="The format: arpa, hf or word2vec.")] = "arpa",
    json: Json = False,
) -> None:
    """Write a model to files that other tools read."""
    from chainrule.interop.formats import export as export_run

    with counting("exporting", UNITS.get(to, "parts")) as progress:
        done = export_run(run, path, to=to, progress=progress)
    record: dict[str, Any] = {"path": str(done.path), "bytes": done.bytes}
    record |= {} if done.words is None else {"words": done.words, "vector_size": done.vector_size}
    if json:
        print_json({**record, "ngrams": list(done.ngrams)} if done.ngrams else record)
        return
    print_fields({**record, **{f"{k}-grams": size for k, size in enumerate(done.ngrams, 1)}})


def import_(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="An ARPA file, word vectors, or a Hugging Face folder or a package that holds one."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The run's folder.")],
    json: Json = False,
) -> None:
    """Make a run of a model that another tool wrote."""
    from chainrule.interop.formats import format_of, import_run

    with counting("importing", READ_UNITS[format_of(path)]) as progress:
        folder = import_run(path, out, note=say, progress=progress)
    result = folder.read_result() or {}
    ngrams = result.get("ngrams", [])
    record = {"run": str(folder.path), **{key: result[key] for key in ("seconds", "parameters", "peak_memory")}}
    record["vocab_size"] = ngrams[0] if ngrams else folder.read_config().tokenizer.vocab_size
    if json:
        print_json({**record, **({"ngrams": ngrams} if ngrams else {}), "notes": result["notes"]})
        return
    print_fields({**record, **{f"{k}-grams": size for k, size in enumerate(ngrams, 1)}})
