"""Server-sent events: parts of an answer as they are computed, with errors as frames and `[DONE]` at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from chainrule.server.errors import ApiError
from chainrule.server.requests import to_json

HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
PING_SECONDS = 15.0
"""A comment is sent after this time without an event, so that proxies keep the connection."""

PING = b": ping\n\n"


class EventStream(Response):
    """An answer of events, which come in lists, an empty list after PING_SECONDS without an event.

    `cancel` is called when the client has gone, `close` in any case.
    """

    def __init__(
        self, events: AsyncIterator[list[Any]], cancel: Callable[[], None], close: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__()
        self._events, self._cancel, self._close = events, cancel, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(disconnected(receive))
        sending = asyncio.create_task(self._send_all(send))
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                self._cancel()
            elif error := sending.exception():
                raise error
        finally:
            self._cancel()
            gone.cancel()
            sending.cancel()
            await asyncio.gather(gone, sending, return_exceptions=True)
            await self._close()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        try:
            async for events in self._events:
                frames = b"".join([b"data: " + to_json(event) + b"\n\n" for event in events])
                await send({"type": "http.response.body", "body": frames or PING, "more_body": True})
            end = b"data: [DONE]\n\n"
        except ApiError as error:
            end = b"data: " + to_json(error.body) + b"\n\n"
        await send({"type": "http.response.body", "body": end, "more_body": False})


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(request: Request, answer: Awaitable[Any], cancel: Callable[[], None]) -> Any:
    """The answer; if the client goes first, cancel the work and raise an error that nobody reads."""
    gone = asyncio.create_task(disconnected(request.receive))
    waiting = asyncio.ensure_future(answer)
    try:
        await asyncio.wait({gone, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
        raise ApiError(499, "the client has disconnected", code="disconnected")
    finally:
        cancel()
        for task in (gone, waiting):
            task.cancel()
        await asyncio.gather(gone, waiting, return_exceptions=True)
