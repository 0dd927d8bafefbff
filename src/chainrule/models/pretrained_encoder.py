"""The pretrained encoder of a translator, classifier or tagger: checks its options and builds the module."""

from __future__ import annotations

from typing import Protocol

from chainrule.errors import ConfigError
from chainrule.layers.encoders.base import BaseShape
from chainrule.layers.encoders.pretrained import PretrainedFeatures


class PretrainedOptions(Protocol):
    """The options of a configuration that concern a pretrained encoder."""

    @property
    def pretrained(self) -> str | None: ...

    @property
    def tuned(self) -> bool: ...

    @property
    def pretrained_shape(self) -> BaseShape | None: ...


def check_pretrained_options(options: PretrainedOptions) -> None:
    """Raise ConfigError if options of a pretrained encoder are set without one."""
    for name in ("tuned", "pretrained_shape"):
        if getattr(options, name) and options.pretrained is None:
            raise ConfigError(f"model.{name} needs a pretrained encoder; give one with model.pretrained")


def make_pretrained(
    options: PretrainedOptions, vocab_size: int, width: int | None, *, side: str, tokenizer: str
) -> PretrainedFeatures | None:
    """The pretrained encoder for a vocabulary, with features of a width (None: its own); None: there is no encoder.

    Errors call the text `side` and the option that gives it another tokeniser `tokenizer`.
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
    return PretrainedFeatures(shape, width, tuned=options.tuned)
