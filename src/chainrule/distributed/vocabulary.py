"""A vocabulary built in shards: each shard's words are counted, the counts are merged, and a tokeniser is made of them.

    manifest.json   what was counted: kind of tokeniser, its options, fingerprints of the texts, a checksum
    parts.txt       `COUNT PART`, one line for each different part, sorted by part

The lines of `parts.txt` are in UTF-8 and sorted by code point, so files are merged from front to back. Counting a shard
drops nothing, so the tokeniser is that of the whole text.
"""

from __future__ import annotations

import hashlib
import heapq
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from chainrule.base.files import folder_atomically
from chainrule.base.targets import check_folder
from chainrule.config import TokenizerConfig, parse
from chainrule.distributed.manifest import MANIFEST, hash_file, read_manifest, write_manifest
from chainrule.errors import ConfigError, DataError
from chainrule.registry import TOKENIZERS
from chainrule.text.readers import open_texts
from chainrule.text.tokenizers import Tokenizer
from chainrule.text.tokenizers.base import FILE
from chainrule.text.tokenizers.fit import choose_tokenizer, default_min_count, is_prepared, sample_of
from chainrule.text.tokenizers.vocabulary import VocabularyTokenizer, most_frequent

FORMAT = "word counts 1"
PARTS = "parts.txt"

Note = Callable[[str], None]


@dataclass(frozen=True)
class VocabularyCounts:
    """The content of the manifest of a folder of word counts."""

    kind: str  # of tokeniser
    options: dict[str, str]  # how it splits a line
    prepared: bool  # whether the text begins as one whose rare words are replaced by <unk>
    texts: tuple[str, ...]  # fingerprints, in the order of the text
    parts: int  # different ones
    checksum: str

    @property
    def split(self) -> tuple[str, dict[str, str]]:
        """What folders that are merged have in common."""
        return self.kind, self.options


_KIND = TypeAdapter(VocabularyCounts)


def count_vocabulary(
    *texts: str | Path,
    out: str | Path,
    kind: str = "word",
    field: str | None = None,
    settings: Mapping[str, Any] | None = None,
    note: Note = lambda text: None,
) -> Path:
    """Count the words (or characters) of one shard of a text; `merge_vocabulary` makes a tokeniser of all shards.

    Args:
        *texts: The shard: files or folders, which end at a line end.
        out: Folder of the counts. If it holds those of the same shard, it is left alone.
        kind: Kind of tokeniser: "word", "char" or "jieba".
        field: Name of the JSON field with the texts. None: "text".
        settings: How words are split, {"tokenizer": {"split": "unicode"}}.
        note: Called with messages.

    Returns:
        The folder of counts.
    """
    maker, folder = _maker(kind), Path(out)
    check_folder(folder, (folder / MANIFEST).exists)
    opened = open_texts(texts, field=field or "text")
    sample, given = sample_of(opened), dict((settings or {}).get("tokenizer", {}))
    chosen = choose_tokenizer(parse(TokenizerConfig, {**given, "kind": kind}, "tokenizer"), sample, opened.size)
    options: dict[str, Any] = {"split": chosen.split, "unk": chosen.unk} if kind == "word" else {}
    if (folder / MANIFEST).exists():
        found = _read(folder)
        if found.split != (kind, options) or found.texts != (opened.fingerprint(),):
            raise ConfigError(f"{folder} holds the word counts of another text or split; choose another --out")
        note(f"{folder} is already finished")
        return folder
    counts = maker.count(opened, max_types=sys.maxsize, **options)
    _write(folder, sorted(counts.items()), kind, options, is_prepared(sample), (opened.fingerprint(),))
    return folder


def merge_vocabulary(
    *folders: str | Path,
    out: str | Path,
    counts: bool = False,
    vocab_size: int | None = None,
    min_count: int | None = None,
    note: Note = lambda text: None,
) -> Path:
    """Make a tokeniser from the word counts of all shards; it is that which `train` fits to the whole text.

    Args:
        *folders: The folders of `count_vocabulary`, or of this function with `counts`, in the order of the text.
        out: Folder of the tokeniser, for `count(…, tokenizer=out)` and `train(…, tokenizer=out)`.
        counts: Write merged word counts instead, which can be merged again.
        vocab_size: Maximum number of tokens, special tokens included. None: no limit.
        min_count: Words that occur less often become <unk>. None: chosen as by `train`.
        note: Called with messages.

    Returns:
        The folder.
    """
    found, target = _read_all(folders), Path(out)
    kind, options = found[0].split
    merged = _merge_parts([Path(folder) / PARTS for folder in folders])
    if counts:
        check_folder(target, (target / MANIFEST).exists)
        texts = tuple(text for one in found for text in one.texts)
        _write(target, merged, kind, options, found[0].prepared, texts)
        return target
    check_folder(target, (target / FILE).exists)
    least = min_count or default_min_count(kind, found[0].prepared, vocab_size)
    kept = Counter({part: count for part, count in merged if count >= least})
    tokenizer: Tokenizer = _maker(kind)(most_frequent(kept, vocab_size=vocab_size, min_count=least), **options)
    with folder_atomically(target) as building:
        tokenizer.save(building)
    note(f"{kind} tokeniser with {tokenizer.vocab_size} tokens")
    return target


def _maker(kind: str) -> type[VocabularyTokenizer]:
    """The class of a kind of tokeniser that has a list of words."""
    made: type[Any] = TOKENIZERS.get(kind).make
    if not issubclass(made, VocabularyTokenizer):
        raise ConfigError(
            f"a vocabulary of {kind} is not counted in shards; expected word, char or jieba; fit {kind} to a sample of "
            "the text with chainrule train, and give its run to chainrule count --like"
        )
    return made


def _read_all(folders: Sequence[str | Path]) -> list[VocabularyCounts]:
    """The manifests of folders that fit together, whose files are whole."""
    if not folders:
        raise ConfigError("no word counts were given; name the folders that chainrule count --vocabulary made")
    found = [_read(Path(folder)) for folder in folders]
    for folder, one in zip(folders, found, strict=True):
        if one.split != found[0].split:
            raise DataError(
                f"{folder} was counted with another kind of tokeniser or split than {folders[0]}; count all shards "
                "with the same options"
            )
        if hash_file(Path(folder) / PARTS) != one.checksum:
            raise DataError(f"{Path(folder) / PARTS} is damaged; delete {folder} and count its shard again")
    twice = [text for text, times in Counter(text for one in found for text in one.texts).items() if times > 1]
    if twice:
        raise DataError("a text is among the word counts more than once; leave one of its folders out")
    return found


def _read(folder: Path) -> VocabularyCounts:
    found: VocabularyCounts = read_manifest(folder, _KIND, FORMAT, "chainrule count --vocabulary")
    return found


def _write(
    folder: Path,
    parts: Sequence[tuple[str, int]] | Iterator[tuple[str, int]],
    kind: str,
    options: dict[str, str],
    prepared: bool,
    texts: tuple[str, ...],
) -> None:
    """Write sorted parts with their counts, and the manifest last."""
    number, digest = 0, hashlib.blake2b(digest_size=16)
    with folder_atomically(folder) as building:
        with (building / PARTS).open("wb") as file:
            for part, count in parts:
                line = f"{count} {part}\n".encode()
                file.write(line)
                digest.update(line)
                number += 1
        manifest = VocabularyCounts(kind, options, prepared, texts, number, digest.hexdigest())
        write_manifest(building, {"format": FORMAT, **asdict(manifest)})


def _merge_parts(paths: list[Path]) -> Iterator[tuple[str, int]]:
    """The parts of all files in sorted order, with the sums of their counts."""
    merged = heapq.merge(*map(_parts_in, paths))
    for part, same in groupby(merged, key=lambda one: one[0]):
        yield part, sum(count for _, count in same)


def _parts_in(path: Path) -> Iterator[tuple[str, int]]:
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                count, _, part = line.removesuffix("\n").partition(" ")
                yield part, int(count)
    except ValueError:
        raise DataError(f"{path} holds no word counts; count its shard again") from None
