"""Arithmetic that gives the same bits on every CPU."""

from chainrule.base.reproducible.mode import reproducible as reproducible
