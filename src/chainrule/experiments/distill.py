"""Sequence-level distillation: a teacher's translations as the pairs that a student learns from.

Kim & Rush, "Sequence-Level Knowledge Distillation", 2016. Pairs are added to a file beside their place, which is moved
there when it is complete; the same call goes on after the last pair that was written whole, any other begins anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

from chainrule.base.files import disk_errors
from chainrule.base.progress import Progress
from chainrule.errors import ConfigError
from chainrule.inference.search import Search
from chainrule.runs.translator import TranslatorRun
from chainrule.text.formats.pairs import hold_pairs, open_pairs
from chainrule.text.readers import Texts, lines_in, open_texts

SUFFIXES = (".tsv", ".jsonl")


def distill(
    teacher: TranslatorRun,
    data: Sequence[str | Path],
    out: str | Path,
    *,
    progress: Progress | None = None,
    **search: Any,
) -> int:
    """Write `source, translation` for every source line of `data` to the .tsv or .jsonl file `out` -> their number."""
    out = Path(out)
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"--out is {out}, but pairs are written to a .tsv or .jsonl file; give such a name")
    texts = _sources(teacher, data)
    whole = sum(1 for _ in lines_in(texts))
    partial = out.with_name(f"{out.name}.{_key(teacher, texts, search)}.partial")
    if out.exists() and not partial.exists():
        raise ConfigError(f"{out} is there already; delete it, or choose another --out")
    done = _keep_whole_lines(partial)
    with disk_errors(partial), _appended(partial) as file:
        for source, target in _pairs(teacher, texts, done, search):
            file.write(_line(out.suffix, source, target))
            file.flush()
            done += 1
            if progress:
                progress(done, whole)
    os.replace(partial, out)
    return done


def _key(teacher: TranslatorRun, texts: Texts, search: dict[str, Any]) -> str:
    """Eight digits that change with the teacher, the sources and the search: only the same work is gone on with."""
    whole = f"{teacher.fingerprint.hex()} {texts.fingerprint()} {Search(**search)}"
    return hashlib.blake2b(whole.encode(), digest_size=4).hexdigest()


def _sources(teacher: TranslatorRun, data: Sequence[str | Path]) -> Texts:
    """The source side of pairs, or a text by itself."""
    if len(data) == 2 or hold_pairs(data[0]):
        fields = (teacher.config.data.source_field, teacher.config.data.target_field)
        return open_pairs(data, fields=fields).source
    return open_texts(data)


def _pairs(teacher: TranslatorRun, texts: Texts, done: int, search: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The sources after the first `done`, each with its translation."""
    found = teacher.translate_lines(islice(lines_in(texts), done, None), **search)
    for source, translations in zip(islice(lines_in(texts), done, None), found, strict=True):
        yield source, translations[0].text


def _line(suffix: str, source: str, target: str) -> str:
    if suffix == ".jsonl":
        return json.dumps({"source": source, "target": target}, ensure_ascii=False) + "\n"
    return " ".join(source.split("\t")) + "\t" + " ".join(target.split("\t")) + "\n"


def _appended(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8")


def _keep_whole_lines(path: Path) -> int:
    """Cut off what a kill left of a last line -> the number of whole ones."""
    if not path.exists():
        return 0
    lines = 0
    with path.open("rb+") as file:
        end = 0
        for line in file:
            if line.endswith(b"\n"):
                lines, end = lines + 1, end + len(line)
        file.truncate(end)
    return lines
