"""A lock for tasks of several event loops; one of asyncio belongs to the first loop in which a task waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections import deque


class LoopLock:
    """Held by one task at a time inside `async with`, in the order in which they came."""

    def __init__(self) -> None:
        self._guard = threading.Lock()  # held for a moment only
        self._held = False
        self._turns: deque[asyncio.Future[None]] = deque()  # of the tasks that wait

    async def __aenter__(self) -> None:
        with self._guard:
            if not self._held:
                self._held = True
                return
            turn = asyncio.get_running_loop().create_future()
            self._turns.append(turn)
        try:
            await turn
        except BaseException:
            self._leave(turn)
            raise

    async def __aexit__(self, *error: object) -> None:
        self._release()

    def _leave(self, turn: asyncio.Future[None]) -> None:
        """Stop waiting; if the lock was passed on to this task already, the next one gets it."""
        with self._guard:
            waiting = turn in self._turns
            if waiting:
                self._turns.remove(turn)
        if not waiting:
            self._release()

    def _release(self) -> None:
        with self._guard:
            while self._turns:
                turn = self._turns.popleft()
                try:
                    turn.get_loop().call_soon_threadsafe(_give, turn)
                except RuntimeError:  # its loop is closed
                    continue
                return
            self._held = False


def _give(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # it may be cancelled
        turn.set_result(None)
