"""`run.why(source, translation, position)` of a translator: what it read of the source, and what its branches say."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import torch

from chainrule.base.modes import evaluating
from chainrule.data.pairs import pad_sources
from chainrule.errors import ConfigError
from chainrule.inference.inspect import TOP
from chainrule.inference.subject import TranslationModel
from chainrule.inference.why.explain import summarise
from chainrule.inference.why.networks import branches
from chainrule.inference.why.records import AttentionRow, Reason, Situation, Why
from chainrule.models.hybrid import Hybrid
from chainrule.types import Source


def why_translation(
    subject: TranslationModel, source: str, translation: str, position: int, *, model_name: str, top: int = TOP
) -> Why:
    """Explain the token at a position of a given translation, whose end is its last token; -1 is the last."""
    tokenizer, model = subject.tokenizer, subject.model
    target = [*tokenizer.encode(translation), tokenizer.eos]
    place = position + len(target) if position < 0 else position
    if not 0 <= place < len(target):
        raise ConfigError(
            f"position is {position}, but the translation has {len(target)} tokens with its end, counted from 0"
        )
    read, source_eos = subject.encode_source(source), subject.source_tokenizer.eos
    given = pad_sources([read], source_eos, subject.device)
    situation = Situation([tokenizer.eos, *target[:place]], target[place], tokenizer.piece, top)
    tokens_1T = torch.tensor([situation.before], device=subject.device)
    reasons: list[Reason] = []
    with evaluating(model):
        log_probs_1V, _ = model.prefill(model.begin(given, stepping=False), tokens_1T)
        if model.attends:
            target_1T = torch.tensor([target[: place + 1]], device=subject.device)
            weights_S = model.attention(target_1T, given)[0, -1].double()
            end = subject.source_tokenizer.piece(subject.source_tokenizer.eos)
            reasons.append(
                AttentionRow("attention", [*subject.source_pieces(source, read), end], [[weights_S.tolist()]])
            )
        reasons += _own_reasons(model, given, situation)
    pieces = [*tokenizer.written_pieces(translation), tokenizer.piece(tokenizer.eos)]
    log_probs_V = log_probs_1V[0].double().cpu().numpy()
    return summarise(subject, model_name, translation, place, pieces[place], situation, log_probs_V, reasons)


@singledispatch
def _own_reasons(model: Any, source: Source, situation: Situation) -> list[Reason]:
    """What is known of a kind of translator besides its attention."""
    return []


@_own_reasons.register
def _(model: Hybrid, source: Source, situation: Situation) -> list[Reason]:
    tokens_1T = torch.tensor([situation.before], device=source.tokens_BS.device)
    packed_1TX, _ = model.read(model.begin(source, stepping=False), tokens_1T)
    return branches(model.output, packed_1TX[:, -1], situation)
