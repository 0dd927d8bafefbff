"""A quicker start of the command line: numba does not import what it will not use here.

    scipy.linalg   imported to choose between two forms of the inner product inside `np.convolve` and `np.correlate`,
                   which no kernel here uses. One that uses `np.dot` imports scipy when it is compiled, as always.
    yaml           imported to read the file `.numba_config.yaml` of the working directory, which is rarely there.

Both are optional for numba, and together they take an eighth of a second. The library itself never hides them: other
code in the same process may depend on numba's choices.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

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
