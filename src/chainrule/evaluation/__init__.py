"""Evaluation: what a model is worth on a text, and the compressor that proves it."""

from chainrule.evaluation.perplexity import Likelihood, evaluate_tokens
from chainrule.evaluation.speed import generation_speed
from chainrule.evaluation.text import Evaluation, evaluate
from chainrule.evaluation.tracks import track_count
from chainrule.inference.compress import Compressed, compress, decompress

__all__ = [
    "Compressed",
    "Evaluation",
    "Likelihood",
    "compress",
    "decompress",
    "evaluate",
    "evaluate_tokens",
    "generation_speed",
    "track_count",
]
