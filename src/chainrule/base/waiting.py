"""How long a thread of a parallel loop spins before it sleeps; set before torch loads its OpenMP library.

By default such a thread spins for milliseconds. Beside one other busy process, two threads then compute 30 times slower
than one; with a short spin they compute at half the speed of one, and the choice of threads does the rest.
"""

from __future__ import annotations

import os

SPIN_COUNT = "1000"


def set_wait_policy() -> None:
    """Make waiting threads sleep soon, unless the user has set a policy."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
