"""chainrule distill"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chainrule.base.grammar import plural
from chainrule.cli.common import Json, print_json, print_note, print_warnings, show_progress, source_names
from chainrule.cli.translate import BatchSize, Beams, LengthPenalty, given_options


def distill(
    teacher: Annotated[Path, typer.Argument(metavar="TEACHER", help="Folder of a trained translator.")],
    data: Annotated[
        list[str],
        typer.Option(
            help="Sources to translate: a text file, or pairs as two files (repeat --data) or one .tsv or .jsonl file."
        ),
    ],
    out: Annotated[Path, typer.Option(help="File of the new pairs, .tsv or .jsonl.")],
    reverse: Annotated[
        bool,
        typer.Option(
            "--reverse",
            help="Back-translation: write each translation as the source and its line as the target, to train a "
            "translator of the other direction.",
        ),
    ] = False,
    num_beams: Beams = None,
    length_penalty: LengthPenalty = None,
    batch_size: BatchSize = 32,
    json: Json = False,
) -> None:
    """Translate sources with a teacher, to train a student.

    Rerun the same command to resume an interrupted translation.
    """
    from chainrule.experiments.distill import distill as run_distillation
    from chainrule.runs.load import load_for
    from chainrule.runs.translator import TranslatorRun

    print_warnings()
    with show_progress("distilling", "lines") as progress:
        count = run_distillation(
            load_for("distill", TranslatorRun, teacher),
            source_names(data),
            out,
            reverse=reverse,
            progress=progress,
            **given_options({"num_beams": num_beams, "length_penalty": length_penalty, "batch_size": batch_size}),
        )
    if json:
        print_json({"pairs": count, "out": str(out)})
    else:
        print_note(f"{plural(count, 'pair')} written to {out}")
