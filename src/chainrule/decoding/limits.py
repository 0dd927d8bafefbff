"""Limits on the length of generated text."""

from __future__ import annotations

from chainrule.errors import ConfigError


def check_limit(max_new_tokens: int) -> None:
    """Raise an error if a length limit allows no token."""
    if max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens is {max_new_tokens}; expected at least 1")


def length_limit(source: int, window: int | None) -> int:
    """Return the maximum length of the translation of `source` tokens: 2 · source + 20, within the model's window."""
    limit = 2 * source + 20
    return limit if window is None else max(1, min(limit, window - 1))
