"""chainrule translate"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.common import Json, LiveSettings, RunPath, counting, lines_of, print_json, say, tell_warnings

if TYPE_CHECKING:
    from chainrule.inference.translate import Translation
    from chainrule.runs.translator import TranslatorRun

Beams = Annotated[int | None, typer.Option(help="Hypotheses kept at each step; 1 is greedy (default: 5).")]
LengthPenalty = Annotated[float, typer.Option(help="Divide log p by length to this power; above 1 favours long.")]
BatchSize = Annotated[int, typer.Option(help="Lines translated together at most; 1 answers line by line.")]
Mode = Annotated[
    str, typer.Option(help="Of hybrid: ar, word by word; nar, all words at once; draft, as greedy ar in fewer passes.")
]
Lengths = Annotated[int, typer.Option(help="Mode nar: try so many lengths and let the ar branch choose.")]
Refine = Annotated[int, typer.Option(help="Mode nar: write the least certain words again so many times.")]

TIMED_LINES = 8
"""So many lines tell how much quicker drafts are."""


def translate(
    run: RunPath,
    file: Annotated[Path, typer.Argument(help="A text, one sentence a line; - or nothing: standard input.")] = Path(
        "-"
    ),
    ensemble: Annotated[
        list[Path] | None, typer.Option(help="A further run whose probabilities are averaged in; may be repeated.")
    ] = None,
    num_beams: Beams = None,
    length_penalty: LengthPenalty = 1.0,
    n_best: Annotated[int, typer.Option(help="Print the n best as `id ||| text ||| score`.")] = 0,
    prefix: Annotated[str, typer.Option(help="What every translation must begin with.")] = "",
    max_new_tokens: Annotated[int | None, typer.Option(help="Tokens of a translation (default: by the line).")] = None,
    copy_unknown: Annotated[
        bool, typer.Option("--copy-unknown/--no-copy-unknown", help="Put the most attended source word for <unk>.")
    ] = True,
    attention: Annotated[
        Path | None, typer.Option(help="Write where the model looked to this file, one JSON object a line.")
    ] = None,
    batch_size: BatchSize = 32,
    mode: Mode = "ar",
    lengths: Lengths = 1,
    refine: Refine = 0,
    draft: Annotated[
        str | None, typer.Option(help="Greedy search by drafts of another run, or of lookup; the text stays the same.")
    ] = None,
    draft_tokens: Annotated[int, typer.Option(help="Draft so many tokens at once at most.")] = 8,
    settings: LiveSettings = None,
    json: Json = False,
) -> None:
    """Translate a text line by line: order kept, written while it is read, empty lines kept."""
    from chainrule import api
    from chainrule.config import parse_settings

    search: dict[str, Any] = {
        **parallel_options(num_beams, mode, lengths, refine, drafts=draft is not None),
        "draft": draft if draft in (None, "lookup") else api.load(draft),
        "draft_tokens": draft_tokens,
        "length_penalty": length_penalty,
        "num_return_sequences": n_best or 1,
        "max_new_tokens": max_new_tokens,
        "prefix": prefix,
        "copy_unknown": copy_unknown,
        "attention": attention is not None,
        "batch_size": 1 if str(file) == "-" and sys.stdin.isatty() else batch_size,
    }
    loaded = api.load_translator(run, settings=parse_settings(settings or []))
    others = [api.load_translator(path) for path in ensemble or []]
    tell_warnings()
    first: list[str] = []
    with ExitStack() as files:
        looked = files.enter_context(_writing(attention)) if attention else None
        for number, found in enumerate(
            _shown(loaded.translate_lines(_kept(lines_of(file), first), together=others, **search), file)
        ):
            _print(number, found, n_best, json)
            if looked:
                _write_attention(looked, found[0])
    if (draft is not None or mode == "draft") and any(first):
        _tell_speed_up(loaded, first, search)


def _kept(lines: Iterator[str], first: list[str]) -> Iterator[str]:
    """The lines, the first few of which are kept."""
    for line in lines:
        if len(first) < TIMED_LINES:
            first.append(line)
        yield line


def _tell_speed_up(run: TranslatorRun, lines: list[str], search: dict[str, Any]) -> None:
    """How much quicker a draft is: the first lines once more with it, and without it."""
    plain = {**search, "draft": None, "mode": "ar", "batch_size": 1}
    seconds = []
    for way in ({**search, "batch_size": 1}, plain):
        began = time.perf_counter()
        list(run.translate_lines(lines, **way))
        seconds.append(time.perf_counter() - began)
    say(f"{seconds[1] / seconds[0]:.2f}x the speed without drafts, by the first {len(lines)} lines one at a time")


def parallel_options(
    num_beams: int | None, mode: str, lengths: int, refine: int, *, drafts: bool = False
) -> dict[str, Any]:
    """Fields of a search: a beam where it goes word by word and nothing is drafted, else none."""
    beams = (5 if mode == "ar" and not drafts else 1) if num_beams is None else num_beams
    return {"num_beams": beams, "mode": mode, "lengths": lengths, "refine": refine}


@contextmanager
def _writing(path: Path) -> Iterator[IO[str]]:
    """A file to write a line at a time."""
    from chainrule.base.files import disk_errors

    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            yield file


def _shown(found: Iterator[list[Translation]], file: Path) -> Iterator[list[Translation]]:
    """The translations, while progress and rate are told; their whole number is not known before the end."""
    from chainrule.decoding import Drafted

    whole = 0
    if file.is_file():  # not a pipe, which can be read but once
        from chainrule.text.readers import lines_in, open_texts

        whole = sum(1 for _ in lines_in(open_texts([file])))
    began, tokens, number, drafted = time.perf_counter(), 0, 0, Drafted()
    with counting("translating", "lines") as progress:
        for number, translations in enumerate(found, start=1):
            tokens += translations[0].tokens
            drafted.add(translations[0].drafted or Drafted())
            yield translations
            progress(number, max(whole, number))
    seconds = time.perf_counter() - began
    say(f"{number:,} lines, {number / seconds:,.1f} lines/s, {tokens / seconds:,.0f} tokens/s")
    if drafted.passes:
        told = f", {drafted.acceptance:.0%} of {drafted.proposed:,} drafted tokens accepted" if drafted.proposed else ""
        say(f"{drafted.passes / number:.2f} passes a line for {tokens / number:.2f} tokens{told}")


def _print(number: int, found: list[Translation], n_best: int, json: bool) -> None:
    if json:
        best = [{"text": one.text, "score": one.score, "log_prob": one.log_prob} for one in found]
        print_json({"id": number, **best[0], **({"n_best": best} if n_best else {})})
    elif n_best:
        for one in found:
            print(f"{number} ||| {one.text} ||| {one.score:.6f}", flush=True)
    else:
        print(found[0].text, flush=True)


def _write_attention(file: IO[str], best: Translation) -> None:
    from dataclasses import asdict
    from json import dumps

    told = asdict(best.looked) if best.looked else {"source": [], "target": [], "weights": []}
    file.write(dumps(told, ensure_ascii=False) + "\n")
    file.flush()
