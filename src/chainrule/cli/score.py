"""chainrule score"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from chainrule.cli.common import (
    Field,
    Json,
    LiveSettings,
    Precision,
    RunPath,
    check_no_picture,
    is_translator,
    print_json,
    print_note,
    print_warnings,
)

if TYPE_CHECKING:
    from chainrule.base.results import Results
    from chainrule.inference.few_shot import Normalise
    from chainrule.inference.inspect import TokenDetails
    from chainrule.inference.score import LineScore
    from chainrule.inference.unknown_words import UnknownWords
    from chainrule.runs.base import Run
    from chainrule.runs.language_model import LanguageModelRun

BASES = {"e": math.e, "2": 2.0, "10": 10.0}


def score(
    run: RunPath,
    file: Annotated[Path, typer.Argument(help="Text file to score line by line; - is standard input.")] = Path("-"),
    target: Annotated[Path | None, typer.Argument(help="Translators: file of the translations to score.")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Print the log-probability of every token.")] = False,
    top: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="K",
            help="With --tokens: a table with rank, probability and bits of every token, the entropy before it and the "
            "K most probable tokens.",
        ),
    ] = None,
    attention: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the self-attention weights of every layer and head as JSON to FILE."),
    ] = None,
    why: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Explain token N of each line, counted from 0; -1 is the last: back-off path, shares of a mixture, "
            "caches, attention, gates, branches of a hybrid.",
        ),
    ] = None,
    choices: Annotated[
        list[str] | None,
        typer.Option(
            help="Candidate continuations of each line, as a text (repeatable) or a file with one per line. Prints "
            "the best."
        ),
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help="With choices: file of examples that is put before each line.")
    ] = None,
    normalise: Annotated[
        Literal["none", "token", "byte"],
        typer.Option(help="With choices: rank by total log-probability, by its mean per token, or per byte."),
    ] = "none",
    oov: Annotated[
        Literal["unk", "spell", "penalty"] | None,
        typer.Option(
            help="Cost of an unknown word besides log p of <unk>: nothing (unk), its spelling, or --oov-penalty nats "
            "(default: unk; with choices: spell)."
        ),
    ] = None,
    oov_penalty: Annotated[
        float | None, typer.Option(help="With --oov penalty: nats per unknown word (default: 10).")
    ] = None,
    base: Annotated[
        Literal["e", "2", "10"],
        typer.Option(help="Base of the log-probabilities: e for nats, 2 for bits, 10 as KenLM prints them."),
    ] = "e",
    field: Field = None,
    settings: LiveSettings = None,
    precision: Precision = None,
    json: Json = False,
) -> None:
    """Print the log-probability of each line.

    It is in nats, or in logarithms of --base, and includes the end of the line. With --choices, or with JSON lines of
    prompt, choices and answer, print the most probable choice after each prompt. A translator scores given
    translations: FILE and TARGET are parallel, or FILE contains pairs (.tsv, .jsonl). With --json it prints one object
    per line.
    """
    from chainrule.config import parse_settings
    from chainrule.errors import ConfigError
    from chainrule.inference.few_shot import contains_questions
    from chainrule.inference.unknown_words import UnknownWords
    from chainrule.runs.language_model import LanguageModelRun
    from chainrule.runs.load import load
    from chainrule.text.readers import lines_in, open_texts

    print_warnings()
    check_no_picture("--attention", attention)
    loaded = load(run, settings=parse_settings(settings or []), precision=precision)
    asks = choices or prompt_file or contains_questions(file)
    unknown = UnknownWords(oov or ("spell" if asks else "unk"), oov_penalty)
    _check_details(loaded, top, attention, why, asks=bool(asks), tokens=tokens, oov=oov is not None)
    _check_base(base, asks=bool(asks), top=top, why=why, json=json)
    if is_translator(loaded) and not asks:
        if oov is not None:
            raise ConfigError(f"--oov does not apply to {loaded.name}, a translator; leave it out")
        _print(loaded.score_pairs([file] if target is None else [file, target], base=BASES[base]), tokens, json)
        return
    if not isinstance(loaded, LanguageModelRun):
        raise loaded.missing("score")
    if asks:
        examples = read_prompt(prompt_file) if prompt_file else ""
        _choose(loaded, file, choices or [], examples, normalise, unknown, base, json)
        return
    if target is not None:
        raise loaded.missing("translate")
    _note_nbest(file, field or loaded.config.data.field)
    if not tokens and attention is None and why is None:
        charged: dict[str, Any] = {"oov": unknown.kind, "oov_penalty": oov_penalty, "base": BASES[base]}
        for log_probs, counts in loaded.score_text(str(file), field=field, **charged):
            lines = map('{{"log_prob": {!r}, "tokens": {}}}'.format if json else "{:.4f}".format, log_probs, counts)
            print("\n".join(lines).replace(": -inf,", ": null,"), flush=True)  # JSON has no infinity
        return
    texts = open_texts([str(file)], field=field or loaded.config.data.field)
    given = lines_in(texts, any_bytes=loaded.tokenizer.any_bytes)
    if why is not None:
        _explain(loaded, given, why, json)
        return
    if attention is not None:
        given = _write_attention(loaded, list(given), attention)
    if top is None:
        _print(loaded.score(given, oov=unknown.kind, oov_penalty=oov_penalty, base=BASES[base]), tokens, json)
    else:
        _print_details(loaded.inspect(given, top=top, oov=unknown.kind, oov_penalty=oov_penalty), base, json)


def _explain(run: LanguageModelRun, lines: Iterator[str], position: int, json: bool) -> None:
    """Print why the token at a position of each line has its probability."""
    from chainrule.inference.why.show import show_why

    for number, line in enumerate(lines):
        found = run.why(line, position)
        if json:
            print_json(found.to_dict())
        else:
            print("\n" * (number > 0) + show_why(found), flush=True)


def _check_details(
    run: Run, top: int | None, attention: Path | None, why: int | None, *, asks: bool, tokens: bool, oov: bool
) -> None:
    """Refuse options about single tokens where whole lines are not scored by a language model."""
    from chainrule.errors import ConfigError

    if top is not None and (asks or not tokens):
        raise ConfigError(f"--top {top} shows the alternatives to every token; add --tokens, without --choices")
    if attention is not None and asks:
        raise ConfigError("--attention shows how whole lines are read; leave the choices out")
    if why is not None and (asks or tokens or oov or top is not None or attention is not None):
        raise ConfigError(
            f"--why {why} explains one token of each line; leave --tokens, --top, --attention, --oov and choices out"
        )
    given = {"--top": top, "--attention": attention, "--why": why}
    name = next((name for name, value in given.items() if value is not None), None)
    if is_translator(run) and name is not None:
        raise ConfigError(f"{name} does not apply to {run.name}, a translator; see chainrule translate --attention")


def _check_base(base: str, *, asks: bool, top: int | None, why: int | None, json: bool) -> None:
    """Refuse a base where no log-probability is printed."""
    from chainrule.errors import ConfigError

    silent = {"--why": why is not None, "--top": top is not None and not json, "choices": asks and not json}
    name = next((name for name, applies in silent.items() if applies), None)
    if base != "e" and name is not None:
        remedy = "leave --base out" if name == "--why" else "add --json, or leave --base out"
        raise ConfigError(f"--base {base} has no effect with {name}, which prints no log-probability; {remedy}")


def _note_nbest(file: Path, field: str) -> None:
    """Point to `rescore` where the lines of a file or of standard input are those of n-best lists."""
    from chainrule.inference.rescore import is_nbest_line
    from chainrule.text.readers import open_texts

    if str(file) != "-" and not file.is_file():
        return
    first = next(open_texts([file], field=field).blocks()).data.partition(b"\n")[0].decode(errors="replace")
    if is_nbest_line(first):
        print_note(
            "the first line has the form of an n-best list, `id ||| text ||| score`; here its id and its score are "
            "scored as text. To rank such lists: chainrule rescore"
        )


def _write_attention(run: LanguageModelRun, lines: list[str], file: Path) -> Iterator[str]:
    """Write a list with one object per line, and give the lines."""
    from json import dumps

    from chainrule.base.files import disk_errors, write_atomically
    from chainrule.base.targets import check_file

    check_file(file)
    with disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, dumps([one.to_dict() for one in run.attention(lines)], ensure_ascii=False) + "\n")
    print_note(f"attention of {len(lines):,} {'line' if len(lines) == 1 else 'lines'}: {file}")
    return iter(lines)


def read_prompt(path: Path) -> str:
    """The whole text of a file."""
    from chainrule.text.readers import open_texts

    return "".join(open_texts([path]).strings())


def _choose(
    run: LanguageModelRun,
    file: Path,
    given: list[str],
    examples: str,
    normalise: Normalise,
    unknown: UnknownWords,
    base: str,
    json: bool,
) -> None:
    """Print the best choice after each prompt and, where answers are known, the accuracy."""
    from itertools import tee

    from chainrule.inference.few_shot import (
        Question,
        Tally,
        best_of,
        choose,
        is_json_lines,
        read_choices,
        read_questions,
    )
    from chainrule.text.readers import lines_in, open_texts

    alternatives = read_choices(given)
    if is_json_lines(file):
        questions = read_questions(file, alternatives, examples)
    else:
        lines = lines_in(open_texts([file]), any_bytes=run.tokenizer.any_bytes)
        questions = (Question(examples + line, tuple(alternatives)) for line in lines)
    tally, (inputs, questions) = Tally(), tee(questions)
    for question, scored in zip(questions, choose(run.subject, inputs, unknown), strict=True):
        best = best_of(scored, normalise)
        tally.add(question, scored)
        if json:
            right = {} if question.answer is None else {"answer": question.answer, "correct": best == question.answer}
            record = {"best": scored[best].text, "index": best, **right}
            print_json({**record, "choices": [_in_base(one.to_dict(), base) for one in scored]})
        else:
            print(scored[best].text, flush=True)
    if tally.questions and json:
        print_json(tally.to_dict(normalise))
    elif tally.questions:
        print_note(
            f"{tally.correct[normalise]:,} of {tally.questions:,} correct: accuracy {tally.accuracy(normalise):.4f}"
        )


def _print(scores: Iterator[LineScore], tokens: bool, json: bool) -> None:
    for scored in scores:
        if json:
            names = {"pieces": scored.pieces, "log_probs": scored.log_probs} if tokens else {}
            print_json({"log_prob": scored.log_prob, "tokens": scored.tokens, **names})
        elif tokens:
            print("\t".join(f"{piece} {nats:.4f}" for piece, nats in zip(scored.pieces, scored.log_probs, strict=True)))
        else:
            print(f"{scored.log_prob:.4f}", flush=True)


def _in_base(record: dict[str, Any], base: str) -> dict[str, Any]:
    """A record with its log-probabilities in another base."""
    names = ("log_prob", "per_token", "per_byte")
    return {name: value / math.log(BASES[base]) if name in names else value for name, value in record.items()}


def _print_details(texts: Iterator[Results[TokenDetails]], base: str, json: bool) -> None:
    from chainrule.inference.inspect import show_details

    for number, details in enumerate(texts):
        if json:
            shown = [_in_base(one.to_dict(), base) for one in details]
            log_probs = [one["log_prob"] for one in shown]
            record = {"log_prob": sum(log_probs), "tokens": len(details), "pieces": [one.token for one in details]}
            print_json({**record, "log_probs": log_probs, "details": shown})
        else:
            print("\n" * (number > 0) + show_details(details), flush=True)
