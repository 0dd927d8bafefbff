"""The formats of word2vec, in which vectors of words are exchanged: text and binary, to files and back.

    V D\\n                                  both begin with a line of two numbers: words, and the width
    word 0.1 -0.2 …\\n                      text: a word a line, numbers written so that they are read back exactly
    word, a space, D × 4 bytes              binary: little-endian float32; other programs may put a newline before words

`write_vectors` and `read_vectors` are about words and arrays; `export_vectors` and `import_vectors` are the verbs,
about runs. Legend: V words, D width.
"""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
from torch import nn

from chainrule.base.devices import PeakMemory
from chainrule.base.files import file_atomically, folder_atomically
from chainrule.base.progress import Progress
from chainrule.checkpoint.build import load_model
from chainrule.checkpoint.folder import TRAINING_SECTIONS, RunFolder
from chainrule.config import NamedSection, RunConfig, TokenizerConfig
from chainrule.engines.word2vec.kernels import Word2VecWeights
from chainrule.errors import ConfigError, DataError
from chainrule.interop.common import Exported, figures, find_finished
from chainrule.models.word2vec import Word2Vec, Word2VecConfig
from chainrule.text.readers import open_texts
from chainrule.text.tokenizers.vocabulary import EOS_PIECE, UNK_PIECE
from chainrule.text.tokenizers.word import WordTokenizer

Array = np.ndarray[Any, Any]

ROWS = 1024
"""Words that are written or told of together."""

LONGEST_WORD = 1 << 16
HEADER = re.compile(rb"\s*(\d{1,18})[ \t]+(\d{1,18})\s*")


class Vectors(NamedTuple):
    """What a file holds."""

    words: list[str]
    vectors_VD: Array  # float32
    notes: list[str]  # what was odd about it, for a person to read


# Writing


def write_vectors(
    path: str | Path,
    words: Sequence[str],
    vectors_VD: Array,
    *,
    binary: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write words and their vectors; compressed if the name ends in .gz."""
    target = Path(path)
    spaced = next((word for word in words if word == "" or any(sign.isspace() for sign in word)), None)
    if spaced is not None:
        raise ConfigError(
            f"the word {spaced!r} has white space in it, or nothing, which the word2vec format cannot hold; export a "
            "run whose tokens are words"
        )
    lines = _binary_lines if binary else _text_lines
    with file_atomically(target) as plain, _packed(plain, target) as file:
        file.write(f"{len(words)} {vectors_VD.shape[1]}\n".encode())
        for first in range(0, len(words), ROWS):
            rows_KD = np.asarray(vectors_VD[first : first + ROWS], np.float32)
            file.write(b"".join(lines(words[first : first + ROWS], rows_KD)))
            if progress:
                progress(min(first + ROWS, len(words)), len(words))


@contextmanager
def _packed(plain: IO[bytes], target: Path) -> Iterator[IO[bytes]]:
    """What to write to, so that a file is compressed if its name says so; the same content makes the same file."""
    if target.suffix != ".gz":
        yield plain
        return
    with gzip.GzipFile("", "wb", fileobj=plain, mtime=0) as packed:
        yield cast("IO[bytes]", packed)


def _text_lines(words: Sequence[str], rows_KD: Array) -> Iterator[bytes]:
    for word, row in zip(words, rows_KD.astype("U32"), strict=True):  # the fewest digits that tell a float32
        yield f"{word} {' '.join(row.tolist())}\n".encode()


def _binary_lines(words: Sequence[str], rows_KD: Array) -> Iterator[bytes]:
    for word, row in zip(words, rows_KD.astype("<f4"), strict=True):
        yield word.encode() + b" " + row.tobytes()


# Reading


def looks_like_vectors(path: str | Path) -> bool:
    """Whether a file begins as these formats do: a line of two integers."""
    try:
        with _open(Path(path)) as file:
            return HEADER.fullmatch(file.readline(64)) is not None
    except (DataError, OSError):
        return False


def read_vectors(path: str | Path, *, binary: bool | None = None, progress: Progress | None = None) -> Vectors:
    """The words and vectors of a file, plain or .gz; whether it is binary is told by what is in it."""
    place = Path(path)
    with _open(place) as file:
        words, width = _header(file, place)
        if binary is None:
            binary = not _reads_as_text(file, width)
            file.seek(0)
            _header(file, place)
        return _read(file, place, words, width, binary, progress)


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """A file to read; what is wrong with it becomes a sentence."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield cast("IO[bytes]", file)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; check the name") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder; expected a file of vectors") from None
    except (gzip.BadGzipFile, EOFError):
        raise DataError(f"{path} is no whole gzip file; copy or make it again") from None


def _header(file: IO[bytes], path: Path) -> tuple[int, int]:
    found = HEADER.fullmatch(file.readline(64))
    if found is None:
        raise DataError(
            f"{path} does not begin with a line of two numbers, words and width; expected the word2vec format"
        )
    words, width = map(int, found.groups())
    if not words or not width:
        raise DataError(f"{path} says that it has {words} words of width {width}; expected at least 1 of each")
    return words, width


def _reads_as_text(file: IO[bytes], width: int) -> bool:
    """Whether the line after the header is a word and `width` numbers."""
    line = file.readline(LONGEST_WORD + 64 * width)
    try:
        return len(_numbers(line.rstrip().partition(b" ")[2])) == width
    except ValueError:
        return False


def _numbers(text: bytes) -> Array:
    return np.array(text.split()).astype(np.float32)


def _read(file: IO[bytes], path: Path, count: int, width: int, binary: bool, progress: Progress | None) -> Vectors:
    """Row by row into one array, which grows with what is there, not with what the header promises."""
    rows_VD, twice = np.empty((min(count, ROWS), width), np.float32), 0
    words: list[str] = []
    seen: set[str] = set()
    for number in range(1, count + 1):
        word, row = (_binary_row if binary else _text_row)(file, path, width, number, count)
        if word in seen:
            twice += 1
        else:
            if len(words) == len(rows_VD):
                rows_VD.resize((min(count, 2 * len(rows_VD)), width), refcheck=False)
            rows_VD[len(words)] = row
            words.append(word)
            seen.add(word)
        if progress and number % ROWS == 0:
            progress(number, count)
    if file.read(64).strip():
        raise DataError(f"{path} goes on after the {count:,} words of its first line; it is damaged, make it again")
    rows_VD.resize((len(words), width), refcheck=False)
    return Vectors(words, rows_VD, [f"{twice:,} word(s) came twice; the first vector counts"] if twice else [])


def _text_row(file: IO[bytes], path: Path, width: int, number: int, count: int) -> tuple[str, Array]:
    line = file.readline()
    if not line:
        raise _cut_short(path, number, count)
    word, _, rest = line.rstrip(b"\r\n ").partition(b" ")
    try:
        row_D = _numbers(rest)
    except ValueError:
        raise DataError(f"{path}, line {number + 1}: expected a word and {width} numbers") from None
    if len(row_D) != width:
        raise DataError(f"{path}, line {number + 1} has {len(row_D)} numbers; expected {width} after the word")
    return _decoded(word, path, number), row_D


def _binary_row(file: IO[bytes], path: Path, width: int, number: int, count: int) -> tuple[str, Array]:
    letters = bytearray()
    while (letter := file.read(1)) != b" ":
        if not letter:
            raise _cut_short(path, number, count)
        if len(letters) > LONGEST_WORD:
            raise DataError(f"{path}: word {number:,} has no end; it is damaged, or of another width, make it again")
        letters += letter
    data = file.read(4 * width)
    if len(data) < 4 * width:
        raise _cut_short(path, number, count)
    return _decoded(bytes(letters).lstrip(b"\n"), path, number), np.frombuffer(data, "<f4")


def _decoded(word: bytes, path: Path, number: int) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise DataError(f"{path}: word {number:,} is not UTF-8; convert the file, or make it again") from None


def _cut_short(path: Path, number: int, count: int) -> DataError:
    return DataError(f"{path} ends within word {number:,} of {count:,}; it was cut short, copy or make it again")


# Runs


def export_vectors(run: str | Path, path: str | Path, *, progress: Progress | None = None) -> Exported:
    """Write the vectors of a run's words: binary if the name ends in .bin or .bin.gz, else as text."""
    folder, target = RunFolder(run), Path(path)
    tokenizer = folder.read_tokenizer()
    model: Any = load_model(folder, tokenizer)
    if isinstance(model, Word2Vec):
        ids_V, vectors_VD = model.ids_V, model.vectors_VD
    elif isinstance(table := getattr(model, "embedding", None), nn.Embedding):
        special = (tokenizer.eos, tokenizer.unk)
        ids_V = np.array([token for token in range(tokenizer.vocab_size) if token not in special])
        vectors_VD = table.weight.detach().float().numpy()[ids_V]
    else:
        raise ConfigError(
            f"{folder.path} is a {folder.read_config().model.name}, which has no vectors of words; give a run of "
            "word2vec, or of a model with an embedding"
        )
    words = [tokenizer.piece(token) for token in ids_V.tolist()]
    binary = target.name.removesuffix(".gz").endswith(".bin")
    write_vectors(target, words, vectors_VD, binary=binary, progress=progress)
    words_in, width = vectors_VD.shape
    return Exported(target, target.stat().st_size, words=words_in, vector_size=width)


def import_vectors(
    path: str | Path,
    out: str | Path,
    *,
    note: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
) -> RunFolder:
    """Make a run of a file of vectors. The same call again finds it done."""
    folder = Path(out)
    began, memory = time.perf_counter(), PeakMemory()
    request = {"import": _fingerprint(Path(path))}
    if (finished := find_finished(folder, request, note)) is not None:
        return finished
    found = read_vectors(path, progress=progress)
    for text in found.notes:
        note(text)
    tokenizer, model = _model(found)
    with folder_atomically(folder) as place:
        _write(RunFolder(place), tokenizer, model, request)
        told = {"words": len(model.ids_V), "loss": None, "notes": found.notes}
        RunFolder(place).write_result(figures(model, time.perf_counter() - began, memory.bytes) | told)
    return RunFolder(folder)


def _fingerprint(path: Path) -> str:
    if not path.is_file():
        raise DataError(f"there is no file {path}; check the name")
    return open_texts([path]).fingerprint()


def _model(found: Vectors) -> tuple[WordTokenizer, Word2Vec]:
    """The words as a tokeniser; one that means something else here, such as `<unk>`, has its token's vector."""
    special = (UNK_PIECE, EOS_PIECE)
    words = [word for word in found.words if word not in special]
    kept_V = np.array([place for place, word in enumerate(found.words) if word not in special], np.int64)
    if not words:
        raise DataError("the file has no words but marks; expected vectors of words")
    vectors_VD = found.vectors_VD if len(words) == len(found.words) else found.vectors_VD[kept_V]
    tokenizer = WordTokenizer(words)
    config = Word2VecConfig(vector_size=vectors_VD.shape[1], min_count=1)
    ids_V = np.arange(2, len(words) + 2)
    counts_V = np.zeros(len(words), np.int64)  # which the file does not tell
    nothing_0D = np.zeros((0, vectors_VD.shape[1]), np.float32)
    weights = Word2VecWeights(vectors_VD, nothing_0D, nothing_0D)
    return tokenizer, Word2Vec(config, weights, ids_V, counts_V, tokenizer.vocab_size)


def _write(folder: RunFolder, tokenizer: WordTokenizer, model: Word2Vec, request: dict[str, Any]) -> None:
    tokenizer.save(folder.path)
    model.save(folder.path / "model.safetensors")
    folder.write_signature({"data": request["import"], "tokenizer": f"{tokenizer.kind}#{tokenizer.fingerprint}"})
    folder.write_request(request)
    chosen = NamedSection(name="word2vec", **model.config.model_dump(mode="json", exclude_none=True))
    options = TokenizerConfig(kind=tokenizer.kind, vocab_size=tokenizer.vocab_size)
    folder.write_config(RunConfig(model=chosen, tokenizer=options), without=TRAINING_SECTIONS)
