"""Text to tokens: `train_tokenizer("word", texts)`, `load_tokenizer(folder)`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chainrule.errors import ConfigError, TokenizerError
from chainrule.registry import TOKENIZERS
from chainrule.text.readers import Texts
from chainrule.text.tokenizers.base import FILE, VERSION, Tokenizer

__all__ = ["Tokenizer", "load_tokenizer", "train_tokenizer"]


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
    if state.get("version") != VERSION:
        raise TokenizerError(
            f"'{path}' has version {state.get('version')}: expected {VERSION}; use the release that wrote it."
        )
    try:
        blobs = {name: (path.parent / name).read_bytes() for name in state["files"]}
        tokenizer: Tokenizer = TOKENIZERS.get(state["kind"]).make.from_state(state, blobs)
    except (ConfigError, KeyError, TypeError, FileNotFoundError) as error:
        raise TokenizerError(f"'{path}' is damaged ({error}): expected a whole tokeniser; train it again.") from error
    return tokenizer


def _read(path: Path) -> Tokenizer:
    if path.is_dir():
        return _read(path / FILE)
    if path.suffix == ".model":
        from chainrule.text.tokenizers.subword import SentencePieceTokenizer

        return SentencePieceTokenizer.from_file(path)
    if path.suffix == ".json":
        if "kind" in _json(path):
            return load_tokenizer(path.parent)
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
        state = json.loads(path.read_bytes())
    except ValueError as error:
        raise TokenizerError(f"'{path}' is not JSON ({error}): expected a tokeniser; train it again.") from error
    if not isinstance(state, dict):
        raise TokenizerError(f"'{path}' is not a JSON object: expected a tokeniser; train it again.")
    return state
