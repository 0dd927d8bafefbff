"""Word vectors as the initial embedding of a model.

Tokens that have a vector start from it, the others keep their random initialisation. All vectors are scaled by one
factor so that they are on average as long as the rows they replace: the initialisation of a model assumes that length,
and where the embedding is also the output layer, longer rows would make the first predictions overconfident.
"""

from __future__ import annotations

import codecs
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from chainrule.checkpoint.build import load_model
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import NamedSection, RunConfig, parse
from chainrule.errors import ConfigError
from chainrule.inference.subject import TextModel
from chainrule.inference.word_table import WordTable, table_of
from chainrule.interop.word2vec import read_vectors
from chainrule.registry import MODELS
from chainrule.text.tokenizers import Tokenizer

WIDTHS = ("embedding", "width")
"""Names that models give the option for the width of a token's vector."""
MARKS = ("▁", "Ġ")
"""Characters with which tokenisers mark the first piece of a word."""


def with_width(config: RunConfig, note: Callable[[str], None] = lambda text: None) -> RunConfig:
    """A run's options, with the model's width set to that of the initial vectors unless it is given."""
    if not config.init_embedding:
        return config
    options = config.model.options
    fields = MODELS.get(config.model.name).make.Config.model_fields
    name = next((name for name in WIDTHS if name in fields), None)
    if name is None:
        raise _no_table(config.model.name)
    if options.get(name) is not None:
        return config
    width = width_of(config.init_embedding)
    note(f"model.{name} = {width}, the width of the vectors of {config.init_embedding}")
    chosen = NamedSection(name=config.model.name, **{**options, name: width})
    parse(MODELS.get(config.model.name).make.Config, chosen.options, "model")
    return config.model_copy(update={"model": chosen})


def start_from(
    model: nn.Module,
    name: str,
    tokenizer: Tokenizer,
    source: Tokenizer | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> None:
    """Copy the vectors of a run or of a word2vec file into the embedding of a model, for all tokens that have one.

    `tokenizer` is that of the model, `source` that of the source if a translator has separate tokenisers.
    """
    tables = _tables(model, tokenizer, source)
    if not tables:
        raise _no_table(type(model).__name__)
    vectors = read_table(name)
    for table, own, description in tables:
        found = _fill(table, vectors, own, name)
        known = own.vocab_size - sum(token is not None for token in {own.eos, own.unk})
        note(f"{found:,} of {known:,} {description} ({found / max(1, known):.1%}) start from the vectors of {name}")


def read_table(name: str) -> WordTable:
    """The words and vectors of a run, or of a file in a word2vec format (text or binary)."""
    path, folder = Path(name), RunFolder.open(name)
    if folder.path.is_dir():
        name, tokenizer = folder.read_config().model.name, folder.read_tokenizer()
        return table_of(TextModel(load_model(folder, tokenizer), tokenizer, f"{path} ({name})"))
    _check_file(path)
    read = read_vectors(path)
    return WordTable(read.words, read.vectors_VD)


def width_of(name: str) -> int:
    """The width of the vectors of a run or a file; only the first line of a file is read."""
    path = Path(name)
    if RunFolder.open(path).path.is_dir():
        return int(read_table(name).vectors_VD.shape[1])
    _check_file(path)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        first = file.readline(100).removeprefix(codecs.BOM_UTF8).split()
    if len(first) != 2 or not all(part.isdigit() for part in first):
        raise ConfigError(
            f"{name} does not begin with the number and the width of its vectors, as a word2vec file does; give a "
            "word2vec file, or a run"
        )
    return int(first[1])


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(
            f"init_embedding is {path}, which does not exist; give a run, or a file of vectors (.txt or .bin)"
        )


def _tables(model: Any, tokenizer: Tokenizer, source: Tokenizer | None) -> list[tuple[nn.Embedding, Tokenizer, str]]:
    """The tables of a model, each with the tokeniser of its rows and a description of them."""
    target_table, source_table = model.word_table, model.source_table
    if source_table is None:
        return [] if target_table is None else [(target_table, tokenizer, "tokens")]
    return [
        (target_table, tokenizer, "tokens of the target"),
        (source_table, source or tokenizer, "tokens of the source"),
    ]


def _fill(table: nn.Embedding, vectors: WordTable, tokenizer: Tokenizer, name: str) -> int:
    """Overwrite the rows of the tokens that have a vector -> the number of these tokens."""
    width, given = table.weight.shape[1], vectors.vectors_VD.shape[1]
    if width != given:
        raise ConfigError(
            f"the vectors of {name} have width {given}, but those of the model have width {width}; leave the model's "
            f"width out, or set it to {given}"
        )
    found = match_tokens(tokenizer, vectors)
    if not found:
        raise ConfigError(
            f"none of the {tokenizer.vocab_size} tokens of the model is a word of {name}; use the tokeniser with which "
            "the vectors were trained, for example --tokenizer word"
        )
    tokens_R, places_R = (np.array(part) for part in (list(found), list(found.values())))
    with torch.no_grad():
        index_R = torch.from_numpy(tokens_R).to(table.weight.device)
        vectors_RD = torch.from_numpy(np.array(vectors.vectors_VD[places_R], np.float32)).to(table.weight)
        mean_squares = [part.square().mean().clamp(min=1e-20) for part in (table.weight[index_R], vectors_RD)]
        table.weight[index_R] = vectors_RD * (mean_squares[0] / mean_squares[1]).sqrt()
    return len(found)


def match_tokens(tokenizer: Tokenizer, vectors: WordTable) -> dict[int, int]:
    """Map tokens to the rows of their vectors, without the special tokens `eos` and `unk`.

    The spellings are tried in this order: exact, without the mark of a word's first piece, both ignoring case.
    """
    folded: dict[str, int] = {}
    for place, word in enumerate(vectors.words):
        folded.setdefault(word.casefold(), place)
    found = {}
    for token in range(tokenizer.vocab_size):
        if token in (tokenizer.eos, tokenizer.unk):
            continue
        piece = tokenizer.piece(token)
        spellings = [piece, piece[1:]] if piece[:1] in MARKS and piece[1:] else [piece]
        places = [vectors.places.get(one) for one in spellings] + [folded.get(one.casefold()) for one in spellings]
        found[token] = next((place for place in places if place is not None), -1)
    return {token: place for token, place in found.items() if place >= 0}


def _no_table(name: str) -> ConfigError:
    return ConfigError(f"{name} has no embedding to initialise; leave init_embedding out")
