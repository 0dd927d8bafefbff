"""N-grams: the order that decided, and the back-off path."""

from __future__ import annotations

import numpy as np

from chainrule.engines.ngram.backoff_path import backoff_path
from chainrule.inference.why.reasons import reasons
from chainrule.inference.why.records import BackoffPath, Reason, Situation, TriedContext
from chainrule.models.ngram import Ngram


@reasons.register
def _(model: Ngram, situation: Situation) -> list[Reason]:
    steps = backoff_path(model.arrays, np.array(situation.before, np.int64), situation.token)
    tried = [
        TriedContext(
            situation.pieces(situation.before[len(situation.before) - step.context :]),
            step.in_table,
            None if step.log10_prob is None else 10**step.log10_prob,
            None if step.log10_backoff is None else 10**step.log10_backoff,
        )
        for step in steps
    ]
    return [BackoffPath("backoff", steps[-1].context + 1, model.table.order, tried)]
