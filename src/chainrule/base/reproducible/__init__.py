"""Arithmetic that gives the same bits on every CPU: `mode.py` for torch, `kernels.py` for arrays."""
