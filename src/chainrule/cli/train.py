"""chainrule train"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.common import (
    Field,
    Json,
    Seed,
    Settings,
    Verbose,
    print_fields,
    print_json,
    print_note,
    source_names,
    training_display,
)
from chainrule.engines.ngram.names import SMOOTHING_NAMES
from chainrule.registry import OBJECTIVES, OUTPUTS, TOKENIZERS

if TYPE_CHECKING:
    from chainrule.runs.base import Run

Order = Annotated[int | None, typer.Option(help="ngram and feedforward: length N of the n-grams (default: 5).")]
Smoothing = Annotated[
    str | None,
    typer.Option(help=f"ngram: smoothing method, one of {', '.join(SMOOTHING_NAMES)} (default: {SMOOTHING_NAMES[0]})."),
]
Prune = Annotated[
    list[int] | None,
    typer.Option(metavar="N…", help="ngram: drop n-grams that occur at most N times, one N per order, e.g. 0 0 1."),
]
Quantize = Annotated[bool, typer.Option("--quantize", help="ngram: store each probability in one byte.")]
Memory = Annotated[str | None, typer.Option(help="ngram: maximum memory for counting, e.g. 1G; the rest goes to disk.")]


Data = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[DATA…]",
        help="Text as files, folders, - for standard input, hf:NAME/CONFIG:SPLIT or sample:english. Translators: two "
        "files, source then target, or .tsv, .csv or .jsonl files or hf:NAME/CONFIG:SPLIT of pairs. "
        "Classifiers: such files or data sets of labelled texts. Taggers: files with columns of words and tags.",
    ),
]
Valid = Annotated[
    list[str] | None,
    typer.Option(help="Validation data, in the form of DATA; repeatable (default: the last 5% of DATA)."),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        help=f"Tokeniser: {', '.join(TOKENIZERS.peek_names())}, or a tokenizer file (default: chosen from the text)."
    ),
]
VocabSize = Annotated[int | None, typer.Option(help="Maximum number of tokens of the tokeniser.")]
Output = Annotated[
    str | None, typer.Option(help=f"Output layer: {', '.join(OUTPUTS.peek_names())} (default: softmax).")
]
Objective = Annotated[
    str | None,
    typer.Option(
        help=f"Training objective: {', '.join(OBJECTIVES.peek_names())} (default: the one that fits the model, mostly "
        "likelihood)."
    ),
]


SHOWN = ("perplexity", "bits_per_byte", "bleu", "exact_match", "masked_accuracy", "accuracy", "f1")
"""Metrics that are printed after training, if the validation has them."""


Model = Annotated[str | None, typer.Option(help="Model name; list them with chainrule models (default: lstm).")]
InitEmbedding = Annotated[
    str | None, typer.Option(help="Start the embedding from the word vectors of a run or of a word2vec file.")
]
MaxTokens = Annotated[
    int | None, typer.Option(help="Translators: maximum batch size, rows times the length of the longest.")
]
Minutes = Annotated[
    float | None,
    typer.Option(help="Budget in minutes, validations included (default: 5 if no budget is given; n-grams: none)."),
]

Log = Annotated[
    list[str] | None,
    typer.Option(help="Also send the metrics to a tracker: tensorboard, trackio, wandb or mlflow; repeatable."),
]

ExportTo = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="FORMAT",
        help="Check before training that the run can be exported: hf, arpa or word2vec.",
    ),
]


def train(
    data: Data = None,
    model: Model = None,
    valid: Valid = None,
    tokenizer: Tokenizer = None,
    vocab_size: VocabSize = None,
    output: Output = None,
    objective: Objective = None,
    order: Order = None,
    smoothing: Smoothing = None,
    prune: Prune = None,
    quantize: Quantize = False,
    memory: Memory = None,
    init: Annotated[Path | None, typer.Option(help="Start from the tokeniser, model and weights of this run.")] = None,
    init_embedding: InitEmbedding = None,
    max_tokens: MaxTokens = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of options, for example a recipe.")] = None,
    settings: Settings = None,
    minutes: Minutes = None,
    steps: Annotated[int | None, typer.Option(help="Budget in optimiser steps.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Budget in passes over the data.")] = None,
    seed: Seed = None,
    device: Annotated[str | None, typer.Option(help="Device: auto (default), cpu, cuda or mps.")] = None,
    field: Field = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run (default: runs/MODEL-TEXT).")] = None,
    export_to: ExportTo = None,
    log: Log = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Train a model; rerun the same command to resume, or give --out RUN alone.

    Ctrl-C saves the state of the training and stops it. A finished training continues with a larger budget.
    """
    from chainrule import api
    from chainrule.config import parse_settings

    options: dict[str, Any] = {"order": order, "smoothing": smoothing, "prune": prune, "quantize": quantize or None}
    with training_display() as listener:
        run = api.train(
            *(data or ()),
            model=model,
            **{name: value for name, value in options.items() if value is not None},
            memory=memory,
            valid=source_names(valid),
            tokenizer=tokenizer,
            vocab_size=vocab_size,
            output=output,
            objective=objective,
            init=init,
            init_embedding=init_embedding,
            max_tokens=max_tokens,
            config=config,
            minutes=minutes,
            steps=steps,
            epochs=epochs,
            seed=seed,
            device=device,
            field=field,
            out=out,
            export_to=export_to,
            log=log or (),
            settings=parse_settings(settings or []),
            listener=listener,
        )
    if not run.is_main_process:
        return
    if not run.result:
        print_note(f"stopped and saved in {run.folder.path}; rerun the same command to resume")
        raise typer.Exit(130)
    _report(run, verbose, json)


def _report(run: Run, verbose: bool, json: bool) -> None:
    """Print the result of the training and of the last validation."""
    measured = run.validation()
    run.folder.write_figures(measured.to_dict())
    result = {key: run.result[key] for key in ("steps", "seconds", "parameters", "tokens_per_second", "peak_memory")}
    if json:
        further: dict[str, Any] = {key: run.result[key] for key in ("stopped", "validation") if key in run.result}
        further |= {"scored": run.validation_note} if run.validation_note else {}
        print_json({"run": str(run.folder.path), **result, **further, "valid": measured.to_dict()})
        return
    figures = measured.figures()
    shown = {f"valid {name}": figures[name] for name in SHOWN if name in figures}
    if not result["steps"]:
        del result["steps"]  # it was not trained by gradient steps
    stopped = {"stopped": run.result["stopped"]} if "stopped" in run.result else {}
    print_fields({"run": str(run.folder.path), **result, **stopped, **shown})
    if run.validation_note:
        print_note(run.validation_note)
    if verbose:
        print_note(measured.to_dict()["protocol"])
    if run.config.recipe:
        print_note(f"expected by the recipe: {run.config.recipe.expected}")
