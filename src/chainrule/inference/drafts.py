"""Which draft goes with which language model: a cheaper one over the same tokens, or a look into the text itself.

run.generate("ROMEO:", draft="runs/ngram")
run.generate("ROMEO:", draft="lookup")

What a draft is, and why it changes nothing, is told in `decoding/draft.py`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from chainrule.base.modes import evaluating
from chainrule.decoding import Chooser, Drafted, Drafter, FirstDrafter, LookupDrafter, StepperDrafter
from chainrule.errors import ConfigError
from chainrule.registry import MODELS
from chainrule.types import prefill

if TYPE_CHECKING:
    from chainrule.runs.language_model import Run

LOOKUP = "lookup"
"""The draft that needs no run."""

AGAIN = 6
"""Tokens that must have come before in the same order, so that a draft is looked up and not made by the run given."""

PLAIN_STEPS = 32
"""Steps that are timed to tell what a text would have taken without its draft."""


@dataclass(frozen=True)
class Draft:
    """Where the drafts for the texts of a run come from."""

    run: Run | None  # None: they are looked up

    def for_text(self) -> Drafter:
        """Drafts for one text of a language model, the `eos` before it included."""
        if self.run is None:
            return LookupDrafter()
        # Where a longer run of tokens comes again, what came after it is a better guess than a cheap model's.
        return FirstDrafter(LookupDrafter(shortest=AGAIN), StepperDrafter(self.run.model, self.run.model.start(1)))


def open_draft(run: Run, draft: Run | str | Path) -> Draft:
    """What drafts for a run: `lookup`, or a run, or its folder. What does not fit is refused."""
    if draft == LOOKUP:
        return Draft(None)
    if isinstance(draft, str | Path):
        from chainrule.api import load

        draft = load(draft, device=str(run.device))
    if MODELS.get(draft.config.model.name).about["task"] != "lm":
        raise ConfigError(
            f"{draft.folder.path} is a {draft.config.model.name}, no language model, and cannot draft for one; give "
            "one over the same tokens, or lookup"
        )
    if draft.tokenizer.fingerprint != run.tokenizer.fingerprint:
        raise ConfigError(
            f"{draft.folder.path} writes other tokens than {run.folder.path}, so it cannot draft for it; train it with "
            f"--tokenizer {run.folder.path}, or use lookup"
        )
    found = Draft(draft)
    with evaluating(draft.model):  # loaded now, its compiled kernels too, and not when the first draft is waited for
        found.for_text().propose([draft.tokenizer.eos] * 2, 2)
    return found


def check_alone(num_beams: int, num_return_sequences: int) -> None:
    """Refuse a draft for anything but one text that is written token by token."""
    for name, count in (("num_beams", num_beams), ("num_return_sequences", num_return_sequences)):
        if count != 1:
            raise ConfigError(
                f"a draft is for one text that is written token by token, but {name} is {count}; leave one of them out"
            )


# Telling


def plain_step_seconds(run: Run, text: str, choose: Chooser) -> float:
    """Seconds that one step without a draft takes at the end of a text: its last tokens are stepped through again."""
    tokens_1T = torch.tensor([[run.tokenizer.eos, *run.tokenizer.encode_block(text)]], device=run.device)
    steps = min(PLAIN_STEPS, tokens_1T.shape[1])
    with evaluating(run.model):
        state = run.model.start(1)
        if steps < tokens_1T.shape[1]:
            _, state = prefill(run.model, state, tokens_1T[:, :-steps])
        began = time.perf_counter()
        for token_1 in tokens_1T[:, -steps:].unbind(1):
            row_1V, state = run.model.step(state, token_1)
            int(choose(row_1V))
        return (time.perf_counter() - began) / steps


def told(drafted: Drafted, step_seconds: float) -> dict[str, float]:
    """How a draft fared, for machines: `speed_up` is against so many plain steps as there are tokens."""
    return {
        "passes": drafted.passes,
        "proposed": drafted.proposed,
        "accepted": drafted.accepted,
        "acceptance": round(drafted.acceptance, 4),
        "speed_up": round(drafted.emitted * step_seconds / drafted.seconds, 3),
    }


def told_in_words(drafted: Drafted, step_seconds: float) -> str:
    """The same for people, in one line."""
    figures = told(drafted, step_seconds)
    return (
        f"{drafted.emitted:,} tokens in {drafted.passes:,} passes, {drafted.acceptance:.0%} of {drafted.proposed:,} "
        f"drafted tokens accepted, {drafted.emitted / drafted.seconds:,.0f} tokens/s, about "
        f"{figures['speed_up']:.2f} times as fast as without (a plain step takes {1000 * step_seconds:.2f} ms)"
    )
