"""The comparison of an exported model with its run: the greatest difference of their outputs on random tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chainrule.interop.ctranslate2.models import unique_pieces
from chainrule.text.tokenizers import Tokenizer
from chainrule.types import Source

ROWS, LENGTH = 4, 24
"""Texts that are compared, and their tokens."""


@torch.inference_mode()
def difference(
    reader: str, path: Path, model: Any, tokenizer: Tokenizer, source: Tokenizer | None, compute: str
) -> float:
    """The greatest difference between the model in a folder and our model.

    Generators and translators are compared by log p in nats of given tokens, encoders by their states.
    """
    import ctranslate2

    theirs = getattr(ctranslate2, reader)(str(path), compute_type=compute, intra_threads=1)
    compare = {"Generator": _of_generator, "Translator": _of_translator, "Encoder": _of_encoder}[reader]
    return float(compare(theirs, model, tokenizer, source))


def _of_generator(theirs: Any, model: Any, tokenizer: Tokenizer, source: Tokenizer | None) -> float:
    tokens_BT = _random_tokens(tokenizer.vocab_size, model.window)
    inputs_BT = torch.cat([torch.full((len(tokens_BT), 1), model.eos), tokens_BT[:, :-1]], 1)
    log_probs_BTV = torch.as_tensor(np.array(theirs.forward_batch(inputs_BT.tolist(), return_log_probs=True)))
    chosen_BT = log_probs_BTV.gather(2, tokens_BT[..., None])[..., 0]
    return float((chosen_BT - model.log_probs(tokens_BT)).abs().max())


def _of_translator(theirs: Any, model: Any, tokenizer: Tokenizer, source: Tokenizer | None) -> float:
    reader = source or tokenizer
    source_BS = _random_tokens(reader.vocab_size, model.window, without=reader.eos)
    target_BT = _random_tokens(tokenizer.vocab_size, model.window, without=tokenizer.eos)
    found = theirs.score_batch(_pieces(source_BS, reader), _pieces(target_BT, tokenizer))
    log_probs_BT = torch.tensor([one.log_probs for one in found])
    read_BS = _with_end(source_BS, reader.eos)
    ours_BT = model.log_probs(
        _with_end(target_BT, model.eos), Source(read_BS, torch.ones_like(read_BS, dtype=torch.bool))
    )
    return float((log_probs_BT - ours_BT).abs().max())


def _of_encoder(theirs: Any, model: Any, tokenizer: Tokenizer, source: Tokenizer | None) -> float:
    tokens_BS = _random_tokens(tokenizer.vocab_size, model.window)
    states_BSD = torch.as_tensor(np.array(theirs.forward_batch(tokens_BS.tolist()).last_hidden_state))
    *_, ours_BSD = model.encoder.walk(tokens_BS, torch.ones_like(tokens_BS, dtype=torch.bool))
    return float((states_BSD - ours_BSD).abs().max())


def _random_tokens(size: int, window: int, without: int | None = None) -> Tensor:
    """Rows of tokens that leave room for the end in the window; `without` is replaced by another token."""
    random = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(size, (ROWS, min(LENGTH, window - 1)), generator=random)
    return tokens_BT if without is None else tokens_BT.where(tokens_BT != without, (without + 1) % size)


def _with_end(tokens_BT: Tensor, eos: int) -> Tensor:
    return torch.cat([tokens_BT, torch.full((len(tokens_BT), 1), eos)], 1)


def _pieces(tokens_BT: Tensor, tokenizer: Tokenizer) -> list[list[str]]:
    pieces = unique_pieces(tokenizer, tokenizer.vocab_size)
    return [[pieces[token] for token in row] for row in tokens_BT.tolist()]
