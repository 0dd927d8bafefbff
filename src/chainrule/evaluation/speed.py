"""How quickly a model generates.

A time says little on a machine that others share; compare two of them only if they were taken in one run.
"""

from __future__ import annotations

import time

from chainrule.base.modes import evaluating
from chainrule.decoding import Chooser, Greedy, generate
from chainrule.types import Stepper


def generation_speed(
    stepper: Stepper, *, eos: int, tokens: int = 200, batch: int = 1, choose: Chooser | None = None, warm_up: int = 8
) -> float:
    """New tokens a second, over all rows, when `batch` rows of `tokens` tokens are generated without stopping."""

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
        begun = time.perf_counter()
        run(tokens)
        return tokens * batch / (time.perf_counter() - begun)
