"""Decoding: walking any model that can step. Nothing here knows an architecture."""

from chainrule.decoding.beam import Hypothesis, beam_search
from chainrule.decoding.ensemble import Ensemble
from chainrule.decoding.generate import generate, stream
from chainrule.decoding.greedy import Chooser, Greedy
from chainrule.decoding.sample import Sample

__all__ = ["Chooser", "Ensemble", "Greedy", "Hypothesis", "Sample", "beam_search", "generate", "stream"]
