"""The folder of files that can be made again: tokenised texts, and which files were found whole."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from chainrule.base.files import temporary_name
from chainrule.errors import DiskError

LIMIT = "CHAINRULE_CACHE_SIZE"
"""Variable of the environment with the most bytes that tokenised texts may take, for example 20G."""


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


def cache_limit() -> int | None:
    """The most bytes that tokenised texts may take; None: no limit."""
    from chainrule.config import parse_bytes  # with pydantic, which the package does without at first

    text = os.environ.get(LIMIT, "").strip()
    return parse_bytes(text, LIMIT) if text else None


def touch(entry: Path) -> None:
    """Mark an entry of the cache as used now."""
    with contextlib.suppress(OSError):  # deleted by another process, or read-only
        os.utime(entry)


def evict(entries: list[Path], keep: Path, limit: int) -> None:
    """Delete the entries that were unused for longest, except `keep`, until all take at most `limit` bytes.

    An entry is renamed before it is deleted, so that other processes find it whole or not at all. What they have mapped
    stays readable.
    """
    known = {entry: found for entry in {*entries, keep} if (found := _used(entry)) is not None}
    total = sum(size for _, size in known.values())
    for entry in sorted(known, key=lambda entry: known[entry]):
        if total <= limit:
            return
        if entry != keep:
            with contextlib.suppress(OSError):  # another process deletes it
                shutil.rmtree(entry.replace(temporary_name(entry)), ignore_errors=True)
            total -= known[entry][1]


def _used(entry: Path) -> tuple[float, int] | None:
    """When an entry was last used, and its bytes; None if another process has deleted it."""
    try:
        return entry.stat().st_mtime, sum(file.stat().st_size for file in entry.iterdir())
    except OSError:
        return None
