"""Imported once in the process from which `commands` forks: what commands import and set up when they first need it."""

import numba
import torch._dynamo  # noqa: F401  # imported by the first optimiser

import chainrule.api
import chainrule.cli.main
import chainrule.experiments.compare  # noqa: F401
from chainrule.registry import FITTINGS, MODELS, OBJECTIVES, OUTPUTS, RUNS, TASKS, TOKENIZERS

for registry in (FITTINGS, MODELS, OBJECTIVES, OUTPUTS, RUNS, TASKS, TOKENIZERS):
    registry.names()
numba.njit(lambda: 0)()  # loads the compiler
