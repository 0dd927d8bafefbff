"""Decoding: walking any model that can step. Nothing here knows an architecture."""

from chainrule.decoding.beam import Hypothesis, beam_search
from chainrule.decoding.draft import Drafted, Drafter, draft_one, draft_search
from chainrule.decoding.drafters import FirstDrafter, GivenDrafter, LookupDrafter, StepperDrafter
from chainrule.decoding.ensemble import Ensemble
from chainrule.decoding.generate import generate, stream
from chainrule.decoding.greedy import Chooser, Greedy
from chainrule.decoding.sample import Sample

__all__ = [
    "Chooser",
    "Drafted",
    "Drafter",
    "Ensemble",
    "FirstDrafter",
    "GivenDrafter",
    "Greedy",
    "Hypothesis",
    "LookupDrafter",
    "Sample",
    "StepperDrafter",
    "beam_search",
    "draft_one",
    "draft_search",
    "generate",
    "stream",
]
