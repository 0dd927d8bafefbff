"""What all imports and exports share: finding one that is done already, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chainrule.checkpoint.folder import RunFolder
from chainrule.errors import ConfigError


class Exported(NamedTuple):
    """What was written."""

    path: Path
    bytes: int
    ngrams: Sequence[int] = ()  # by order, of an n-gram model
    words: int | None = None  # of vectors
    vector_size: int | None = None


def find_finished(out: Path, request: dict[str, Any], note: Callable[[str], None]) -> RunFolder | None:
    """The run that the same import made before; None if the place is free."""
    if not out.exists():
        return None
    if RunFolder(out).read_request() != request:
        raise ConfigError(f"{out} exists already and was not made by this command; choose another --out")
    note(f"{out} is finished already; choose another --out to import it anew")
    return RunFolder(out)


def figures(model: Any, seconds: float, memory: int) -> dict[str, Any]:
    """What an import came to, told as a training tells it."""
    return {
        "steps": 0,
        "seconds": round(seconds, 2),
        "train_seconds": round(seconds, 2),
        "tokens": 0,
        "parameters": model.parameter_count,
        "tokens_per_second": None,
        "budget": {},
        "peak_memory": memory,
    }
