"""`run.why(text, position)`: a token of a text, and why it has its probability."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.modes import evaluating
from chainrule.base.over_arrays import over_arrays
from chainrule.errors import ConfigError
from chainrule.evaluation.tracks import choose_tracks, cut_tracks
from chainrule.inference.inspect import TOP, best_tokens
from chainrule.inference.subject import TextModel
from chainrule.inference.why.reasons import reasons
from chainrule.inference.why.records import ContextCurve, Expected, Reason, Situation, Why

SHOWN = 48
"""Tokens before the explained one that the result has."""

LONGEST = 1024
"""Tokens of context up to which the curve of the context is measured."""


def why(subject: TextModel, text: str, position: int, *, model_name: str, top: int = TOP) -> Why:
    """Explain the token at a position of a text, counted as in `surprise`; -1 is the last."""
    register_reasons(subject.model)
    tokenizer = subject.tokenizer
    tokens_N = tokenizer.encode_block(text).astype(np.int64)
    place = position + len(tokens_N) if position < 0 else position
    if not 0 <= place < len(tokens_N):
        raise ConfigError(f"position is {position}, but the text has {len(tokens_N)} tokens, counted from 0")
    before_T = _read_before(subject, tokens_N, place)
    situation = Situation(before_T.tolist(), int(tokens_N[place]), tokenizer.piece, top)
    with evaluating(subject.model):
        log_probs_V = _distribution(subject, before_T)
        found = [_context_curve(subject, situation), *reasons(subject.model, situation)]
    piece = tokenizer.text_pieces(text)[place]
    return summarise(subject, model_name, text, place, piece, situation, log_probs_V, found)


def summarise(
    subject: TextModel,
    model_name: str,
    text: str,
    position: int,
    token: str,
    situation: Situation,
    log_probs_V: Array,
    found: list[Reason],
) -> Why:
    """The token with the distribution that predicted it, and its reasons."""
    own = float(log_probs_V[situation.token])
    best_K = best_tokens(log_probs_V[None], min(situation.top, len(log_probs_V)))[0].tolist()
    return Why(
        run=subject.name,
        model=model_name,
        text=text,
        position=position,
        token=token,
        before=situation.pieces(situation.before[-SHOWN:]),
        probability=math.exp(own),
        bits=-own / math.log(2),
        rank=1 + int((log_probs_V > own).sum()),
        best=[Expected(situation.piece(one), math.exp(log_probs_V[one])) for one in best_K],
        reasons=found,
    )


def register_reasons(model: Any) -> None:
    """Import the functions of all kinds of models; those that need torch only for a model of tensors."""
    import chainrule.inference.why.counts

    if model.arrays is None:
        import chainrule.inference.why.mixtures
        import chainrule.inference.why.networks  # noqa: F401


def _read_before(subject: TextModel, tokens_N: Array, place: int) -> Array:
    """What is read before a token, `eos` first: the tokens of its track, as `eval` cuts long texts."""
    layout = cut_tracks(len(tokens_N), choose_tracks(subject.model, len(tokens_N)))
    begin = max(start for start in layout.starts() if start <= place)
    return np.concatenate([[subject.tokenizer.eos], tokens_N[begin:place]])


def _distribution(subject: TextModel, before_T: Array) -> Array:
    arrays = over_arrays(subject.model)
    log_probs_V: Array = arrays.prefill(arrays.start(1), before_T[None])[0][0].astype(np.float64)
    return log_probs_V


def _context_curve(subject: TextModel, situation: Situation) -> ContextCurve:
    """The bits of the token after the last 0, 1, 2, 4, … tokens, and after all of them."""
    length = len(situation.before) - 1
    known = [0, *(1 << power for power in range(length.bit_length())), length]
    known = sorted({size for size in known if size <= min(length, LONGEST)} | {length})
    bits = []
    for size in known:
        shortened_T = np.array([situation.before[0], *situation.before[len(situation.before) - size :]], np.int64)
        bits.append(-float(_distribution(subject, shortened_T)[situation.token]) / math.log(2))
    return ContextCurve("context", known, bits)
