"""/page/api/…: what the views of the page compute, each by one call of a run."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chainrule.registry import MODELS
from chainrule.runs.verbs import verbs_of
from chainrule.server.library import Entry, import_models
from chainrule.server.requests import JsonResponse, read_fields
from chainrule.server.routes.verbs import call_route
from chainrule.server.server import Server
from chainrule.server.views.align import AlignRequest, aligned
from chainrule.server.views.bits import BitsRequest, CheckRequest
from chainrule.server.views.labels import LabelsRequest
from chainrule.server.views.measure import MeasureRequest
from chainrule.server.views.next_token import NextTokenRequest
from chainrule.server.views.translation import TranslationRequest
from chainrule.server.views.vectors import VectorsRequest
from chainrule.server.views.why import ForcedRequest, WhyRequest
from chainrule.types import Model

CALLS: dict[str, type[Any]] = {
    "bits": BitsRequest,
    "check": CheckRequest,
    "translation": TranslationRequest,
    "labels": LabelsRequest,
    "vectors": VectorsRequest,
    "measure": MeasureRequest,
    "next": NextTokenRequest,
    "why": WhyRequest,
    "forced": ForcedRequest,
}
"""Views that ask one run: the name below /page/api/ and the fields of the request."""


def view_routes(server: Server) -> list[Route]:
    """The list of runs, and the answers for every view."""

    async def runs(request: Request) -> Response:
        entries = list(server.library.entries.values())
        await asyncio.to_thread(import_models, [entry.model for entry in entries])
        return JsonResponse({"runs": [_record(entry) for entry in entries]})

    async def align(request: Request) -> Response:
        wanted = await read_fields(request, AlignRequest, server.limits)
        return JsonResponse(await aligned(server, request, wanted))

    return [
        Route("/page/api/runs", runs),
        Route("/page/api/align", align, methods=["POST"]),
        *(Route(f"/page/api/{name}", call_route(server, kind), methods=["POST"]) for name, kind in CALLS.items()),
    ]


def _record(entry: Entry) -> dict[str, Any]:
    """A run for the page's menus; nothing is loaded for it."""
    known = MODELS.get(entry.model)
    return {
        "name": entry.name,
        "model": entry.model,
        "family": known.family,
        "task": known.task,
        "verbs": list(verbs_of(known)),
        "modes": list(known.make.modes),
        "pairs": entry.pairs,
        "words": known.make.word_vectors is not Model.word_vectors or known.make.word_table is not Model.word_table,
        "created": entry.created,
    }
