"""Runs in memory: the bound holds while several are loaded, and what is unloaded or replaced is freed."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chainrule.errors import ConfigError
from chainrule.server import library
from chainrule.server.errors import ApiError
from chainrule.server.library import Entry, Library
from services import run_async


@pytest.fixture
def no_accidental_collection() -> Iterator[None]:
    """Parts of a model refer to one another; without this, the garbage collector might come by itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def bound_for_one(runs: Path) -> int:
    """Bytes that each of these runs fits into, but no two of them."""
    return max(Entry(name, runs / name, 0, name, False).size for name in ("lstm", "transformer")) + 100


async def use(served: Library, name: str, seconds: float = 0.0) -> weakref.ref[Any]:
    """Use a run as a completion does -> a reference to its model."""
    async with served.use(name) as loaded:
        loaded.batch.pass_rows(loaded.batch.model.start(1))
        await asyncio.sleep(seconds)
        return weakref.ref(loaded.run.model)


@pytest.mark.usefixtures("no_accidental_collection")
def test_an_unloaded_run_is_freed_before_the_next_is_loaded(runs: Path) -> None:
    served = Library([runs / "lstm", runs / "transformer"], memory=bound_for_one(runs))

    async def use_both() -> None:
        first = await use(served, "lstm")
        assert first() is not None
        second = await use(served, "transformer")
        assert (first(), served.loaded) == (None, 1)
        assert second() is not None

    run_async(use_both())


def test_runs_that_are_loaded_at_the_same_time_stay_below_the_bound(runs: Path) -> None:
    served = Library([runs / "lstm", runs / "transformer"], memory=bound_for_one(runs))

    async def use_both() -> None:
        found = await asyncio.gather(use(served, "lstm"), use(served, "transformer"), return_exceptions=True)
        [refused] = [one for one in found if isinstance(one, BaseException)]
        assert isinstance(refused, ApiError)
        assert refused.status == 429
        assert served.loaded == 1

    run_async(use_both())


@pytest.mark.usefixtures("no_accidental_collection")
def test_a_replaced_run_is_freed_after_its_last_request(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "AFTER_USE", 0.0)
    shutil.copytree(runs / "lstm", tmp_path / "model")
    shutil.copytree(runs / "ngram", tmp_path / "other")
    served = Library([tmp_path / "model"])

    async def replace() -> None:
        async with served.use("model"):
            first = await use(served, "model")
            (tmp_path / "model").rename(tmp_path / "old")
            (tmp_path / "other").rename(tmp_path / "model")
            await use(served, "model")
            assert served.entry("model").model == "ngram"  # as /v1/models lists it
            assert first() is not None  # the request above uses it
        for _ in range(2000):
            if first() is None:
                break
            await asyncio.sleep(0.01)
        assert first() is None

    run_async(replace())


def test_a_run_that_has_grown_above_the_bound_is_not_loaded_again(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs / "ngram", tmp_path / "model")
    size = Entry("model", tmp_path / "model", 0, "ngram", False).size
    served = Library([tmp_path / "model"], memory=size + 100)

    async def grow() -> None:
        before = await use(served, "model")
        (tmp_path / "model" / "notes").write_bytes(b"x" * 200)
        (tmp_path / "model" / "config.toml").touch()
        after = await use(served, "model")
        assert after() is before() is not None
        served.entry("model").loaded = None
        with pytest.raises(ApiError, match="more than this server may keep in memory") as caught:
            await use(served, "model")
        assert caught.value.status == 400  # it would not help to try again

    run_async(grow())
    assert "model was replaced, but cannot be loaded: model has" in capsys.readouterr().err


def test_the_precision_is_that_of_networks_and_is_checked_at_the_start(runs: Path) -> None:
    served = Library([runs / "ngram", runs / "lstm"], precision="int8")

    async def precisions() -> list[str]:
        async with served.use("ngram") as counted, served.use("lstm") as network:
            assert network.fingerprint == f"chainrule-{network.run.fingerprint.hex()}-int8"
            return [counted.run.precision, network.run.precision]

    assert run_async(precisions()) == ["float32", "int8"]
    with pytest.raises(ConfigError, match="--precision is 'int4'; expected float32 or int8"):
        Library([runs / "lstm"], precision="int4")
    with pytest.raises(ConfigError, match=r"lstm has [\d.e-]+ gigabytes, more than --memory; raise --memory"):
        Library([runs / "lstm"], memory=10)


def test_files_that_vanish_while_they_are_read_do_not_harm_the_run_in_memory(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(runs / "ngram", tmp_path / "model")
    served = Library([tmp_path / "model"])

    def vanished(path: Path, **options: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory", str(path / "model.safetensors"))

    async def replace() -> None:
        before = await use(served, "model")
        (tmp_path / "model" / "config.toml").touch()
        with monkeypatch.context() as patched:
            patched.setattr(library, "load", vanished)
            assert (await use(served, "model"))() is before()
            served.entry("model").loaded = None
            with pytest.raises(ApiError, match="No such file") as caught:
                await use(served, "model")
            assert (caught.value.status, caught.value.retry_after) == (503, 5)
        await use(served, "model")

    run_async(replace())


def test_the_size_of_a_folder_that_is_being_replaced(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(runs / "lstm", tmp_path / "model")
    entry = Entry("model", tmp_path / "model", 0, "lstm", False)
    whole = sum(
        path.stat().st_size
        for path in (runs / "lstm").rglob("*")
        if path.is_file() and "training" not in path.relative_to(runs).parts
    )
    assert entry.size == whole
    stat = os.stat

    def vanishing(path: Any, **options: Any) -> os.stat_result:
        found = stat(path, **options)
        if str(path).endswith("model.safetensors"):
            shutil.rmtree(tmp_path / "model")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", vanishing)
        assert 0 < entry.size <= whole
    assert entry.size == 0
