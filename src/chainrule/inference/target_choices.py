"""The choices of a translator at each position of a given translation, from one pass over it.

for word in run.choices("A dog runs.", "Ein Hund rennt."):
    print(word.piece, word.log_prob, [choice.piece for choice in word.choices])

To continue with another choice, give the tokens up to it as the prefix of `translate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from chainrule.base.modes import evaluating
from chainrule.data.pairs import pad_sources
from chainrule.errors import ConfigError, DataError
from chainrule.inference.subject import TranslationModel
from chainrule.text.tokenizers import Tokenizer


class Choice(NamedTuple):
    """A token that may come next, and its log-probability in nats."""

    piece: str
    token: int
    log_prob: float


@dataclass(frozen=True)
class TargetToken:
    """A token of a translation given the source and the tokens before it."""

    piece: str
    token: int
    log_prob: float  # in nats
    rank: int  # 1: the most probable token
    choices: list[Choice]  # the most probable tokens, best first


def prefix_tokens(tokenizer: Tokenizer, prefix: str | Sequence[int]) -> list[int]:
    """The tokens of a prefix that is given as text, or as tokens."""
    if isinstance(prefix, str):
        return tokenizer.encode(prefix)
    for token in prefix:
        if not 0 <= token < tokenizer.vocab_size or token == tokenizer.eos:
            raise ConfigError(
                f"the prefix has the token {token}; expected ids from 0 to {tokenizer.vocab_size - 1}, without "
                f"{tokenizer.eos}, the end of the text"
            )
    return list(prefix)


def target_choices(
    subject: TranslationModel, text: str, target: str | Sequence[int], *, top: int = 10
) -> list[TargetToken]:
    """The tokens of a translation, `eos` at the end included, each with the `top` most probable tokens."""
    if top < 1:
        raise ConfigError(f"top is {top}; expected at least 1")
    tokenizer, model = subject.tokenizer, subject.model
    tokens = [*prefix_tokens(tokenizer, target), tokenizer.eos]
    if model.window is not None and len(tokens) > model.window:
        raise DataError(
            f"the translation has {len(tokens)} tokens with its end, but {subject.name} writes at most {model.window}; "
            "give a shorter one"
        )
    source = pad_sources([subject.encode_source(text)], subject.source_tokenizer.eos, subject.device)
    inputs_1T = torch.tensor([[tokenizer.eos, *tokens[:-1]]], device=subject.device)
    with evaluating(model):
        log_probs_TV = model.extend(model.start(source), inputs_1T)[0][0].double()
    log_prob_T1 = log_probs_TV.gather(1, torch.tensor(tokens, device=subject.device)[:, None])
    rank_T = 1 + (log_probs_TV > log_prob_T1).sum(1)
    best_TK, token_TK = log_probs_TV[:, : tokenizer.vocab_size].topk(min(top, tokenizer.vocab_size), 1)
    rows = zip(tokens, log_prob_T1[:, 0].tolist(), rank_T.tolist(), best_TK.tolist(), token_TK.tolist(), strict=True)
    return [
        TargetToken(tokenizer.piece(token), token, log_prob, rank, _choices(tokenizer, best, found))
        for token, log_prob, rank, best, found in rows
    ]


def _choices(tokenizer: Tokenizer, log_probs: list[float], tokens: list[int]) -> list[Choice]:
    return [Choice(tokenizer.piece(token), token, log_prob) for token, log_prob in zip(tokens, log_probs, strict=True)]
