"""The ARPA format of n-gram models: export of runs to files, and import of files as runs.

`write_arpa` and `read_arpa` convert tables, `export_arpa` and `import_arpa` convert runs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from chainrule.base.devices import PeakMemory
from chainrule.base.files import folder_atomically
from chainrule.base.progress import Progress
from chainrule.base.targets import check_file
from chainrule.checkpoint.build import load_model, model_options, save_model
from chainrule.checkpoint.folder import TRAINING_SECTIONS, RunFolder
from chainrule.config import NamedSection, RunConfig, TokenizerConfig
from chainrule.engines.ngram.table import NgramTable
from chainrule.errors import DataError
from chainrule.interop.arpa.reader import read_arpa_content
from chainrule.interop.arpa.trie import build_table
from chainrule.interop.arpa.writer import write_arpa
from chainrule.interop.common import ExportResult, Format, Note, Obstacle, find_finished_import, import_result
from chainrule.models.ngram import Ngram, NgramConfig
from chainrule.registry import TOKENIZERS
from chainrule.text.readers import open_texts
from chainrule.text.tokenizers.word import WordTokenizer

__all__ = ["ARPA", "ArpaModel", "export_arpa", "import_arpa", "read_arpa", "write_arpa"]

MAX_ORDER = 8


class ArpaModel(NamedTuple):
    """The model in a file."""

    table: NgramTable  # ids: 0 `<unk>`, 1 `<s>` and `</s>`, then the words
    words: list[str]  # in the order of the file, without the special words
    notes: list[str]  # irregularities of the file, as messages


def read_arpa(path: str | Path, *, progress: Progress | None = None) -> ArpaModel:
    """The model in an ARPA file, plain or compressed; it gives the scores that KenLM gives with that file."""
    content = read_arpa_content(path, progress)
    return ArpaModel(build_table(content, str(path)), content.words, content.notes)


def arpa_obstacles(config: RunConfig) -> list[Obstacle]:
    """What an ARPA file cannot represent: other models, context across line ends, and scores that do not sum to one."""
    if config.model.name != "ngram":
        return [Obstacle(f"the model is {config.model.name}, but an ARPA file holds n-grams", "--model ngram")]
    found, options, kind = [], model_options(config), config.tokenizer.kind
    by_default = kind in TOKENIZERS.peek_names() and not TOKENIZERS.get(kind).make.word_tokens
    if options.across_lines or (options.across_lines is None and by_default):
        reason = "the context extends across line ends" + (
            "" if options.across_lines else f" by default for the tokeniser {kind}"
        )
        found.append(Obstacle(reason, "--set model.across_lines=false"))
    if options.smoothing == "stupid-backoff":
        found.append(
            Obstacle(f"the scores of {options.smoothing} are not probabilities", "--smoothing modified-kneser-ney")
        )
    return found


def export_arpa(run: str | Path, path: str | Path, *, progress: Progress | None = None) -> ExportResult:
    """Write the n-gram model of a run to an ARPA file."""
    folder, target = RunFolder.open(run), Path(path)
    tokenizer = folder.read_tokenizer()
    check_file(target)
    table = cast(Ngram, load_model(folder, tokenizer)).table
    pieces = [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]
    write_arpa(table, pieces, target, unk=tokenizer.unk, progress=progress)
    return ExportResult(target, target.stat().st_size, table.sizes)


def import_arpa(
    path: str | Path, out: str | Path, *, note: Note = lambda text: None, progress: Progress | None = None
) -> RunFolder:
    """Create a run from an ARPA file. A repeated call finds the finished run."""
    folder = Path(out)
    request = {"import": open_texts([path]).fingerprint()}
    if (finished := find_finished_import(folder, request, note)) is not None:
        return finished
    began, memory = time.perf_counter(), PeakMemory()
    arpa = read_arpa(path, progress=progress)
    for text in arpa.notes:
        note(text)
    model = _make_model(arpa, path)
    with folder_atomically(folder) as place:
        _write_run(RunFolder(place), model, arpa, request)
        counts = {"ngrams": model.table.sizes, "notes": arpa.notes}
        RunFolder(place).write_result(import_result(model, time.perf_counter() - began, memory.bytes) | counts)
    return RunFolder(folder)


def _make_model(arpa: ArpaModel, path: str | Path) -> Ngram:
    if arpa.table.order > MAX_ORDER:
        raise DataError(
            f"{path} has n-grams of {arpa.table.order} words, more than {MAX_ORDER}; prune it to a lower order"
        )
    config = NgramConfig(order=arpa.table.order, smoothing="imported", across_lines=False)
    return Ngram(config, arpa.table, np.zeros(arpa.table.vocab_size, np.int64))  # the file has no counts


def _write_run(folder: RunFolder, model: Ngram, arpa: ArpaModel, request: dict[str, Any]) -> None:
    tokenizer = WordTokenizer(arpa.words)
    tokenizer.save(folder.path)
    save_model(folder, model)
    folder.write_signature({"data": request["import"], "tokenizer": f"{tokenizer.kind}#{tokenizer.fingerprint}"})
    folder.write_request(request)
    model_section = NamedSection(name="ngram", **model.config.model_dump(mode="json"))
    options = TokenizerConfig(kind=tokenizer.kind, vocab_size=tokenizer.vocab_size)
    folder.write_config(RunConfig(model=model_section, tokenizer=options), without=TRAINING_SECTIONS)


ARPA = Format(
    name="arpa",
    summary="n-gram models, as written by KenLM and SRILM",
    suffixes=(".arpa",),
    obstacles=arpa_obstacles,
    models=("ngram",),
    import_run=import_arpa,
    export_run=export_arpa,
    import_unit="n-grams",
    export_unit="n-grams",
)
