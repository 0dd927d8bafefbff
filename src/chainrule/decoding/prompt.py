"""What every way of decoding needs to know before it begins."""

from __future__ import annotations

from chainrule.errors import ConfigError


def check_limit(max_new_tokens: int) -> None:
    """Refuse a length limit that leaves nothing to generate."""
    if max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens is {max_new_tokens}, but at least 1 token must be asked for.")
