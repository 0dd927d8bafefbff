"""One text of a completion while it is generated: its tokens, log-probabilities, text and end."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chainrule.base.arrays import Array
from chainrule.decoding.row_sampling import RowSampler, choose_rows
from chainrule.decoding.stop_strings import StopStrings
from chainrule.inference.pieces import TextPieces, end_token, last_line
from chainrule.server.completion_request import SEED_BITS, CompletionRequest, Prompt, bias_of
from chainrule.text.tokenizers import Tokenizer

LEAST = -9999.0
"""The log-probability of what is impossible: JSON has no infinity."""

BITS = 1 / math.log(2)


@dataclass
class TokenLog:
    """The four parallel lists of `logprobs`, and the id and the bits of each token."""

    tokens: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def add(
        self, token: int, tokenizer: Tokenizer, log_prob: float | None, top: dict[str, float] | None, offset: int
    ) -> None:
        """Append a token."""
        self.tokens.append(tokenizer.piece(token))
        self.ids.append(token)
        self.token_logprobs.append(None if log_prob is None else max(log_prob, LEAST))
        self.top_logprobs.append(top)
        self.text_offset.append(offset)

    def __add__(self, other: TokenLog) -> TokenLog:
        return TokenLog(
            self.tokens + other.tokens,
            self.ids + other.ids,
            self.token_logprobs + other.token_logprobs,
            self.top_logprobs + other.top_logprobs,
            self.text_offset + other.text_offset,
        )

    def cut(self, length: int) -> TokenLog:
        """Without the tokens that begin after the end of the text."""
        return self.part(0, sum(offset < length for offset in self.text_offset))

    def part(self, begin: int, end: int) -> TokenLog:
        """Some of the tokens."""
        return TokenLog(
            self.tokens[begin:end],
            self.ids[begin:end],
            self.token_logprobs[begin:end],
            self.top_logprobs[begin:end],
            self.text_offset[begin:end],
        )

    def to_dict(self) -> dict[str, Any]:
        """The lists as JSON; the bits of a token are -log2 p."""
        bits = [None if one is None else -one * BITS for one in self.token_logprobs]
        return {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
            "token_bits": bits,
            "token_ids": self.ids,
        }


def top_of(log_probs_V: Array, token: int, count: int, tokenizer: Tokenizer) -> dict[str, float] | None:
    """The most probable tokens and the given one; None: none were asked for."""
    if not count:
        return None
    count = min(count, len(log_probs_V))
    best_K = np.argpartition(log_probs_V, -count)[-count:]
    best_K = best_K[np.lexsort((best_K, -log_probs_V[best_K]))]
    found = dict(zip(best_K.tolist(), log_probs_V[best_K].tolist(), strict=True)) | {token: float(log_probs_V[token])}
    return {tokenizer.piece(one): max(value, LEAST) for one, value in found.items()}


def seed_of(request: CompletionRequest, number: int) -> int:
    """The seed of the `number`-th text of a prompt: that of the request for the first; without one, a random one."""
    if request.seed is None:
        return secrets.randbits(63)
    if not number:
        return request.seed & SEED_BITS
    digest = hashlib.blake2b(f"{request.seed} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & SEED_BITS


class Choice:
    """One text. `choose` picks its next token, `accept` appends it."""

    def __init__(
        self, index: int, request: CompletionRequest, prompt: Prompt, tokenizer: Tokenizer, *, arrays: bool, number: int
    ) -> None:
        self.index, self.prompt = index, prompt
        self._request, self._tokenizer = request, tokenizer
        seed = seed_of(request, number)
        options = request.options(seed)
        self._arrays = options.array_chooser() if arrays else None
        self._sampler = None if arrays else RowSampler(options.sampling if options.samples else None, seed)
        self._bias = bias_of(request.logit_bias, tokenizer)
        self._penalises = bool(request.presence_penalty or request.frequency_penalty)
        self._counts: Counter[int] = Counter()  # of generated tokens, where they are penalised
        self._stops, self._eos = StopStrings(request.stops), end_token(tokenizer, request.stop_at_eos)
        self._pieces = TextPieces(tokenizer, last_line(tokenizer, prompt.read[1:]))
        self._before = len(prompt.text) if request.echo else 0  # characters before the generated text
        self._whole = not (request.stream or request.stops or request.logprobs is not None)  # decoded at the end
        self._ids: list[int] = []  # tokens that are not decoded yet
        self.text, self.tokens, self.log_prob = "", 0, 0.0
        self.sent, self.sent_tokens = 0, 0  # of the text and of the log, by streaming
        self.prompt_log, self.log = TokenLog(), TokenLog()
        self.finish: str | None = None if request.max_tokens else "length"

    @property
    def sampler(self) -> RowSampler | None:
        """What chooses its tokens from the distributions of the model; None: `choose` does, and changes them."""
        return None if self._bias or self._penalises else self._sampler

    def choose(self, log_probs_V: Array) -> int:
        """The next token, given the distribution of the model."""
        adjusted_1V = self._adjusted(log_probs_V)[None]
        if self._sampler is not None:
            return choose_rows(adjusted_1V, [self._sampler])[0]
        assert self._arrays is not None
        return int(self._arrays(adjusted_1V)[0])

    def _adjusted(self, log_probs_V: Array) -> Array:
        """Log-probabilities with the bias and the penalties of tokens that were generated before."""
        presence, frequency = self._request.presence_penalty, self._request.frequency_penalty
        if not self._bias and not self._counts:
            return log_probs_V
        change = dict(self._bias)
        for token, count in self._counts.items():
            change[token] = change.get(token, 0.0) - presence - frequency * count
        adjusted_V = log_probs_V.copy()
        adjusted_V[list(change)] += np.array(list(change.values()), adjusted_V.dtype)
        return adjusted_V

    def accept(self, token: int, log_probs_V: Array) -> None:
        """Append a chosen token, given the distribution it was chosen from."""
        log_prob = float(log_probs_V[token])
        self.tokens += 1
        self.log_prob += log_prob
        if self._penalises:
            self._counts[token] += 1
        if self._whole:
            self._accept_whole(token)
            return
        if self._request.logprobs is not None:
            top = top_of(log_probs_V, token, self._request.logprobs, self._tokenizer)
            self.log.add(token, self._tokenizer, log_prob, top, self._before + len(self.text))
        if token == self._eos:
            self.finish = "stop"
            return
        begin = max(0, len(self.text) - max(map(len, self._stops.strings), default=0))
        self.text += self._pieces.feed(token)
        end = self._stops.find(self.text, begin) if self._stops else None
        if end is not None:
            self.text, self.finish = self.text[:end], "stop"
            self.log = self.log.cut(self._before + end)
        elif self.tokens == self._request.max_tokens:
            self.finish = "length"

    def _accept_whole(self, token: int) -> None:
        """Append a token to a text that nobody reads before its end."""
        if token == self._eos:
            self.finish = "stop"
        else:
            self._ids.append(token)
            if self.tokens == self._request.max_tokens:
                self.finish = "length"
        if self.finish is not None:
            self.text = self._pieces.feed_all(self._ids)

    @property
    def mean_log_prob(self) -> float:
        """What `best_of` ranks by."""
        return self.log_prob / max(1, self.tokens)

    def unsent(self) -> tuple[str, TokenLog]:
        """The text and the tokens that can be sent now; what may be the beginning of a stop string is held back."""
        held = self._stops.partial_match(self.text) if self._stops and self.finish is None else 0
        end = max(self.sent, len(self.text) - held)
        text, log = self.text[self.sent : end], self.log
        ready = len(log.tokens) if self.finish else len(log.cut(self._before + end).tokens)
        ready = max(ready, self.sent_tokens)
        part = log.part(self.sent_tokens, ready)
        self.sent, self.sent_tokens = end, ready
        return text, part
