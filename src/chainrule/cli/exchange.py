"""chainrule export and import"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chainrule.cli.common import Json, RunPath, print_fields, print_json, print_note, show_progress


def export(
    run: RunPath,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="File to write, compressed if its name ends in .gz; a folder for hf, ctranslate2, onnx and run.",
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            help="Format: arpa (n-gram models), hf (Hugging Face), word2vec (word vectors), ctranslate2 (inference "
            "engine), onnx (graphs) or run (a run folder); by default arpa for a name that ends in .arpa, else the one "
            "that suits the run."
        ),
    ] = None,
    quantize: Annotated[
        str | None, typer.Option(help="Store weights with fewer bits: int8. For ctranslate2 and run.")
    ] = None,
    json: Json = False,
) -> None:
    """Export a run to a file format of other tools."""
    from chainrule.interop.formats import export as export_run
    from chainrule.interop.formats import find_format, format_for

    chosen = format_for(run, path) if to is None else find_format(to)
    with show_progress("exporting", chosen.export_unit) as progress:
        done = export_run(run, path, to=chosen.name, quantize=quantize, progress=progress)
    record: dict[str, Any] = {"path": str(done.path), "format": chosen.name, "bytes": done.bytes}
    record |= {} if done.words is None else {"words": done.words, "vector_size": done.vector_size}
    record |= {} if done.difference is None else {"difference": done.difference}
    if json:
        print_json({**record, "ngrams": list(done.ngrams)} if done.ngrams else record)
        return
    print_fields({**record, **{f"{k}-grams": size for k, size in enumerate(done.ngrams, 1)}})


def import_(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="ARPA file, file of word vectors, Hugging Face folder, or package that contains one."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new run.")],
    json: Json = False,
) -> None:
    """Import a model of another tool as a run."""
    from chainrule.interop.formats import detect_format, import_run

    with show_progress("importing", detect_format(path).import_unit) as progress:
        folder = import_run(path, out, note=print_note, progress=progress)
    result = folder.read_result() or {}
    ngrams = result.get("ngrams", [])
    record = {"run": str(folder.path), **{key: result[key] for key in ("seconds", "parameters", "peak_memory")}}
    record["vocab_size"] = ngrams[0] if ngrams else folder.read_config().tokenizer.vocab_size
    if json:
        print_json({**record, **({"ngrams": ngrams} if ngrams else {}), "notes": result["notes"]})
        return
    print_fields({**record, **{f"{k}-grams": size for k, size in enumerate(ngrams, 1)}})
