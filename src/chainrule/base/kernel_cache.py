"""Compiled kernels are discarded when a source that they were compiled from has changed.

numba stores what it compiled beside the source, and compiles a kernel again when its own file has changed. But a kernel
contains the functions that it calls, also those of other files: after an edit or `git pull`, a kernel whose own file
stayed the same would compute with the old ones. So the times and sizes of all files with kernels are remembered, and a
change in one of them discards what was compiled from the files that import it, directly or not.

Where the package cannot be written, numba would use a folder in the user's home, and fail if there is none: a service
often has a read-only file system and no home. There the kernels are in the cache of the package, in a folder of their
own for every state of the sources.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
RECORD = Path("__pycache__", "kernel_sources.json")
FOLDER = "NUMBA_CACHE_DIR"
"""The variable of the environment that numba reads; worker processes inherit it."""

_IMPORT = re.compile(r"^\s*(?:from|import) chainrule\.([\w.]+)(?: import ([\w, ]+|\([^)]*\)))?", re.MULTILINE)
_KERNELS = re.compile(r"\bnumba\b|\bllvmlite\b")

Stamps = dict[str, list[int]]
"""Time and size of each source, by its path in the package."""


def discard_stale_kernels(package: Path = PACKAGE) -> None:
    """Delete the compiled kernels of changed sources; where the package cannot be written, nothing changes."""
    try:
        known: Stamps = json.loads((package / RECORD).read_bytes())
    except (OSError, ValueError):
        known = {}
    changed = {name for name, stamp in known.items() if _stamp(package / name) != stamp}
    if (known and not changed) or not os.access(package, os.W_OK):  # else every start would read the sources in vain
        return
    with contextlib.suppress(OSError):
        sources = kernel_sources(package)
        for name in importers(sources, changed) if known else sources:
            _discard(package / name)
        _write(package / RECORD, {name: stamp for name in sources if (stamp := _stamp(package / name))})


def place_kernels(package: Path = PACKAGE) -> None:
    """Let numba store compiled kernels in the cache, if the package cannot be written and the user chose no folder."""
    if os.environ.get(FOLDER) or os.access(package, os.W_OK):
        return
    from chainrule.base.cache import default_cache, temporary_cache, usable

    cache = usable(default_cache())
    if cache is None:
        cache = temporary_cache(default_cache())
        atexit.register(_remove, cache, os.getpid())
    stamps = [(path.relative_to(package).as_posix(), _stamp(path)) for path in sorted(package.rglob("*.py"))]
    name = hashlib.blake2b(repr(stamps).encode(), digest_size=8).hexdigest()
    os.environ[FOLDER] = str(cache / "kernels" / name)


def _remove(folder: Path, process: int) -> None:
    """Delete a temporary cache at the end of the process that created it, and not of those that it forked."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def kernel_sources(package: Path) -> dict[str, str]:
    """The text of each file that may contain kernels or constants of kernels, by its path in the package."""
    sources = {}
    for path in sorted(package.rglob("*.py")):
        name, text = path.relative_to(package).as_posix(), path.read_text(encoding="utf-8")
        if name.startswith("engines/") or _KERNELS.search(text):
            sources[name] = text
    return sources


def importers(sources: Mapping[str, str], changed: Iterable[str]) -> set[str]:
    """The changed files, and the sources that import one of them, directly or not."""
    imported = {name: _imports(text) for name, text in sources.items()}
    found, waiting = set(changed), list(changed)
    while waiting:
        module = waiting.pop().removesuffix(".py").replace("/", ".")
        new = {name for name, modules in imported.items() if module in modules and name not in found}
        found |= new
        waiting += new
    return found


def _imports(text: str) -> set[str]:
    """Modules that a file imports, without the name of the package; `from a import b` may mean the module a.b."""
    modules = set()
    for module, names in _IMPORT.findall(text):
        modules |= {module, *(f"{module}.{name}" for name in re.findall(r"\w+", names))}
    return modules


def _stamp(path: Path) -> list[int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_mtime_ns, status.st_size]


def _discard(source: Path) -> None:
    """Delete the index of what was compiled from a source; numba then compiles it again."""
    for index in (source.parent / "__pycache__").glob(f"{source.stem}.*.nbi"):
        index.unlink(missing_ok=True)


def _write(path: Path, stamps: Stamps) -> None:
    """Replace the record at once: several processes may start at the same time."""
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(stamps), encoding="utf-8")
    temporary.replace(path)
