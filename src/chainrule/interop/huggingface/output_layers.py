"""Output layers that Hugging Face models can represent: a product with one vector per word."""

from __future__ import annotations

from chainrule.config import RunConfig
from chainrule.interop.common import Obstacle
from chainrule.registry import OUTPUTS


def word_vector_obstacles(config: RunConfig) -> list[Obstacle]:
    """An output layer that does not have one vector per word."""
    name = config.output.name
    if OUTPUTS.get(name).make.has_word_vectors:
        return []
    return [Obstacle(f"the output layer is {name}, which has no vector per word", "--output softmax")]


def output_bias_obstacles(config: RunConfig, family: str) -> list[Obstacle]:
    """An output layer that is more than a product with one vector per word."""
    found = word_vector_obstacles(config)
    output = OUTPUTS.get(config.output.name).make
    if not found and config.output.options.get("bias", True):
        options = "--set output.bias=false"
        if "bias" not in output.Config.model_fields:
            options = f"--output softmax {options}"
        found.append(Obstacle(f"the output layer has a bias, but {family} has none", options))
    return found
