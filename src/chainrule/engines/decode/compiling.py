"""How the kernels of the decoding engine are compiled."""

from __future__ import annotations

from typing import Any

from numba import njit

from chainrule.base.kernels import FAST_MATH

# Division by zero must not raise: the test for it would prevent vector instructions. Kernels allocate nothing, so that
# numba need not count the references to arrays, which would take longer than the arithmetic of a small layer.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}

compiled: Any = njit(cache=True, nogil=True, **_OPTIONS)
"""Decorator of a kernel. Operations are rounded as written, so that vector and scalar code give the same numbers."""

summing: Any = njit(cache=True, nogil=True, fastmath=FAST_MATH, **_OPTIONS)
"""Decorator of a kernel that only sums: its loop may add in another order, which is the same for equal lengths."""

inlined: Any = njit(inline="always", **_OPTIONS)
"""Decorator of a function that becomes part of the kernels that call it."""
