"""Routes that are one call of a verb."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chainrule.server.lines import Lines
from chainrule.server.requests import JsonResponse, read_fields, read_form_fields
from chainrule.server.server import Server
from chainrule.server.texts import (
    ClassifyRequest,
    EmbeddingsRequest,
    FillRequest,
    NeighboursRequest,
    ScoreRequest,
    TagRequest,
)
from chainrule.server.translation import TranslateRequest

Endpoint = Callable[[Request], Awaitable[Response]]

CALLS: dict[str, type[Lines] | type[NeighboursRequest]] = {
    "/v1/embeddings": EmbeddingsRequest,
    "/score": ScoreRequest,
    "/classify": ClassifyRequest,
    "/tag": TagRequest,
    "/fill": FillRequest,
    "/neighbours": NeighboursRequest,
}
"""The fields of each route."""


def verb_routes(server: Server) -> list[Route]:
    """Scores, vectors, labels, tags, gaps, neighbours and translations."""

    async def translate(request: Request) -> Response:
        wanted = await read_form_fields(request, TranslateRequest, server.limits)
        if "authorization" not in request.headers and server.keys:
            server.keys.check(f"Bearer {wanted.api_key or ''}")
        name = server.languages.run_for(wanted, server.translators)
        answer = await server.compute(request, name, wanted)
        return JsonResponse(answer | server.languages.assumed(wanted, name))

    async def languages(request: Request) -> Response:
        return JsonResponse(server.languages.listing())

    return [
        *(Route(path, call_route(server, kind), methods=["POST"]) for path, kind in CALLS.items()),
        Route("/translate", translate, methods=["POST"]),
        Route("/languages", languages),
    ]


def call_route(server: Server, kind: type[Any]) -> Endpoint:
    """The endpoint that reads fields of a kind and computes their answer."""

    async def endpoint(request: Request) -> Response:
        wanted = await read_fields(request, kind, server.limits)
        return JsonResponse(await server.compute(request, wanted.model, wanted))

    return endpoint
