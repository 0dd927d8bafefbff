"""Any model that can step, as a lossless compressor: bits per byte made visible.

A token of probability p costs -log2 p bits in a range code, so the file has the size that the evaluation says, up to a
header and rounding. The tokens are walked in the same tracks as in evaluation, all tracks one step at a time. Both
directions make the same calls on the same shapes with one thread, so that the model's numbers are the same to the last
bit; without that the reader would lose its way, which checksums would tell. The bytes of the file are described in
`archive.py`.

Memory does not grow with the text, but for the residue (spellings of unknown words and the like), held as coded bytes.

Legend: B tracks, T time, V vocabulary.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chainrule.base.devices import device_of
from chainrule.base.files import disk_errors
from chainrule.base.modes import evaluating
from chainrule.base.progress import Progress
from chainrule.data.store import TokenStore, open_store
from chainrule.errors import ConfigError, DataError, RunError
from chainrule.evaluation.tracks import Tracks, choose_tracks, cut_tracks
from chainrule.inference.archive import (
    FINGERPRINT_BYTES,
    Header,
    Reader,
    write_checksum,
    write_header,
    write_section,
)
from chainrule.text.coding.coders import Coder, RangeDecoder, RangeEncoder
from chainrule.text.coding.residue import ResidueWriter, read_residue
from chainrule.text.readers import Texts
from chainrule.text.tokenizers.base import Tokenizer
from chainrule.types import State, SteppingModel

BLOCK_TOKENS = 65536
"""About how many tokens one range code holds: few enough for memory, enough that its last word costs nothing."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Compressed:
    """What became of a text."""

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
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Compressed:
    """Write a text to `out` in about as many bits as -log2 of its probability. `fingerprint`: 8 bytes for the model."""
    if not model.normalised:
        raise ConfigError(
            "this model gives scores, which are no probabilities, so it cannot compress; use another model"
        )
    if len(fingerprint) != FINGERPRINT_BYTES:
        raise ConfigError(f"the fingerprint has {len(fingerprint)} bytes, but it must have {FINGERPRINT_BYTES}.")
    store = open_store(texts, tokenizer, cache=cache)
    header = Header(fingerprint, store.bytes, len(store), _checksum(block.data for block in texts.blocks()))
    with _building(out) as folder:
        with (folder / "out").open("wb") as file:
            write_header(file, header)
            write_section(file, _residue(tokenizer, texts))
            for coded, checksum in _encode(model, store, tokenizer.eos, progress):
                write_checksum(file, checksum)
                write_section(file, coded)
        size = (folder / "out").stat().st_size
        os.replace(folder / "out", out)
    return Compressed(store.bytes, len(store), size)


def decompress(
    model: SteppingModel,
    tokenizer: Tokenizer,
    path: Path,
    out: Path,
    *,
    fingerprint: bytes,
    progress: Progress | None = None,
) -> Compressed:
    """Write the text that was compressed into `path` to `out`, byte for byte; an error leaves `out` as it was."""
    with _open(path) as file, _building(out) as folder:
        reader = Reader(file, path)
        header = reader.header()
        _check_model(header, fingerprint, path)
        residue = reader.section()
        tokens = _token_file(folder / "tokens", header.tokens)
        _decode(model, reader, tokens, tokenizer.eos, path, progress)
        reader.end()
        _write_text(folder / "out", read_residue(tokenizer, _in_pieces(tokens), RangeDecoder(residue)), header, path)
        os.replace(folder / "out", out)
    return Compressed(header.bytes, header.tokens, path.stat().st_size)


def _residue(tokenizer: Tokenizer, texts: Texts) -> bytes:
    """What the tokens do not tell of the text, coded."""
    coder = RangeEncoder()
    writer = ResidueWriter(tokenizer, coder)
    for block in tokenizer.blocks(texts):
        writer.add(block, tokenizer.encode_block(block))
    writer.finish()
    return coder.finish()


def _encode(
    model: SteppingModel, store: TokenStore, eos: int, progress: Progress | None
) -> Iterator[tuple[bytes, int]]:
    """Yield each block of tokens as a range code, with the checksum of the tokens."""
    walk = _Walk(model, cut_tracks(len(store), choose_tracks(model, len(store))), eos)
    for begin, end in walk.blocks():
        tokens_BT = walk.layout.read(store.tokens, begin, end, eos)
        coder = RangeEncoder()
        checksum = walk.code(coder, begin, tokens_BT, known=True)
        yield coder.finish(), checksum
        walk.tell(progress, end)


def _decode(
    model: SteppingModel, reader: Reader, tokens: Array, eos: int, path: Path, progress: Progress | None
) -> None:
    """Read all blocks of tokens into `tokens`."""
    walk = _Walk(model, cut_tracks(len(tokens), choose_tracks(model, len(tokens))), eos)
    for begin, end in walk.blocks():
        expected, coder = reader.checksum(), RangeDecoder(reader.section())
        tokens_BT = np.full((walk.layout.count, end - begin), eos, np.int64)
        try:
            found = walk.code(coder, begin, tokens_BT, known=False)
        except DataError as error:  # the section is whole, so the probabilities are not those it was written with
            raise _other_numbers(path) from error
        if found != expected:
            raise _other_numbers(path)
        walk.layout.write(tokens, begin, tokens_BT)
        walk.tell(progress, end)


class _Walk:
    """One model going through all tracks, one step at a time; the same for writing and reading."""

    def __init__(self, model: SteppingModel, layout: Tracks, eos: int) -> None:
        self.layout = layout
        self._model = model
        self._token_B = torch.full((layout.count,), eos, device=device_of(model))
        with evaluating(model):
            self._state: State = model.start(layout.count)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """The columns of each block."""
        return self.layout.chunks(max(1, BLOCK_TOKENS // self.layout.count))

    def code(self, coder: Coder, begin: int, tokens_BT: Array, known: bool) -> int:
        """Code the columns from `begin` on, from `tokens_BT` or, when they are not known, into it -> their checksum."""
        checksum = 0
        with evaluating(self._model), _one_thread():
            for column in range(tokens_BT.shape[1]):
                rows = self.layout.rows_at(begin + column)
                log_probs_BV, self._state = self._model.step(self._state, self._token_B)
                symbols_B = tokens_BT[:rows, column] if known else None
                coded_B = coder.code_rows(_weights(log_probs_BV[:rows]), symbols_B)
                checksum = zlib.crc32(coded_B.astype("<u4").tobytes(), checksum)
                tokens_BT[:rows, column] = coded_B
                # A new tensor, as a model may keep the last one; rows without a token repeat eos, and nothing follows.
                self._token_B = torch.from_numpy(tokens_BT[:, column].copy()).to(self._token_B.device)
        return checksum

    def tell(self, progress: Progress | None, column: int) -> None:
        """Report that all columns before this one are done."""
        if progress:
            longer = max(0, column - self.layout.length) * self.layout.longer
            progress(min(column, self.layout.length) * self.layout.count + longer, self.layout.tokens)


def _weights(log_probs_BV: Tensor) -> Array:
    """Probabilities for the coder, which normalises them itself in double precision."""
    weights_BV = log_probs_BV.exp().cpu().double().numpy()
    if not np.isfinite(weights_BV.sum()):
        raise RunError("the model gives probabilities that are no numbers: expected finite ones; train it again.")
    return np.asarray(weights_BV)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The order of a sum, and so its last bit, depends on how many threads share it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _building(out: Path) -> Iterator[Path]:
    """A temporary folder beside `out`, from which the finished file is moved."""
    if out.is_dir():
        raise ConfigError(f"'{out}' is a folder: expected the name of a file to write; add one.")
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
            yield Path(folder)


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
            f"'{path}' was compressed with the model {header.fingerprint.hex()}, and this one is {fingerprint.hex()}: "
            "expected the same; give the run that compressed it."
        )


def _token_file(path: Path, count: int) -> Array:
    """Room for the tokens on disk; the tracks fill it at many places at once."""
    return np.memmap(path, "<u4", "w+", shape=count) if count else np.zeros(0, "<u4")


def _in_pieces(tokens: Array) -> Iterator[int]:
    """All tokens as Python numbers."""
    for begin in range(0, len(tokens), BLOCK_TOKENS):
        yield from tokens[begin : begin + BLOCK_TOKENS].tolist()


def _write_text(path: Path, pieces: Iterable[bytes], header: Header, source: Path) -> None:
    """Write the text and compare it with what the header says."""
    size, checksum = 0, 0
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
            size, checksum = size + len(piece), zlib.crc32(piece, checksum)
    if (size, checksum) != (header.bytes, header.checksum):
        raise RunError(
            f"'{source}' gave a text of {size} bytes with another checksum than the {header.bytes} bytes that were "
            "compressed: expected the same; use the release and the run that compressed it."
        )


def _checksum(pieces: Iterable[bytes]) -> int:
    checksum = 0
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return checksum


def _other_numbers(path: Path) -> RunError:
    return RunError(
        f"the model computes other numbers than when '{path}' was compressed: expected the same to the last bit; "
        "decompress with the machine type and the versions of torch and chainrule that compressed it."
    )
