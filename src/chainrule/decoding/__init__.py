"""Decoding: generates text with any model that can step. Nothing here depends on an architecture."""

from chainrule.decoding.beam import Hypothesis, beam_search
from chainrule.decoding.blocks import stream_blocks
from chainrule.decoding.choosers import Chooser, Greedy
from chainrule.decoding.controls import Control, ControlledArrays, ControlledStepper, Controls
from chainrule.decoding.drafters import FallbackDrafter, GivenTextDrafter, LookupDrafter, StepperDrafter
from chainrule.decoding.ensemble import Ensemble
from chainrule.decoding.generate import generate, stream
from chainrule.decoding.sample import Sample
from chainrule.decoding.speculative import Drafter, DraftStatistics, generate_with_drafts, stream_with_drafts

__all__ = [
    "Chooser",
    "Control",
    "ControlledArrays",
    "ControlledStepper",
    "Controls",
    "DraftStatistics",
    "Drafter",
    "Ensemble",
    "FallbackDrafter",
    "GivenTextDrafter",
    "Greedy",
    "Hypothesis",
    "LookupDrafter",
    "Sample",
    "StepperDrafter",
    "beam_search",
    "generate",
    "generate_with_drafts",
    "stream",
    "stream_blocks",
    "stream_with_drafts",
]
