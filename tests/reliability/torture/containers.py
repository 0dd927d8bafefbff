"""Folders and files that hold several things as targets of fuzzing: counts, packed runs, mixtures; and short lists."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from chainrule import count, count_vocabulary, load, merge, merge_vocabulary, mix, pack, unpack
from chainrule.checkpoint.folder import RunFolder
from chainrule.inference.phrases import read_glossary
from chainrule.server.auth import read_keys
from chainrule.text.tokenizers import load_tokenizer
from torture.fuzzing import Target
from torture.toys import counting


def container_targets(place: Path) -> Iterator[Target]:
    """All of them; their files are made below `place`, which has the data."""
    run = place / "counted-by-line"
    counting("ngram", tokenizer="word", order=2, settings={"model": {"across_lines": False}})(place, run)
    yield from _counts(place, run)
    yield from _vocabulary(place)
    yield from _packed(place, run)
    yield from _small(place)


def _kind(path: Path) -> str:
    return {".json": "json", ".safetensors": "tensors", ".toml": "lines", ".txt": "lines"}.get(path.suffix, "binary")


def _counts(place: Path, run: Path) -> Iterator[Target]:
    """What `merge` makes of damaged counts is refused or the same model."""
    counts = place / "counts"
    count(place / "text.txt", like=run, order=2, out=counts)
    for path in sorted(counts.iterdir()):
        yield Target(f"counts: {path.name}", path, _kind(path), partial(_merge, counts, place / "merged"), same=True)


def _merge(counts: Path, out: Path) -> bytes:
    shutil.rmtree(out, ignore_errors=True)
    merge(counts, out=out)
    return RunFolder(out).model_path.read_bytes()


def _vocabulary(place: Path) -> Iterator[Target]:
    words = place / "words"
    count_vocabulary(place / "text.txt", out=words)
    for path in sorted(words.iterdir()):
        read = partial(_merge_words, words, place / "merged-words")
        yield Target(f"word counts: {path.name}", path, _kind(path), read, same=True)


def _merge_words(words: Path, out: Path) -> str:
    shutil.rmtree(out, ignore_errors=True)
    return load_tokenizer(merge_vocabulary(words, out=out)).fingerprint


def _packed(place: Path, run: Path) -> Iterator[Target]:
    """A packed mixture, which is unpacked and used."""
    mixture, packed, out = place / "mixed", place / "mixed.crn", place / "unpacked"
    mix([run, run], valid=place / "text.txt", out=mixture)
    pack(mixture, packed)

    def read() -> list[float]:
        shutil.rmtree(out, ignore_errors=True)
        unpack(packed, out)
        return _scores(out)

    yield Target("packed run", packed, "binary", read, same=True)
    for name in ("config.toml", "signature", "model.safetensors"):
        path = mixture / name
        yield Target(f"mixture: {name}", path, _kind(path), partial(_scores, mixture), same=True)


def _scores(run: Path) -> list[float]:
    return [line.log_prob for line in load(run).score(["ab ba cab", "abba"])]


def _small(place: Path) -> Iterator[Target]:
    glossary, keys = place / "glossary.tsv", place / "keys"
    glossary.write_text("ab\tba\ncab\tbac abba\n")
    keys.write_text("# keys\nsk-one\nsk-two\n")
    yield Target("glossary", glossary, "lines", lambda: list(read_glossary(glossary)))
    yield Target("API keys", keys, "lines", lambda: read_keys(keys))
