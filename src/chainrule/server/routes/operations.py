"""/health, /metrics and /v1/models."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chainrule.server.requests import JsonResponse
from chainrule.server.server import Server


def operation_routes(server: Server) -> list[Route]:
    """What the server is and how it fares."""

    async def health(request: Request) -> Response:
        """200 if requests are accepted, 503 while runs are loaded or the server shuts down."""
        status = "draining" if server.draining else "loading" if server.loading else "ok"
        return JsonResponse({"status": status}, 200 if status == "ok" else 503)

    async def metrics(request: Request) -> Response:
        return Response(server.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(request: Request) -> Response:
        return JsonResponse({"object": "list", "data": [_record(server, name) for name in server.library.entries]})

    async def model(request: Request) -> Response:
        return JsonResponse(_record(server, request.path_params["name"]))

    return [
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", model),
    ]


def _record(server: Server, name: str) -> dict[str, Any]:
    entry = server.library.entry(name)
    record = {"id": entry.name, "object": "model", "created": entry.created, "owned_by": "chainrule"}
    return record | {"architecture": entry.model, "loaded": entry.loaded is not None}
