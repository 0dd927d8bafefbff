"""chainrule measure"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from chainrule.cli.common import Json, print_json


def measure(
    hypotheses: Annotated[Path, typer.Argument(metavar="HYPOTHESES", help="File of outputs, one per line.")],
    references: Annotated[
        list[Path], typer.Argument(metavar="REFERENCE…", help="One or more files of references, line by line.")
    ],
    against: Annotated[
        Path | None, typer.Option(help="Outputs of a second system; the difference is tested for significance.")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(help="Metrics to compute, separated by commas, for example bleu,wer (default: all)."),
    ] = None,
    max_order: Annotated[int, typer.Option(help="Longest n-grams of BLEU: 2 gives BLEU-2.")] = 4,
    rouge_orders: Annotated[int, typer.Option(help="Longest n-grams of ROUGE-N.")] = 2,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Words of BLEU: 13a, intl, zh, char or none (default: zh for Chinese, else 13a)."),
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case; ROUGE always does.")] = False,
    test: Annotated[
        Literal["bootstrap", "randomization"], typer.Option(help="Paired test of two systems.")
    ] = "bootstrap",
    resamples: Annotated[int, typer.Option(help="Number of draws for the intervals and the test.")] = 1000,
    seed: Annotated[int, typer.Option(help="Random seed of the draws.")] = 12345,
    json: Json = False,
) -> None:
    """Measure a file of outputs against references, without a run.

    Prints BLEU with its precisions and brevity penalty, chrF, ROUGE-N and ROUGE-L with recall and precision, exact
    match, word and character error rate, each with a 95% interval.
    """
    from chainrule.evaluation import measures

    measured = measures.measure(
        hypotheses,
        *references,
        against=against,
        metrics=None if metrics is None else [name.strip() for name in metrics.split(",")],
        max_order=max_order,
        rouge_orders=rouge_orders,
        tokenizer=tokenizer,
        lowercase=lowercase,
        test=test,
        resamples=resamples,
        seed=seed,
    )
    print_json(measured.to_dict()) if json else print(measured.show())
