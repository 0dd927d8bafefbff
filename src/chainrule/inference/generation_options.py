"""How a prompt is continued: the options of generation, and which of them exclude one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from chainrule.base.lazy import torch
from chainrule.decoding import Chooser, Controls, Greedy, Sample
from chainrule.decoding.beam import LENGTH_PENALTY
from chainrule.decoding.over_arrays import ArrayChoices, ArrayChooser, ArraySample, greedy
from chainrule.decoding.speculative import DRAFT_TOKENS
from chainrule.errors import ConfigError
from chainrule.inference.drafts import check_single
from chainrule.inference.subject import TextModel
from chainrule.types import Model


@dataclass(frozen=True)
class GenerationOptions(Controls):
    """How a prompt is continued: greedily, by beam if `num_beams` > 1, or by sampling if one of its options is set."""

    max_new_tokens: int = 200
    num_beams: int = 1
    length_penalty: float = LENGTH_PENALTY
    num_return_sequences: int = 1
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop_at_eos: bool | None = None  # None: for word tokenisers only
    stop: str | Sequence[str] = ()
    draft: TextModel | str | None = field(default=None, repr=False)  # another model over the same tokens, or "lookup"
    draft_tokens: int = DRAFT_TOKENS
    mode: str = "ar"  # one of the model's modes: ar token by token, nar whole blocks, draft ar with drafts of its own

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn at random."""
        return any(option is not None for option in (self.temperature, self.top_k, self.top_p, self.min_p))

    @property
    def sampling(self) -> Sample:
        """The options of sampling, without a generator."""
        return Sample(
            1.0 if self.temperature is None else self.temperature,
            top_k=self.top_k,
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=0.0 if self.min_p is None else self.min_p,
        )

    def chooser(self, model: Model) -> Chooser:
        """How the next token of a model is chosen; a seed repeats the same draws, with drafts and without."""
        if model.arrays is not None:
            return ArrayChoices(self.array_chooser())
        if not self.samples:
            return Greedy()
        return replace(self.sampling, generator=None if self.seed is None else torch.Generator().manual_seed(self.seed))

    def array_chooser(self) -> ArrayChooser:
        """The same over arrays, for models that compute without torch."""
        return ArraySample(self.sampling, np.random.default_rng(self.seed)) if self.samples else greedy

    def check(self) -> None:
        """Refuse combinations that cannot be met."""
        self.check_controls()
        if self.min_new_tokens > self.max_new_tokens:
            raise ConfigError(
                f"min_new_tokens is {self.min_new_tokens}, but max_new_tokens is {self.max_new_tokens}; expected at "
                "most as many"
            )
        if self.num_beams > 1 and self.samples:
            raise ConfigError(
                "num_beams searches, but temperature, top_k, top_p and min_p sample; give one or the other"
            )
        if self.num_return_sequences > max(1, self.num_beams) and not self.samples:
            raise ConfigError(
                f"num_return_sequences is {self.num_return_sequences}, but greedy search finds one text and a beam of "
                f"{self.num_beams} at most {self.num_beams}; sample (temperature=1) or widen the beam"
            )
        if self.draft is not None or self.mode == "draft":
            check_single(self.num_beams, self.num_return_sequences)
        if self.mode != "ar" and self.num_beams > 1:
            raise ConfigError(f"mode {self.mode} has no beam, but num_beams is {self.num_beams}; leave one of them out")
        if self.mode != "ar" and self.draft is not None:
            raise ConfigError(f"mode {self.mode} takes no draft of another model; leave draft out, or use mode ar")
        if self.mode != "ar" and self.controlled:
            raise ConfigError(f"mode {self.mode} takes no {self.controlled[0]}; leave it out, or use mode ar")
