"""The manifest of a folder of counts: JSON with a checksum of itself, since what it states becomes part of a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from chainrule.errors import DataError

MANIFEST = "manifest.json"
DIGEST = "digest"


def write_manifest(folder: Path, values: Mapping[str, Any]) -> None:
    """Write the manifest; the other files of the folder come first."""
    text = json.dumps({**values, DIGEST: _digest(values)}, indent=1)
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def read_manifest(folder: Path, kind: TypeAdapter[Any], form: str, command: str) -> Any:
    """The manifest of a folder as an object of `kind`; `form` is its format, `command` what makes such folders."""
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError(
            f"{folder} has no {MANIFEST}: expected a folder of {command}; count the shard again if it was killed"
        )
    try:
        values = json.loads(path.read_bytes())
        if values.pop("format") != form:
            raise ValueError("another format")
        if values.pop(DIGEST) != _digest({"format": form, **values}):
            raise ValueError("another checksum")
        return kind.validate_json(json.dumps(values), strict=True)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DataError(f"{path} is damaged or holds no counts of {command}; count the shard again") from None


def hash_file(path: Path) -> str:
    """The checksum of a file; empty if there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=16).hexdigest()
