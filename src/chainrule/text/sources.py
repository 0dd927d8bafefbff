"""Sources of text: files, folders, standard input, compressed files, JSON lines, Hugging Face data sets, samples.

A source is a name and a function that streams its bytes; every call starts from the beginning. Byte-order marks are
removed and UTF-16 is converted (`encodings.py`), unless the exact bytes are wanted.
"""

from __future__ import annotations

import difflib
import gzip
import json
import lzma
import os
import sys
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from chainrule.base.known_files import FileState, state_of
from chainrule.errors import DataError
from chainrule.text.data_sets import BATCH, DataSet, field_names, field_of, is_data_set
from chainrule.text.encodings import as_utf8, utf16_by_zeros
from chainrule.text.samples.texts import PREFIX, sample_text

CHUNK = 1 << 20
JSON_SUFFIXES = (".jsonl", ".ndjson")
COMPRESSED_SUFFIXES = (".gz", ".zst", ".xz")

SIMILAR = (0.7, 0.0)
"""The least likeness of a file that is suggested in place of a missing one."""


class TextSource(NamedTuple):
    """One source: its name in messages, its bytes in chunks, and the state of its file.

    A source that is not a function of one file has no state.
    """

    name: str
    chunks: Callable[[], Iterator[bytes]]
    state: Callable[[], FileState | None] = lambda: None


def find_sources(source: str | Path, field: str, *, exact: bool = False) -> list[TextSource]:
    """The sources of one command line argument: a path, a folder, "-", a data set or sample:NAME.

    `exact`: the bytes of files as they are, byte-order marks included.
    """
    if str(source) == "-":
        return [_standard_input(exact)]
    if is_data_set(source):
        return [_data_set(str(source), field)]
    if str(source).startswith(PREFIX):
        return [TextSource(str(source), lambda: iter([sample_text(str(source)).encode()]))]
    path = Path(source)
    if path.is_dir():
        return [_file(found, field, exact) for found in _files_of(path)]
    if not path.exists():
        raise _missing(path)
    return [_file(path, field, exact)]


class SourceName(str):
    """A string that names a source, also in a list, where other strings may be texts."""

    __slots__ = ()


def name_of(sources: Sequence[TextSource]) -> str:
    """The name of several sources in messages."""
    others = len(sources) - 1
    return sources[0].name + (f" and {others} more" if others else "")


def _missing(path: Path) -> DataError:
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    close = max(names, key=lambda name: _likeness(path.name, name), default="")
    found = _likeness(path.name, close) >= SIMILAR
    hint = f"did you mean '{path.parent / close}'?" if found else "check the name and the folder."
    return DataError(f"there is no file '{path}': {hint}")


def _likeness(name: str, other: str) -> tuple[float, float]:
    """How alike two names of files are, from 0 to 1: the parts before the first dot, then the whole names."""
    parts = ((name.partition(".")[0], other.partition(".")[0]), (name, other))
    first, whole = (difflib.SequenceMatcher(None, *pair).ratio() for pair in parts)
    return first, whole


def _files_of(folder: Path) -> list[Path]:
    """All files below a folder, sorted by path; hidden files and folders are skipped."""

    def hidden(path: Path) -> bool:
        return any(part.startswith(".") for part in path.relative_to(folder).parts)

    files = sorted(path for path in folder.rglob("*") if path.is_file() and not hidden(path))
    if not files:
        raise DataError(f"the folder '{folder}' holds no files: expected at least one text file; give another folder.")
    return files


def kind_of(path: Path) -> str:
    """The suffix of a file's format, without that of its compression: pairs.tsv.gz -> .tsv."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    inner = suffixes[-2:-1] if suffixes and suffixes[-1] in COMPRESSED_SUFFIXES else suffixes[-1:]
    return inner[0] if inner else ""


def holds_records(name: str | Path) -> bool:
    """Whether a source consists of records, judged by its name: JSON lines, or a data set."""
    return is_data_set(name) or kind_of(Path(name)) in JSON_SUFFIXES


def _file(path: Path, field: str, exact: bool) -> TextSource:
    reading = f"{path.suffix.lower()} {f'records {field}' if holds_records(path) else 'exact' if exact else 'text'}"

    def state() -> FileState | None:
        found = state_of(path)
        return found and found.part(reading)

    if holds_records(path):
        return TextSource(str(path), lambda: _records(str(path), file_chunks(path), field), state)
    return TextSource(str(path), lambda: _exact_chunks(path) if exact else file_chunks(path), state)


def file_chunks(path: Path) -> Iterator[bytes]:
    """The text of a file, decompressed, in UTF-8 without byte-order mark."""
    return as_utf8(_exact_chunks(path), str(path))


def _exact_chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, decompressed."""
    with _reading(path):
        suffix = path.suffix.lower()
        if suffix == ".zst":
            with path.open("rb") as file:
                yield from _decompress_zstd(file)
            return
        openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
        with openers.get(suffix, open)(path, "rb") as stream:
            while chunk := stream.read(CHUNK):
                yield chunk


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn errors while reading a file into a message of one sentence."""
    try:
        yield
    except EOFError as error:
        raise DataError(
            f"'{path}' ends too early: expected a complete {path.suffix} file; copy or download it again."
        ) from error
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise _damaged(path, error) from error
    except PermissionError as error:
        raise DataError(f"cannot read '{path}': permission denied; allow reading it with chmod +r.") from error
    except FileNotFoundError as error:
        raise _missing(path) from error


def _damaged(path: Path, error: BaseException) -> DataError:
    return DataError(
        f"'{path}' is not a readable {path.suffix} file ({error}): expected intact compressed data; "
        "copy or download it again."
    )


def _decompress_zstd(file: IO[bytes]) -> Iterator[bytes]:
    """Decompress frame by frame: the library's own reader does not report a truncated last frame."""
    import zstandard

    decoder = zstandard.ZstdDecompressor().decompressobj()
    fed = False
    while chunk := file.read(CHUNK >> 4):
        while chunk:
            try:
                data = decoder.decompress(chunk)
            except zstandard.ZstdError as error:
                raise _damaged(Path(file.name), error) from error
            if data:
                yield data
            chunk, fed = b"", True
            if decoder.eof:
                chunk = decoder.unused_data
                decoder, fed = zstandard.ZstdDecompressor().decompressobj(), False
    if fed:
        raise EOFError


def _standard_input(exact: bool) -> TextSource:
    """Standard input, copied to a temporary file when it is first read, so that it can be read again."""

    def chunks() -> Iterator[bytes]:
        spool, offset = _spooled(sys.stdin), 0
        while chunk := os.pread(spool.fileno(), CHUNK, offset):
            offset += len(chunk)
            yield chunk

    name = "standard input"
    return TextSource(name, chunks if exact else lambda: as_utf8(chunks(), name))


def _spooled(stream: IO[str]) -> IO[bytes]:
    """The content of a stream in a file that exists as long as the stream, so that later sources find it too."""
    if (spool := _spools.get(stream)) is None:
        spool = tempfile.TemporaryFile()  # noqa: SIM115
        while chunk := stream.buffer.read(CHUNK):  # type: ignore[attr-defined]
            spool.write(chunk)
        spool.flush()
        _spools[stream] = spool
        weakref.finalize(stream, spool.close)
    return spool


_spools: weakref.WeakKeyDictionary[IO[str], IO[bytes]] = weakref.WeakKeyDictionary()


def _records(name: str, chunks: Iterable[bytes], field: str) -> Iterator[bytes]:
    """The `field` of each JSON object, one object per line, followed by a newline."""
    for number, line in enumerate(lines_of(chunks), start=1):
        if line.strip():
            yield record_text(f"{name}, line {number}", line, field)


def lines_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of some bytes, without newlines; the last is what follows the last newline, maybe empty."""
    rest: list[bytes] = []
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        rest.append(first)
        if others:
            yield b"".join(rest)
            yield from others[:-1]
            rest = [others[-1]]
    yield b"".join(rest)


def decode_line(place: str, line: bytes) -> str:
    """A line as a string; `place` names it in messages."""
    if (nul := line.find(0)) >= 0:
        raise DataError(
            f"{place}: byte {nul} is NUL, so this looks like a binary or UTF-16 file; expected UTF-8 text; convert the "
            f"file (iconv -f {utf16_by_zeros(nul)} -t utf-8)."
        )
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place}: byte {error.start} is 0x{line[error.start]:02x}; expected UTF-8 text; convert the file "
            "(iconv -f latin1 -t utf-8)."
        ) from None


def record_text(place: str, line: bytes, field: str, option: str = "--field") -> bytes:
    """The `field` of a JSON object, and a newline; an error names the `option` that selects another field."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{place}: not JSON ({error}); expected one object per line; repair the line, or rename a plain text file."
        ) from error
    if not isinstance(record, dict):
        raise DataError(f"{place}: got {type(record).__name__}; expected a JSON object with the field '{field}'.")
    text = field_of(record, field)
    if not isinstance(text, str):
        got = f"found {field_names(record)}" if text is None else f"'{field}' is {type(text).__name__}"
        raise DataError(f"{place}: no text in the field '{field}' ({got}); name the right one with {option}.")
    return _utf8(place, text)


def _utf8(place: str, text: Any) -> bytes:
    if not isinstance(text, str):
        raise DataError(f"{place}: got {type(text).__name__}; expected text in every record; leave the others out.")
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: character {error.start} is half of a surrogate pair; expected whole Unicode characters; "
            "repair the record or leave it out."
        ) from error


def _data_set(spec: str, field: str) -> TextSource:
    data_set = DataSet(spec)

    def chunks() -> Iterator[bytes]:
        records = data_set.records({field: "--field"})
        while batch := list(islice(records, BATCH)):
            yield b"".join(_utf8(spec, field_of(record, field)) for record in batch)

    return TextSource(spec, chunks)
