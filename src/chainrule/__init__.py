"""Sequence modelling behind one contract: train, measure and use any model of p(x) = Π p(x_t | x_<t).

import chainrule as cr

run = cr.train("book.txt", model="lstm", minutes=5)
print(run.evaluate("test.txt").bits_per_byte)
print(run.generate("The ")[0].text)

train, load, import_model        give a run; help(run) lists what it can do
compare, mix, tune               several models on one text; a mixture; options that need no training
report                           runs measured and described in one page
measure, explain, export         BLEU and the like of outputs; a model explained; files for other tools
pack, unpack, serve              a run as one file and back; runs behind an HTTP server
count, merge, merge_shards       n-grams counted in shards, on any number of machines
count_vocabulary, merge_vocabulary   the words of shards, for one tokeniser

chainrule.sklearn has estimators for scikit-learn, chainrule.kenlm the interface of KenLM, chainrule.spark and
chainrule.ray verbs over tables.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from chainrule.base.kernel_cache import discard_stale_kernels, place_kernels
from chainrule.base.waiting import set_wait_policy

if TYPE_CHECKING:
    from chainrule.api import import_model, train
    from chainrule.checkpoint.pack import pack, unpack
    from chainrule.distributed.count import count
    from chainrule.distributed.merge import merge, merge_shards
    from chainrule.distributed.vocabulary import count_vocabulary, merge_vocabulary
    from chainrule.errors import ChainruleError
    from chainrule.evaluation.measures import measure
    from chainrule.evaluation.text import Evaluation
    from chainrule.experiments.compare import compare
    from chainrule.experiments.explain import explain
    from chainrule.experiments.mix import mix
    from chainrule.experiments.tune import tune
    from chainrule.inference.generate import Generated
    from chainrule.inference.score import LineScore
    from chainrule.interop.formats import export
    from chainrule.reports.build import report
    from chainrule.runs.base import Run
    from chainrule.runs.load import load
    from chainrule.server.app import serve

__version__: str

set_wait_policy()  # before anything imports torch
discard_stale_kernels()  # before anything imports numba
place_kernels()

__all__ = [
    "ChainruleError",
    "Evaluation",
    "Generated",
    "LineScore",
    "Run",
    "__version__",
    "compare",
    "count",
    "count_vocabulary",
    "explain",
    "export",
    "import_model",
    "load",
    "measure",
    "merge",
    "merge_shards",
    "merge_vocabulary",
    "mix",
    "pack",
    "report",
    "serve",
    "train",
    "tune",
    "unpack",
]

_HOMES = {
    "ChainruleError": "chainrule.errors",
    "Evaluation": "chainrule.evaluation.text",
    "Generated": "chainrule.inference.generate",
    "LineScore": "chainrule.inference.score",
    "Run": "chainrule.runs.base",
    "compare": "chainrule.experiments.compare",
    "count": "chainrule.distributed.count",
    "count_vocabulary": "chainrule.distributed.vocabulary",
    "explain": "chainrule.experiments.explain",
    "export": "chainrule.interop.formats",
    "import_model": "chainrule.api",
    "load": "chainrule.runs.load",
    "measure": "chainrule.evaluation.measures",
    "merge": "chainrule.distributed.merge",
    "merge_shards": "chainrule.distributed.merge",
    "merge_vocabulary": "chainrule.distributed.vocabulary",
    "mix": "chainrule.experiments.mix",
    "pack": "chainrule.checkpoint.pack",
    "report": "chainrule.reports.build",
    "serve": "chainrule.server.app",
    "train": "chainrule.api",
    "tune": "chainrule.experiments.tune",
    "unpack": "chainrule.checkpoint.pack",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that `import chainrule` is fast."""
    if name == "__version__":
        return import_module("chainrule.evaluation.measurement").package_version()
    if name not in _HOMES:
        raise AttributeError(f"module 'chainrule' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, for `dir`, `help` and completion."""
    return sorted({*__all__, "__doc__", "__name__", "__file__", "__path__", "__all__"})
