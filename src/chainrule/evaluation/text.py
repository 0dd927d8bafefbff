"""Evaluation of a language model on a text, with a protocol and a signature.

Bits per byte is the length of a real code for the bytes of the text, so it compares models with different tokenisers.
Perplexity depends on the tokeniser and on the treatment of unknown words, which the protocol describes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chainrule.base.modes import evaluating
from chainrule.base.progress import Progress
from chainrule.errors import DataError
from chainrule.evaluation.measurement import Measurement, format_signature
from chainrule.evaluation.perplexity import (
    Likelihood,
    ScoredTokens,
    bits_per_byte,
    perplexity,
    precise_sum,
    score_stream,
)
from chainrule.evaluation.tracks import choose_tracks
from chainrule.types import StreamScorer

if TYPE_CHECKING:
    from chainrule.data.store import TokenStore
    from chainrule.text.tokenizers import Tokenizer


ACCURACIES = {"accuracy": 1, "accuracy_top5": 5}
"""Names of the accuracies, and the ranks up to which a token counts as predicted."""

SCORES_ONLY = "the model gives scores that are not probabilities: it has no perplexity and no bits per byte."


@dataclass(frozen=True)
class Evaluation(Measurement):
    """Results of a language model on a text."""

    tokens: int
    oov: int  # words or characters that are not in the vocabulary
    bytes: int
    cross_entropy: float  # nats per token
    perplexity: float
    perplexity_without_oov: float
    bits_per_byte: float
    signature: str
    protocol: str
    accuracy: float | None = None  # share of tokens that are the most probable one; None: not measured
    accuracy_top5: float | None = None  # share of tokens that are among the five most probable ones

    def to_dict(self) -> dict[str, Any]:
        """Return the exact values of all fields for JSON, without accuracies that were not measured."""
        values = super().to_dict()
        return {name: value for name, value in values.items() if value is not None or name not in ACCURACIES}

    def figures(self) -> dict[str, Any]:
        """Return the values that `show` prints."""
        values = super().figures()
        return {name: value for name, value in values.items() if value is not None or name not in ACCURACIES}

    @property
    def caution(self) -> str:
        return self.protocol if math.isnan(self.bits_per_byte) else ""


def evaluate(
    model: StreamScorer,
    store: TokenStore,
    tokenizer: Tokenizer,
    *,
    chunk: int | None = None,
    accuracy: bool = False,
    progress: Progress | None = None,
    watch: Callable[[ScoredTokens], None] = lambda piece: None,
) -> Evaluation:
    """Evaluate a model on a tokenised text in one pass; `watch` receives the scored tokens in the order of the pass.

    `accuracy` also ranks every token among all others, which needs the whole distribution before each of them.
    """
    if not len(store) or not store.bytes:
        raise DataError("the text has no tokens, so there is nothing to measure; give a text with at least one line.")
    read: Callable[..., Iterator[ScoredTokens]] = score_stream
    if accuracy:
        from chainrule.evaluation.distributions import rank_stream as read  # here: it needs torch
    pieces = read(model, store.tokens, eos=tokenizer.eos, chunk=chunk, progress=progress)
    every, known, hits = _likelihoods(model, pieces, store, tokenizer, watch)
    if not model.normalised:
        every, known = Likelihood(math.nan, every.tokens), Likelihood(math.nan, known.tokens)
    return Evaluation(
        tokens=every.tokens,
        oov=store.oov,
        bytes=store.bytes,
        cross_entropy=every.cross_entropy,
        perplexity=perplexity(every.cross_entropy),
        perplexity_without_oov=perplexity(known.cross_entropy),
        bits_per_byte=bits_per_byte(every.nats, store.residue_bits, store.bytes),
        signature=signature(store, tokenizer, model),
        protocol=protocol(store, tokenizer, model) if model.normalised else SCORES_ONLY,
        **({name: hits[name] / every.tokens for name in ACCURACIES} if accuracy else {}),
    )


def _likelihoods(
    model: StreamScorer,
    pieces: Iterator[ScoredTokens],
    store: TokenStore,
    tokenizer: Tokenizer,
    watch: Callable[[ScoredTokens], None],
) -> tuple[Likelihood, Likelihood, dict[str, int]]:
    """The likelihood of all tokens, and of all but <unk>, and the number of tokens up to the rank of each accuracy.

    Without OOV both likelihoods are equal: a literal <unk> is known.
    """
    nats, known_nats, known, hits = 0.0, 0.0, 0, dict.fromkeys(ACCURACIES, 0)
    unk = tokenizer.unk if store.oov else None
    with evaluating(model):
        for piece in pieces:
            watch(piece)
            nats -= precise_sum(piece.log_probs_N)
            if piece.ranks_N is not None:
                hits = {name: hits[name] + int((piece.ranks_N <= rank).sum()) for name, rank in ACCURACIES.items()}
            if unk is not None:
                known_M = piece.log_probs_N[piece.tokens_N != unk]
                known += len(known_M)
                known_nats -= precise_sum(known_M)  # not a difference of sums: log p of <unk> may be -inf
    every = Likelihood(nats, len(store))
    return every, every if unk is None else Likelihood(known_nats, known), hits


def signature(store: TokenStore, tokenizer: Tokenizer, model: StreamScorer) -> str:
    """Return what an evaluation depends on, in one line: equal signatures make comparable figures."""
    return format_signature(
        {
            "tokens": len(store),
            "oov": store.oov,
            "bytes": store.bytes,
            "eos": "predicted",
            "unk": "none" if tokenizer.unk is None else "spelled",
            "tracks": choose_tracks(model, len(store)),
            "context": "carried" if model.across_lines else "line",
            "data": store.fingerprint[:8],
            "tokenizer": f"{tokenizer.kind}#{tokenizer.fingerprint[:8]}",
        }
    )


def protocol(store: TokenStore, tokenizer: Tokenizer, model: StreamScorer) -> str:
    """Describe how the figures are computed, in words."""
    tracks = choose_tracks(model, len(store))
    carried = "from the first token to the last" if tracks == 1 else f"through each of {tracks} contiguous tracks"
    context = f"state is carried {carried}" if model.across_lines else "each line is scored separately"
    ends = ", including the <eos> that ends each line" if tokenizer.ends_lines else ""
    return (
        f"{len(store)} tokens are predicted one by one{ends}; "
        f"{_unk_protocol(store, tokenizer)}; {context}; "
        f"bits per byte is the length of a code for the {store.bytes} bytes of the text."
    )


def _unk_protocol(store: TokenStore, tokenizer: Tokenizer) -> str:
    if tokenizer.unk is None:
        return "the tokeniser has no <unk>"
    if not store.oov:
        return "no unknown words"
    return (
        "<unk> is predicted like any other token, bits per byte includes the spelling of unknown words "
        f"({store.oov}), and perplexity without OOV leaves out every <unk>"
    )
