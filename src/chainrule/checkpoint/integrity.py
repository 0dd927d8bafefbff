"""Checksums of a run's files, to notice damage and files of other runs.

`signature` has the SHA-256 of model.safetensors and of the part of config.toml that determines the model. A large file
is read once to check it. The cache then remembers that a file of this inode, size and time is whole, so that loading it
again costs nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from chainrule.base.cache import default_cache, usable
from chainrule.base.known_files import SETTLED

UNCHECKED = ("training", "recipe", "init", "init_embedding")
"""Parts of config.toml that do not determine what a trained model computes."""

UNCHECKED_DATA = ("train", "valid")
"""Likewise of the section `data`: texts may be moved."""


def hash_file(path: Path) -> str:
    """The SHA-256 of a file, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_options(values: Mapping[str, Any]) -> str:
    """The SHA-256 of the options of a run that determine its model; layout and order do not matter."""
    kept = {name: value for name, value in values.items() if name not in UNCHECKED}
    if isinstance(data := kept.get("data"), Mapping):
        kept["data"] = {name: value for name, value in data.items() if name not in UNCHECKED_DATA}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


def is_whole(path: Path, accepted: Collection[str], *, anew: bool = False) -> bool:
    """Whether a file has one of the accepted hashes; it is read if that is not remembered, or to check it `anew`."""
    if not anew and any(_is_remembered(path, digest) for digest in accepted):
        return True
    found = hash_file(path)
    if found in accepted:
        if time.time() - path.stat().st_mtime > SETTLED:
            remember(path, found)
        return True
    return False


def remember(path: Path, digest: str) -> None:
    """Note that a file has this hash, as long as nothing writes it."""
    if (cache := usable(default_cache())) is None:
        return
    with contextlib.suppress(OSError):  # without a note, the file is read again
        marker = cache / "whole" / _state(path, digest)
        marker.parent.mkdir(exist_ok=True)
        marker.touch()


def _is_remembered(path: Path, digest: str) -> bool:
    cache = default_cache()
    return cache is not None and (cache / "whole" / _state(path, digest)).exists()


def _state(path: Path, digest: str) -> str:
    """A name for a hash and the state of a file: any writing changes it."""
    about = path.stat()
    state = f"{about.st_dev} {about.st_ino} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns} {digest}"
    return hashlib.blake2b(state.encode(), digest_size=16).hexdigest()
