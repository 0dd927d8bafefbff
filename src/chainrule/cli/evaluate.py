"""chainrule eval"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.common import Field, Json, LiveSettings, counting, print_fields, print_json, say, tell_warnings
from chainrule.cli.translate import BatchSize, Beams, LengthPenalty, Lengths, Mode, Refine, parallel_options

if TYPE_CHECKING:
    from chainrule.evaluation.vectors import Analogies, Similarity
    from chainrule.runs.language_model import Run
    from chainrule.runs.translator import TranslatorRun

    Vectors = dict[str, Similarity | Analogies]


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that train made.")],
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN2] TEXT…", help="Files, folders, - or hf:NAME/CONFIG:SPLIT; pairs as in train."),
    ] = None,
    field: Field = None,
    similarity: Annotated[
        Path | None, typer.Option(help="Vectors: pairs of words with scores, such as wordsim353.tsv.")
    ] = None,
    analogies: Annotated[
        Path | None, typer.Option(help="Vectors: analogies in sections, such as questions-words.txt.")
    ] = None,
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

    With a second translator before the pairs, both are measured and their difference is tested. Vectors of words are
    measured by --similarity and --analogies, for which no text is needed.
    """
    from chainrule import api
    from chainrule.config import parse_settings
    from chainrule.errors import ConfigError
    from chainrule.runs.translator import TranslatorRun

    tell_warnings()
    texts = texts or []
    second = Path(texts[0]) if len(texts) > 1 and (Path(texts[0]) / "config.toml").exists() else None
    loaded = api.load(run, settings=parse_settings(settings or []))
    vectors = _evaluate_vectors(loaded, similarity, analogies)
    if vectors and not texts:
        _print_vectors(vectors, json)
        return
    if not texts:
        raise ConfigError("eval got no text; name one, or measure vectors of words with --similarity or --analogies")
    if isinstance(loaded, TranslatorRun) and vectors:
        raise ConfigError(f"{run} is measured on pairs, or its vectors are; leave the pairs out, or the files of words")
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
    _evaluate_text(loaded, texts, field, vectors, json)


def _evaluate_text(run: Run, texts: list[str], field: str | None, vectors: Vectors, json: bool) -> None:
    """A run measured on a text, and what was measured of its vectors beside."""
    with counting("evaluating", run.counted) as progress:
        measured = run.evaluate(texts, field=field, progress=progress)
    if json:
        print_json({**measured.to_dict(), **_told(vectors)})
        return
    if hasattr(measured, "show"):
        print(measured.show())
    else:
        plain = {name: value for name, value in asdict(measured).items() if not isinstance(value, dict | list)}
        print_fields({name: value for name, value in plain.items() if name != "protocol"})
    say(measured.protocol)
    _print_vectors(vectors, json)


def _evaluate_vectors(run: Run, similarity: Path | None, analogies: Path | None) -> Vectors:
    """The vectors of a run's words measured by files, as far as files are given."""
    from chainrule.evaluation import vectors

    found: Vectors = {}
    if similarity is not None:
        found["similarity"] = vectors.similarity(run.word_table.words, run.word_table.vectors_VD, similarity)
    if analogies is not None:
        found["analogies"] = vectors.analogies(run.word_table.words, run.word_table.vectors_VD, analogies)
    return found


def _told(vectors: Vectors) -> dict[str, Any]:
    return {name: measured.to_dict() for name, measured in vectors.items()}


def _print_vectors(vectors: Vectors, json: bool) -> None:
    if json:
        print_json(_told(vectors))
        return
    for name, measured in vectors.items():
        told = measured.to_dict()
        sections = told.pop("sections", [])
        print_fields({f"{name} {key}": value for key, value in told.items()})
        for one in sections:
            print(f"  {one['section']}  {one['correct']:,} of {one['questions']:,}")


def _evaluate_pairs(
    runs: list[TranslatorRun],
    texts: list[str],
    options: dict[str, Any],
    search: dict[str, Any],
    outputs: Path | None,
    json: bool,
) -> None:
    """One translator measured, or two and the difference between them."""
    from chainrule.base.files import write_atomically

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
