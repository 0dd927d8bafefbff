"""The pretrained encoder of a translator, language model or tagger: checks its options and builds the module."""

from __future__ import annotations

from typing import Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from chainrule.errors import ConfigError
from chainrule.layers.encoders.base import BaseShape
from chainrule.layers.encoders.build import EncoderShape
from chainrule.layers.encoders.pretrained import PretrainedFeatures


class PretrainedOptions(Protocol):
    """The options of a configuration that concern a pretrained encoder."""

    @property
    def pretrained(self) -> str | None: ...

    @property
    def tuned(self) -> bool: ...

    @property
    def pretrained_shape(self) -> BaseShape | None: ...


class PretrainedFields(BaseModel):
    """The options of a model that can read its text with a pretrained encoder."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    pretrained: str | None = Field(
        None, description="pretrained encoder of the text that is read: a folder, a run, or an installed package"
    )
    tuned: bool = Field(False, description="fine-tune the pretrained encoder; false: it is frozen")
    pretrained_shape: EncoderShape | None = Field(
        None, description="shape of the pretrained encoder; `train` reads it from the encoder"
    )
    token_embedding: int = Field(
        0,
        ge=0,
        description="width of trained token vectors x next to the states h of the pretrained encoder, [x; h]; 0: none",
    )

    @model_validator(mode="after")
    def _check_pretrained(self) -> Self:
        check_pretrained_options(self)
        if self.token_embedding and self.pretrained is None:
            raise ConfigError("model.token_embedding needs a pretrained encoder; give one with model.pretrained")
        return self


def check_pretrained_options(options: PretrainedOptions) -> None:
    """Raise ConfigError if options of a pretrained encoder are set without one."""
    for name in ("tuned", "pretrained_shape"):
        if getattr(options, name) and options.pretrained is None:
            raise ConfigError(f"model.{name} needs a pretrained encoder; give one with model.pretrained")


def make_pretrained(
    options: PretrainedOptions, vocab_size: int, width: int | None, *, side: str, tokenizer: str, embedding: int = 0
) -> PretrainedFeatures | None:
    """The pretrained encoder for a vocabulary, with features of a width (None: its own); None: there is no encoder.

    `embedding` is the width of trained token vectors next to its states. Errors call the text `side` and the option
    that gives it another tokeniser `tokenizer`.
    """
    if options.pretrained is None:
        return None
    if (shape := options.pretrained_shape) is None:
        raise ConfigError(
            f"model.pretrained is {options.pretrained}, but model.pretrained_shape is missing; give the shape that "
            "`open_pretrained` returns, as `train` does"
        )
    if vocab_size > shape.vocab_size:
        raise ConfigError(
            f"the {side} has {vocab_size} different tokens, but the pretrained encoder knows {shape.vocab_size}; leave "
            f"{tokenizer} out, so that the {side} is read by the encoder's own tokeniser"
        )
    return PretrainedFeatures(shape, width, tuned=options.tuned, embedding=embedding)
