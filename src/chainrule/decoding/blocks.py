"""Generation of whole blocks of text, each in one parallel pass of a model with the mode nar.

    for tokens_BT in stream_blocks(model, prompt, eos=eos, bos=eos, max_new_tokens=200, choose=Greedy()): ...

The tokens of a block are chosen independently, each from its own distribution given the text before the block. This is
much faster than one token at a time, and the text is worse: a token does not see the ones chosen beside it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from chainrule.base.devices import device_of
from chainrule.base.lazy import torch
from chainrule.base.modes import without_gradients
from chainrule.decoding.choosers import Chooser
from chainrule.decoding.limits import check_limit
from chainrule.decoding.speculative import DraftStatistics
from chainrule.types import Stepper

if TYPE_CHECKING:
    from torch import Tensor


def stream_blocks(
    model: Stepper,
    prompt_T: Tensor,
    *,
    eos: int | None,
    bos: int,
    max_new_tokens: int,
    choose: Chooser,
    num_return_sequences: int = 1,
    statistics: DraftStatistics | None = None,
) -> Iterator[Tensor]:
    """Yield the tokens of one block after the other, BT, B = num_return_sequences.

    The model reads `bos`, the prompt, and the blocks so far. The stream ends where the last row has its first `eos`
    (None: never), or after `max_new_tokens`; other rows continue after theirs. `statistics` is updated with each pass.
    """
    check_limit(max_new_tokens)
    statistics = DraftStatistics() if statistics is None else statistics
    return _decode(model, prompt_T, eos, bos, max_new_tokens, choose, num_return_sequences, statistics)


@without_gradients  # entered anew at each step, so the caller's mode applies between steps
def _decode(
    model: Stepper,
    prompt_T: Tensor,
    eos: int | None,
    bos: int,
    limit: int,
    choose: Chooser,
    rows: int,
    statistics: DraftStatistics,
) -> Iterator[Tensor]:
    first_1 = torch.tensor([bos], device=device_of(model))
    text_BL = torch.cat([first_1, prompt_T.to(first_1)]).expand(rows, -1)
    ended_B = torch.zeros(rows, dtype=torch.bool, device=text_BL.device)
    while limit and not bool(ended_B.all()):
        began = time.perf_counter()
        log_probs_BTV = model.predict_block(text_BL)[:, :limit]
        B, T, _ = log_probs_BTV.shape
        tokens_BT = choose(log_probs_BTV.flatten(0, 1)).view(B, T)
        text_BL, limit = torch.cat([text_BL, tokens_BT], 1), limit - T
        ends_BT = tokens_BT == eos if eos is not None else torch.zeros_like(tokens_BT, dtype=torch.bool)
        open_B, ended_B = ~ended_B, ended_B | ends_BT.any(1)
        if bool(ended_B.all()):
            tokens_BT = tokens_BT[:, : int(ends_BT[open_B].int().argmax(1).max()) + 1]
        taken = time.perf_counter() - began
        statistics.add(DraftStatistics(passes=1, emitted=tokens_BT.shape[1], seconds=taken))
        yield tokens_BT
