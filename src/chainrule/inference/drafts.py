"""Drafts for a language model: from a cheaper model over the same tokens, or looked up in the text itself.

run.generate("ROMEO:", draft="runs/ngram")
run.generate("ROMEO:", draft="lookup")

decoding/speculative.py explains what a draft is and why it does not change the text.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from chainrule.base.grammar import plural
from chainrule.base.lazy import torch
from chainrule.base.modes import evaluating
from chainrule.decoding import Chooser, Drafter, DraftStatistics, FallbackDrafter, LookupDrafter, StepperDrafter
from chainrule.errors import ConfigError
from chainrule.inference.subject import TextModel

LOOKUP = "lookup"
"""The draft that needs no run."""

REPEATED = 6
"""Tokens that must have occurred before in the same order, so that a draft is looked up instead of computed."""

PLAIN_STEPS = 32
"""Steps that are timed to estimate the time without a draft."""


@dataclass(frozen=True)
class Draft:
    """Where the drafts for a text come from."""

    subject: TextModel | None  # None: they are looked up

    def for_text(self) -> Drafter:
        """Drafts for one text of a language model, including the `eos` before it."""
        if self.subject is None:
            return LookupDrafter()
        # Where a longer sequence of tokens repeats, what followed it is a better guess than a cheap model's.
        stepper = self.subject.model
        return FallbackDrafter(repetition_draft(), StepperDrafter(stepper, stepper.start(1)))


def repetition_draft() -> Drafter:
    """What followed an earlier occurrence of the last tokens, where a longer sequence of them repeats."""
    return LookupDrafter(shortest=REPEATED)


def open_draft(subject: TextModel, draft: TextModel | str) -> Draft:
    """The draft for a language model: `lookup`, or another language model over the same tokens."""
    if isinstance(draft, str):
        if draft != LOOKUP:
            raise ConfigError(f"draft is '{draft}'; expected a run, or {LOOKUP}")
        return Draft(None)
    if draft.tokenizer.fingerprint != subject.tokenizer.fingerprint:
        raise ConfigError(
            f"{draft.name} has other tokens than {subject.name}, so it cannot draft for it; train it with the "
            f"tokeniser of that run (--tokenizer FOLDER), or use {LOOKUP}"
        )
    opened = Draft(draft)
    with evaluating(draft.model):  # compiles its kernels now, not when the first draft is waited for
        opened.for_text().propose([draft.tokenizer.eos] * 2, 2)
    return opened


def check_mode(subject: TextModel, mode: str) -> None:
    """Refuse a mode that the model does not have."""
    modes = subject.model.modes
    if mode not in modes:
        raise ConfigError(
            f"mode is {mode}, but {subject.name} has the mode {', '.join(modes)} only; train a hybrid-lm for ar, nar "
            "and draft"
        )


def check_single(num_beams: int, num_return_sequences: int) -> None:
    """Refuse a draft for anything but one text that is generated token by token."""
    for name, count in (("num_beams", num_beams), ("num_return_sequences", num_return_sequences)):
        if count != 1:
            raise ConfigError(f"a draft is for one text without a beam, but {name} is {count}; leave one of them out")


# Statistics


def plain_step_seconds(subject: TextModel, text: str, choose: Chooser) -> float:
    """Seconds of one step without a draft at the end of a text: its last tokens are stepped through again."""
    model, tokenizer = subject.model, subject.tokenizer
    tokens_1T = torch.tensor([[tokenizer.eos, *tokenizer.encode_block(text)]], device=subject.device)
    steps = min(PLAIN_STEPS, tokens_1T.shape[1])
    with evaluating(model):
        state = model.start(1)
        if steps < tokens_1T.shape[1]:
            _, state = model.prefill(state, tokens_1T[:, :-steps])
        began = time.perf_counter()
        for token_1 in tokens_1T[:, -steps:].unbind(1):
            row_1V, state = model.step(state, token_1)
            int(choose(row_1V))
        return (time.perf_counter() - began) / steps


def draft_figures(drafted: DraftStatistics, step_seconds: float) -> dict[str, float]:
    """Statistics of a draft; `speed_up` compares with one plain step per token."""
    return {
        "passes": drafted.passes,
        "proposed": drafted.proposed,
        "accepted": drafted.accepted,
        "acceptance": round(drafted.acceptance, 4),
        "speed_up": round(drafted.emitted * step_seconds / drafted.seconds, 3),
    }


def pass_figures(drafted: DraftStatistics, step_seconds: float) -> dict[str, float]:
    """Statistics of parallel passes; `speed_up` compares with one plain step per token."""
    return {
        "passes": drafted.passes,
        "tokens_per_pass": round(drafted.tokens_per_pass, 3),
        "speed_up": round(drafted.emitted * step_seconds / drafted.seconds, 3),
    }


def pass_summary(drafted: DraftStatistics, step_seconds: float) -> str:
    """The same in one line for people."""
    figures = pass_figures(drafted, step_seconds)
    return (
        f"{_amounts(drafted)}, {drafted.emitted / drafted.seconds:,.0f} tokens/s, "
        f"about {figures['speed_up']:.2f} times as fast as --mode ar (a plain step takes {1000 * step_seconds:.2f} ms)"
    )


def draft_summary(drafted: DraftStatistics, step_seconds: float) -> str:
    """The same in one line for people."""
    figures = draft_figures(drafted, step_seconds)
    return (
        f"{_amounts(drafted)}, {drafted.acceptance:.0%} of {plural(drafted.proposed, 'drafted token')} accepted, "
        f"{drafted.emitted / drafted.seconds:,.0f} tokens/s, about {figures['speed_up']:.2f} times as fast as without "
        f"(a plain step takes {1000 * step_seconds:.2f} ms)"
    )


def _amounts(drafted: DraftStatistics) -> str:
    return f"{plural(drafted.emitted, 'token')} in {plural(drafted.passes, 'pass', 'passes')}"
