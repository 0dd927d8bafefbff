"""chainrule score"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chainrule.cli.common import Field, Json, LiveSettings, RunPath, print_json, tell_warnings

if TYPE_CHECKING:
    from chainrule.run import LineScore


def score(
    run: RunPath,
    file: Annotated[Path, typer.Argument(help="A text, scored line by line; - or nothing: standard input.")] = Path(
        "-"
    ),
    target: Annotated[Path | None, typer.Argument(help="Of a translator: the translations to score.")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show log p of every token.")] = False,
    field: Field = None,
    settings: LiveSettings = None,
    json: Json = False,
) -> None:
    """Print log p of each line in nats, its <eos> included; with --json one object a line.

    A translator scores given translations: FILE and TARGET are parallel, or FILE holds pairs (.tsv, .jsonl).
    """
    from chainrule import api
    from chainrule.config import parse_settings
    from chainrule.text.readers import lines_in, open_texts
    from chainrule.translator_run import TranslatorRun

    tell_warnings()
    loaded = api.load(run, settings=parse_settings(settings or []))
    if isinstance(loaded, TranslatorRun):
        _print(loaded.score_pairs([file] if target is None else [file, target]), tokens, json)
        return
    if target is not None:
        api.load_translator(run)  # which says that it is none
    if not tokens:
        for log_probs, counts in loaded.score_text(str(file), field=field):
            lines = map('{{"log_prob": {!r}, "tokens": {}}}'.format if json else "{:.4f}".format, log_probs, counts)
            print("\n".join(lines).replace(": -inf,", ": null,"), flush=True)  # which JSON lacks
        return
    texts = open_texts([str(file)], field=field or loaded.config.data.field)
    _print(loaded.score(lines_in(texts, any_bytes=loaded.tokenizer.any_bytes)), tokens, json)


def _print(scores: Iterator[LineScore], tokens: bool, json: bool) -> None:
    for scored in scores:
        if json:
            names = {"pieces": scored.pieces, "log_probs": scored.log_probs} if tokens else {}
            print_json({"log_prob": scored.log_prob, "tokens": scored.tokens, **names})
        elif tokens:
            print("\t".join(f"{piece} {nats:.4f}" for piece, nats in zip(scored.pieces, scored.log_probs, strict=True)))
        else:
            print(f"{scored.log_prob:.4f}", flush=True)
