"""Evaluation of trained models: perplexity, bits per byte, translation scores, accuracy, significance."""

from chainrule.evaluation.perplexity import Likelihood, evaluate_tokens
from chainrule.evaluation.speed import generation_speed
from chainrule.evaluation.text import Evaluation, evaluate
from chainrule.evaluation.tracks import track_count

__all__ = [
    "Evaluation",
    "Likelihood",
    "evaluate",
    "evaluate_tokens",
    "generation_speed",
    "track_count",
]
