"""Output layers that Hugging Face models can represent: a product with one vector per word."""

from __future__ import annotations

from typing import Any

from chainrule.errors import ConfigError


def require_word_vectors(model: Any, family: str) -> None:
    """Refuse a model whose output layer does not have one vector per word."""
    if not model.output.has_word_vectors:
        raise ConfigError(
            f"the run has the output layer {model.output.name}, but {family} has one vector per word; train with "
            "--output softmax"
        )


def require_no_output_bias(model: Any, family: str) -> None:
    """Refuse a model whose output layer is more than a product with one vector per word."""
    require_word_vectors(model, family)
    if model.output.bias_V is not None and bool(model.output.bias_V.any()):
        raise ConfigError(
            f"the run has a bias in its output layer, but {family} has none; train with --set output.bias=false"
        )
