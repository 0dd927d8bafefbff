"""The distribution of the token after a text: as the model gives it, and as sampling draws from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.lazy import torch
from chainrule.base.modes import evaluating
from chainrule.base.over_arrays import over_arrays
from chainrule.decoding.sample import MIN_TEMPERATURE, Sample
from chainrule.errors import ConfigError
from chainrule.inference.inspect import best_tokens
from chainrule.inference.pieces import TextPieces, last_line
from chainrule.inference.subject import TextModel
from chainrule.text.tokenizers import Tokenizer


class Candidate(NamedTuple):
    """A token that may follow."""

    id: int
    token: str  # as it is displayed
    text: str  # what it appends to the text
    probability: float


@dataclass(frozen=True)
class NextToken:
    """The distribution of the token after a prefix."""

    tokens: list[int]  # the prefix, without the `eos` before it
    log_probs_V: Array  # in nats
    tokenizer: Tokenizer
    normalised: bool

    @property
    def entropy(self) -> float | None:
        """In bits; None: the model gives scores that do not sum to one."""
        probs_V = np.exp(self.log_probs_V.astype(np.float64))
        finite_V = np.where(probs_V > 0, self.log_probs_V, 0)
        return float(-(probs_V * finite_V).sum() / math.log(2)) if self.normalised else None

    def best(self, top: int) -> list[Candidate]:
        """The most probable tokens, best first."""
        best_K = best_tokens(self.log_probs_V[None], min(top, len(self.log_probs_V)))[0]
        line = last_line(self.tokenizer, self.tokens)
        return [
            Candidate(
                token,
                self.tokenizer.piece(token),
                TextPieces(self.tokenizer, line).feed(token),
                float(np.exp(self.log_probs_V[token], dtype=np.float64)),
            )
            for token in best_K.tolist()
        ]

    def filtered(
        self, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0, min_p: float = 0.0
    ) -> Array:
        """What `generate` draws from with these options -> probabilities V, which sum to one."""
        sample = Sample(temperature, top_k, top_p, min_p)
        scores_1V = torch.from_numpy(np.array(self.log_probs_V, np.float32))[None]
        if temperature < MIN_TEMPERATURE:
            probs_V = np.zeros(len(self.log_probs_V))
            probs_V[int(scores_1V.argmax())] = 1.0
            return probs_V
        filtered_V: Array = sample.filtered(scores_1V).double().softmax(-1)[0].numpy()
        return filtered_V

    def to_dict(self, top: int) -> dict[str, Any]:
        """The prefix, the most probable tokens and the entropy, for JSON."""
        return {"tokens": self.tokens, "entropy": self.entropy, "best": [one._asdict() for one in self.best(top)]}


def next_token(subject: TextModel, text: str, tokens: Sequence[int] = ()) -> NextToken:
    """The distribution after a text and then some tokens, given as ids."""
    size, eos = subject.tokenizer.vocab_size, subject.tokenizer.eos
    wrong = next((token for token in tokens if not 0 <= token < size), None)
    if wrong is not None:
        raise ConfigError(f"tokens has the id {wrong}; {subject.name} has ids from 0 to {size - 1}")
    prefix = [*subject.tokenizer.encode_block(text).tolist(), *tokens]
    arrays = over_arrays(subject.model)
    with evaluating(subject.model):
        log_probs_1V, _ = arrays.prefill(arrays.start(1), np.array([[eos, *prefix]], np.int64))
    return NextToken(prefix, log_probs_1V[0], subject.tokenizer, subject.model.normalised)
