"""chainrule score"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from chainrule.cli.common import Field, Json, LiveSettings, RunPath, print_json, say, tell_warnings

if TYPE_CHECKING:
    from chainrule.inference.few_shot import Normalise
    from chainrule.runs.language_model import LineScore, Run


def score(
    run: RunPath,
    file: Annotated[Path, typer.Argument(help="A text, scored line by line; - or nothing: standard input.")] = Path(
        "-"
    ),
    target: Annotated[Path | None, typer.Argument(help="Of a translator: the translations to score.")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show log p of every token.")] = False,
    choices: Annotated[
        list[str] | None,
        typer.Option(help="What may follow each line: repeated, or a file of one a line; the best is printed."),
    ] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="Choices: a file of examples, put before each line.")] = None,
    normalise: Annotated[
        Literal["none", "token", "byte"], typer.Option(help="Choices: compare log p as it is, by token or by byte.")
    ] = "none",
    field: Field = None,
    settings: LiveSettings = None,
    json: Json = False,
) -> None:
    """Print log p of each line in nats, its <eos> included; with --json one object a line.

    With --choices, or JSON lines of prompt, choices and answer, print which choice is the most probable after each.
    A translator scores given translations: FILE and TARGET are parallel, or FILE holds pairs (.tsv, .jsonl).
    """
    from chainrule import api
    from chainrule.config import parse_settings
    from chainrule.inference.few_shot import hold_choices
    from chainrule.runs.translator import TranslatorRun
    from chainrule.text.readers import lines_in, open_texts

    tell_warnings()
    loaded = api.load(run, settings=parse_settings(settings or []))
    if choices or prompt_file or hold_choices(file):
        _choose(loaded, file, choices or [], read_prompt(prompt_file) if prompt_file else "", normalise, json)
        return
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


def read_prompt(path: Path) -> str:
    """A file of text, whole."""
    from chainrule.text.readers import open_texts

    return "".join(open_texts([path]).strings())


def _choose(run: Run, file: Path, given: list[str], examples: str, normalise: Normalise, json: bool) -> None:
    """Print the best choice after each prompt, and how often it was the answer where answers are known."""
    from itertools import tee

    from chainrule.inference.few_shot import Question, Tally, are_records, best_of, choose, read_choices, read_questions
    from chainrule.text.readers import lines_in, open_texts

    alternatives = read_choices(given)
    if are_records(file):
        questions = read_questions(file, alternatives, examples)
    else:
        lines = lines_in(open_texts([file]), any_bytes=run.tokenizer.any_bytes)
        questions = (Question(examples + line, tuple(alternatives)) for line in lines)
    tally, (asked, told) = Tally(), tee(questions)
    for question, found in zip(told, choose(run, asked), strict=True):
        best = best_of(found, normalise)
        tally.add(question, found)
        if json:
            right = {} if question.answer is None else {"answer": question.answer, "correct": best == question.answer}
            print_json({"best": found[best].text, "index": best, **right, "choices": [one.to_dict() for one in found]})
        else:
            print(found[best].text, flush=True)
    if tally.questions and json:
        print_json(tally.to_dict(normalise))
    elif tally.questions:
        say(f"{tally.correct[normalise]:,} of {tally.questions:,} right: accuracy {tally.accuracy(normalise):.4f}")


def _print(scores: Iterator[LineScore], tokens: bool, json: bool) -> None:
    for scored in scores:
        if json:
            names = {"pieces": scored.pieces, "log_probs": scored.log_probs} if tokens else {}
            print_json({"log_prob": scored.log_prob, "tokens": scored.tokens, **names})
        elif tokens:
            print("\t".join(f"{piece} {nats:.4f}" for piece, nats in zip(scored.pieces, scored.log_probs, strict=True)))
        else:
            print(f"{scored.log_prob:.4f}", flush=True)
