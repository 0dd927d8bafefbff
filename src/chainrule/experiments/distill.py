"""Sequence-level distillation: a student is trained on the translations of a teacher.

Kim & Rush, "Sequence-Level Knowledge Distillation", 2016. Pairs are appended to a partial file, which is moved to its
place when it is complete. The same call resumes after the last complete pair; any other call starts again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

from chainrule.base.files import disk_errors, move
from chainrule.base.locks import open_alone
from chainrule.base.progress import Progress
from chainrule.base.targets import check_file
from chainrule.errors import ConfigError
from chainrule.runs.translator import TranslatorRun
from chainrule.text.formats.pairs import hold_pairs, open_pairs
from chainrule.text.readers import Texts, lines_in, open_texts

SUFFIXES = (".tsv", ".jsonl")


def distill(
    teacher: TranslatorRun,
    data: Sequence[str | Path],
    out: str | Path,
    *,
    reverse: bool = False,
    progress: Progress | None = None,
    **search: Any,
) -> int:
    """Write source and translation of every source line of `data` to the .tsv or .jsonl file `out` -> their number.

    With `reverse`, the translation is written as the source and the line as the target: back-translation (Sennrich,
    Haddow & Birch, "Improving Neural Machine Translation Models with Monolingual Data", 2016).
    """
    out = Path(out)
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"--out is {out}; expected the name of a .tsv or .jsonl file")
    check_file(out)
    texts = _open_sources(teacher, data)
    total = sum(1 for _ in lines_in(texts))
    partial = out.with_name(f"{out.name}.{_key(teacher, texts, search, reverse)}.partial")
    if out.exists() and not partial.exists():
        raise ConfigError(f"{out} already exists; delete it, or choose another --out")
    with disk_errors(partial), open_alone(partial, out) as file:
        done = _cut_partial_line(file)
        for source, target in _translate(teacher, texts, done, search):
            file.write(_format_pair(out.suffix, *((target, source) if reverse else (source, target))).encode())
            file.flush()
            done += 1
            if progress:
                progress(done, total)
        os.fsync(file.fileno())
        move(partial, out)
    return done


def _key(teacher: TranslatorRun, texts: Texts, search: dict[str, Any], reverse: bool = False) -> str:
    """Eight digits that identify teacher, sources, search and order, so that only the same work is resumed."""
    request = f"{teacher.fingerprint.hex()} {texts.fingerprint()} {teacher.search_options(search)}"
    request += " reverse" if reverse else ""
    return hashlib.blake2b(request.encode(), digest_size=4).hexdigest()


def _open_sources(teacher: TranslatorRun, data: Sequence[str | Path]) -> Texts:
    """The source side of pairs, or a single text."""
    if len(data) == 2 or hold_pairs(data[0]):
        fields = (teacher.config.data.source_field, teacher.config.data.target_field)
        return open_pairs(data, fields=fields).source
    return open_texts(data)


def _translate(teacher: TranslatorRun, texts: Texts, done: int, search: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the sources after the first `done`, each with its translation."""
    found = teacher.translate_lines(islice(lines_in(texts), done, None), **search)
    for source, translations in zip(islice(lines_in(texts), done, None), found, strict=True):
        yield source, translations[0].text


def _format_pair(suffix: str, source: str, target: str) -> str:
    if suffix == ".jsonl":
        return json.dumps({"source": source, "target": target}, ensure_ascii=False) + "\n"
    return " ".join(source.split("\t")) + "\t" + " ".join(target.split("\t")) + "\n"


def _cut_partial_line(file: IO[bytes]) -> int:
    """Cut off an incomplete last line, which a kill left -> the number of complete lines."""
    lines = end = 0
    file.seek(0)
    for line in file:
        if line.endswith(b"\n"):
            lines, end = lines + 1, end + len(line)
    file.truncate(end)
    return lines
