"""The text and binary formats of word2vec for word vectors: export of runs to files, and import of files as runs.

    V D\\n                                  both begin with a line of two numbers, the number of words and the width
    word 0.1 -0.2 …\\n                      text: one word per line, with numbers that parse to exactly the same float32
    word, a space, D × 4 bytes              binary: little-endian float32; other tools may put a newline before words

`write_vectors` and `read_vectors` convert words and arrays, `export_vectors` and `import_vectors` convert runs.
"""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.devices import PeakMemory
from chainrule.base.files import file_atomically, folder_atomically
from chainrule.base.grammar import plural
from chainrule.base.progress import Progress
from chainrule.base.targets import check_file
from chainrule.checkpoint.build import load_model, save_model
from chainrule.checkpoint.folder import TRAINING_SECTIONS, RunFolder
from chainrule.config import NamedSection, RunConfig, TokenizerConfig
from chainrule.engines.word2vec.kernels import Word2VecWeights
from chainrule.errors import ConfigError, DataError
from chainrule.interop.common import ExportResult, Format, Note, Obstacle, find_finished_import, import_result
from chainrule.models.word2vec import Word2Vec, Word2VecConfig
from chainrule.registry import MODELS
from chainrule.text.readers import open_texts
from chainrule.text.tokenizers import Tokenizer
from chainrule.text.tokenizers.vocabulary import EOS_PIECE, UNK_PIECE
from chainrule.text.tokenizers.word import WordTokenizer

ROWS = 1024
"""Words that are written together; progress is reported after as many."""

MAX_WORD_BYTES = 1 << 16
MAX_WIDTH = 1 << 16
HEADER = re.compile(rb"(?:\xef\xbb\xbf)?\s*(\d{1,18})[ \t]+(\d{1,18})\s*")


class VectorFile(NamedTuple):
    """The contents of a file."""

    words: list[str]
    vectors_VD: Array  # float32
    notes: list[str]  # irregularities of the file, as messages


# Writing


def write_vectors(
    path: str | Path,
    words: Sequence[str],
    vectors_VD: Array,
    *,
    binary: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write words and their vectors; compressed if the file name ends in .gz."""
    target = Path(path)
    invalid = next((word for word in words if word == "" or any(sign.isspace() for sign in word)), None)
    if invalid is not None:
        raise ConfigError(
            f"the word {invalid!r} is empty or contains white space, which the word2vec format cannot represent; "
            "export a run whose tokens are words"
        )
    lines = _binary_lines if binary else _text_lines
    with file_atomically(target) as plain, _compressed(plain, target) as file:
        file.write(f"{len(words)} {vectors_VD.shape[1]}\n".encode())
        for first in range(0, len(words), ROWS):
            rows_MD = np.asarray(vectors_VD[first : first + ROWS], np.float32)
            file.write(b"".join(lines(words[first : first + ROWS], rows_MD)))
            if progress:
                progress(min(first + ROWS, len(words)), len(words))


@contextmanager
def _compressed(plain: IO[bytes], target: Path) -> Iterator[IO[bytes]]:
    """The file to write to, compressed if the target ends in .gz; equal contents give equal files."""
    if target.suffix != ".gz":
        yield plain
        return
    with gzip.GzipFile("", "wb", fileobj=plain, mtime=0) as packed:
        yield cast("IO[bytes]", packed)


def _text_lines(words: Sequence[str], rows_MD: Array) -> Iterator[bytes]:
    for word, row in zip(words, rows_MD.astype("U32"), strict=True):  # the fewest digits that identify a float32
        yield f"{word} {' '.join(row.tolist())}\n".encode()


def _binary_lines(words: Sequence[str], rows_MD: Array) -> Iterator[bytes]:
    for word, row in zip(words, rows_MD.astype("<f4"), strict=True):
        yield word.encode() + b" " + row.tobytes()


# Reading


def looks_like_vectors(path: str | Path) -> bool:
    """Whether a file begins like these formats: with a line of two integers."""
    try:
        with _open_input(Path(path)) as file:
            return HEADER.fullmatch(file.readline(64)) is not None
    except (DataError, OSError):
        return False


def read_vectors(path: str | Path, *, binary: bool | None = None, progress: Progress | None = None) -> VectorFile:
    """The words and vectors of a file, plain or .gz; by default the contents decide whether it is binary."""
    place = Path(path)
    with _open_input(place) as file:
        words, width = _read_header(file, place)
        if binary is None:
            binary = not _reads_as_text(file, width)
            file.seek(0)
            _read_header(file, place)
        return _read_rows(file, place, words, width, binary, progress)


@contextmanager
def _open_input(path: Path) -> Iterator[IO[bytes]]:
    """A file to read; system errors become messages."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield cast("IO[bytes]", file)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; check the name") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder; expected a file of vectors") from None
    except (gzip.BadGzipFile, EOFError):
        raise DataError(f"{path} is not a complete gzip file; copy or create it again") from None


def _read_header(file: IO[bytes], path: Path) -> tuple[int, int]:
    found = HEADER.fullmatch(file.readline(64))
    if found is None:
        raise DataError(
            f"{path} does not begin with a line of two numbers, words and width; expected the word2vec format"
        )
    words, width = map(int, found.groups())
    if not words or not width:
        raise DataError(f"{path} has a header of {plural(words, 'word')} of width {width}; expected at least 1 of each")
    if width > MAX_WIDTH:
        raise DataError(f"{path} has a header with vectors of width {width}; expected at most {MAX_WIDTH}")
    return words, width


def _reads_as_text(file: IO[bytes], width: int) -> bool:
    """Whether the line after the header is a word and `width` numbers."""
    line = file.readline(MAX_WORD_BYTES + 64 * width)
    try:
        return len(_numbers(line.rstrip().partition(b" ")[2])) == width
    except ValueError:
        return False


def _numbers(text: bytes) -> Array:
    return np.array(text.split()).astype(np.float32)


def _read_rows(
    file: IO[bytes], path: Path, count: int, width: int, binary: bool, progress: Progress | None
) -> VectorFile:
    """Read row by row into an array that grows with the rows found, since the header may promise too many."""
    rows_VD, duplicates = np.empty((min(count, ROWS), width), np.float32), 0
    words: list[str] = []
    seen: set[str] = set()
    for number in range(1, count + 1):
        word, row = (_binary_row if binary else _text_row)(file, path, width, number, count)
        if word in seen:
            duplicates += 1
        else:
            if len(words) == len(rows_VD):
                rows_VD.resize((min(count, 2 * len(rows_VD)), width), refcheck=False)
            rows_VD[len(words)] = row
            words.append(word)
            seen.add(word)
        if progress and number % ROWS == 0:
            progress(number, count)
    if file.read(64).strip():
        raise DataError(
            f"{path} continues after the {plural(count, 'word')} that its first line promises; it is damaged, create "
            "it again"
        )
    rows_VD.resize((len(words), width), refcheck=False)
    for first in range(0, len(words), ROWS):
        if not np.isfinite(block_MD := rows_VD[first : first + ROWS]).all():
            wrong = words[first + int(np.flatnonzero(~np.isfinite(block_MD).all(1))[0])]
            raise DataError(f"{path}: the vector of {wrong!r} has numbers that are not finite; create the file again")
    notes = (
        [f"{plural(duplicates, 'word occurs', 'words occur')} more than once; the first vector is used"]
        if duplicates
        else []
    )
    return VectorFile(words, rows_VD, notes)


def _text_row(file: IO[bytes], path: Path, width: int, number: int, count: int) -> tuple[str, Array]:
    line = file.readline()
    if not line:
        raise _truncated(path, number, count)
    word, _, rest = line.rstrip(b"\r\n ").partition(b" ")
    try:
        row_D = _numbers(rest)
    except ValueError:
        raise DataError(f"{path}, line {number + 1}: expected a word and {width} numbers") from None
    if len(row_D) != width:
        raise DataError(f"{path}, line {number + 1} has {len(row_D)} numbers; expected {width} after the word")
    return _decode(word, path, number), row_D


def _binary_row(file: IO[bytes], path: Path, width: int, number: int, count: int) -> tuple[str, Array]:
    letters = bytearray()
    while (letter := file.read(1)) != b" ":
        if not letter:
            raise _truncated(path, number, count)
        if len(letters) > MAX_WORD_BYTES:
            raise DataError(
                f"{path}: word {number:,} has no end; the file is damaged or its width is wrong, create it again"
            )
        letters += letter
    data = file.read(4 * width)
    if len(data) < 4 * width:
        raise _truncated(path, number, count)
    return _decode(bytes(letters).lstrip(b"\n"), path, number), np.frombuffer(data, "<f4")


def _decode(word: bytes, path: Path, number: int) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise DataError(f"{path}: word {number:,} is not UTF-8; convert the file, or create it again") from None


def _truncated(path: Path, number: int, count: int) -> DataError:
    return DataError(f"{path} is truncated: it ends within word {number:,} of {count:,}; copy or create it again")


# Runs


def export_vectors(run: str | Path, path: str | Path, *, progress: Progress | None = None) -> ExportResult:
    """Write the word vectors of a run: binary if the file name ends in .bin or .bin.gz, otherwise as text."""
    folder, target = RunFolder.open(run), Path(path)
    check_file(target)
    tokenizer = folder.read_tokenizer()
    ids_V, vectors_VD = _vectors_of(folder, tokenizer)
    words = [tokenizer.piece(token) for token in ids_V.tolist()]
    binary = target.name.removesuffix(".gz").endswith(".bin")
    write_vectors(target, words, vectors_VD, binary=binary, progress=progress)
    return ExportResult(target, target.stat().st_size, words=len(words), vector_size=vectors_VD.shape[1])


def vector_obstacles(config: RunConfig) -> list[Obstacle]:
    """What a file of word vectors cannot represent: models without an embedding, and the space as a token."""
    found, make = [], MODELS.get(config.model.name).make
    if make.has_parts or (make.stores_arrays and make is not Word2Vec):
        found.append(Obstacle(f"the model is {config.model.name}, which has no word vectors", "--model word2vec"))
    if config.tokenizer.kind == "byte":
        found.append(Obstacle("the space is a token of the tokeniser byte, but separates words", "--tokenizer word"))
    return found


def _vectors_of(folder: RunFolder, tokenizer: Tokenizer) -> tuple[Array, Array]:
    """The tokens that are words, V, and their vectors, VD."""
    model = load_model(folder, tokenizer)
    if model.word_vectors is not None:
        return model.word_vectors.ids_V, model.word_vectors.vectors_VD
    if model.word_table is None:
        raise ConfigError(
            f"{folder.path} is a run of the model {folder.read_config().model.name}, which has no word vectors; give a "
            "run of word2vec, or of a model with an embedding"
        )
    special = (tokenizer.eos, tokenizer.unk)
    ids_V = np.array([token for token in range(tokenizer.vocab_size) if token not in special])
    return ids_V, model.word_table.weight.detach().float().numpy()[ids_V]


def import_vectors(
    path: str | Path, out: str | Path, *, note: Note = lambda text: None, progress: Progress | None = None
) -> RunFolder:
    """Create a run from a file of word vectors. A repeated call finds the finished run."""
    folder = Path(out)
    began, memory = time.perf_counter(), PeakMemory()
    request = {"import": _fingerprint(Path(path))}
    if (finished := find_finished_import(folder, request, note)) is not None:
        return finished
    found = read_vectors(path, progress=progress)
    for text in found.notes:
        note(text)
    tokenizer, model = _make_model(found)
    with folder_atomically(folder) as place:
        _write_run(RunFolder(place), tokenizer, model, request)
        counts = {"words": len(model.ids_V), "loss": None, "notes": found.notes}
        RunFolder(place).write_result(import_result(model, time.perf_counter() - began, memory.bytes) | counts)
    return RunFolder(folder)


def _fingerprint(path: Path) -> str:
    if not path.is_file():
        raise DataError(f"there is no file {path}; check the name")
    return open_texts([path]).fingerprint()


def _make_model(found: VectorFile) -> tuple[WordTokenizer, Word2Vec]:
    """A tokeniser of the words, and the model; words that are special tokens here, such as `<unk>`, are dropped."""
    special = (UNK_PIECE, EOS_PIECE)
    words = [word for word in found.words if word not in special]
    kept_V = np.array([place for place, word in enumerate(found.words) if word not in special], np.int64)
    if not words:
        raise DataError("the file has special tokens only; expected vectors of words")
    vectors_VD = found.vectors_VD if len(words) == len(found.words) else found.vectors_VD[kept_V]
    tokenizer = WordTokenizer(words)
    config = Word2VecConfig(vector_size=vectors_VD.shape[1], min_count=1)
    ids_V = np.arange(2, len(words) + 2)
    counts_V = np.zeros(len(words), np.int64)  # the file has no counts
    unused_0D = np.zeros((0, vectors_VD.shape[1]), np.float32)
    weights = Word2VecWeights(vectors_VD, unused_0D, unused_0D)
    return tokenizer, Word2Vec(config, weights, ids_V, counts_V, tokenizer.vocab_size)


def _write_run(folder: RunFolder, tokenizer: WordTokenizer, model: Word2Vec, request: dict[str, Any]) -> None:
    tokenizer.save(folder.path)
    save_model(folder, model)
    folder.write_signature({"data": request["import"], "tokenizer": f"{tokenizer.kind}#{tokenizer.fingerprint}"})
    folder.write_request(request)
    model_section = NamedSection(name="word2vec", **model.config.model_dump(mode="json", exclude_none=True))
    options = TokenizerConfig(kind=tokenizer.kind, vocab_size=tokenizer.vocab_size)
    folder.write_config(RunConfig(model=model_section, tokenizer=options), without=TRAINING_SECTIONS)


WORD2VEC = Format(
    name="word2vec",
    summary="word vectors, text or binary, as written by word2vec and gensim",
    recognise=looks_like_vectors,
    obstacles=vector_obstacles,
    models=("word2vec",),
    import_run=import_vectors,
    export_run=export_vectors,
    import_unit="words",
    export_unit="words",
)
