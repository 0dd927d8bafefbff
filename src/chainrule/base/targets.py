"""Where results may be written: one rule for every verb, checked before any work is done.

A file may be new or replace a regular file. A folder may be new or empty, or one that the same command began. Nothing
else is ever written into.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from chainrule.errors import ConfigError, DiskError

NAME_BYTES = 230
"""The longest name: file systems allow 255 bytes, and the name of a temporary file is longer by 24."""

SYSTEM_FOLDERS = tuple(map(Path, ("/proc", "/sys")))
"""Folders that look like disks but keep no files."""


def check_file(path: str | Path) -> Path:
    """The path of a file that will be written; a folder, a device and a place that cannot hold it are refused."""
    place = _check_place(path)
    if place.is_dir():
        raise ConfigError(f"{place} is a folder: expected the name of a file to write; add one")
    if place.exists() and not place.is_file():
        raise ConfigError(f"{place} is not a regular file; choose another name")
    return place


def check_folder(path: str | Path, ours: Callable[[], bool] = lambda: False) -> Path:
    """The path of a folder that will be written: new or empty, or `ours`, that is, begun by the same command."""
    place = _check_place(path)
    if place.exists() and not place.is_dir():
        raise ConfigError(f"{place} is a file: expected a new or empty folder; choose another place")
    if place.is_dir() and any(place.iterdir()) and not ours():
        raise ConfigError(f"{place} is not empty and was not made by this command; choose another place")
    return place


def _check_place(path: str | Path) -> Path:
    """Refuse a path at which nothing can be written."""
    place = Path(path)
    if "\0" in str(path):
        raise ConfigError(f"{str(path)!r} contains a NUL character; choose another name")
    if max((len(os.fsencode(part)) for part in place.parts), default=0) > NAME_BYTES:
        raise ConfigError(f"{str(place)[:60]}… has a name of more than {NAME_BYTES} bytes; choose a shorter one")
    try:
        above = _existing(place)
        resolved = above.resolve()
    except OSError as error:
        raise ConfigError(f"{str(place)[:200]} cannot be written ({error.strerror}); choose another place") from None
    if above != place and not above.is_dir():
        raise ConfigError(f"{place} is below {above}, which is a file; choose another place")
    if any(folder == resolved or folder in resolved.parents for folder in SYSTEM_FOLDERS):
        raise ConfigError(f"{place} is in {resolved}, which belongs to the system; choose another place")
    if above != place and not os.access(above, os.W_OK | os.X_OK):
        raise DiskError(f"{place} cannot be written (no permission in {above}); choose a folder with write permission")
    return place


def _existing(place: Path) -> Path:
    """The path itself if it exists, else the nearest folder above it that does."""
    for above in (place, *place.parents):
        try:
            above.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        return above
    return Path()
