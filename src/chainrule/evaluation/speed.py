"""Generation speed of a model.

Times on a shared machine vary; compare only times that were measured in one run.
"""

from __future__ import annotations

import time

from chainrule.base.modes import evaluating
from chainrule.decoding import Chooser, Greedy, generate
from chainrule.types import Stepper


def generation_speed(
    stepper: Stepper, *, eos: int, tokens: int = 200, batch: int = 1, choose: Chooser | None = None, warm_up: int = 8
) -> float:
    """Return new tokens per second over all rows, generating `batch` rows of `tokens` tokens without stopping."""

    def run(length: int) -> None:
        generate(
            stepper,
            eos=None,
            bos=eos,
            max_new_tokens=length,
            choose=choose or Greedy(),
            num_return_sequences=batch,
        )

    with evaluating(stepper):
        run(warm_up)
        began = time.perf_counter()
        run(tokens)
        return tokens * batch / (time.perf_counter() - began)
