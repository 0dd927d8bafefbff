"""A server as a process: listens, loads, and on SIGTERM finishes its work before it ends."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from chainrule.errors import ConfigError
from chainrule.server.server import Server

AFTER_DRAIN = 5
"""Seconds for answers to be sent after the work has ended."""


def run_server(
    app: Starlette, host: str, port: int, *, drain: float, load: bool, started: Callable[[str], None]
) -> None:
    """Serve until a signal; `started` gets the address, with the port that was chosen if `port` is 0."""
    listener = _listen(host, port)
    address = listener.getsockname()
    shown = f"[{address[0]}]" if ":" in address[0] else address[0]
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=AFTER_DRAIN,
        timeout_keep_alive=30,
    )
    process = _Process(config, app.state.server, drain, load)
    started(f"http://{shown}:{address[1]}")
    process.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen at {host} port {port} ({error}); choose another --host or --port") from None


class _Process(uvicorn.Server):
    """Drains at the first signal and ends at the second."""

    def __init__(self, config: uvicorn.Config, server: Server, drain: float, load: bool) -> None:
        super().__init__(config)
        self._server, self._drain, self._load = server, drain, load
        self._signalled: float | None = None
        self._loading: asyncio.Task[None] | None = None
        server.loading = load

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._signalled is not None:
            self.force_exit = self.should_exit = True
        self._signalled = self._signalled or time.monotonic()
        self._server.draining = True

    async def on_tick(self, counter: int) -> bool:
        if self._load and self._loading is None:
            self._loading = asyncio.create_task(self._server.load_all())
        if self._loading is not None and self._loading.done():
            self._loading.result()  # a run that cannot be loaded ends the server
        ended = await super().on_tick(counter)
        if self._signalled is None or ended:
            return ended
        late = time.monotonic() - self._signalled > self._drain
        if late or not self._server.engine.busy:
            self._server.engine.stop()
            return True
        return False
