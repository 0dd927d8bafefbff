"""A folder of n-gram counts: what `count` writes and `merge` reads.

    manifest.json   what was counted, and the files
    run-N.bin       sorted windows with their counts; `engines/ngram/sorted_runs.py` describes the bytes
    tokenizer.*     the tokeniser of the counts

The folder is built under another name and renamed when complete, so it is whole or absent.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from chainrule.distributed.manifest import hash_file, read_manifest, write_manifest
from chainrule.engines.ngram.segments import Counts, Segment, Shape
from chainrule.engines.ngram.sorted_runs import SortedRun
from chainrule.errors import DataError
from chainrule.text.tokenizers import Tokenizer, load_tokenizer

FORMAT = "n-gram counts 1"
MAX_ORDER = 8

Number = Annotated[int, Field(ge=0, lt=1 << 63)]
Id = Annotated[int, Field(ge=0, lt=1 << 32)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


@dataclass(frozen=True)
class Shard:
    """A text that was counted."""

    data: Digest  # fingerprint of its bytes
    bytes: Number
    tokens: Number


@dataclass(frozen=True)
class CountsFolder:
    """The content of a folder of counts."""

    path: Path
    counts: Counts
    tokenizer: str  # fingerprint
    tokenizer_options: dict[str, Any]  # with which the tokeniser was fitted
    shards: tuple[Shard, ...]  # in the order of the text

    @property
    def tokens(self) -> int:
        return self.counts.segment.tokens

    @property
    def kind(self) -> tuple[Shape, str]:
        """What folders that are merged have in common."""
        return self.counts.shape, self.tokenizer

    def read_tokenizer(self) -> Tokenizer:
        """The tokeniser of the counts."""
        tokenizer = load_tokenizer(self.path)
        if tokenizer.fingerprint != self.tokenizer or tokenizer.vocab_size != self.counts.shape.vocab_size:
            raise DataError(
                f"{self.path} has a tokeniser of other counts; restore the folder, or count its shard again"
            )
        return tokenizer

    def check(self) -> None:
        """Refuse files that are not those of the manifest."""
        for run in self.counts.runs:
            if hash_file(run.path) != run.checksum:
                raise DataError(f"{run.path} is damaged or missing; delete {self.path} and count its shard again")


@dataclass(frozen=True)
class _RunEntry:
    """A sorted run in the manifest; the fields of a `SortedRun`."""

    path: Annotated[str, Field(pattern="^run-[0-9]{1,9}[.]bin$")]
    rows: Number
    windows: Number
    sizes: tuple[Number, ...]
    bytes: Number
    checksum: Digest


@dataclass(frozen=True)
class _Manifest:
    """The content of a manifest: the fields of a `Shape` and of a `Segment`, the tokeniser, the shards, the files."""

    order: Annotated[int, Field(ge=1, le=MAX_ORDER)]
    eos: Id
    across_lines: bool
    vocab_size: Annotated[int, Field(ge=1, lt=1 << 32)]
    tokens: Number
    opening: tuple[Id, ...]
    closing: tuple[Id, ...]
    ends_line: bool
    tokenizer: Digest
    tokenizer_options: dict[str, Any]
    shards: tuple[Shard, ...]
    runs: tuple[_RunEntry, ...]


_KIND = TypeAdapter(_Manifest)


def write_counts(
    folder: Path, counts: Counts, tokenizer: Tokenizer, options: dict[str, Any], shards: tuple[Shard, ...]
) -> None:
    """Write the tokeniser and, last, the manifest of the counts whose runs are in a folder."""
    tokenizer.save(folder)
    manifest = {
        "format": FORMAT,
        **asdict(counts.shape),
        **asdict(counts.segment),
        "tokenizer": tokenizer.fingerprint,
        "tokenizer_options": options,
        "shards": [asdict(shard) for shard in shards],
        "runs": [{**asdict(run), "path": run.path.name} for run in counts.runs],
    }
    write_manifest(folder, manifest)


def read_counts(path: str | Path) -> CountsFolder:
    """The counts in a folder."""
    folder = Path(path)
    found: _Manifest = read_manifest(folder, _KIND, FORMAT, "chainrule count")
    shape = Shape(found.order, found.eos, found.across_lines, found.vocab_size)
    segment = Segment(found.tokens, found.opening, found.closing, found.ends_line)
    runs = tuple(SortedRun(**{**asdict(run), "path": folder / run.path}) for run in found.runs)
    if any(len(run.sizes) != shape.order for run in runs):
        raise DataError(f"{folder} states sizes of another order; count the shard again")
    return CountsFolder(folder, Counts(shape, segment, runs), found.tokenizer, found.tokenizer_options, found.shards)
