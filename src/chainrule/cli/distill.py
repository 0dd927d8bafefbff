"""chainrule distill"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.common import Json, counting, print_json, say, tell_warnings
from chainrule.cli.translate import BatchSize, Beams, LengthPenalty


def distill(
    teacher: Annotated[Path, typer.Argument(metavar="TEACHER", help="The folder of a trained translator.")],
    data: Annotated[list[str], typer.Option(help="The sources to translate: a text, or pairs (given twice, or .tsv).")],
    out: Annotated[Path, typer.Option(help="The new pairs: a .tsv file, or a .jsonl file.")],
    num_beams: Beams = None,
    length_penalty: LengthPenalty = 1.0,
    batch_size: BatchSize = 32,
    json: Json = False,
) -> None:
    """Write a teacher's translations of some sources as new pairs to train a student on; again goes on."""
    from chainrule import api
    from chainrule.experiments.distill import distill as run_distillation

    tell_warnings()
    with counting("distilling", "lines") as progress:
        count = run_distillation(
            api.load_translator(teacher),
            data,
            out,
            progress=progress,
            num_beams=5 if num_beams is None else num_beams,
            length_penalty=length_penalty,
            batch_size=batch_size,
        )
    if json:
        print_json({"pairs": count, "out": str(out)})
    else:
        say(f"{count:,} pairs in {out}")
