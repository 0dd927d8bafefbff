"""The tokens of a text on disk, memory-mapped, and reused while neither text nor tokeniser changes.

    cache/<key>/tokens.bin    the ids, little-endian, in the narrowest of uint8, uint16 and uint32 that holds them
    cache/<key>/counts.npy    the number of occurrences of each id, int64
    cache/<key>/store.json    the rest: sizes, fingerprints, a checksum of tokens.bin
    cache/<key>/residue.json  the bits of the residue, and the number of unknown words that it spells

The folder is built under another name and renamed when complete, so it is whole or absent. Of a large text, the ids
are also kept in pieces until then (`store_journal.py`), so that a killed first pass is continued. The residue matters
when a text is evaluated, not when it is trained on, so it is measured on first use.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import weakref
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainrule.base.cache import cache_limit, default_cache, evict, temporary_cache, touch, usable
from chainrule.base.devices import physical_cores
from chainrule.base.files import folder_atomically, write_atomically
from chainrule.base.known_files import state_of
from chainrule.base.parallel import ordered_map
from chainrule.base.progress import Progress
from chainrule.data import store_journal
from chainrule.data.store_journal import Journal
from chainrule.errors import DataError
from chainrule.text.coding.residue_meter import ResidueMeter
from chainrule.text.readers import Texts
from chainrule.text.splitting import cut_text
from chainrule.text.tokenizers.base import Ids, Tokenizer

VERSION = 2  # of the file formats
FINGERPRINT = 1  # version of the fingerprints, which stay the same when the file formats change
WHOLE = "whole"
TOKENS, COUNTS, INFO, RESIDUE = "tokens.bin", "counts.npy", "store.json", "residue.json"


@dataclass(frozen=True)
class StoreInfo:
    """The content of `store.json`."""

    version: int
    tokens: int
    bytes: int
    lines: int
    dtype: str
    checksum: int
    text: str  # fingerprints
    tokenizer: str


@dataclass(frozen=True)
class ResidueSize:
    """The content of `residue.json`."""

    oov: int
    bits: float


class TokenStore:
    """The tokens of one text; `tokens` is a read-only memory map."""

    def __init__(self, folder: Path, info: StoreInfo, texts: Texts, tokenizer: Tokenizer) -> None:
        self.folder = folder
        self.bytes, self.lines = info.bytes, info.lines
        self.fingerprint = _key(FINGERPRINT, info.text, info.tokenizer)
        self.counts_V: NDArray[np.int64] = np.load(folder / COUNTS, allow_pickle=False)
        dtype = np.dtype(info.dtype)
        # An empty file cannot be mapped.
        self.tokens: NDArray[Any] = np.memmap(folder / TOKENS, dtype, "r") if info.tokens else np.zeros(0, dtype)
        self._checksum, self._texts, self._tokenizer = info.checksum, texts, tokenizer

    def __len__(self) -> int:
        return len(self.tokens)

    def first(self, tokens: int) -> TokenStore:
        """The lines at the beginning that have about `tokens` tokens; all, if there are no more or it is one line."""
        if tokens >= len(self):
            return self
        cut = cut_text(self._texts, self.bytes * tokens // len(self))
        return self if cut is None else open_store(cut[0], self._tokenizer)

    def fingerprint_with(self, tokenizer: Tokenizer) -> str:
        """The fingerprint of the same text as tokens of another tokeniser."""
        return _key(FINGERPRINT, self._texts.fingerprint(), tokenizer.fingerprint)

    @property
    def oov(self) -> int:
        """The number of unknown tokens that are not a literal `<unk>`; the first call may read the text again."""
        return self._residue.oov

    @property
    def residue_bits(self) -> float:
        """The code length of the residue in bits; the first call may read the text again."""
        return self._residue.bits

    @cached_property
    def _residue(self) -> ResidueSize:
        if self._tokenizer.residue_kind == "nothing":
            return ResidueSize(oov=0, bits=0.0)
        found = _read_residue(self.folder)
        if found is None:
            found = self._measure_residue()
            write_atomically(self.folder / RESIDUE, json.dumps(asdict(found)))
        return found

    def _measure_residue(self) -> ResidueSize:
        meter, checksum = ResidueMeter(self._tokenizer), 0
        for block in _encode_blocks(self._tokenizer.blocks(self._texts), self._tokenizer, self.tokens.dtype):
            meter.add(block.text, block.ids)
            checksum = zlib.crc32(block.data, checksum)
        meter.finish()
        if checksum != self._checksum:
            raise DataError(
                f"{self._texts.name} has changed since it was tokenised: expected the same text; run the command again."
            )
        return ResidueSize(meter.oov, meter.bits)


def open_store(
    texts: Texts, tokenizer: Tokenizer, *, cache: Path | None = None, progress: Progress | None = None
) -> TokenStore:
    """The tokens of `texts`, from `cache` if they are there; `progress` is called with bytes done and total bytes."""
    wanted = cache or default_cache()
    kept = usable(wanted)
    root = kept or temporary_cache(wanted)
    folder, limit = root / _key(VERSION, texts.fingerprint(), tokenizer.fingerprint), cache_limit()
    try:
        store = _open(folder, texts, tokenizer, progress)
    except FileNotFoundError:  # another process made room in the cache at this moment
        store = _open(folder, texts, tokenizer, progress)
    touch(folder)
    if limit is not None:
        unfinished = root.glob(store_journal.PATTERN)
        evict([*(info.parent for info in root.glob(f"*/{INFO}")), *unfinished], folder, limit)
    if kept is None:
        weakref.finalize(store, shutil.rmtree, root, ignore_errors=True)
    return store


def _open(folder: Path, texts: Texts, tokenizer: Tokenizer, progress: Progress | None) -> TokenStore:
    """The store in a folder, which is written unless it is there."""
    info = _read_info(folder, len_counts=tokenizer.vocab_size)
    if info is None:
        journal = Journal(folder)
        with folder_atomically(folder) as building:
            info = _write(building, texts, tokenizer, progress, journal if texts.size > store_journal.LARGE else None)
        if state := state_of(folder / TOKENS, settled=True):
            state.note(_whole(info, tokenizer.vocab_size), WHOLE)
        journal.delete()
    return TokenStore(folder, info, texts, tokenizer)


def usable_cache() -> Path:
    """The cache, or a temporary folder where it cannot be written."""
    wanted = default_cache()
    return usable(wanted) or temporary_cache(wanted)


def _key(version: int, text: str, tokenizer: str) -> str:
    return hashlib.blake2b(f"{version} {text} {tokenizer}".encode(), digest_size=16).hexdigest()


def _read_info(folder: Path, len_counts: int) -> StoreInfo | None:
    """The `store.json` of a folder; None if it is missing or does not match the other files."""
    try:
        info = StoreInfo(**json.loads((folder / INFO).read_bytes()))
        counts = np.load(folder / COUNTS, allow_pickle=False)
        size = (folder / TOKENS).stat().st_size
        whole = (
            info.version == VERSION
            and size == info.tokens * np.dtype(info.dtype).itemsize
            and counts.shape == (len_counts,)
            and counts.sum() == info.tokens
            and _has_checksum(folder / TOKENS, info, len_counts)
        )
    except (OSError, ValueError, TypeError, EOFError):
        return None
    return info if whole else None


def _whole(info: StoreInfo, vocab_size: int) -> str:
    return f"tokens of {info.dtype} below {vocab_size} with CRC-32 {info.checksum}"


def _has_checksum(path: Path, info: StoreInfo, vocab_size: int) -> bool:
    """Whether a file has the ids that were written; a large one is read once, as long as nothing writes it."""
    state, question = state_of(path), _whole(info, vocab_size)
    if state and state.recall(question) == WHOLE:
        return True
    whole = _checksum(path, np.dtype(info.dtype), vocab_size) == info.checksum
    if whole and state and state == state_of(path):
        state.note(question, WHOLE)
    return whole


def _read_residue(folder: Path) -> ResidueSize | None:
    """The `residue.json` of a folder; None if it is missing or damaged."""
    try:
        found = ResidueSize(**json.loads((folder / RESIDUE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return found if isinstance(found.oov, int) and isinstance(found.bits, float) else None


def _checksum(path: Path, dtype: np.dtype[Any], vocab_size: int) -> int:
    """The checksum of a file of ids; an id that is not in the vocabulary raises ValueError."""
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            checksum = zlib.crc32(chunk, checksum)
            if np.frombuffer(chunk, dtype).max() >= vocab_size:
                raise ValueError("an id is not in the vocabulary")
    return checksum


class _EncodedBlock(NamedTuple):
    """A block of text, its ids, and the bytes of the ids as stored."""

    text: str
    ids: Ids
    data: bytes


def _encode_blocks(blocks: Iterable[str], tokenizer: Tokenizer, dtype: np.dtype[Any]) -> Iterator[_EncodedBlock]:
    """Blocks of a text, in order, encoded by several threads where that is faster."""

    def encode(block: str) -> _EncodedBlock:
        ids = tokenizer.encode_block(block)
        return _EncodedBlock(block, ids, ids.astype(dtype).tobytes())

    return ordered_map(encode, blocks, physical_cores() if tokenizer.concurrent else 1)


def _encode(
    texts: Texts, tokenizer: Tokenizer, dtype: np.dtype[Any], journal: Journal | None
) -> Iterator[tuple[bytes, list[str]]]:
    """The ids of a text as stored, some blocks at a time, with these blocks; those in the journal are not encoded."""
    blocks = iter(tokenizer.blocks(texts))
    for number in count():
        rest = islice(blocks, store_journal.PIECE_BLOCKS if journal else None)
        if (first := next(rest, None)) is None:
            return
        piece = chain([first], rest)
        if journal is not None and (known := journal.read(number)) is not None:
            yield known, list(piece)
            continue
        encoded: list[bytes] = []
        for block in _encode_blocks(piece, tokenizer, dtype):
            yield block.data, [block.text]
            if journal is not None:
                encoded.append(block.data)
        if journal is not None:
            journal.write(number, b"".join(encoded))


def _write(
    folder: Path, texts: Texts, tokenizer: Tokenizer, progress: Progress | None, journal: Journal | None
) -> StoreInfo:
    """Write the files of a store, one block of the text at a time."""
    dtype = np.dtype(_narrowest(tokenizer.vocab_size))
    counts_V = np.zeros(tokenizer.vocab_size, np.int64)
    checksum = done = 0
    with (folder / TOKENS).open("wb") as file:
        for data, blocks in _encode(texts, tokenizer, dtype, journal):
            counts_V += np.bincount(np.frombuffer(data, dtype), minlength=len(counts_V))
            file.write(data)
            checksum = zlib.crc32(data, checksum)
            if progress:
                done += sum(len(block.encode(errors="surrogateescape")) for block in blocks)
                progress(done, texts.size)
    content = io.BytesIO()
    np.save(content, counts_V, allow_pickle=False)  # into a file, numpy would not report a full disk
    (folder / COUNTS).write_bytes(content.getbuffer())
    info = StoreInfo(
        version=VERSION,
        tokens=int(counts_V.sum()),
        bytes=texts.size,
        lines=int(counts_V[tokenizer.eos]),
        dtype=dtype.str,
        checksum=checksum,
        text=texts.fingerprint(),
        tokenizer=tokenizer.fingerprint,
    )
    (folder / INFO).write_text(json.dumps(asdict(info), indent=1))
    return info


def _narrowest(vocab_size: int) -> str:
    """The narrowest little-endian type for the ids 0 to vocab_size - 1."""
    return "<u1" if vocab_size <= 1 << 8 else "<u2" if vocab_size <= 1 << 16 else "<u4"
