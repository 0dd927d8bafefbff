"""A quicker start and end of the command line.

What numba will not use here is not imported:

    scipy.linalg   imported to choose between two forms of the inner product inside `np.convolve` and `np.correlate`,
                   which no kernel here uses. One that uses `np.dot` imports scipy when it is compiled, as always.
    yaml           imported to read the file `.numba_config.yaml` of the working directory, which is rarely there.

Both are optional for numba, and together they take an eighth of a second. The library itself never hides them: other
code in the same process may depend on numba's choices.

The collector of cyclic garbage has next to nothing to find in a short process, but reads every object of the libraries
and of the vocabulary again and again: an eighth of the time of `count`, and when the process ends another fifth.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

OBJECTS = 100_000
"""New objects between two collections of garbage; Python's own number is 700."""

NUMBA_SETTINGS = ".numba_config.yaml"


class _Hidden(MetaPathFinder):
    """Hides modules from numba while the module that would import them is being imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if (name == "scipy.linalg" and _begun("numba.np.arraymath", "_HAVE_BLAS")) or (
            name == "yaml" and _begun("numba.core.config", "_HAVE_YAML") and not os.path.exists(NUMBA_SETTINGS)
        ):
            raise ImportError(f"numba does not need {name} here")


def _begun(module: str, decision: str) -> bool:
    """Whether a module of numba is being imported and has not yet decided whether it has an optional package."""
    found = sys.modules.get(module)
    return found is not None and decision not in vars(found)


def skip_optional_imports() -> None:
    """Let numba start without scipy and yaml in this process."""
    if not any(isinstance(finder, _Hidden) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Hidden())


def collect_rarely() -> None:
    """Search for garbage less often: for verbs that make few objects besides libraries and vocabularies."""
    gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])


def end_without_collecting() -> None:
    """Let the process end without a search for garbage: the system takes its memory back anyway."""
    atexit.register(gc.freeze)
