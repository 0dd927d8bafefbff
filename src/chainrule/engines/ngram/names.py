"""The names of the smoothings, the default first; engines/ngram/smoothing.py has their functions."""

from __future__ import annotations

SMOOTHING_NAMES = (
    "modified-kneser-ney",
    "kneser-ney",
    "absolute",
    "witten-bell",
    "katz",
    "jelinek-mercer",
    "additive",
    "mle",
    "stupid-backoff",
)
