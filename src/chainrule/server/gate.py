"""What happens around every request: its id, the API key, the log, the metrics."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Mapping
from typing import Any

from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chainrule.server.errors import ApiError
from chainrule.server.requests import JsonResponse
from chainrule.server.server import Server

PUBLIC = frozenset({"/health", "/", "/page/{file:path}"})
"""Routes without a key, as their patterns."""

OWN_KEY = frozenset({"/translate"})
"""Routes whose key may be in the body; the route checks it."""

PLAIN_ERRORS = frozenset({"/translate", "/languages"})
"""Routes whose errors are a text, as clients of LibreTranslate expect; all others have those of OpenAI."""


def error_response(scope: Scope, error: ApiError, headers: Mapping[str, str] | None = None) -> JsonResponse:
    """The answer that is an error, in the form of the route."""
    plain = scope.get("state", {}).get("route") in PLAIN_ERRORS
    body = {"error": error.message} if plain else error.body
    return JsonResponse(body, error.status, {**error.headers, **(headers or {})})


class Gate:
    """Wraps the routes."""

    def __init__(self, app: ASGIApp, server: Server, routes: list[Route], *, log: bool) -> None:
        self._app, self._server, self._routes, self._log = app, server, routes, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, number, status = time.monotonic(), secrets.token_hex(8), 500
        route = self._route(scope)
        scope.setdefault("state", {}).update(request_id=number, route=route)

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), (b"x-request-id", number.encode())]
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._admitted(route, scope, receive, send_noted)
        finally:
            self._record(route, scope, status, time.monotonic() - began)

    async def _admitted(self, route: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            authorization = dict(scope["headers"]).get(b"authorization")
            given = None if authorization is None else authorization.decode("latin-1")
            if route not in PUBLIC and not (route in OWN_KEY and given is None):
                self._server.keys.check(given)
            if route not in PUBLIC:
                self._server.asked.set()
            counted = route not in PUBLIC and route != "/metrics"
            if counted:
                self._server.check_accepting()
        except ApiError as error:
            await error_response(scope, error)(scope, receive, send)
            return
        self._server.answering += counted
        try:
            await self._app(scope, receive, send)
        finally:
            self._server.answering -= counted

    def _record(self, route: str, scope: Scope, status: int, seconds: float) -> None:
        self._server.metrics.requests.labels(route, str(status)).inc()
        self._server.metrics.latency.labels(route).observe(seconds)
        if self._log:
            state = scope["state"]
            record: dict[str, Any] = {
                "time": round(time.time(), 3),
                "id": state["request_id"],
                "method": scope["method"],
                "route": route,
                "status": status,
                "seconds": round(seconds, 4),
                **{name: state[name] for name in ("model", "prompt") if name in state},
            }
            print(json.dumps(record), file=sys.stderr, flush=True)

    def _route(self, scope: Scope) -> str:
        """The pattern of the route, never the path that a client sent."""
        found = (route.path for route in self._routes if route.matches(scope)[0] is not Match.NONE)
        return next(found, "other")
