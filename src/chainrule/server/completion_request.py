"""The fields of /v1/completions: those of OpenAI, and `top_k`, `min_p`, `num_beams`, `mode` and others of the verb."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from chainrule.decoding.beam import LENGTH_PENALTY
from chainrule.decoding.speculative import DRAFT_TOKENS
from chainrule.inference.generation_options import GenerationOptions
from chainrule.server.errors import invalid
from chainrule.server.limits import Limits
from chainrule.server.requests import Fields, Record
from chainrule.text.tokenizers import Tokenizer

MAX_TOKENS = 16
"""Tokens generated if the request does not state how many, as with OpenAI."""

MAX_STOPS = 16
SEED_BITS = (1 << 63) - 1

Bias = Annotated[float, Field(ge=-100, le=100)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class StreamOptions(Record):
    """Options of a streamed answer."""

    include_usage: bool = False


class CompletionRequest(Fields):
    """How prompts are continued."""

    prompt: str | list[str] | list[int] | list[list[int]] = ""
    max_tokens: int = Field(MAX_TOKENS, ge=0)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=1)
    min_p: float | None = Field(None, ge=0, le=1)
    n: int = Field(1, ge=1)
    best_of: int | None = Field(None, ge=1)
    seed: int | None = None
    stop: str | list[str] = Field(default_factory=list)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0)
    logit_bias: dict[str, Bias] = Field(default_factory=dict)
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    stream: bool = False
    stream_options: StreamOptions | None = None
    suffix: str | None = None
    user: str | None = None
    num_beams: int = Field(1, ge=1)
    length_penalty: float = LENGTH_PENALTY
    mode: str = "ar"
    draft: str | None = None
    draft_tokens: int = Field(DRAFT_TOKENS, ge=1)
    stop_at_eos: bool | None = None

    @property
    def size(self) -> int:
        """Characters or ids of all prompts."""
        given = self.prompt
        return sum(1 if isinstance(one, int) else len(one) for one in ([given] if isinstance(given, str) else given))

    @property
    def samples(self) -> int:
        """Texts generated for each prompt, of which the `n` best are returned."""
        return self.n if self.best_of is None else self.best_of

    @property
    def searches(self) -> bool:
        """Whether the text comes from a beam, drafts or a parallel mode instead of one token at a time."""
        return self.num_beams > 1 or self.mode != "ar" or self.draft is not None

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop

    def options(self, seed: int | None) -> GenerationOptions:
        """The options as the verb takes them; drafts of another run are added by the caller.

        By default tokens are sampled at temperature 1, as with OpenAI; a beam does not sample.
        """
        greedy = self.num_beams > 1 or (self.temperature is not None and self.temperature == 0)
        default = None if self.num_beams > 1 else 1.0
        return GenerationOptions(
            max_new_tokens=max(1, self.max_tokens),
            num_beams=self.num_beams,
            length_penalty=self.length_penalty,
            num_return_sequences=self.n if self.searches else 1,
            temperature=None if greedy and self.num_beams == 1 else (self.temperature or default),
            top_k=None if greedy and self.num_beams == 1 else self.top_k,
            top_p=None if greedy and self.num_beams == 1 else self.top_p,
            min_p=None if greedy and self.num_beams == 1 else self.min_p,
            seed=seed,
            stop_at_eos=self.stop_at_eos,
            stop=tuple(self.stops),
            draft="lookup" if self.draft == "lookup" else None,
            draft_tokens=self.draft_tokens,
            mode=self.mode,
        )

    def check(self, limits: Limits) -> None:
        """Refuse what no server of this kind can do, and what is above the limits of this one."""
        if self.suffix is not None:
            raise invalid("suffix is not supported: these models continue a text; leave it out", "suffix")
        limits.check("max_tokens", self.max_tokens, limits.tokens)
        limits.check("n", self.n, limits.n)
        limits.check("best_of", self.samples, limits.n)
        limits.check("num_beams", self.num_beams, limits.beams)
        limits.check("logprobs", self.logprobs or 0, limits.logprobs)
        if self.samples < self.n:
            raise invalid(f"best_of is {self.best_of}, but n is {self.n}; best_of must be at least n", "best_of")
        if self.stream and self.samples > self.n:
            raise invalid("best_of above n cannot be streamed; leave out stream or best_of", "best_of")
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options needs stream; set stream to true, or leave it out", "stream_options")
        if len(self.stops) > MAX_STOPS or not all(self.stops):
            raise invalid(f"stop has {len(self.stops)} strings; expected at most {MAX_STOPS}, none empty", "stop")
        if self.searches:
            self._check_search()

    def _check_search(self) -> None:
        what = "num_beams" if self.num_beams > 1 else "mode" if self.mode != "ar" else "draft"
        unsupported: dict[str, Any] = {
            "logprobs": self.logprobs is not None,
            "logit_bias": self.logit_bias,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "best_of": self.samples > self.n,
            "max_tokens of 0": self.max_tokens == 0,
            "stream": self.stream and self.num_beams > 1,
        }
        for name, given in unsupported.items():
            if given:
                raise invalid(f"{name} does not apply with {what}; leave one of them out", name.partition(" ")[0])
        if self.stream and self.n > 1:
            raise invalid(f"n is {self.n}, but with {what} one text is streamed; leave out stream or n", "n")
        if self.n > self.num_beams and (self.num_beams > 1 or self.draft is not None):
            hint = "raise num_beams" if self.num_beams > 1 else "leave draft out"
            raise invalid(f"n is {self.n}, but this search finds at most {self.num_beams}; lower n, or {hint}", "n")

    def prompts(self, tokenizer: Tokenizer, limits: Limits) -> list[Prompt]:
        """The prompts as tokens."""
        given = self.prompt
        if isinstance(given, str):
            return self._checked([Prompt(tokenizer, given)], limits)
        if not given:
            raise invalid("prompt is an empty list; give at least one prompt, which may be an empty text", "prompt")
        if isinstance(given[0], int):
            return self._checked([Prompt(tokenizer, given)], limits)
        limits.check_prompts("prompt", [0] * len(given))
        return self._checked([Prompt(tokenizer, one) for one in given], limits)

    def _checked(self, prompts: list[Prompt], limits: Limits) -> list[Prompt]:
        limits.check_prompts("prompt", [len(prompt.ids) for prompt in prompts])
        if self.searches and not all(prompt.is_text for prompt in prompts):
            raise invalid("num_beams, mode and draft need the prompt as text, not as ids", "prompt")
        return prompts


class Prompt:
    """A prompt as text and tokens.

    Every text is read after an `eos`. A prompt of ids may begin with it, as clients do that have to condition the first
    token on something; this `eos` is then the one before the text, and has no probability.
    """

    def __init__(self, tokenizer: Tokenizer, given: str | list[int]) -> None:
        self.is_text = isinstance(given, str)
        if isinstance(given, str):
            self.text, self.ids = given, tokenizer.encode_block(given).tolist()
            self.begun = False
        else:
            check_ids(given, tokenizer, "prompt")
            self.ids, self.begun = list(given), bool(given) and given[0] == tokenizer.eos
            self.text = tokenizer.decode(self.ids[1:] if self.begun else self.ids)
        self.read = self.ids if self.begun else [tokenizer.eos, *self.ids]  # what the model reads

    @property
    def scored(self) -> list[int]:
        """The tokens that have a probability."""
        return self.read[1:]


def check_ids(ids: list[int], tokenizer: Tokenizer, name: str) -> None:
    """Refuse ids that the tokeniser does not have."""
    wrong = next((token for token in ids if not 0 <= token < tokenizer.vocab_size), None)
    if wrong is not None:
        raise invalid(f"{name} has the id {wrong}; this model has ids from 0 to {tokenizer.vocab_size - 1}", name)


def bias_of(logit_bias: dict[str, float], tokenizer: Tokenizer) -> dict[int, float]:
    """The biases by token."""
    try:
        found = {int(token): value for token, value in logit_bias.items()}
    except ValueError:
        raise invalid("logit_bias has a key that is no id; /tokenize gives the ids of a text", "logit_bias") from None
    check_ids(list(found), tokenizer, "logit_bias")
    return found


def residue_bits(tokenizer: Tokenizer, text: str, ids: list[int]) -> float:
    """The bits of what the ids of a text leave open, such as the spelling of unknown words."""
    from chainrule.text.coding.residue_meter import ResidueMeter

    meter = ResidueMeter(tokenizer)
    meter.add(text, np.array(ids, np.int32))
    meter.finish()
    return meter.bits
