"""chainrule translate"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from chainrule.base.grammar import plural
from chainrule.cli.common import (
    Json,
    LiveSettings,
    MinNewTokens,
    NoRepeatNgramSize,
    NoUnk,
    Precision,
    RepetitionPenalty,
    RunPath,
    check_no_picture,
    print_json,
    print_note,
    print_warnings,
    read_lines,
    show_progress,
)

if TYPE_CHECKING:
    from chainrule.inference.translate import Translation
    from chainrule.runs.translator import TranslatorRun

Beams = Annotated[
    int | None, typer.Option(help="Beam width; 1 searches greedily (default: that of the run, 5 if it was not tuned).")
]
LengthPenalty = Annotated[
    float | None, typer.Option(help="Rank hypotheses by log p / length^PENALTY (default: that of the run, else 1).")
]
BatchSize = Annotated[int | None, typer.Option(help="Maximum number of lines per batch.")]
Mode = Annotated[
    str | None,
    typer.Option(
        help="hybrid: ar writes word by word; nar writes all words at once; draft gives the output of greedy ar "
        "faster. nar and draft use no beam."
    ),
]
Lengths = Annotated[int | None, typer.Option(help="Mode nar: number of lengths to try; ar selects the best.")]
Refine = Annotated[int | None, typer.Option(help="Mode nar: number of times the least certain words are rewritten.")]

TIMED_LINES = 8
"""Number of lines on which the speed-up by drafts is measured."""


Ensemble = Annotated[
    list[Path] | None, typer.Option(help="Average the probabilities with those of this run; repeatable.")
]
NBest = Annotated[int, typer.Option(help="Print the n best translations of each line as `id ||| text ||| score`.")]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(help="Maximum number of tokens per translation (default: twice those of the line, plus 20)."),
]
MaxLengthRatio = Annotated[
    float | None, typer.Option(help="Maximum number of tokens of a translation per token of its source.")
]
MinLength = Annotated[int, typer.Option(help="Minimum number of tokens of a translation, its prefix included.")]
Force = Annotated[list[str] | None, typer.Option(help="Words that every translation contains; repeatable.")]
GlossaryFile = Annotated[
    Path | None,
    typer.Option(
        help="File of `source phrase TAB target phrase`: where a line has the first, the output has the second."
    ),
]
Keep = Annotated[
    bool, typer.Option("--keep", help="Keep numbers, URLs, e-mail addresses, tags and {placeholders} as they are.")
]
Split = Annotated[
    bool, typer.Option("--split", help="Lines are paragraphs: split them into sentences and translate these.")
]
CopyUnknown = Annotated[
    bool,
    typer.Option("--copy-unknown/--no-copy-unknown", help="Replace <unk> by the source word with the most attention."),
]
Attention = Annotated[
    Path | None, typer.Option(help="Write the attention weights to this file, one JSON object per line.")
]
Trace = Annotated[
    Path | None,
    typer.Option(help="Write what the beam kept and pruned at every step to this file, one JSON object per line."),
]
Draft = Annotated[
    str | None,
    typer.Option(help="Speed up greedy search with drafts of another run or of lookup; the output is unchanged."),
]


def translate(
    run: RunPath,
    file: Annotated[Path, typer.Argument(help="Text file with one sentence per line; - is standard input.")] = Path(
        "-"
    ),
    ensemble: Ensemble = None,
    num_beams: Beams = None,
    length_penalty: LengthPenalty = None,
    n_best: NBest = 0,
    prefix: Annotated[str, typer.Option(help="Text with which every translation begins.")] = "",
    max_new_tokens: MaxNewTokens = None,
    max_length_ratio: MaxLengthRatio = None,
    min_length: MinLength = 0,
    min_new_tokens: MinNewTokens = 0,
    repetition_penalty: RepetitionPenalty = 1.0,
    no_repeat_ngram_size: NoRepeatNgramSize = 0,
    no_unk: NoUnk = False,
    force: Force = None,
    glossary: GlossaryFile = None,
    keep: Keep = False,
    split: Split = False,
    copy_unknown: CopyUnknown = True,
    attention: Attention = None,
    trace: Trace = None,
    batch_size: BatchSize = 32,
    mode: Mode = "ar",
    lengths: Lengths = 1,
    refine: Refine = 0,
    draft: Draft = None,
    draft_tokens: Annotated[int, typer.Option(help="Maximum number of tokens per draft.")] = 8,
    settings: LiveSettings = None,
    precision: Precision = None,
    json: Json = False,
) -> None:
    """Translate a text line by line.

    Lines are translated while the input is still being read, in its order; empty lines stay empty.
    """
    from chainrule.config import parse_settings
    from chainrule.runs.load import load, load_for
    from chainrule.runs.translator import TranslatorRun

    search: dict[str, Any] = {
        **parallel_options(num_beams, mode or "ar", lengths or 1, refine or 0, drafts=draft is not None),
        "draft": draft if draft in (None, "lookup") else load(draft),
        "draft_tokens": draft_tokens,
        **given_options({"length_penalty": length_penalty}),
        "num_return_sequences": n_best or 1,
        "max_new_tokens": max_new_tokens,
        "max_length_ratio": max_length_ratio,
        "min_length": min_length,
        "repetition_penalty": repetition_penalty,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "no_unk": no_unk,
        "min_new_tokens": min_new_tokens,
        "force": force or (),
        "glossary": glossary or (),
        "keep": keep,
        "split": split,
        "prefix": prefix,
        "copy_unknown": copy_unknown,
        "attention": attention is not None,
        "trace": trace is not None,
        "batch_size": 1 if str(file) == "-" and sys.stdin.isatty() else batch_size,
    }
    check_no_picture("--attention", attention)
    check_no_picture("--trace", trace)
    loaded = load_for("translate", TranslatorRun, run, settings=parse_settings(settings or []), precision=precision)
    others = [load_for("translate", TranslatorRun, path, precision=precision) for path in ensemble or []]
    print_warnings()
    first: list[str] = []
    with ExitStack() as files:
        attention_file = files.enter_context(_open_for_writing(attention)) if attention else None
        trace_file = files.enter_context(_open_for_writing(trace)) if trace else None
        lines = _keep_first(read_lines(file), first)
        for number, best in enumerate(_with_progress(loaded.translate_lines(lines, together=others, **search), file)):
            _print(number, best, n_best, json)
            if attention_file:
                _write_record(attention_file, _attention_record(best[0]))
            if trace_file:
                _write_record(trace_file, _trace_record(best[0]))
    if (draft is not None or mode == "draft") and any(first):
        _print_speed_up(loaded, first, search)


def _keep_first(lines: Iterator[str], first: list[str]) -> Iterator[str]:
    """Yield the lines and copy the first few of them to `first`."""
    for line in lines:
        if len(first) < TIMED_LINES:
            first.append(line)
        yield line


def _print_speed_up(run: TranslatorRun, lines: list[str], search: dict[str, Any]) -> None:
    """Translate some lines with and without drafts, and print how much faster drafts are."""
    plain = {**search, "draft": None, "mode": "ar", "batch_size": 1}
    seconds = []
    for options in ({**search, "batch_size": 1}, plain):
        began = time.perf_counter()
        list(run.translate_lines(lines, **options))
        seconds.append(time.perf_counter() - began)
    print_note(
        f"{seconds[1] / seconds[0]:.2f}x the speed without drafts, measured on the first {len(lines)} lines, "
        "one at a time"
    )


def parallel_options(
    num_beams: int | None, mode: str, lengths: int, refine: int, *, drafts: bool = False
) -> dict[str, Any]:
    """Options of the search; by default the beam width is that of the run in mode ar without drafts, else 1."""
    beams = 1 if num_beams is None and (mode != "ar" or drafts) else num_beams
    return {**given_options({"num_beams": beams}), "mode": mode, "lengths": lengths, "refine": refine}


def given_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given on the command line."""
    return {name: value for name, value in options.items() if value is not None}


@contextmanager
def _open_for_writing(path: Path) -> Iterator[IO[str]]:
    """Open a text file for writing; it takes its place when all is written."""
    from chainrule.base.files import file_atomically

    with file_atomically(path) as plain:
        file = TextIOWrapper(plain, encoding="utf-8")
        yield file
        file.detach()  # flushes, and leaves `plain` open


def _with_progress(results: Iterator[list[Translation]], file: Path) -> Iterator[list[Translation]]:
    """Yield the translations of each line, show the progress, and print the rate at the end."""
    from chainrule.decoding import DraftStatistics

    total = 0
    if file.is_file():  # a pipe can only be read once, so its lines cannot be counted first
        from chainrule.text.readers import lines_in, open_texts

        total = sum(1 for _ in lines_in(open_texts([file])))
    began, tokens, number, drafted = time.perf_counter(), 0, 0, DraftStatistics()
    with show_progress("translating", "lines") as progress:
        for number, translations in enumerate(results, start=1):
            tokens += translations[0].tokens
            drafted.add(translations[0].drafted or DraftStatistics())
            yield translations
            progress(number, max(total, number))
    seconds = time.perf_counter() - began
    print_note(f"{plural(number, 'line')}, {number / seconds:,.1f} lines/s, {tokens / seconds:,.0f} tokens/s")
    if drafted.passes:
        accepted = (
            f", {drafted.acceptance:.0%} of {drafted.proposed:,} drafted tokens accepted" if drafted.proposed else ""
        )
        print_note(f"{drafted.passes / number:.2f} passes per line for {tokens / number:.2f} tokens{accepted}")


def _print(number: int, best: list[Translation], n_best: int, json: bool) -> None:
    if json:
        records = [{"text": one.text, "score": one.score, "log_prob": one.log_prob} for one in best]
        passes = {"passes": best[0].passes}
        print_json({"id": number, **records[0], **passes, **({"n_best": records} if n_best else {})})
    elif n_best:
        for one in best:
            print(f"{number} ||| {one.text} ||| {one.score:.6f}", flush=True)
    else:
        print(best[0].text, flush=True)


def _attention_record(best: Translation) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(best.attention) if best.attention else {"source": [], "target": [], "weights": []}


def _trace_record(best: Translation) -> dict[str, Any]:
    return best.trace.to_dict() if best.trace else {"prefix": [], "nodes": []}


def _write_record(file: IO[str], record: dict[str, Any]) -> None:
    from json import dumps

    file.write(dumps(record, ensure_ascii=False) + "\n")
    file.flush()
