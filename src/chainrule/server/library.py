"""The runs of a server: loaded when first used, reloaded when replaced on disk, unloaded when memory is needed."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from chainrule.base.devices import release_memory
from chainrule.base.lazy import LazyKernels
from chainrule.checkpoint.build import check_precision_name
from chainrule.checkpoint.folder import RunFolder
from chainrule.decoding.continuous import ContinuousBatch
from chainrule.errors import ChainruleError, ConfigError, DiskError, RunError
from chainrule.registry import MODELS, RUNS
from chainrule.runs.base import Run
from chainrule.runs.load import load
from chainrule.server.errors import ApiError, invalid, overloaded
from chainrule.server.loop_lock import LoopLock

Stamp = tuple[tuple[int, int, int], ...]
"""Identifies the files of a run: inode, time and size of each."""


AFTER_USE = 0.5
"""Seconds after the last request of a replaced run until it is freed: its answer has been sent by then."""

_imports = threading.Lock()


def import_models(names: Iterable[str]) -> None:
    """Import models and the classes of their runs, one thread at a time: torch cannot be imported by two at once."""
    with _imports:
        for name in names:
            RUNS.get(MODELS.get(name).task)


class LoadedRun:
    """A run in memory."""

    def __init__(self, name: str, run: Run, stamp: Stamp) -> None:
        self.name, self.run, self.stamp = name, run, stamp
        run.shown_name = name  # messages go to clients, who know names and no folders of this computer
        self.lock = LoopLock()  # held while its tokeniser is used
        self.users = 0  # requests that use it now
        self.used = time.monotonic()
        rounded = run.precision == "int8" and run.folder.stored_precision() != "int8"  # by this server
        self.fingerprint = f"chainrule-{run.fingerprint.hex()}{'-int8' if rounded else ''}"
        _ = run.model  # loaded now
        LazyKernels.load_all()

    @cached_property
    def batch(self) -> ContinuousBatch:
        """The texts that its model is continuing."""
        return ContinuousBatch(self.run.model)


@dataclass
class Entry:
    """A run that can be asked for."""

    name: str
    path: Path
    created: int
    model: str  # name of the model
    pairs: bool  # whether it labels pairs of texts
    loaded: LoadedRun | None = None
    refused: Stamp | None = None  # of files that could not be loaded in its place
    loading: bool = False  # whether it is being loaded now
    lock: LoopLock = field(default_factory=LoopLock)

    @property
    def task(self) -> str:
        """The task of its model, which is not imported for it."""
        return MODELS.describe(self.model).task

    @property
    def size(self) -> int:
        """Bytes of its files without those of the training, as an estimate of its memory."""
        total = 0
        for folder, inside, files in os.walk(self.path):  # which passes over folders that are being replaced
            inside[:] = [name for name in inside if name != "training"]
            for name in files:
                with suppress(FileNotFoundError):
                    total += os.stat(f"{folder}/{name}").st_size
        return total

    def stamp(self) -> Stamp:
        """The state of its files on disk."""
        states: list[tuple[int, int, int]] = []
        for name in ("config.toml", "model.safetensors", "tokenizer.json"):
            with suppress(FileNotFoundError, NotADirectoryError):
                state = os.stat(f"{self.path}/{name}")  # each request asks: faster than a Path
                states.append((state.st_ino, state.st_mtime_ns, state.st_size))
        return tuple(states)


class Library:
    """The runs by name."""

    def __init__(
        self,
        runs: Iterable[str | Path],
        *,
        memory: int | None = None,
        device: str = "auto",
        precision: str | None = None,
    ) -> None:
        self.given = [Path(run) for run in runs]
        self.entries = find_runs(self.given)
        self._memory, self._device, self._precision = memory, device, precision
        self._guard = threading.Lock()  # of the numbers of users and of the room, which several event loops change
        if precision is not None:
            check_precision_name(precision)
        for entry in self.entries.values():
            if memory is not None and entry.size > memory:
                raise ConfigError(f"{entry.path} has {_gigabytes(entry.size)}, more than --memory; raise --memory")

    @property
    def loaded(self) -> int:
        """Number of runs in memory."""
        return sum(entry.loaded is not None for entry in self.entries.values())

    def entry(self, name: str | None) -> Entry:
        """The run of this name; None: the only one."""
        if name is None and len(self.entries) == 1:
            return next(iter(self.entries.values()))
        known = ", ".join(self.entries)
        if name is None:
            raise ApiError(400, f"model is missing; give one of {known}", code="missing_field", param="model")
        if name not in self.entries:
            message = f"there is no model {name!r}; this server has {known}"
            raise ApiError(404, message, code="model_not_found", param="model")
        return self.entries[name]

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[LoadedRun]:
        """A loaded run, which stays in memory inside the block."""
        entry = self.entry(name)
        async with entry.lock:
            loaded, stamp = entry.loaded, entry.stamp()
            if loaded is None:
                loaded = await self._load(entry)
            elif stamp not in (loaded.stamp, entry.refused):
                loaded = await self._reload(entry, loaded, stamp)
            with self._guard:
                loaded.users += 1
        try:
            yield loaded
        finally:
            with self._guard:
                loaded.users -= 1
                loaded.used = time.monotonic()
            if loaded is not entry.loaded and not loaded.users:
                del loaded
                asyncio.get_running_loop().call_later(AFTER_USE, self._free_soon)

    def _free_soon(self) -> None:
        """Free what a replaced run held, beside other requests."""
        asyncio.get_running_loop().run_in_executor(None, free_unused)

    async def _reload(self, entry: Entry, old: LoadedRun, stamp: Stamp) -> LoadedRun:
        """Load a run whose files were replaced; requests in work keep the old one.

        The old one is also kept while the files are incomplete: a folder that is being replaced is no reason to refuse
        requests. They are tried again when they change, or with the next request if there was no room for them.
        """
        try:
            return await self._load(entry)
        except ApiError as error:
            if error.status != 429:
                entry.refused = stamp
                print(f"{entry.name} was replaced, but cannot be loaded: {error}", file=sys.stderr, flush=True)
            return old

    async def _load(self, entry: Entry) -> LoadedRun:
        """Load a run."""
        with self._guard:
            unloaded = self._make_room(entry)
            entry.loading = True

        def load_entry() -> None:  # returns nothing: a future would keep the run after it is unloaded
            if unloaded:
                free_unused()
            entry.loaded = self._read(entry)
            release_memory()  # what reading took

        try:
            await asyncio.to_thread(load_entry)
        except (RunError, DiskError, OSError) as error:  # OSError: files are replaced while they are read
            raise ApiError(503, str(error), code="run_unavailable", retry_after=5) from None
        except ChainruleError as error:
            raise invalid(str(error), "model") from None
        finally:
            entry.loading = False
        assert entry.loaded is not None
        return entry.loaded

    def _read(self, entry: Entry) -> LoadedRun:
        """The run in memory; runs without matrices, such as n-grams, are as they are stored at any precision."""
        stamp = entry.stamp()
        entry.created, entry.model, entry.pairs = _facts(entry.path)
        import_models([entry.model])
        plain = MODELS.get(entry.model).make.stores_arrays
        run = load(entry.path, device=self._device, precision=None if plain else self._precision)
        return LoadedRun(entry.name, run, stamp)

    def _make_room(self, wanted: Entry) -> bool:
        """Unload idle runs, the longest unused first, until another fits into the memory -> whether any was.

        A run that is being loaded by another request takes its room already.
        """
        if self._memory is None:
            return False
        size = wanted.size
        if size > self._memory:
            message = f"{wanted.name} has {_gigabytes(size)}, more than this server may keep in memory; use another run"
            raise invalid(message, "model", "above_limit")
        others = [entry for entry in self.entries.values() if (entry.loaded or entry.loading) and entry is not wanted]
        total, before = size + sum(entry.size for entry in others), self.loaded
        settled = [(entry.loaded, entry) for entry in others if entry.loaded is not None and not entry.loading]
        idle = [(loaded.used, entry) for loaded, entry in settled if not loaded.users]
        for _, entry in sorted(idle, key=lambda one: one[0]):
            if total <= self._memory:
                break
            total -= entry.size
            entry.loaded = None
        if total > self._memory:
            raise overloaded("all runs in memory are in use, and there is no room for another; try again later")
        return self.loaded < before


def free_unused() -> None:
    """Free the runs that were unloaded, whose parts refer to one another, and return their memory to the system."""
    gc.collect()
    release_memory()


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} gigabytes"


def find_runs(paths: Iterable[str | Path]) -> dict[str, Entry]:
    """Runs by name."""
    return {name: Entry(name, path, *_facts(path)) for name, path in run_paths(paths).items()}


def run_paths(paths: Iterable[str | Path]) -> dict[str, Path]:
    """Folders of runs by name: the name of a run's folder, or its path below a given folder of runs."""
    found: list[tuple[str, Path]] = []
    for path in map(Path, paths):
        folder = RunFolder.open(path)
        if (folder.path / "config.toml").is_file():
            name = path.resolve().name if folder.path == path else path.stem
            found.append((name, folder.path))
            continue
        inside = sorted(config.parent for config in path.rglob("config.toml"))
        runs = [one for one in inside if not any(other != one and other in one.parents for other in inside)]
        if not runs:
            raise ConfigError(f"{path} is not a run and contains none; give folders that chainrule train made")
        found += [(run.relative_to(path).as_posix(), run) for run in runs]
    if not found:
        raise ConfigError("there is nothing to serve; give at least one run, or a folder of runs")
    names = [name for name, _ in found]
    named = [(name if names.count(name) == 1 else path.as_posix(), path) for name, path in found]
    if len(dict(named)) < len(named):
        raise ConfigError(f"a run was given twice: {', '.join(name for name, _ in named)}; give each once")
    return dict(named)


def _facts(path: Path) -> tuple[int, str, bool]:
    """When a run was made, the name of its model, and whether that labels pairs."""
    model = RunFolder(path).read_config().model
    return int((path / "config.toml").stat().st_mtime), model.name, bool(model.options.get("pairs"))
