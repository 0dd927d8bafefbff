"""The thread that computes: every request is a generator on it, and texts of one model are continued together.

A generator yields the tokens that it appends to rows of its run's `ContinuousBatch`, or an empty list to let others
compute. Each turn resumes every running generator once and then takes one step of every batch. So texts join and leave
at each step, long work is interleaved with short work, and models are never used by two threads.

The prompts of all texts that begin in a turn are read together, and their first tokens are sent before anything else
is computed. The event loop and this thread share the interpreter's lock, and each would otherwise wait for the other.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any

from chainrule.base.devices import threads
from chainrule.decoding.continuous import ContinuousBatch, Opening, Row
from chainrule.server.errors import ApiError, as_api_error, overloaded, shutting_down
from chainrule.server.limits import Limits
from chainrule.server.metrics import Metrics

WINDOW = 0.003
"""Seconds that an idle engine waits after the first text, so that texts that come together begin together, where only
prefixes of equal length share a pass."""

ARRIVAL_TURNS = 3
"""Turns of the event loop before an idle engine begins: one receives the requests that have come meanwhile, and one
reads them. Without any it takes some microseconds."""

DELIVERY = 0.005
"""Seconds that first tokens have to be sent before the next ones are computed."""

Moves = list[tuple[Row, int]]
Steps = Generator[Moves, None, Any]


class Work:
    """One request on the engine. `emit` sends parts of the answer; what the generator returns is its end."""

    def __init__(
        self, steps: Callable[[Work], Steps], batch: ContinuousBatch | None = None, *, rows: int = 1, tokens: int = 0
    ) -> None:
        self.batch, self.rows, self.tokens = batch, rows, tokens
        self.openings: list[Opening] = []  # read before it is resumed
        self.cancelled = self.announced = False  # announced: whether it has sent a part
        self.arrived = self.began = time.monotonic()
        self.steps: Steps = steps(self)
        self.outbox: Outbox | None = None  # of the engine, once it computes
        self.loop = asyncio.get_running_loop()
        self._events: deque[tuple[str, Any]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._end: Any = None

    # On the engine

    def emit(self, part: Any) -> None:
        """Send a part of the answer, the first one urgently."""
        self._send("part", part)
        if not self.announced and self.outbox is not None:
            self.announced = self.outbox.urgent = True

    def end(self, result: Any) -> None:
        """Send the end of the answer."""
        self._send("end", result)

    def fail(self, error: BaseException) -> None:
        """Send an error; an unforeseen one is logged."""
        failure = as_api_error(error)
        if failure.status == 500:
            traceback.print_exception(error, file=sys.stderr)
        self._send("error", failure)

    def _send(self, kind: str, value: Any) -> None:
        self._events.append((kind, value))
        if self.outbox is None:
            _on_loop(self.loop, self.wake)
        else:
            self.outbox.add(self)

    # On the event loop

    def wake(self) -> None:
        """Let the reader of the parts go on."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def parts(self, timeout: float | None = None) -> AsyncIterator[list[Any]]:
        """The parts of the answer, as many at once as there are; errors are raised.

        After `timeout` seconds without any, an empty list.
        """
        while True:
            if not self._events:
                self._waiter = self.loop.create_future()
                timer = None if timeout is None else self.loop.call_later(timeout, self.wake)
                try:
                    await self._waiter
                finally:
                    if timer is not None:
                        timer.cancel()
            found, last = self._new_parts()
            if found or last is None:
                yield found
            if last is not None:
                kind, self._end = last
                if kind == "error":
                    raise self._end
                return

    def _new_parts(self) -> tuple[list[Any], tuple[str, Any] | None]:
        """The parts that have come, and the end or the error after them if it has come."""
        found: list[Any] = []
        while self._events:
            event = self._events.popleft()
            if event[0] != "part":
                return found, event
            found.append(event[1])
        return found, None

    async def result(self) -> Any:
        """The end of the answer."""
        async for _ in self.parts():
            pass
        return self._end


class Outbox:
    """Work with news for the event loop, which is woken once for all of it: that takes longer than a small step."""

    def __init__(self) -> None:
        self.urgent = False  # whether some of it is the first part of an answer
        self._news: dict[Work, None] = {}

    def add(self, work: Work) -> None:
        """Note that a work has news."""
        self._news[work] = None

    def flush(self) -> None:
        """Wake the event loops of all work that has news, and wait until they have sent it if it is urgent."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Work]] = {}
        for work in self._news:
            by_loop.setdefault(work.loop, []).append(work)
        self._news.clear()
        deliveries = [_deliver(loop, some) for loop, some in by_loop.items()]
        if self.urgent:
            self.urgent = False
            for delivered in deliveries:
                delivered.wait(DELIVERY)


def _deliver(loop: asyncio.AbstractEventLoop, works: list[Work]) -> threading.Event:
    """Wake the readers of works -> an event, set when they have had their turn."""
    delivered = threading.Event()

    def wake() -> None:
        for work in works:
            work.wake()
        loop.call_soon(delivered.set)

    _on_loop(loop, wake)
    return delivered


def _on_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)


def _after_others(loop: asyncio.AbstractEventLoop, call: Callable[[], None], turns: int = ARRIVAL_TURNS) -> None:
    """Call after the requests that came together with this one have been read."""
    loop.call_soon(*((_after_others, loop, call, turns - 1) if turns else (call,)))


class Engine:
    """Runs work on one thread, which begins with the first request."""

    def __init__(self, limits: Limits, metrics: Metrics, threads: int = 1) -> None:
        self._limits, self._metrics, self._threads = limits, metrics, threads
        self._changed = threading.Condition()
        self._waiting: deque[Work] = deque()
        self._running: list[Work] = []
        self._outbox = Outbox()
        self._thread: threading.Thread | None = None
        self._stopping = False
        metrics.running.set_function(lambda: len(self._running))
        metrics.waiting.set_function(lambda: len(self._waiting))
        metrics.rows.set_function(self._texts)

    def start(self) -> None:
        """Accept work, also after `stop`."""
        with self._changed:
            self._stopping = False

    def submit(self, work: Work) -> None:
        """Queue a request, or refuse it because too much is waiting."""
        with self._changed:
            if self._stopping:
                raise shutting_down()
            self._drop_waiting()
            queued = self._queued()
            tokens = sum(other.tokens for other in queued)
            if len(queued) >= self._limits.queue:
                raise overloaded(f"{len(queued)} requests are waiting; try again later")
            if queued and tokens + work.tokens > self._limits.queue_tokens:
                raise overloaded(f"requests with {tokens} tokens are waiting; try again later")
            self._waiting.append(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._compute, name="chainrule engine", daemon=True)
                self._thread.start()
        _after_others(work.loop, self._notify)

    def _queued(self) -> list[Work]:
        """Waiting requests without those for which there is room now: they only wait for the next turn."""
        room, waiting = self._limits.rows - sum(work.rows for work in list(self._running)), list(self._waiting)
        for place, work in enumerate(waiting):
            room -= work.rows
            if room < 0 and (place or self._running):
                return waiting[place:]
        return []

    def cancel(self, work: Work) -> None:
        """Stop computing a request whose answer nobody reads."""
        work.cancelled = True
        self._notify()

    def stop(self) -> None:
        """End the thread; what is left gets an error, and so does what comes later."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify()

    def _texts(self) -> int:
        """Number of texts being continued."""
        return sum(len(batch) for batch in {work.batch for work in list(self._running)} if batch is not None)

    def _drop_waiting(self) -> None:
        """Remove requests from the queue whose client has gone, or that have waited too long."""
        latest = time.monotonic() - self._limits.seconds
        if not any(work.cancelled or work.arrived < latest for work in self._waiting):
            return
        for work in self._waiting:
            if work.arrived < latest:
                work.fail(overloaded(f"the request waited more than {self._limits.seconds:g} seconds; try again later"))
        self._waiting = deque(work for work in self._waiting if not work.cancelled and work.arrived >= latest)

    def _compute(self) -> None:
        while not self._stopping:
            with self._changed:
                idle = not self._running
                while not (self._waiting or self._running or self._stopping):
                    self._changed.wait()
            if idle and any(work.batch is not None and work.batch.needs_company for work in self._waiting):
                time.sleep(WINDOW)
            with self._changed:
                self._admit()
            with threads(self._threads):
                self._turn()
        with self._changed:
            left = [*self._running, *self._waiting]
            self._running.clear()
            self._waiting.clear()
            self._thread = None
        for work in left:
            work.steps.close()
            work.fail(shutting_down())
        self._outbox.flush()

    def _admit(self) -> None:
        """Begin waiting requests, in order, while there is room."""
        self._drop_waiting()
        rows = sum(work.rows for work in self._running)
        while self._waiting and (not self._running or rows + self._waiting[0].rows <= self._limits.rows):
            work = self._waiting.popleft()
            work.began = time.monotonic()
            self._metrics.queue_time.observe(work.began - work.arrived)
            work.outbox = self._outbox
            self._running.append(work)
            rows += work.rows

    def _turn(self) -> None:
        """Resume every request once, then take one step of every batch."""
        moves: dict[ContinuousBatch, Moves] = {}
        for work in list(self._running):
            self._resume(work, moves)
        for work in self._open_texts():
            self._resume(work, moves)
        self._outbox.flush()  # tokens are sent while the next ones are computed
        for batch, wanted in moves.items():
            self._try([work for work in self._running if work.batch is batch], batch.advance, wanted)
        self._outbox.flush()

    def _open_texts(self) -> list[Work]:
        """Read the prompts of texts that begin, those of a batch together -> the requests that wanted it."""
        by_batch: dict[ContinuousBatch, list[Work]] = {}
        for work in self._running:
            if work.openings and work.batch is not None:
                by_batch.setdefault(work.batch, []).append(work)
        for batch, works in by_batch.items():
            self._try(works, batch.open_all, [opening for work in works for opening in work.openings])
        opened = [work for works in by_batch.values() for work in works]
        for work in opened:
            work.openings = []
        return [work for work in opened if work in self._running]

    def _try(self, works: list[Work], call: Callable[[Any], None], given: Any) -> None:
        """Compute for some requests; an error ends these, and no others."""
        try:
            call(given)
        except BaseException as error:  # whatever it is, the others must go on
            for work in works:
                self._finish(work)
                work.fail(error)

    def _resume(self, work: Work, moves: dict[ContinuousBatch, Moves]) -> None:
        """Let a request go on, and add what it appends to its texts."""
        late = time.monotonic() - work.arrived > self._limits.seconds
        if work.cancelled or late:
            self._finish(work)
            if late:
                work.fail(_too_slow(self._limits.seconds))
            return
        try:
            wanted = next(work.steps)
            if wanted and work.batch is not None:
                moves.setdefault(work.batch, []).extend(wanted)
        except StopIteration as stop:
            self._finish(work)
            work.end(stop.value)
        except BaseException as error:  # whatever it is, the others must go on
            self._finish(work)
            work.fail(error)

    def _finish(self, work: Work) -> None:
        """Remove a request; its generator closes its rows."""
        self._running.remove(work)
        work.steps.close()


def _too_slow(seconds: float) -> ApiError:
    return ApiError(400, f"the request took more than {seconds:g} seconds; ask for fewer tokens", code="time_limit")
