"""Output layers: the features of a position to a distribution over the next token, registered in `OUTPUTS`."""

from chainrule.layers.outputs.base import OutputConfig, OutputLayer

__all__ = ["OutputConfig", "OutputLayer"]
