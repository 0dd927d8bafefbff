"""Generation with any stepper, one chosen token at a time.

    for token_B in stream(model, prompt, eos=eos, bos=eos, max_new_tokens=200, choose=Sample(0.8)): ...
    generate(model, prompt, eos=eos, bos=eos, max_new_tokens=200, choose=Greedy())  # the same, collected

A prompt is read once, whatever the number of sequences. A row that has produced `eos` repeats it until all rows have
ended, so that every step has the same number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from chainrule.base.choosing import TokenChooser
from chainrule.base.devices import device_of
from chainrule.base.lazy import torch
from chainrule.base.modes import without_gradients
from chainrule.decoding.choosers import Chooser, Greedy
from chainrule.decoding.limits import check_limit
from chainrule.errors import ConfigError
from chainrule.types import State, Stepper

if TYPE_CHECKING:
    from torch import Tensor

GREEDY_CHUNK = 16
"""Tokens that a stepper may choose in one call: few enough to show a text while it is written."""


def stream(
    stepper: Stepper,
    prompt_T: Tensor | None = None,
    *,
    eos: int | None,
    bos: int,
    max_new_tokens: int,
    choose: Chooser,
    num_return_sequences: int = 1,
) -> Iterator[Tensor]:
    """Yield token_B at each step, B = num_return_sequences, as soon as it is chosen.

    The stepper reads `bos`, then the prompt, then the chosen tokens. The stream ends once every row has produced `eos`
    (which is yielded; None: never), or after `max_new_tokens`.
    """
    check_generation(max_new_tokens, num_return_sequences)
    return _decode(stepper, prompt_T, eos, bos, max_new_tokens, choose, num_return_sequences)


def generate(
    stepper: Stepper,
    prompt_T: Tensor | None = None,
    *,
    eos: int | None,
    bos: int,
    max_new_tokens: int,
    choose: Chooser,
    num_return_sequences: int = 1,
) -> list[Tensor]:
    """Return what `stream` yields: the new tokens of each sequence, up to and including its first `eos`."""
    check_generation(max_new_tokens, num_return_sequences)
    steps = list(_decode(stepper, prompt_T, eos, bos, max_new_tokens, choose, num_return_sequences))
    return [_cut_after_eos(tokens_T, eos) for tokens_T in torch.stack(steps, 1)]


def check_generation(max_new_tokens: int, num_return_sequences: int) -> None:
    """Refuse a limit without tokens, and a number of sequences below one."""
    check_limit(max_new_tokens)
    if num_return_sequences < 1:
        raise ConfigError(f"num_return_sequences is {num_return_sequences}; expected at least 1")


@without_gradients  # entered anew at each step, so the caller's mode applies between steps
def _decode(
    stepper: Stepper, prompt_T: Tensor | None, eos: int | None, bos: int, limit: int, choose: Chooser, rows: int
) -> Iterator[Tensor]:
    """Choose and step until all rows have ended. A single row avoids the work that only several rows need."""
    first_1 = torch.tensor([bos], device=device_of(stepper))
    fed_1T = (first_1 if prompt_T is None else torch.cat([first_1, prompt_T.to(first_1)]))[None]
    log_probs_BV, state = stepper.prefill(stepper.start(1), fed_1T)
    if rows > 1:
        copies_B = first_1.new_zeros(rows)
        log_probs_BV, state = log_probs_BV.index_select(0, copies_B), stepper.select(state, copies_B)
    if rows == 1 and isinstance(choose, Greedy):
        yield from _decode_greedily(stepper, state, choose, log_probs_BV, eos, limit)
        return
    ended_B = None
    for remaining in range(limit - 1, -1, -1):
        token_B = choose(log_probs_BV)
        if ended_B is not None and eos is not None:
            token_B = token_B.masked_fill(ended_B, eos)
        yield token_B
        if not remaining:
            return
        if rows > 1 and eos is not None:
            ended_B = token_B == eos
            if bool(ended_B.all()):
                return
        elif eos is not None and token_B.item() == eos:
            return
        log_probs_BV, state = stepper.step(state, token_B)


def _decode_greedily(
    stepper: Stepper, state: State, choose: Greedy, log_probs_1V: Tensor, eos: int | None, limit: int
) -> Iterator[Tensor]:
    """The most probable tokens of a single row; some steppers choose several in one call."""
    token_1, written = choose(log_probs_1V), 1
    yield token_1
    chooser = stepper if isinstance(stepper, TokenChooser) else TokenChooser()
    while written < limit and (eos is None or token_1.item() != eos):
        found = chooser.continue_greedily(state, token_1, min(limit - written, GREEDY_CHUNK), eos)
        if found is None:
            log_probs_1V, state = stepper.step(state, token_1)
            tokens_N1: Sequence[Tensor] = [choose(log_probs_1V)]
        else:
            tokens_N1, state = token_1.new_tensor(found[0])[:, None].unbind(), found[1]
        yield from tokens_N1
        token_1 = tokens_N1[-1]
        written += len(tokens_N1)


def _cut_after_eos(tokens_T: Tensor, eos: int | None) -> Tensor:
    """The tokens up to and including the first eos."""
    ends = (tokens_T == eos).nonzero() if eos is not None else tokens_T.new_empty(0)
    return tokens_T[: int(ends[0]) + 1] if len(ends) else tokens_T
