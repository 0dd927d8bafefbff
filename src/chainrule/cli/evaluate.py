"""chainrule eval"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.common import Field, Json, LiveSettings, counting, print_fields, print_json, say, tell_warnings
from chainrule.cli.translate import BatchSize, Beams, LengthPenalty, Lengths, Mode, Refine, parallel_options

if TYPE_CHECKING:
    from chainrule.translator_run import TranslatorRun


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that train made.")],
    texts: Annotated[
        list[str],
        typer.Argument(metavar="[RUN2] TEXT…", help="Files, folders, - or hf:NAME/CONFIG:SPLIT; pairs as in train."),
    ],
    field: Field = None,
    reference: Annotated[list[str] | None, typer.Option(help="Pairs: a file of further references.")] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Pairs: measure without regard to case.")] = False,
    bleu_tokenizer: Annotated[
        str | None, typer.Option(help="Pairs: sacreBLEU's tokeniser (default: zh for Chinese, else 13a).")
    ] = None,
    num_beams: Beams = None,
    length_penalty: LengthPenalty = 1.0,
    batch_size: BatchSize = 32,
    mode: Mode = "ar",
    lengths: Lengths = 1,
    refine: Refine = 0,
    outputs: Annotated[Path | None, typer.Option(help="Pairs: write the translations to this file.")] = None,
    settings: LiveSettings = None,
    json: Json = False,
) -> None:
    """Measure a run on a text: tokens, OOV, perplexity, cross-entropy, bits per byte; on pairs also BLEU, chrF, ROUGE.

    With a second translator before the pairs, both are measured and their difference is tested.
    """
    from chainrule import api
    from chainrule.config import parse_settings
    from chainrule.errors import ConfigError
    from chainrule.translator_run import TranslatorRun

    tell_warnings()
    second = Path(texts[0]) if len(texts) > 1 and (Path(texts[0]) / "config.toml").exists() else None
    loaded = api.load(run, settings=parse_settings(settings or []))
    if isinstance(loaded, TranslatorRun):
        others = [api.load_translator(second)] if second else []
        options = {"lowercase": lowercase, "bleu_tokenizer": bleu_tokenizer, "references": reference or []}
        search = {
            **parallel_options(num_beams, mode, lengths, refine),
            "length_penalty": length_penalty,
            "batch_size": batch_size,
        }
        _evaluate_pairs([loaded, *others], texts[len(others) :], options, search, outputs, json)
        return
    if second is not None or reference or lowercase or bleu_tokenizer or outputs or mode != "ar":
        raise ConfigError(
            f"{run} is a {loaded.config.model.name}, a language model; translations, their references and a second run "
            "are measured with translators; give one text, or use chainrule compare"
        )
    with counting("evaluating") as progress:
        measured = loaded.evaluate(texts, field=field, progress=progress)
    if json:
        print_json(measured.to_dict())
        return
    print_fields({name: value for name, value in asdict(measured).items() if name != "protocol"})
    say(measured.protocol)


def _evaluate_pairs(
    runs: list[TranslatorRun],
    texts: list[str],
    options: dict[str, Any],
    search: dict[str, Any],
    outputs: Path | None,
    json: bool,
) -> None:
    """One translator measured, or two and the difference between them."""
    from chainrule.files import write_atomically

    written = []
    for run in runs:
        with counting(f"translating with {run.folder.path}", "lines") as progress:
            written.append(run.outputs_of(texts, progress=progress, **search))
    if outputs:
        write_atomically(outputs, "".join(line + "\n" for line in written[0]))
    measured = [
        run.evaluate(texts, outputs=lines, **options, **search) for run, lines in zip(runs, written, strict=True)
    ]
    tested = (
        [runs[0].compare_with(texts, (written[0], written[1]), metric=metric, **options) for metric in ("bleu", "chrf")]
        if len(runs) == 2
        else []
    )
    if json:
        told = [{"run": str(run.folder.path), **one.to_dict()} for run, one in zip(runs, measured, strict=True)]
        print_json({"runs": told, "paired": [asdict(one) for one in tested]} if tested else measured[0].to_dict())
        return
    for run, one in zip(runs, measured, strict=True):
        print_fields({"run": str(run.folder.path), **_shown(asdict(one))})
        say(one.protocol)
    for test in tested:
        print_fields({name: _interval(value) for name, value in asdict(test).items()})


def _shown(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _interval(value) for name, value in values.items() if name != "protocol"}


def _interval(value: Any) -> Any:
    return f"{value[0]:.2f} to {value[1]:.2f}" if isinstance(value, tuple) else value
