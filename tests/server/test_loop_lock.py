"""The lock of several event loops, and an application that is called from several."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import chainrule as cr
from chainrule.server.loop_lock import LoopLock
from services import run_async


def test_one_task_of_all_loops_holds_the_lock() -> None:
    lock, inside, most, done = LoopLock(), 0, 0, 0

    async def enter() -> None:
        nonlocal inside, most, done
        async with lock:
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.0001)
            inside -= 1
            done += 1

    async def many() -> None:
        await asyncio.gather(*(enter() for _ in range(50)))

    with ThreadPoolExecutor(4) as pool:
        for one in [pool.submit(asyncio.run, many()) for _ in range(4)]:
            one.result(60)
    assert (most, done) == (1, 200)


def test_tasks_come_in_order_and_a_cancelled_one_is_passed_over() -> None:
    async def main() -> list[int]:
        lock, order = LoopLock(), list[int]()

        async def enter(number: int) -> None:
            async with lock:
                order.append(number)
                await asyncio.sleep(0)

        async with lock:
            tasks = [asyncio.create_task(enter(number)) for number in range(5)]
            await asyncio.sleep(0)
            tasks[1].cancel()
        await asyncio.sleep(0)
        tasks[0].cancel()  # it was passed the lock
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with lock:
            return order

    assert run_async(main())[-2:] == [3, 4]


def test_an_error_frees_the_lock() -> None:
    async def main() -> str:
        lock = LoopLock()
        with pytest.raises(ValueError, match="inside"):
            async with lock:
                raise ValueError("inside")
        async with lock:
            return "free"

    assert run_async(main()) == "free"


def test_an_application_answers_several_event_loops(runs: Path) -> None:
    """Prompts of this length are tokenised on another thread while the run's lock is held."""
    app = cr.serve([runs / "ngram", runs / "lstm"])
    prompt = "abcd" * 1500

    def ask(number: int) -> list[int]:
        with TestClient(app) as client, ThreadPoolExecutor(4) as pool:
            model = ("ngram", "lstm")[number % 2]
            body = {"model": model, "prompt": prompt, "max_tokens": 1}
            answers = list(pool.map(lambda _: client.post("/v1/completions", json=body), range(8)))
            return [answer.status_code for answer in answers]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == [[200] * 8] * 4
