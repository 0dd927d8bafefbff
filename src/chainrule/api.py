"""The public functions in Python: `train`, `load`, `import_model`, and the runs they give.

import chainrule as cr
run = cr.train("book.txt", model="lstm", minutes=5)
run.evaluate("test.txt").bits_per_byte
run.generate("The ")
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chainrule.experiments.train import train as train
from chainrule.interop.formats import import_run
from chainrule.runs.base import Run
from chainrule.runs.load import load as load


def import_model(path: str | Path, out: str | Path, *, note: Callable[[str], None] = lambda text: None) -> Run:
    """Import a model of another program as a run: an ARPA file, word vectors, or a Hugging Face folder or package.

    Args:
        path: The file or folder, or the name of an installed package.
        out: Folder of the new run. If it exists and holds the same import, it is used.
        note: Called with messages.
    """
    return load(import_run(path, out, note=note).path)
