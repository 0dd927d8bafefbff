"""A server as a process: listens, loads, and on SIGTERM finishes its work before it ends."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from chainrule.errors import ConfigError
from chainrule.server.server import Server

SWITCH_SECONDS = 0.0001
"""Time after which a thread that computes lets another one have its turn: a request must not wait long to be read."""

AFTER_DRAIN = 5
"""Seconds for answers to be sent after the work has ended."""


def run_server(
    app: Starlette, host: str, port: int, *, drain: float, load: bool, page: bool, started: Callable[[str], None]
) -> None:
    """Serve until a signal; `started` gets the address, with the port that was chosen if `port` is 0.

    With `load` all runs are loaded at once. With `page` the page is about to be opened, and comes before everything.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    listener = _listen(host, port)
    address = listener.getsockname()
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    config = uvicorn.Config(
        app,
        http="h11",  # httptools, which uvicorn prefers where it is installed, reads headers without end
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=AFTER_DRAIN,
        timeout_keep_alive=30,
    )
    process = _Process(config, app.state.server, drain, load, page)
    started(f"http://{shown}:{address[1]}")
    process.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
        # Inherited by every connection: an answer that is sent in two parts would wait 40 ms for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen at {host} port {port} ({error}); choose another --host or --port") from None


class _Process(uvicorn.Server):
    """Drains at the first signal, gives what is left an error at the second, and ends at once at the third."""

    def __init__(self, config: uvicorn.Config, server: Server, drain: float, load: bool, page: bool) -> None:
        super().__init__(config)
        self._server, self._drain, self._load, self._page = server, drain, load, page
        self._signalled: float | None = None  # when the first signal came
        self._signals = 0
        self._preparing: asyncio.Task[None] | None = None
        server.loading = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._signals += 1
        self._signalled = self._signalled or time.monotonic()
        self._server.draining = True
        if self._signals == 2:
            self._drain = 0.0
        elif self._signals > 2:
            self.force_exit = self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        if self._preparing is None:
            self._preparing = asyncio.create_task(self._server.prepare(self._load, self._page))
        if self._preparing.done():
            self._preparing.result()  # a run that cannot be loaded ends the server
        ended = await super().on_tick(counter)
        if self._signalled is None or ended:
            return ended
        late = time.monotonic() - self._signalled > self._drain
        if late or not self._server.answering:
            self._server.engine.stop()
            return True
        return False
