"""chainrule eval"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.common import (
    Field,
    Json,
    LiveSettings,
    Precision,
    Verbose,
    is_translator,
    print_fields,
    print_json,
    print_note,
    print_warnings,
    show_progress,
    source_names,
)
from chainrule.cli.translate import (
    BatchSize,
    Beams,
    LengthPenalty,
    Lengths,
    Mode,
    Refine,
    given_options,
    parallel_options,
)

if TYPE_CHECKING:
    from chainrule.evaluation.vectors import Analogies, Similarity
    from chainrule.runs.base import EvaluatedRun, Run
    from chainrule.runs.translator import TranslatorRun

    Vectors = dict[str, Similarity | Analogies]


Texts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN2] TEXT…",
        help="A second run to compare with (translators only), then the test data, as for train.",
    ),
]
SimilarityOption = Annotated[
    Path | None,
    typer.Option(help="Word vectors: file of word pairs with similarity scores, for example wordsim353.tsv."),
]
AnalogiesOption = Annotated[
    Path | None, typer.Option(help="Word vectors: file of analogies in sections, for example questions-words.txt.")
]
Reference = Annotated[list[str] | None, typer.Option(help="Translators: file of further references; repeatable.")]
BleuTokenizer = Annotated[
    str | None, typer.Option(help="Translators: tokeniser of sacreBLEU (default: zh for Chinese, else 13a).")
]


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a trained or imported run.")],
    texts: Texts = None,
    field: Field = None,
    similarity: SimilarityOption = None,
    analogies: AnalogiesOption = None,
    reference: Reference = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Translators: ignore case in all metrics.")] = False,
    bleu_tokenizer: BleuTokenizer = None,
    num_beams: Beams = None,
    length_penalty: LengthPenalty = None,
    batch_size: BatchSize = None,
    mode: Mode = None,
    lengths: Lengths = None,
    refine: Refine = None,
    accuracy: Annotated[
        bool,
        typer.Option("--accuracy", help="Language models: also print how often the next token is predicted (slower)."),
    ] = False,
    outputs: Annotated[Path | None, typer.Option(help="Translators: write the translations to this file.")] = None,
    settings: LiveSettings = None,
    precision: Precision = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Evaluate a run on a text, pairs, labels or word vectors.

    A text gives cross-entropy, perplexity and bits per byte; pairs also give BLEU, chrF and ROUGE. With two
    translators, both are evaluated and the difference between them is tested for significance. Word vectors are
    evaluated with --similarity and --analogies and need no text.
    """
    from chainrule.checkpoint.folder import RunFolder
    from chainrule.config import parse_settings
    from chainrule.errors import ConfigError
    from chainrule.runs.base import EvaluatedRun
    from chainrule.runs.load import load, load_for

    print_warnings()
    names = source_names(texts)
    second = Path(names[0]) if len(names) > 1 and RunFolder.open(names[0]).exists() else None
    loaded = load(run, settings=parse_settings(settings or []), precision=precision)
    vectors = _evaluate_vectors(loaded, similarity, analogies)
    if vectors and not names:
        _print_vectors(vectors, json)
        return
    if not names:
        raise ConfigError("eval needs a text; name one, or evaluate word vectors with --similarity or --analogies")
    if not isinstance(loaded, EvaluatedRun):
        raise ConfigError(f"{loaded.name} is not evaluated on a text; use --similarity or --analogies")
    search = {
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "batch_size": batch_size,
        "mode": mode,
        "lengths": lengths,
        "refine": refine,
    }
    options = {"lowercase": lowercase or None, "bleu_tokenizer": bleu_tokenizer, "references": reference}
    given = {**options, **search, "outputs": outputs, "field": field, "accuracy": accuracy or None}
    loaded.check_evaluate(given_options(given))
    if not is_translator(loaded):
        if second is not None:
            raise ConfigError(f"a second run is for translators, and {loaded.name} is not one; leave it out")
        _evaluate_text(
            loaded, names, given_options({"field": field, "accuracy": accuracy or None}), vectors, verbose, json
        )
        return
    if vectors:
        raise ConfigError(
            f"{run} is evaluated either on pairs or on word vectors; leave out the pairs, or --similarity "
            "and --analogies"
        )
    from chainrule.runs.translator import TranslatorRun

    others = [load_for("translate", TranslatorRun, second, precision=precision)] if second else []
    search |= parallel_options(num_beams, mode or "ar", lengths or 1, refine or 0)
    _evaluate_pairs(
        [loaded, *others], names[len(others) :], given_options(options), given_options(search), outputs, verbose, json
    )


def _evaluate_text(
    run: EvaluatedRun, texts: Sequence[str], options: dict[str, Any], vectors: Vectors, verbose: bool, json: bool
) -> None:
    """Evaluate a run on a text and print the result, with that of its word vectors."""
    with show_progress("evaluating", run.unit) as progress:
        measured = run.evaluate(texts, progress=progress, **options)
    rounded = _cost_of_rounding(run, texts, measured, options)
    if json:
        print_json({**measured.to_dict(), **rounded, **_to_dicts(vectors)})
        return
    print(measured.show())
    if rounded:
        print_fields(rounded)
    if note := measured.protocol if verbose else measured.caution:
        print_note(note)
    _print_vectors(vectors, json)


def _cost_of_rounding(
    run: EvaluatedRun, texts: Sequence[str], measured: Any, options: dict[str, Any]
) -> dict[str, Any]:
    """The precision of a run, and its bits per byte in single precision, if it was evaluated with another."""
    if run.precision == "float32":
        return {}
    if run.folder.stored_precision() == run.precision:  # the exact weights are not there
        return {"precision": run.precision}
    from chainrule.runs.base import EvaluatedRun
    from chainrule.runs.load import load

    exact = load(run.folder.given, settings={"model": run.adjusted} if run.adjusted else None)
    assert isinstance(exact, EvaluatedRun)
    figures, before = measured.to_dict(), exact.evaluate(texts, **options).to_dict()
    record: dict[str, Any] = {"precision": run.precision}
    if "bits_per_byte" in before:
        record["float32_bits_per_byte"] = before["bits_per_byte"]
        record["precision_cost"] = figures["bits_per_byte"] / before["bits_per_byte"] - 1
    return record


def _evaluate_vectors(run: Run, similarity: Path | None, analogies: Path | None) -> Vectors:
    """Evaluate the word vectors of a run on the files that are given."""
    from chainrule.evaluation import vectors

    results: Vectors = {}
    if similarity is not None:
        results["similarity"] = vectors.similarity(run.word_table.words, run.word_table.vectors_VD, similarity)
    if analogies is not None:
        results["analogies"] = vectors.analogies(run.word_table.words, run.word_table.vectors_VD, analogies)
    return results


def _to_dicts(vectors: Vectors) -> dict[str, Any]:
    return {name: measured.to_dict() for name, measured in vectors.items()}


def _print_vectors(vectors: Vectors, json: bool) -> None:
    if json:
        print_json(_to_dicts(vectors))
        return
    for measured in vectors.values():
        print(measured.show())


def _evaluate_pairs(
    runs: list[TranslatorRun],
    texts: Sequence[str],
    options: dict[str, Any],
    search: dict[str, Any],
    outputs: Path | None,
    verbose: bool,
    json: bool,
) -> None:
    """Evaluate one translator, or two and the difference between them, and print the result."""
    from chainrule.base.files import write_atomically
    from chainrule.base.targets import check_file

    if outputs:
        check_file(outputs)
    translations = []
    for run in runs:
        with show_progress(f"translating with {run.folder.given}", "lines") as progress:
            translations.append(run.outputs_of(texts, progress=progress, **search))
    if outputs:
        write_atomically(outputs, "".join(line + "\n" for line in translations[0]))
    measured = [
        run.evaluate(texts, outputs=lines, **options, **search) for run, lines in zip(runs, translations, strict=True)
    ]
    tested = (
        [
            runs[0].compare_with(texts, (translations[0], translations[1]), metric=metric, **options)
            for metric in ("bleu", "chrf")
        ]
        if len(runs) == 2
        else []
    )
    if json:
        records = [{"run": str(run.folder.given), **one.to_dict()} for run, one in zip(runs, measured, strict=True)]
        print_json({"runs": records, "paired": [one.to_dict() for one in tested]} if tested else measured[0].to_dict())
        return
    for run, one in zip(runs, measured, strict=True):
        print_fields({"run": str(run.folder.given), **one.figures()})
        if verbose:
            print_note(one.protocol)
    for test in tested:
        print(test.show())
