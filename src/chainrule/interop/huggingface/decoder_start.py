"""Embeddings of a translator whose decoder begins with a token of its own.

Decoders of Hugging Face begin with a token that no text has; ours begin with `eos`, which they read at no other place.
So the row of `eos` in the decoder's embedding becomes that of their first token, and the embedding a table for itself.
Legend: V vocabulary, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chainrule.errors import ConfigError
from chainrule.interop.huggingface.folders import CONFIG, Folder
from chainrule.text.tokenizers import Tokenizer


def begin_with(table_VD: Tensor, eos: int, start: int) -> Tensor:
    """The table whose row for `eos` is that for `start`."""
    return table_VD if start == eos else table_VD.index_copy(0, torch.tensor([eos]), table_VD[start : start + 1])


def start_of(decoder_VD: Tensor, source_VD: Tensor, eos: int) -> int | None:
    """The token that `begin_with` made the decoder's table of the source's with; None: they are tables of their own."""
    if decoder_VD.shape != source_VD.shape:
        return None
    if torch.equal(decoder_VD, source_VD):
        return eos
    rest_V = torch.arange(len(source_VD)) != eos
    if not torch.equal(decoder_VD[rest_V], source_VD[rest_V]):
        return None
    same_V = (source_VD == decoder_VD[eos]).all(1)
    return int(same_V.nonzero()[0]) if bool(same_V.any()) else None


def check_ids(folder: Folder, tokenizer: Tokenizer, start: int, size: int) -> None:
    """Refuse a start or an end that the model does not have."""
    if not 0 <= start < size:
        raise ConfigError(
            f"{folder.path / CONFIG} has decoder_start_token_id = {start}, but vocab_size = {size}; restore the file"
        )
    end = folder.config.get("eos_token_id")
    end = end[0] if isinstance(end, list) and end else end
    if isinstance(end, int) and end != tokenizer.eos:
        raise ConfigError(
            f"{folder.path / CONFIG} has eos_token_id = {end}, but the tokeniser ends a line with {tokenizer.eos} "
            f"({tokenizer.piece(tokenizer.eos)}); restore the files that belong together"
        )
