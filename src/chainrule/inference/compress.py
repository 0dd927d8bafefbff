"""Lossless compression with any model that can step: the size of the file is the measured bits per byte.

A token of probability p costs -log2 p bits in a range code, so the size of the file is what the evaluation predicts,
up to a header and rounding. Compressing and decompressing step through the same tracks as an evaluation, all tracks
one step at a time, with the same calls on the same shapes and one thread. The model's probabilities are then equal to
the last bit on the same kind of CPU, which decompressing depends on; checksums detect where they are not. A portable
archive is computed reproducibly (`base/reproducible/`), so that any CPU restores it; those of models over arrays
(n-grams) always are. `archive.py` describes the bytes
of the file.

Memory does not grow with the text, except for the residue (for example spellings of unknown words), which is held as
coded bytes.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.devices import threads
from chainrule.base.files import allocate, disk_errors, flush_folder, move, temporary_name
from chainrule.base.modes import evaluating
from chainrule.base.over_arrays import TensorArrays, native_arrays, over_arrays
from chainrule.base.progress import Progress
from chainrule.base.targets import check_file
from chainrule.data.store import TokenStore, open_store
from chainrule.errors import ConfigError, DataError, RunError
from chainrule.evaluation.tracks import Tracks, choose_tracks, cut_tracks
from chainrule.inference.archive import (
    FINGERPRINT_BYTES,
    Header,
    Needs,
    Reader,
    write_checksum,
    write_header,
    write_section,
)
from chainrule.text.coding.coders import Coder, RangeDecoder, RangeEncoder
from chainrule.text.coding.residue import ResidueWriter, read_residue
from chainrule.text.readers import Texts
from chainrule.text.tokenizers.base import Tokenizer
from chainrule.types import ArrayModel, State, SteppingModel

BLOCK_TOKENS = 65536
"""Approximate number of tokens per range code: few enough for memory, enough that its end costs almost nothing."""


@dataclass(frozen=True)
class CompressionResult:
    """Sizes of a text before and after compression."""

    bytes: int
    tokens: int
    compressed_bytes: int

    @property
    def bits_per_byte(self) -> float:
        return 8 * self.compressed_bytes / self.bytes


def compress(
    model: SteppingModel,
    tokenizer: Tokenizer,
    texts: Texts,
    out: Path,
    *,
    fingerprint: bytes,
    portable: bool = False,
    settings: Mapping[str, Any] | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> CompressionResult:
    """Write a text to `out` in about -log2 p(text) bits. `fingerprint` has 8 bytes that identify the model.

    A `portable` archive needs a model that was also built reproducibly, as `LanguageModelRun.compress` does.
    `settings` are options of the model without which its probabilities are others; the archive records them.
    """
    if not model.normalised:
        raise ConfigError(
            "this model gives scores, which are not probabilities, so it cannot compress; use another model"
        )
    if len(fingerprint) != FINGERPRINT_BYTES:
        raise ConfigError(f"the fingerprint has {len(fingerprint)} bytes, but it must have {FINGERPRINT_BYTES}.")
    portable = portable or native_arrays(model) is not None
    store = open_store(texts, tokenizer, cache=cache)
    header = Header(fingerprint, store.bytes, len(store), _checksum(block.data for block in texts.blocks()))
    with _building(out) as folder:
        with (folder / "out").open("wb") as file:
            write_header(file, header, Needs.here(portable=portable, settings=settings))
            write_section(file, _residue(tokenizer, texts))
            for coded, checksum in _encode(model, store, tokenizer.eos, portable, progress):
                write_checksum(file, checksum)
                write_section(file, coded)
        size = (folder / "out").stat().st_size
        flush_folder(folder)
        move(folder / "out", out)
    return CompressionResult(store.bytes, len(store), size)


def decompress(
    load: Callable[[Needs], SteppingModel],
    tokenizer: Tokenizer,
    path: Path,
    out: Path,
    *,
    fingerprint: bytes,
    note: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
) -> CompressionResult:
    """Write the text that was compressed into `path` to `out`, byte for byte; an error leaves `out` unchanged.

    `load(needs)` gives the model that compressed it. `note` receives what differs on this computer.
    """
    with _open(path) as file, _building(out) as folder:
        reader = Reader(file, path)
        header, needs = reader.header()
        _check_model(header, fingerprint, path)
        if different := needs.differences():
            note(
                f"'{path}' was compressed with {', '.join(different)}, where probabilities may differ in the last bit; "
                "if so, decompressing stops with an error"
            )
        residue = reader.section()
        tokens = _token_file(folder / "tokens", header.tokens)
        _decode(load(needs), reader, tokens, tokenizer.eos, needs, path, progress)
        reader.end()
        _write_text(folder / "out", read_residue(tokenizer, _iterate(tokens), RangeDecoder(residue)), header, path)
        flush_folder(folder)
        move(folder / "out", out)
    return CompressionResult(header.bytes, header.tokens, path.stat().st_size)


def _residue(tokenizer: Tokenizer, texts: Texts) -> bytes:
    """The coded part of the text that the tokens do not determine."""
    coder = RangeEncoder()
    writer = ResidueWriter(tokenizer, coder)
    for block in tokenizer.blocks(texts):
        writer.add(block, tokenizer.encode_block(block))
    writer.finish()
    return coder.finish()


def _encode(
    model: SteppingModel, store: TokenStore, eos: int, portable: bool, progress: Progress | None
) -> Iterator[tuple[bytes, int]]:
    """Yield each block of tokens as a range code, with the checksum of the tokens."""
    coding = _TrackCoder(model, cut_tracks(len(store), choose_tracks(model, len(store))), eos, portable)
    for begin, end in coding.blocks():
        tokens_BT = coding.layout.read(store.tokens, begin, end, eos)
        coder = RangeEncoder()
        checksum = coding.code(coder, begin, tokens_BT, known=True)
        yield coder.finish(), checksum
        coding.report(progress, end)


def _decode(
    model: SteppingModel,
    reader: Reader,
    tokens: Array,
    eos: int,
    needs: Needs,
    path: Path,
    progress: Progress | None,
) -> None:
    """Read all blocks of tokens into `tokens`."""
    coding = _TrackCoder(model, cut_tracks(len(tokens), choose_tracks(model, len(tokens))), eos, needs.portable)
    for begin, end in coding.blocks():
        expected, coder = reader.checksum(), RangeDecoder(reader.section())
        tokens_BT = np.full((coding.layout.count, end - begin), eos, np.int64)
        try:
            found = coding.code(coder, begin, tokens_BT, known=False)
        except DataError as error:  # the section is undamaged, so it was written with other probabilities
            raise _different_probabilities(path, needs) from error
        if found != expected:
            raise _different_probabilities(path, needs)
        coding.layout.write(tokens, begin, tokens_BT)
        coding.report(progress, end)


class _TrackCoder:
    """Steps one model through all tracks; the same for encoding and decoding."""

    def __init__(self, model: SteppingModel, layout: Tracks, eos: int, portable: bool) -> None:
        self.layout, self.portable = layout, portable
        self._model = model
        # Archives of models over arrays are portable; without it, one was written by an earlier version, with tensors.
        self._arrays: ArrayModel = over_arrays(model) if portable else TensorArrays(model)
        self._token_B = np.full(layout.count, eos)
        with evaluating(model), self._arithmetic():
            self._state: State = self._arrays.start(layout.count)

    def _arithmetic(self) -> AbstractContextManager[None]:
        if not self.portable or native_arrays(self._model) is not None:
            return nullcontext()
        from chainrule.base.reproducible.mode import reproducible  # here: it needs torch

        return reproducible(self._model)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """The first column of each block and the end of its columns."""
        return self.layout.chunks(max(1, BLOCK_TOKENS // self.layout.count))

    def code(self, coder: Coder, begin: int, tokens_BT: Array, known: bool) -> int:
        """Encode `tokens_BT`, the columns from `begin` on, or decode into it if not `known` -> their checksum."""
        checksum = 0
        # One thread: the order of a sum, and so its last bit, depends on the number of threads.
        with evaluating(self._model), threads(1), self._arithmetic():
            for column in range(tokens_BT.shape[1]):
                rows = self.layout.rows_at(begin + column)
                weights_BV, self._state = self._arrays.step_probs(self._state, self._token_B)
                symbols_B = tokens_BT[:rows, column] if known else None
                coded_B = coder.code_rows(_check(weights_BV[:rows]), symbols_B)
                checksum = zlib.crc32(coded_B.astype("<u4").tobytes(), checksum)
                tokens_BT[:rows, column] = coded_B
                # A new array, because a model may keep the last one. Rows that have ended read eos.
                self._token_B = tokens_BT[:, column].copy()
        return checksum

    def report(self, progress: Progress | None, column: int) -> None:
        """Report progress: all columns before this one are done."""
        if progress:
            longer = max(0, column - self.layout.length) * self.layout.longer
            progress(min(column, self.layout.length) * self.layout.count + longer, self.layout.tokens)


def _check(weights_BV: Array) -> Array:
    """Probabilities for the coder, which normalises them itself in double precision."""
    if not np.isfinite(weights_BV.sum()):
        raise RunError("the model gives probabilities that are not finite, for example NaN; train it again.")
    return weights_BV


@contextmanager
def _building(out: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `out`, from which the finished file is moved to its place."""
    check_file(out)
    with disk_errors(out):
        folder = temporary_name(out)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise RunError(
            f"cannot read '{path}' ({error.strerror}): expected a compressed file; check its name."
        ) from error
    with file:
        yield file


def _check_model(header: Header, fingerprint: bytes, path: Path) -> None:
    if header.fingerprint != fingerprint:
        raise RunError(
            f"'{path}' was compressed with the model {header.fingerprint.hex()}, but this model is "
            f"{fingerprint.hex()}; give the run that compressed it."
        )


def _token_file(path: Path, count: int) -> Array:
    """An array for the tokens on disk, because all tracks are filled at the same time."""
    if not count:
        return np.zeros(0, "<u4")
    allocate(path, 4 * count)
    return np.memmap(path, "<u4", "r+", shape=count)


def _iterate(tokens: Array) -> Iterator[int]:
    """All tokens as Python integers, read in blocks."""
    for begin in range(0, len(tokens), BLOCK_TOKENS):
        yield from tokens[begin : begin + BLOCK_TOKENS].tolist()


def _write_text(path: Path, pieces: Iterable[bytes], header: Header, source: Path) -> None:
    """Write the text and compare its size and checksum with the header."""
    size, checksum = 0, 0
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
            size, checksum = size + len(piece), zlib.crc32(piece, checksum)
    if (size, checksum) != (header.bytes, header.checksum):
        raise RunError(
            f"'{source}' was decompressed to {size} bytes that differ from the {header.bytes} bytes that were "
            "compressed; use the release and the run that compressed it."
        )


def _checksum(pieces: Iterable[bytes]) -> int:
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return checksum


def _different_probabilities(path: Path, needs: Needs) -> RunError:
    if needs.portable:
        return RunError(
            f"the probabilities of the model differ from those with which '{path}' was compressed, though it is "
            "portable; decompress with the version of chainrule that compressed it."
        )
    written = ", ".join(f"{name} {value}" for name, value in (("cpu", needs.cpu), ("torch", needs.torch)) if value)
    return RunError(
        f"the probabilities of the model differ from those with which '{path}' was compressed; decompress with the "
        "machine type and the versions of torch and chainrule that compressed it"
        + (f" ({written}); archives written with --portable need neither." if written else ".")
    )
