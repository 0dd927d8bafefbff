"""ARPA, the format in which n-gram models are exchanged: tables and runs to files, and back.

`write_arpa` and `read_arpa` are about tables, `export_arpa` and `import_arpa` about runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from chainrule.base.devices import PeakMemory
from chainrule.base.files import folder_atomically
from chainrule.base.progress import Progress
from chainrule.checkpoint.build import load_model
from chainrule.checkpoint.folder import TRAINING_SECTIONS, RunFolder
from chainrule.config import NamedSection, RunConfig, TokenizerConfig
from chainrule.engines.ngram.table import NgramTable
from chainrule.errors import ConfigError, DataError
from chainrule.interop.arpa.reader import read_content
from chainrule.interop.arpa.trie import build_table
from chainrule.interop.arpa.writer import write_arpa
from chainrule.interop.common import Exported, figures, find_finished
from chainrule.models.ngram import Ngram, NgramConfig
from chainrule.text.readers import open_texts
from chainrule.text.tokenizers.word import WordTokenizer

__all__ = ["Arpa", "export_arpa", "import_arpa", "read_arpa", "write_arpa"]

MOST_ORDERS = 8


class Arpa(NamedTuple):
    """What a file holds."""

    table: NgramTable  # ids: 0 `<unk>`, 1 `<s>` and `</s>`, then the words
    words: list[str]  # in the order of the file, without the marks
    notes: list[str]  # what was odd about it, for a person to read


def read_arpa(path: str | Path, *, progress: Progress | None = None) -> Arpa:
    """The table of an ARPA file, plain or compressed; it gives the scores that KenLM gives with that file."""
    content = read_content(path, progress)
    return Arpa(build_table(content, str(path)), content.words, content.notes)


def export_arpa(run: str | Path, path: str | Path, *, progress: Progress | None = None) -> Exported:
    """Write the n-gram model of a run's folder to an ARPA file."""
    folder, target = RunFolder(run), Path(path)
    name, tokenizer = folder.read_config().model.name, folder.read_tokenizer()
    if name != "ngram":
        raise ConfigError(
            f"{folder.path} is of the model {name}, but an ARPA file holds an n-gram model; give a run of --model ngram"
        )
    table = cast(Ngram, load_model(folder, tokenizer)).table
    pieces = [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]
    write_arpa(table, pieces, target, unk=tokenizer.unk, progress=progress)
    return Exported(target, target.stat().st_size, table.sizes)


def import_arpa(
    path: str | Path,
    out: str | Path,
    *,
    note: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
) -> RunFolder:
    """Make a run of a file that another tool wrote. The same call again finds it done."""
    folder = Path(out)
    request = {"import": open_texts([path]).fingerprint()}
    if (finished := find_finished(folder, request, note)) is not None:
        return finished
    began, memory = time.perf_counter(), PeakMemory()
    arpa = read_arpa(path, progress=progress)
    for text in arpa.notes:
        note(text)
    model = _model(arpa, path)
    with folder_atomically(folder) as place:
        _write(RunFolder(place), model, arpa, request)
        counted = {"ngrams": model.table.sizes, "notes": arpa.notes}
        RunFolder(place).write_result(figures(model, time.perf_counter() - began, memory.bytes) | counted)
    return RunFolder(folder)


def _model(arpa: Arpa, path: str | Path) -> Ngram:
    if arpa.table.order > MOST_ORDERS:
        raise DataError(
            f"{path} has n-grams of {arpa.table.order} words, more than {MOST_ORDERS}; prune it to a lower order"
        )
    config = NgramConfig(order=arpa.table.order, smoothing="imported", across_lines=False)
    return Ngram(config, arpa.table, np.zeros(arpa.table.vocab_size, np.int64))  # the file does not tell counts


def _write(folder: RunFolder, model: Ngram, arpa: Arpa, request: dict[str, Any]) -> None:
    tokenizer = WordTokenizer(arpa.words)
    tokenizer.save(folder.path)
    model.save(folder.path / "model.safetensors")
    folder.write_signature({"data": request["import"], "tokenizer": f"{tokenizer.kind}#{tokenizer.fingerprint}"})
    folder.write_request(request)
    chosen = NamedSection(name="ngram", **model.config.model_dump(mode="json"))
    options = TokenizerConfig(kind=tokenizer.kind, vocab_size=tokenizer.vocab_size)
    folder.write_config(RunConfig(model=chosen, tokenizer=options), without=TRAINING_SECTIONS)
