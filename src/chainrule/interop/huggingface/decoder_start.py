"""Embeddings of translators whose decoder starts with a special token.

Decoders of Hugging Face start with a token that occurs in no text; ours start with `eos`, which they read nowhere else.
The row of `eos` in the decoder's embedding therefore becomes the row of that start token, and the embedding becomes a
separate table.
"""

from __future__ import annotations

import torch
from torch import Tensor

from chainrule.errors import ConfigError
from chainrule.interop.huggingface.folders import CONFIG, HuggingFaceFolder
from chainrule.text.tokenizers import Tokenizer


def with_start_row(table_VD: Tensor, eos: int, start: int) -> Tensor:
    """The table with the row of `start` in place of the row of `eos`."""
    return table_VD if start == eos else table_VD.index_copy(0, torch.tensor([eos]), table_VD[start : start + 1])


def find_start_token(decoder_VD: Tensor, source_VD: Tensor, eos: int) -> int | None:
    """The start token with which `with_start_row` turns the source's table into the decoder's; None: there is none."""
    if decoder_VD.shape != source_VD.shape:
        return None
    if torch.equal(decoder_VD, source_VD):
        return eos
    rest_V = torch.arange(len(source_VD)) != eos
    if not torch.equal(decoder_VD[rest_V], source_VD[rest_V]):
        return None
    same_V = (source_VD == decoder_VD[eos]).all(1)
    return int(same_V.nonzero()[0]) if bool(same_V.any()) else None


def check_ids(folder: HuggingFaceFolder, tokenizer: Tokenizer, start: int, size: int) -> None:
    """Refuse a start or end token that does not match the model."""
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
