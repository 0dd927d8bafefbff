"""chainrule rescore"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from chainrule.cli.common import Json, LiveSettings, RunPath, print_json, print_note, print_warnings, read_lines


def rescore(
    run: RunPath,
    nbest: Annotated[
        Path, typer.Argument(help="N-best lists: `id ||| text ||| score` or JSON lines; - is standard input.")
    ],
    weight: Annotated[float | None, typer.Option(help="Weight of log p of the language model (default: 0.5).")] = None,
    word_penalty: Annotated[float | None, typer.Option(help="Added to the score per word (default: 0).")] = None,
    dev: Annotated[Path | None, typer.Option(help="N-best lists on which both weights are fitted.")] = None,
    references: Annotated[
        list[Path] | None, typer.Option(help="With --dev: file of one reference per list; repeatable.")
    ] = None,
    metric: Annotated[Literal["wer", "bleu"], typer.Option(help="With --dev: what the weights optimise.")] = "wer",
    best: Annotated[bool, typer.Option("--best", help="Print only the best text of each list.")] = False,
    oov: Annotated[
        Literal["unk", "spell", "penalty"],
        typer.Option(help="Cost of an unknown word besides log p of <unk>: nothing, its spelling, or a penalty."),
    ] = "spell",
    oov_penalty: Annotated[
        float | None, typer.Option(help="With --oov penalty: nats per unknown word (default: 10).")
    ] = None,
    settings: LiveSettings = None,
    json: Json = False,
) -> None:
    """Re-rank n-best lists with a language model.

    The new score is the old one plus WEIGHT times log p in nats, plus WORD_PENALTY per word. Lists are printed in the
    format they have, best first. With --dev and --references both weights are fitted.
    """
    from chainrule.config import parse_settings
    from chainrule.errors import ConfigError
    from chainrule.runs.language_model import LanguageModelRun
    from chainrule.runs.load import load_for

    print_warnings()
    if (dev is None) != (not references):
        raise ConfigError("--dev and --references belong together: give the lists and one reference for each of them")
    if dev is not None and (weight is not None or word_penalty is not None):
        raise ConfigError("--dev fits the weights; leave --weight and --word-penalty out, or --dev")
    loaded = load_for("rescore", LanguageModelRun, run, settings=parse_settings(settings or []))
    options: dict[str, Any] = {"oov": oov, "oov_penalty": oov_penalty}
    fitted = None
    if dev is not None:
        sets = [list(read_lines(path)) for path in references or []]
        fitted = loaded.fit_rescoring(read_lines(dev), *sets, metric=metric, **options)
        weight, word_penalty = fitted.weight, fitted.word_penalty
    lists = loaded.rescore(
        read_lines(nbest),
        weight=0.5 if weight is None else weight,
        word_penalty=word_penalty or 0.0,
        **options,
    )
    for ranked in lists:
        for candidate in ranked[:1] if best else ranked:
            if json:
                print_json({key: value for key, value in asdict(candidate).items() if key != "source"})
            else:
                print(candidate.text if best else candidate)
    if fitted is not None and json:
        print_json(asdict(fitted))
    elif fitted is not None:
        print_note(
            f"weight {fitted.weight:g}, word penalty {fitted.word_penalty:g}: {fitted.metric} {fitted.before:.2f} -> "
            f"{fitted.after:.2f} on {fitted.lists} lists"
        )
