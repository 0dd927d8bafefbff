"""The folder of files that can be made again: tokenised texts, and which files were found whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from chainrule.errors import DiskError


def default_cache() -> Path | None:
    """$CHAINRULE_CACHE, else `chainrule` in $XDG_CACHE_HOME or in ~/.cache; None if the user has no home."""
    if chosen := os.environ.get("CHAINRULE_CACHE"):
        return Path(chosen)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "chainrule"
    try:
        return Path.home() / ".cache" / "chainrule"
    except RuntimeError:  # a user without an entry in the password file, as in some containers
        return None


def usable(cache: Path | None) -> Path | None:
    """The cache, created if needed; None if it cannot be written."""
    if cache is None:
        return None
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return cache if os.access(cache, os.W_OK | os.X_OK) else None


def temporary_cache(cache: Path | None) -> Path:
    """A new temporary folder in place of a cache that cannot be written."""
    try:
        return Path(tempfile.mkdtemp(prefix="chainrule-"))
    except OSError:
        raise DiskError(
            f"neither the cache {cache or '~/.cache'} nor a temporary folder can be written; set CHAINRULE_CACHE to a "
            "folder with write permission"
        ) from None
