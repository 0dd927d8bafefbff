"""Trainings of several processes: one is killed, the others end, nothing is left behind, and the training resumes."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from torture import system_calls
from torture.interruption import describing, fail_once, interrupted, let_all, read_message
from torture.kills import compare, contents
from torture.processes import Child, family, no_orphans
from torture.toys import SIZES, STEPS, Training, char, with_ranks, write_data

from chainrule.base.forking import side_by_side
from chainrule.data.store import open_store
from chainrule.text.readers import open_texts
from chainrule.text.tokenizers import train_tokenizer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="uses /proc")

LONG = 3 * STEPS
"""Steps of trainings that are killed in the middle."""

KINDS: dict[str, Training] = {
    "workers": char("lstm", "text.txt", SIZES, {"workers": 2}, steps=LONG, validations=LONG // 2),
    "ranks": with_ranks(char("lstm", "text.txt", SIZES, steps=LONG, validations=LONG // 2)),
}


def wait_for_checkpoint(run: Path) -> None:
    while not list((run / "training").glob("step-*")):
        time.sleep(0.002)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("victim", [0, -1])
def test_a_killed_process_leaves_nothing_behind_and_the_training_resumes(
    kind: str, victim: int, tmp_path: Path
) -> None:
    """The victim is the process that started the others, or the last of these."""
    write_data(tmp_path)
    whole, broken, log = tmp_path / "whole", tmp_path / "broken", tmp_path / "log"
    message, orphans = tmp_path / "message", list[int]()
    assert Child(lambda: KINDS[kind](tmp_path, whole), log).wait() == 0, log.read_text()
    with no_orphans(orphans):
        child = Child(describing(lambda: KINDS[kind](tmp_path, broken), message), log)
        wait_for_checkpoint(broken)
        members = family(child.id)
        maps = [line for one in members for line in Path(f"/proc/{one}/maps").read_text().splitlines()]
        os.kill(members[victim], signal.SIGKILL)
        status = child.wait()
    assert not orphans
    inherited = Path("/proc/self/maps").read_text()  # of other tests of this process
    assert not [line for line in maps if "/dev/shm/" in line and str(tmp_path) not in line and line not in inherited]
    if victim == 0:
        assert status == signal.SIGKILL
    else:
        assert status == 0, log.read_text()
        if (refused := read_message(message)) is not None:  # else it had just ended
            assert "ended" in refused or "failed" in refused
    assert Child(lambda: KINDS[kind](tmp_path, broken), log).wait() == 0, log.read_text()
    assert not compare(contents(whole), contents(broken))


def test_the_loss_of_another_rank_is_a_message(tmp_path: Path) -> None:
    write_data(tmp_path)
    run, log, message = tmp_path / "run", tmp_path / "log", tmp_path / "message"
    child = Child(describing(lambda: KINDS["ranks"](tmp_path, run), message), log)
    wait_for_checkpoint(run)
    os.kill(family(child.id)[1], signal.SIGKILL)
    assert child.wait() == 0, log.read_text()
    refused = read_message(message)
    assert refused is not None
    assert (
        "another process of the training ended or cannot be reached; rerun the same command to resume from the last "
        "checkpoint" in refused
    )


def _numbers(begin: int) -> Iterator[int]:
    for number in range(begin, begin + 200):
        time.sleep(0.01)
        yield number


@pytest.mark.parametrize("victim", [0, 1])
def test_processes_that_share_work_end_together(victim: int, tmp_path: Path) -> None:
    message, log, orphans = tmp_path / "message", tmp_path / "log", list[int]()

    def work() -> None:
        for _ in side_by_side([partial(_numbers, 0), partial(_numbers, 1000)]):
            pass

    with no_orphans(orphans):
        child = Child(describing(work, message), log)
        while len(members := family(child.id)) < 3:
            time.sleep(0.005)
        os.kill(members[victim], signal.SIGKILL)
        status = child.wait()
    assert not orphans
    assert status == (0 if victim else signal.SIGKILL), log.read_text()
    if victim:
        assert read_message(message) == (
            "a worker process ended before its work was done (signal 9); run again with --threads 1"
        )


@pytest.mark.skipif(not system_calls.supported(), reason="system calls are supervised on Linux only")
def test_every_failed_write_of_a_token_store_is_noticed(tmp_path: Path) -> None:
    """numpy.save does not report a write that fails when its file is closed."""
    write_data(tmp_path)
    texts = open_texts([tmp_path / "text.txt"])
    tokenizer, log = train_tokenizer("word", texts), tmp_path / "log"

    def work(place: Path) -> object:
        return open_store(texts, tokenizer, cache=place).tokens[:].sum()

    whole = interrupted(lambda: work(tmp_path / "whole"), tmp_path / "whole", log, let_all)
    assert whole.checked_status == 0, log.read_text()
    writes = [number for number, name in enumerate(whole.operations, 1) if name == "write"]
    assert len(writes) >= 3
    for number in writes:
        place = tmp_path / str(number)
        ended = interrupted(lambda place=place: work(place), place, log, fail_once(number, errno.ENOSPC))  # type: ignore[misc]
        assert ended.refused is not None
        assert "the disk is full" in ended.refused
