"""chainrule train"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chainrule.cli.common import Field, Json, Seed, Settings, print_fields, print_json, say, training_display

if TYPE_CHECKING:
    from chainrule.runs.language_model import Run

Order = Annotated[int | None, typer.Option(help="N of ngram and feedforward (default: 5).")]
Smoothing = Annotated[
    str | None,
    typer.Option(
        help="ngram: modified-kneser-ney (default), kneser-ney, absolute, witten-bell, katz, jelinek-mercer, additive, "
        "mle or stupid-backoff."
    ),
]
Prune = Annotated[
    list[int] | None,
    typer.Option(metavar="N…", help="ngram: leave out n-grams seen so often or less, a number an order: 0 0 1."),
]
Quantize = Annotated[bool, typer.Option("--quantize", help="ngram: keep probabilities as bytes.")]
Memory = Annotated[str | None, typer.Option(help="ngram: count in so much memory (1G), the rest on disk.")]


Data = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA…",
        help="Files, folders, - or hf:NAME/CONFIG:SPLIT; a translator takes two files, source then target, or one "
        ".tsv or .jsonl of pairs; a classifier a .tsv or .jsonl of labelled texts, a tagger columns of words and tags.",
    ),
]
Valid = Annotated[
    list[str] | None, typer.Option(help="Validation text, or pairs as in DATA (default: the last 5% of DATA).")
]
Tokenizer = Annotated[
    str | None,
    typer.Option(help="word, char, byte, bpe, unigram, jieba, or a tokenizer file (default: by the text)."),
]
Output = Annotated[str | None, typer.Option(help="softmax, hierarchical, adaptive, sampled or nce (default: softmax).")]
Objective = Annotated[
    str | None,
    typer.Option(
        help="likelihood (default), scheduled-sampling; translators: policy-gradient, minimum-risk; t5: spans; "
        "bert: masked; classifier and tagger: labels."
    ),
]


SHOWN = ("perplexity", "bits_per_byte", "bleu", "exact_match", "masked_accuracy", "accuracy", "f1")
"""What is told of a validation when a training has ended, where it was measured."""


def train(
    data: Data,
    model: Annotated[str | None, typer.Option(help="See `chainrule models` (default: lstm).")] = None,
    valid: Valid = None,
    tokenizer: Tokenizer = None,
    vocab_size: Annotated[int | None, typer.Option(help="Most tokens the tokeniser may know.")] = None,
    output: Output = None,
    objective: Objective = None,
    order: Order = None,
    smoothing: Smoothing = None,
    prune: Prune = None,
    quantize: Quantize = False,
    memory: Memory = None,
    init: Annotated[Path | None, typer.Option(help="Start from this run's tokeniser, model and weights.")] = None,
    init_embedding: Annotated[
        str | None, typer.Option(help="Start words from the vectors of a run, or of a file in word2vec's format.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Pairs: rows of a batch times its longest, at most.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of options, such as a recipe.")] = None,
    settings: Settings = None,
    minutes: Annotated[float | None, typer.Option(help="Train for so long (default: 5 if no budget is given).")] = None,
    steps: Annotated[int | None, typer.Option(help="Train for so many optimiser steps.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Train for so many passes over the text.")] = None,
    seed: Seed = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps (default: auto).")] = None,
    field: Field = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder (default: runs/MODEL-TEXT).")] = None,
    json: Json = False,
) -> None:
    """Train a model on text, or a translator on pairs. The same command goes on where it stopped; Ctrl-C saves."""
    from chainrule import api
    from chainrule.config import parse_settings

    options = {"order": order, "smoothing": smoothing, "prune": prune, "quantize": quantize or None}
    with training_display() as listener:
        run = api.train(
            *data,
            model=model,
            **{name: value for name, value in options.items() if value is not None},
            memory=memory,
            valid=valid or (),
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
            settings=parse_settings(settings or []),
            listener=listener,
        )
    if not run.leads:
        return
    if not run.result:
        say(f"stopped and saved; the same command goes on from here: {run.folder.path}")
        raise typer.Exit(130)
    _report(run, json)


def _report(run: Run, json: bool) -> None:
    """What the training came to."""
    measured = run.validation()
    result = {key: run.result[key] for key in ("steps", "seconds", "parameters", "tokens_per_second", "peak_memory")}
    if json:
        print_json({"run": str(run.folder.path), **result, "valid": measured.to_dict()})
        return
    names = [name for name in SHOWN if hasattr(measured, name)]
    shown = {f"valid {name}": getattr(measured, name) for name in names}
    print_fields({"run": str(run.folder.path), **result, **shown})
    say(measured.protocol)
    if run.config.recipe:
        say(f"the recipe expects: {run.config.recipe.expected}")
