"""Text to tokens: `train_tokenizer("word", texts)`, `load_tokenizer(folder)`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from chainrule.errors import ConfigError, TokenizerError
from chainrule.registry import TOKENIZERS
from chainrule.text.readers import Texts
from chainrule.text.tokenizers.base import FILE, VERSION, Tokenizer, digest_of

__all__ = ["Tokenizer", "load_tokenizer", "saved_fingerprint", "train_tokenizer"]

BLOB_NAME = re.compile(r"tokenizer(\.[a-z0-9_]{1,20}){1,4}")
"""The names of files that `tokenizer.json` may list: beside it, never elsewhere."""

MAX_BYTES = 1 << 30
"""The largest file that is read as a part of a tokeniser."""


def train_tokenizer(
    kind_or_file: str | Path, texts: Texts, *, vocab_size: int | None = None, min_count: int = 1, **options: Any
) -> Tokenizer:
    """A tokeniser of a registered kind, fitted to a text; or the one in a file or a folder.

    A file is a Hugging Face `tokenizer.json`, a sentencepiece `.model`, or a `tokenizer.json` of this package. A folder
    contains a `tokenizer.json` of either kind.
    """
    path, kind = Path(kind_or_file), str(kind_or_file)
    if kind not in TOKENIZERS.names() and path.exists():
        return _read(path)
    tokenizer: Tokenizer = TOKENIZERS.get(kind).make.train(texts, vocab_size=vocab_size, min_count=min_count, **options)
    return tokenizer


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokeniser that `save` wrote to a folder."""
    path = Path(folder) / FILE
    state = _json(path)
    if "kind" not in state:
        raise TokenizerError(f"'{path}' has no 'kind': expected a tokeniser of this package; give the file itself.")
    return _of_this_package(path, state)


def _of_this_package(path: Path, state: dict[str, Any]) -> Tokenizer:
    """The tokeniser whose JSON is read from a file; its other files are beside it."""
    if state.get("version") != VERSION:
        raise TokenizerError(
            f"'{path}' has version {state.get('version')}: expected {VERSION}; use the release that wrote it."
        )
    blobs = _read_blobs(path, state)
    try:
        tokenizer: Tokenizer = TOKENIZERS.get(state["kind"]).make.from_state(state, blobs)
    except (ConfigError, KeyError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise _damaged(path, error) from error
    return tokenizer


def saved_fingerprint(folder: str | Path) -> str | None:
    """The fingerprint of the tokeniser in a folder, from its files as they are; None if they cannot be read."""
    path = Path(folder) / FILE
    try:
        state, content = _json(path), path.read_bytes()
        blobs = _read_blobs(path, state)
    except TokenizerError:
        return None  # reading the tokeniser reports it
    return digest_of(content, blobs)


def _read_blobs(path: Path, state: dict[str, Any]) -> dict[str, bytes]:
    """The files that belong to a tokeniser besides its JSON."""
    names = state.get("files")
    if not isinstance(names, list):
        raise _damaged(path, "no list of 'files'")
    for name in names:
        if not isinstance(name, str) or not BLOB_NAME.fullmatch(name) or name == FILE:
            raise _damaged(path, f"the file name {str(name)[:80]!r}")
    return {name: _read_part(path.parent / name) for name in names}


def _read_part(path: Path) -> bytes:
    """The content of a regular file of moderate size."""
    if not path.is_file():
        raise TokenizerError(f"there is no '{path}': expected a file of the tokeniser; restore it.")
    if (size := path.stat().st_size) > MAX_BYTES:
        raise TokenizerError(f"'{path}' has {size:,} bytes: expected at most {MAX_BYTES:,}; restore the file.")
    try:
        return path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"'{path}' cannot be read ({error.strerror}); restore the file.") from None


def _damaged(path: Path, reason: object) -> TokenizerError:
    return TokenizerError(f"'{path}' is damaged ({reason}): expected a whole tokeniser; train it again.")


def _read(path: Path) -> Tokenizer:
    if path.is_dir():
        return _read(path / FILE)
    if path.suffix == ".model":
        from chainrule.text.tokenizers.subword import SentencePieceTokenizer

        return SentencePieceTokenizer.from_file(path)
    if path.suffix == ".json":
        if "kind" in (state := _json(path)):
            return _of_this_package(path, state)
        from chainrule.text.tokenizers.huggingface import HuggingFaceTokenizer

        return HuggingFaceTokenizer.from_file(path)
    raise ConfigError(
        f"got the file '{path}' as tokeniser: expected a Hugging Face tokenizer.json, a sentencepiece .model "
        f"or one of {', '.join(TOKENIZERS.names())}."
    )


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise TokenizerError(f"there is no '{path}': expected a folder with a tokeniser; train one or check the name.")
    try:
        content = _read_part(path).decode("utf-8-sig")
        state = json.loads(content)
        if "\\u" in content:
            json.dumps(state, ensure_ascii=False).encode()  # a lone surrogate is no character
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"'{path}' is not JSON ({error}): expected a tokeniser; train it again.") from error
    if not isinstance(state, dict):
        raise TokenizerError(f"'{path}' is not a JSON object: expected a tokeniser; train it again.")
    return state
