"""Forked processes of one thread each that compute parts of one job.

Threads that meet after every operation wait for one another, and spin while they wait: beside another busy process they
can be slower than one. Processes that meet only when they have results do not. A forked process has all objects of this
one, so nothing is copied to it; its results come back through a pipe.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar

from chainrule.base.devices import device_of, physical_cores, threads
from chainrule.base.lazy import torch
from chainrule.errors import ChainruleError, RunError

T = TypeVar("T")
R = TypeVar("R")

WORTH = 0.5
"""Seconds of work left below which no process is started."""

DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
STANDARD_STREAMS = 3


def can_fork() -> bool:
    """Whether this process may fork: on Linux, from the main thread."""
    return sys.platform == "linux" and threading.current_thread() is threading.main_thread()


def fork(work: Callable[[], None], keep: Collection[int] = ()) -> int:
    """Start `work` in a forked process of one thread, which ends with it or with this process -> its id.

    It has the standard streams and, of all other open files, only those in `keep`: no lock of this process.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: the child uses none of them
        child = os.fork()
    if child:
        return child
    try:
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the main process decides
        for before, after in pairwise([STANDARD_STREAMS - 1, *sorted(keep), 1 << 16]):
            os.closerange(before + 1, after)
        torch.set_num_threads(1)
        work()
    finally:
        os._exit(1)


def ending(status: int) -> str:
    """How a process ended, by the status of `os.waitpid`."""
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def end_children(children: Sequence[int]) -> None:
    """Kill forked processes, and wait for their end."""
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def workers_for(model: object) -> int:
    """The number of processes that may share work of a model: one per core, 1 where it does not compute on the CPU."""
    return physical_cores() if can_fork() and device_of(model).type == "cpu" else 1


def map_shared(model: object, items: Sequence[T], compute: Callable[[T], R]) -> Iterator[R]:
    """Yield `compute` of each item, in order; several processes share the items if there is much work left.

    The first item is computed here with one thread and timed, and the second with all threads if no process is
    started. The items should need similar work.
    """
    alone, rest = [], list(items)
    seconds: list[float] = []
    for count in (1, physical_cores()):
        if rest and not is_worth_sharing(model, seconds, len(rest)):
            began = time.perf_counter()
            with threads(count):
                alone.append(compute(rest.pop(0)))
            seconds.append(time.perf_counter() - began)
    yield from alone
    if is_worth_sharing(model, seconds, len(rest)):
        ranks = range(min(workers_for(model), len(rest)))
        for results in side_by_side([partial(map, compute, rest[rank :: len(ranks)]) for rank in ranks]):
            yield from results
        return
    quickest = physical_cores() if len(seconds) > 1 and seconds[1] < seconds[0] else 1
    for item in rest:
        with threads(quickest):
            result = compute(item)
        yield result


def is_worth_sharing(model: object, seconds: Sequence[float], parts: int) -> bool:
    """Whether processes should share some parts of work, given the time of the first part with one thread."""
    return bool(seconds) and parts > 1 and seconds[0] * parts > WORTH and workers_for(model) > 1


def side_by_side(streams: Sequence[Callable[[], Iterator[R]]]) -> Iterator[list[R]]:
    """Run each stream in a process of its own; yield the next result of every stream that has one left."""
    children: list[int] = []
    waiting: list[tuple[Connection[Any, Any], int]] = []
    try:
        for stream in streams:
            receiver, sender = Pipe(duplex=False)
            children.append(fork(partial(_send_all, stream, sender), keep=[sender.fileno()]))
            sender.close()
            waiting.append((receiver, children[-1]))
        while waiting:
            results = [(one, _receive(*one)) for one in waiting]
            waiting = [one for one, result in results if result]
            if some := [result[0] for _, result in results if result]:
                yield some
    finally:
        end_children(children)
        for receiver, _ in waiting:
            receiver.close()


def _send_all(stream: Callable[[], Iterator[Any]], sender: Connection[Any, Any]) -> None:
    """Send every result as a list of one, then an empty list; an error instead of a result."""
    try:
        for result in stream():
            sender.send([result])
        sender.send([])
    except BrokenPipeError:
        pass  # nobody reads any more
    except BaseException as error:
        own = isinstance(error, ChainruleError) or type(error).__module__ == "builtins"  # others may not pass a pipe
        sender.send(error if own else RuntimeError(f"{type(error).__name__}: {error}"))


def _receive(receiver: Connection[Any, Any], child: int) -> list[Any]:
    try:
        received = receiver.recv()
    except EOFError:  # the child has the only other end, so it is ending
        _, status = os.waitpid(child, 0)
        raise RunError(
            f"a worker process ended before its work was done ({ending(status)}); run again with --threads 1"
        ) from None
    if isinstance(received, BaseException):
        raise received
    result: list[Any] = received
    return result
