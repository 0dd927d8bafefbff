"""Every verb that writes, as a call into a folder whose result can be read and compared."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from chainrule import (
    count,
    count_vocabulary,
    export,
    load,
    merge,
    merge_shards,
    merge_vocabulary,
    mix,
    pack,
    report,
    tune,
    unpack,
)
from chainrule.cli.main import app
from chainrule.data.store import open_store
from chainrule.experiments.distill import distill
from chainrule.interop.formats import import_run
from chainrule.reports.document import Report
from chainrule.text.readers import open_texts
from torture.kills import contents
from torture.toys import TRAININGS, char, counting, trainings, write_data

Result = dict[str, Any]


@dataclass
class Writer:
    """A call that writes into a folder."""

    name: str
    write: Callable[[Path], object]
    result: Callable[[Path], Result]  # reads what was written, which must be whole
    prepare: Callable[[Path], object] | None = None  # writes old content; None: the folder is empty
    cache: bool = False  # whether the call works without what it writes
    ready: Callable[[], object] | None = None  # done once, before all calls


def writers(data: Path) -> list[Writer]:
    """All writers; the runs they read are made in `data`."""
    data.mkdir(parents=True)
    write_data(data)
    _make_runs(data)
    made = [_trainings, _runs, _shards, _files, _engines, _outputs, _reports, _caches]
    return [one for make in made for one in make(data)]


def _make_runs(data: Path) -> None:
    settings = {"model": {"across_lines": False}}
    counting("ngram", tokenizer="word", order=2, settings=settings)(data, data / "ngram")
    for name in ("lm lstm", "lm transformer", "word2vec", "translator", "masked bert"):
        TRAININGS[name](data, data / name)
    char("seq2seq-attention", "pairs.tsv", {"embedding": 8, "hidden": 8})(data, data / "attention")
    export(data / "ngram", data / "model.arpa")
    export(data / "masked bert", data / "hf", to="hf")
    load(data / "ngram").compress(data / "text.txt", data / "text.cr")
    mix([data / "ngram", data / "ngram"], valid=data / "text.txt", out=data / "mixture")
    pack(data / "mixture", data / "mixture.crn")
    for number, begin in enumerate((0, 30)):
        lines = (data / "text.txt").read_text().splitlines(keepends=True)[begin : begin + 30]
        (data / f"shard-{number}.txt").write_text("".join(lines))
        count(data / f"shard-{number}.txt", like=data / "ngram", order=2, out=data / f"counts-{number}")
        count_vocabulary(data / f"shard-{number}.txt", out=data / f"words-{number}")


def command(*arguments: object) -> None:
    """A verb of the command line, in this process; its errors are raised."""
    app(list(map(str, arguments)), standalone_mode=False)


def run_at(name: str) -> Callable[[Path], Result]:
    """The result is a run: its checksums hold."""

    def read(out: Path) -> Result:
        load(out / name).folder.check()
        return contents(out / name)

    return read


def file_at(name: str) -> Callable[[Path], Result]:
    """The result is a file, and nothing else stays."""

    def read(out: Path) -> Result:
        return {name: (out / name).read_bytes()}

    return read


def folder_at(name: str) -> Callable[[Path], Result]:
    """The result is a folder of files."""

    def read(out: Path) -> Result:
        files = [path for path in (out / name).rglob("*") if path.is_file()]
        return {str(path.relative_to(out)): path.read_bytes() for path in files}

    return read


def old_file(name: str) -> Callable[[Path], object]:
    """A file that the call replaces."""
    return lambda out: (out / name).write_bytes(b"old")


BRIEF = trainings(4)
"""Trainings with two checkpoints: each file operation is one more case."""


def _trainings(data: Path) -> list[Writer]:
    return [
        Writer(f"train {name}", lambda out, run=run: run(data, out / "run"), run_at("run"))  # type: ignore[misc]
        for name, run in BRIEF.items()
        if not name.endswith("ranks")  # several processes change files in an order of their own
    ]


def _runs(data: Path) -> list[Writer]:
    """Verbs that make or change a run."""
    text, two = data / "text.txt", [data / "ngram", data / "ngram"]

    def copy(name: str) -> Callable[[Path], object]:
        return lambda out: shutil.copytree(data / name, out / "run")

    return [
        Writer("mix", lambda out: mix(two, valid=text, out=out / "mix"), run_at("mix")),
        Writer("import arpa", lambda out: import_run(data / "model.arpa", out / "run"), run_at("run")),
        Writer("import hf", lambda out: import_run(data / "hf", out / "run"), run_at("run")),
        Writer("unpack", lambda out: unpack(data / "mixture.crn", out / "run"), run_at("run")),
        Writer("tune", lambda out: tune(out / "run", valid=text), run_at("run"), copy("mixture")),
    ]


def _shards(data: Path) -> list[Writer]:
    """Counting in shards."""
    text, run = data / "shard-0.txt", data / "ngram"
    counts = [data / f"counts-{number}" for number in range(2)]
    words = [data / f"words-{number}" for number in range(2)]
    return [
        Writer("count", lambda out: count(text, like=run, order=2, memory="1K", out=out / "x"), folder_at("x")),
        Writer("merge", lambda out: merge(*counts, out=out / "run"), run_at("run")),
        Writer("merge --memory", lambda out: merge(*counts, memory="1K", out=out / "run"), run_at("run")),
        Writer("merge --counts", lambda out: merge_shards(*counts, out=out / "x"), folder_at("x")),
        Writer("count --vocabulary", lambda out: count_vocabulary(text, out=out / "x"), folder_at("x")),
        Writer("merge --vocabulary", lambda out: merge_vocabulary(*words, out=out / "x"), folder_at("x")),
        Writer(
            "merge --vocabulary --counts",
            lambda out: merge_vocabulary(*words, counts=True, out=out / "x"),
            folder_at("x"),
        ),
    ]


def _files(data: Path) -> list[Writer]:
    """Verbs that write a file or a folder for other tools; a file is replaced."""
    text, pairs = data / "text.txt", data / "pairs.tsv"
    word2vec = partial(export, data / "word2vec", to="word2vec")
    return [
        Writer("export arpa", lambda out: export(data / "ngram", out / "x"), file_at("x"), old_file("x")),
        Writer("export word2vec", lambda out: word2vec(out / "x"), file_at("x"), old_file("x")),
        Writer("export hf", lambda out: export(data / "masked bert", out / "hf", to="hf"), folder_at("hf")),
        Writer("pack", lambda out: pack(data / "mixture", out / "x"), file_at("x"), old_file("x")),
        Writer("export run", lambda out: export(data / "lm transformer", out / "x", to="run"), run_at("x")),
        Writer(
            "export run int8",
            lambda out: export(data / "lm transformer", out / "x", to="run", quantize="int8"),
            run_at("x"),
        ),
        Writer("compress", lambda out: load(data / "ngram").compress(text, out / "x"), file_at("x"), old_file("x")),
        Writer(
            "decompress",
            lambda out: load(data / "ngram").decompress(data / "text.cr", out / "x"),
            file_at("x"),
            old_file("x"),
        ),
        Writer("distill", lambda out: distill(load(data / "translator"), [pairs], out / "x.tsv"), file_at("x.tsv")),
    ]


def _engines(data: Path) -> list[Writer]:
    """Exports for engines, where these are installed."""
    run, tracing = data / "lm transformer", TracedOnce()

    def write_graphs(out: Path) -> None:
        with mock.patch("torch.onnx.export", tracing.export):
            export(run, out / "x", to="onnx")

    found = {
        "ctranslate2": Writer(
            "export ctranslate2", lambda out: export(run, out / "x", to="ctranslate2"), folder_at("x")
        ),
        "onnxruntime": Writer("export onnx", write_graphs, folder_at("x"), ready=lambda: write_graphs(data / "traced")),
    }
    return [writer for package, writer in found.items() if importlib.util.find_spec(package)]


class TracedOnce:
    """Tracing a graph takes seconds: it is done once, before the calls that are disturbed."""

    def __init__(self) -> None:
        self.trace, self.program = torch.onnx.export, None

    def export(self, *arguments: Any, **options: Any) -> Any:
        """The graph of the first call."""
        self.program = self.program or self.trace(*arguments, **options)
        return self.program


def _outputs(data: Path) -> list[Writer]:
    """Options that name a file for further output."""
    short = data / "short.txt"
    short.write_text("ab ba\ncab abba\n")
    translator, bert, transformer = data / "translator", data / "masked bert", data / "lm transformer"
    verbs: dict[str, Callable[[Path], tuple[object, ...]]] = {
        "embed --out": lambda file: ("embed", bert, short, "--out", file),
        "score --attention": lambda file: ("score", transformer, short, "--attention", file),
        "translate --attention": lambda file: ("translate", data / "attention", short, "--attention", file),
        "eval --outputs": lambda file: ("eval", translator, data / "pairs.tsv", "--outputs", file),
    }
    return [
        Writer(name, lambda out, verb=verb: command(*verb(out / "x.npy")), file_at("x.npy"), old_file("x.npy"))  # type: ignore[misc]
        for name, verb in verbs.items()
    ]


def _reports(data: Path) -> list[Writer]:
    """A report as a page and as figures; measuring and drawing take seconds, so both are done once."""

    @cache
    def made() -> Report:
        return report(data / "ngram", data / "lm lstm", data=data / "short.txt")

    @cache
    def page() -> str:
        return made().html()

    def write_page(out: Path) -> None:
        with mock.patch("chainrule.reports.document.render", return_value=page()):
            made().save(out / "x")

    return [
        Writer("report", write_page, file_at("x"), old_file("x"), ready=page),
        Writer("report --json", lambda out: made().save(json=out / "x"), file_at("x"), old_file("x"), ready=made),
    ]


def _caches(data: Path) -> list[Writer]:
    """What is written to the cache: a part of it must never be taken for the whole."""
    texts, tokenizer = open_texts([data / "text.txt"]), load(data / "ngram").tokenizer

    def tokens(out: Path) -> None:
        _ = open_store(texts, tokenizer, cache=out).residue_bits

    def stored(out: Path) -> Result:
        store = open_store(texts, tokenizer, cache=out)
        return {"tokens": store.tokens[:], "bits": store.residue_bits}

    def load_packed(out: Path) -> None:
        os.environ["CHAINRULE_CACHE"] = str(out)
        load(data / "mixture.crn").score(["ab"])

    def unpacked(out: Path) -> Result:
        (run,) = (out / "packs").iterdir()
        return contents(run)

    return [
        Writer("tokens", tokens, stored, cache=True),
        Writer("load packed", load_packed, unpacked, cache=True),
    ]
