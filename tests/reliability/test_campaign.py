"""The attack campaign in short: a few kills, faults and damaged files of every kind. `make torture` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from torture import fuzzing, kills, readers, surroundings, writers
from torture.fuzzing import Target
from torture.outcomes import Clock, Tally, table
from torture.toys import TRAININGS

from chainrule.errors import DataError


def failures(tallies: list[Tally]) -> str:
    return "\n".join(failure for tally in tallies for failure in tally.failures)


@pytest.mark.parametrize("name", TRAININGS)
def test_killed_trainings_end_like_undisturbed_ones(name: str, tmp_path: Path) -> None:
    tallies = kills.campaign(tmp_path, 1, Clock(600), [name], kills=2)
    assert not failures(tallies)
    assert tallies[0].outcomes["killed"]


def test_damaged_files_are_refused_or_have_no_effect(tmp_path: Path) -> None:
    targets = readers.light_targets(tmp_path / "files")
    light = [target for target in targets if not target.name.startswith("resume")]
    tallies = fuzzing.campaign(light, tmp_path / "light", 1, Clock(600), cases=30)
    heavy = [target for target in targets if target not in light]
    tallies += fuzzing.campaign(heavy, tmp_path / "heavy", 1, Clock(600), cases=3)
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
    found = [one for one in writers.writers(tmp_path / "data") if one.name in ("export arpa", "distill", "tune")]
    tallies = writers.campaign(found, tmp_path, Clock(600), cases=3)
    assert not failures(tallies)
    assert all(tally.outcomes["killed"] and tally.outcomes["failed"] for tally in tallies)
    tallies = surroundings.campaign(found, tmp_path / "surroundings", Clock(600), cases=1)
    assert not failures(tallies)
