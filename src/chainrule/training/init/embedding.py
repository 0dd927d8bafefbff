"""Word vectors as the initial embedding of a model.

Tokens that have a vector start from it, the others keep their random initialisation. All vectors are scaled by one
factor so that they are on average as long as the rows they replace: the initialisation of a model assumes that length,
and where the embedding is also the output layer, longer rows would make the first predictions overconfident.
"""

from __future__ import annotations

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
from chainrule.inference.embed import WordTable, table_of
from chainrule.inference.subject import TextModel
from chainrule.interop.word2vec import read_vectors
from chainrule.registry import MODELS
from chainrule.text.tokenizers import Tokenizer

WIDTHS = ("embedding", "width")
"""What the width of a token's vector is called among the options of models."""
MARKS = ("▁", "Ġ")
"""What tokenisers put before a piece that begins a word."""


def with_width(config: RunConfig, note: Callable[[str], None] = lambda text: None) -> RunConfig:
    """A run's options with the width of the vectors that it is to start from, unless they give one themselves."""
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
    """Put the vectors of a run or of a word2vec file into the embedding of a model, row by row, as far as they go.

    `tokenizer` is that of the model, `source` that of what a translator reads where it has one of its own.
    """
    tables = _tables(model, tokenizer, source)
    if not tables:
        raise _no_table(type(model).__name__)
    vectors = read_table(name)
    for table, reads, what in tables:
        found = _fill(table, vectors, reads, name)
        known = reads.vocab_size - sum(token is not None for token in {reads.eos, reads.unk})
        note(f"{found:,} of {known:,} {what} ({found / max(1, known):.1%}) start from the vectors of {name}")


def read_table(name: str) -> WordTable:
    """The words and vectors of a run's folder, or of a file in one of the formats of word2vec."""
    path = Path(name)
    if path.is_dir():
        folder = RunFolder(path)
        name, tokenizer = folder.read_config().model.name, folder.read_tokenizer()
        return table_of(TextModel(load_model(folder, tokenizer), tokenizer, f"{path} ({name})"))
    _check_file(path)
    read = read_vectors(path)
    return WordTable(read.words, read.vectors_VD)


def width_of(name: str) -> int:
    """The width of a run's or a file's vectors; of a file only the first line is read."""
    path = Path(name)
    if path.is_dir():
        return int(read_table(name).vectors_VD.shape[1])
    _check_file(path)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        first = file.readline(100).split()
    if len(first) != 2 or not all(part.isdigit() for part in first):
        raise ConfigError(
            f"{name} does not begin with the number of its vectors and their width, as word2vec files do; give such a "
            "file, or a run"
        )
    return int(first[1])


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(
            f"init_embedding is {path}, where there is nothing; give a run, or a file of vectors (.txt or .bin)"
        )


def _tables(model: Any, tokenizer: Tokenizer, source: Tokenizer | None) -> list[tuple[nn.Embedding, Tokenizer, str]]:
    """The tables of a model, whose tokens they hold, and what to call those."""
    target, own = model.word_table, model.source_table
    if own is None:
        return [] if target is None else [(target, tokenizer, "tokens")]
    return [(target, tokenizer, "tokens of the target"), (own, source or tokenizer, "tokens of the source")]


def _fill(table: nn.Embedding, vectors: WordTable, tokenizer: Tokenizer, name: str) -> int:
    """Overwrite the rows of the tokens that have a vector -> how many there are."""
    width, given = table.weight.shape[1], vectors.vectors_VD.shape[1]
    if width != given:
        raise ConfigError(
            f"the vectors of {name} have {given} numbers each, but the model's have {width}; leave the model's width "
            f"out, or set it to {given}"
        )
    found = matches(tokenizer, vectors)
    if not found:
        raise ConfigError(
            f"none of the {tokenizer.vocab_size} tokens of the model is among the words of {name}; use the tokeniser "
            "that the vectors were made with, such as --tokenizer word"
        )
    rows_K, places_K = (np.array(part) for part in (list(found), list(found.values())))
    with torch.no_grad():
        index_K = torch.from_numpy(rows_K).to(table.weight.device)
        vectors_KD = torch.from_numpy(np.array(vectors.vectors_VD[places_K], np.float32)).to(table.weight)
        mean_squares = [part.square().mean().clamp(min=1e-20) for part in (table.weight[index_K], vectors_KD)]
        table.weight[index_K] = vectors_KD * (mean_squares[0] / mean_squares[1]).sqrt()
    return len(found)


def matches(tokenizer: Tokenizer, vectors: WordTable) -> dict[int, int]:
    """Tokens to the rows of their vectors: by the very spelling, then by that of a word's beginning, then without case.

    The tokens that stand for no text are left out.
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
    return ConfigError(f"{name} has no embedding that vectors could be the start of; leave init_embedding out")
