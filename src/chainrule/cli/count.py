"""chainrule count and chainrule merge"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from chainrule.cli.common import (
    Field,
    Json,
    print_fields,
    print_json,
    print_note,
    show_progress,
    source_names,
)
from chainrule.cli.quick_start import collect_rarely
from chainrule.cli.train import Prune, Quantize, Smoothing

AcrossLines = Annotated[
    bool | None,
    typer.Option(
        "--across-lines/--by-line", help="Whether n-grams cross line ends (default: unless tokens are words)."
    ),
]


def count(
    data: Annotated[list[str], typer.Argument(metavar="SHARD…", help="Files or folders of one shard of a text.")],
    out: Annotated[Path, typer.Option(help="Folder of the counts.")],
    like: Annotated[Path | None, typer.Option(help="Run whose tokeniser is used.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="File or folder of a fitted tokeniser, or byte.")] = None,
    order: Annotated[int, typer.Option(help="Length N of the n-grams.")] = 5,
    across_lines: AcrossLines = None,
    memory: Annotated[str, typer.Option(help="Maximum memory for sorting.")] = "1G",
    vocabulary: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Count the words for a tokeniser of this kind instead: word, char, jieba."),
    ] = None,
    field: Field = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="With --vocabulary: set how words are split, for example tokenizer.split=unicode; repeatable.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Count the n-grams of one shard of a text, for chainrule merge; a finished shard is left alone."""
    collect_rarely()
    from chainrule.config import parse_settings
    from chainrule.distributed.count import count as count_shard
    from chainrule.distributed.vocabulary import count_vocabulary
    from chainrule.errors import ConfigError

    if vocabulary is not None:
        if like is not None or tokenizer is not None:
            raise ConfigError("--vocabulary counts words for a new tokeniser; leave --like and --tokenizer out")
        split = parse_settings(settings or [])
        count_vocabulary(*data, out=out, kind=vocabulary, field=field, settings=split, note=print_note)
        print_json({"counts": str(out)}) if json else print_fields({"counts": str(out)})
        return
    if settings:
        raise ConfigError("--set tokenizer.… belongs to --vocabulary KIND; a fitted tokeniser keeps its options")
    with show_progress("counting", "bytes") as progress:
        found = count_shard(
            *data,
            out=out,
            like=like,
            tokenizer=tokenizer,
            order=order,
            across_lines=across_lines,
            memory=memory,
            field=field,
            note=print_note,
            progress=progress,
        )
    rows = sum(run.rows for run in found.counts.runs)
    values = {"counts": str(out), "order": order, "tokens": found.tokens, "rows": rows}
    print_json(values) if json else print_fields(values)


def merge(
    folders: Annotated[
        list[Path], typer.Argument(metavar="COUNTS…", help="Folders of counts, in the order of the text.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the run, or with --counts of the counts.")],
    counts: Annotated[bool, typer.Option("--counts", help="Write merged counts, which can be merged again.")] = False,
    vocabulary: Annotated[
        bool, typer.Option("--vocabulary", help="Make a tokeniser from the counts of count --vocabulary.")
    ] = False,
    vocab_size: Annotated[int | None, typer.Option(help="With --vocabulary: maximum number of tokens.")] = None,
    min_count: Annotated[
        int | None, typer.Option(help="With --vocabulary: words that occur less often become <unk>.")
    ] = None,
    smoothing: Smoothing = None,
    prune: Prune = None,
    quantize: Quantize = False,
    valid: Annotated[
        list[str] | None, typer.Option(help="Validation text, which some smoothings are fitted on.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Maximum memory, e.g. 4G; the rest goes to disk.")] = None,
    repeats: Annotated[bool, typer.Option("--repeats", help="Accept a shard that is given more than once.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set an option of the n-gram model, for example model.delta=0.5; repeatable.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Estimate an n-gram model from the counts of all shards of a text, or make a tokeniser from word counts."""
    collect_rarely()
    from chainrule.config import parse_settings
    from chainrule.distributed.merge import merge as merge_model
    from chainrule.distributed.merge import merge_shards
    from chainrule.distributed.vocabulary import merge_vocabulary
    from chainrule.errors import ConfigError

    options: dict[str, Any] = {"smoothing": smoothing, "prune": prune, "quantize": quantize or None}
    given = {name: value for name, value in options.items() if value is not None}
    if not vocabulary and (vocab_size or min_count):
        raise ConfigError("--vocab-size and --min-count belong to --vocabulary; n-grams keep their tokeniser")
    if (counts or vocabulary) and (given or valid or settings or memory):
        raise ConfigError("merging counts or a vocabulary makes no model; leave the options of the model out")
    values: dict[str, Any]
    if vocabulary:
        kept = {"vocab_size": vocab_size, "min_count": min_count}
        merge_vocabulary(*folders, out=out, counts=counts, note=print_note, **kept)
        values = {"counts" if counts else "tokenizer": str(out)}
    elif counts:
        found = merge_shards(*folders, out=out, repeats=repeats, note=print_note)
        values = {"counts": str(out), "tokens": found.tokens, "shards": len(found.shards)}
    else:
        run = merge_model(
            *folders,
            out=out,
            valid=source_names(valid),
            memory=memory,
            repeats=repeats,
            settings=parse_settings(settings or []),
            note=print_note,
            **given,
        )
        shown = ("seconds", "tokens", "parameters", "peak_memory")
        values = {"run": str(out), **{name: run.result[name] for name in shown}}
    print_json(values) if json else print_fields(values)
