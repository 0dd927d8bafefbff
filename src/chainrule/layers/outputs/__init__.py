"""Output layers: features of a position to a distribution over the next token. `OUTPUTS` in the registry names them."""

from chainrule.layers.outputs.base import OutputConfig, OutputLayer

__all__ = ["OutputConfig", "OutputLayer"]
