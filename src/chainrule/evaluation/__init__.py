"""Evaluation: what a model is worth on a text, and the compressor that proves it."""

from chainrule.evaluation.compression import Compressed, compress, decompress
from chainrule.evaluation.perplexity import Likelihood, evaluate_tokens
from chainrule.evaluation.report import Evaluation, evaluate
from chainrule.evaluation.speed import generation_speed
from chainrule.evaluation.tracks import track_count

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
