"""The attack campaign in short: a few kills, faults and damaged files of every kind. `make torture` is the long one."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from torture import fuzzing, kills, readers, requests, surroundings, system_calls, verbs, writers
from torture.fuzzing import Target
from torture.outcomes import Clock, Tally, table
from torture.toys import TRAININGS, write_data
from torture.verbs import Writer, file_at
from torture.writers import Bed

from chainrule import serve
from chainrule.base.files import write_atomically
from chainrule.errors import DataError, DiskError
from chainrule.server.limits import Limits
from services import run_async


def failures(tallies: list[Tally]) -> str:
    return "\n".join(failure for tally in tallies for failure in tally.failures)


@pytest.mark.parametrize("name", TRAININGS)
def test_killed_trainings_end_like_undisturbed_ones(name: str, tmp_path: Path) -> None:
    tallies = kills.campaign(tmp_path, 1, Clock(600), [name], kills=2)
    assert not failures(tallies)
    assert tallies[0].outcomes["killed"]


@pytest.mark.parametrize(("many", "few"), [(10, 1), pytest.param(60, 6, marks=pytest.mark.slow)])
def test_damaged_files_are_refused_or_have_no_effect(tmp_path: Path, many: int, few: int) -> None:
    targets = readers.light_targets(tmp_path / "files")
    light = [target for target in targets if not target.name.startswith("resume")]
    tallies = fuzzing.campaign(light, tmp_path / "light", 1, Clock(600), cases=many)
    heavy = [target for target in targets if target not in light]
    tallies += fuzzing.campaign(heavy, tmp_path / "heavy", 1, Clock(600), cases=few)
    assert not failures(tallies)
    assert all(tally.cases for tally in tallies)


def outcome(read: object, tmp_path: Path, expected: object = None) -> str:
    path = tmp_path / "file"
    target = Target("file", path, "binary", read, same=expected is not None)  # type: ignore[arg-type]
    return fuzzing.one_case(target, b"x", expected, 1 << 26)[0]


def test_every_kind_of_failure_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise DataError("no")

    with fuzzing.alarms():
        assert outcome(lambda: None, tmp_path) == "accepted"
        assert outcome(refuse, tmp_path) == "refused"
        assert outcome(lambda: 1 / 0, tmp_path) == "bug"
        assert outcome(lambda: 2, tmp_path, expected=1) == "silent"
        assert outcome(lambda: len(b"x" * (1 << 27)), tmp_path) == "memory"
        monkeypatch.setattr(fuzzing, "SECONDS", 0.1)
        assert outcome(lambda: [None for _ in iter(int, 1)], tmp_path) == "hang"


def test_a_crash_of_a_reader_is_noticed_and_the_others_are_read(tmp_path: Path) -> None:
    import os

    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    target = Target("file", path, "binary", lambda: os.kill(os.getpid(), 9 * (path.read_bytes() == b"")))
    (tally,) = fuzzing.campaign([target], tmp_path / "place", 1, Clock(60), cases=100)
    assert tally.outcomes["crash"]
    assert tally.cases == 100
    assert "case" in tally.failures[0]
    assert table("fuzz", [tally]).splitlines()[-1].startswith("| all | 100 |")


def test_writers_that_are_killed_or_fail_leave_the_old_or_the_new(tmp_path: Path) -> None:
    found = [one for one in verbs.writers(tmp_path / "data") if one.name in ("export arpa", "distill", "tune")]
    tallies = writers.campaign(found, tmp_path / "writers", 1, Clock(600), cases=3)
    assert not failures(tallies)
    assert all(tally.outcomes["killed"] and tally.outcomes["failed"] for tally in tallies)
    tallies = surroundings.campaign(found, tmp_path / "surroundings", 1, Clock(600), cases=1)
    assert not failures(tallies)


def bed(write: Callable[[Path], object], tmp_path: Path) -> Bed:
    writer = Writer("made", write, file_at("file"), lambda out: (out / "file").write_text("old"))
    return Bed(writer, tmp_path / "bed", random.Random(1))


def test_a_writer_that_leaves_a_part_is_noticed(tmp_path: Path) -> None:
    (tally,) = _disturbed(bed(lambda out: (out / "file").write_text("new" * 5), tmp_path))
    assert "neither the old content nor the new" in tally.failures[0]


def test_a_writer_that_ignores_an_error_is_noticed(tmp_path: Path) -> None:
    def write(out: Path) -> None:
        with contextlib.suppress(DiskError):
            write_atomically(out / "file", "new")

    (tally,) = _disturbed(bed(write, tmp_path))
    assert tally.outcomes["silent"]
    assert "the call ended well" in tally.failures[0]


def test_a_writer_that_leaves_the_old_or_the_new_is_not(tmp_path: Path) -> None:
    (tally,) = _disturbed(bed(lambda out: write_atomically(out / "file", "new"), tmp_path))
    assert not tally.failures
    assert tally.outcomes["killed"] > 3


def _disturbed(bed: Bed) -> list[Tally]:
    for number in range(1, len(bed.names) + 1):
        bed.disturb(number)
    return [bed.tally]


@pytest.mark.skipif(not system_calls.supported(), reason="system calls are supervised on Linux only")
def test_compiled_libraries_are_disturbed_too(tmp_path: Path) -> None:
    def work() -> None:
        save_file({"x": np.zeros(3)}, tmp_path / "root" / "x.safetensors")
        (tmp_path / "elsewhere").write_text("not counted")

    (tmp_path / "root").mkdir()
    status, names = system_calls.supervise(work, tmp_path / "root", tmp_path / "log", lambda number, name: 0)
    assert status == 0
    assert names == ["open", "truncate", "write", "rename"]
    assert system_calls.supervise(work, tmp_path / "root", tmp_path / "log", lambda number, name: None)[0] == 9


def test_the_server_refuses_lines_that_it_would_translate_for_minutes(tmp_path: Path) -> None:
    """Found by fuzzing: one line of 5,000 characters kept the server busy for 14 seconds."""
    write_data(tmp_path)
    TRAININGS["translator"](tmp_path, tmp_path / "run")
    app = serve(tmp_path / "run", limits=Limits(tokens=20), languages={"run": ("xx", "yy")})
    body = json.dumps({"q": ["ab ba", "ab" * 15], "source": "auto", "target": "yy"}).encode()
    status, answer = run_async(requests.call(app, "/translate", body))
    assert status == 400
    assert b"q has a line of 30 tokens; this server allows at most 20: divide it" in answer
