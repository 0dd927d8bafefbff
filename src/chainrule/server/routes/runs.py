"""/page/api/leaderboard, /metrics and /run: what lies in the folders of the runs, also while they are trained."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chainrule.server.errors import invalid
from chainrule.server.requests import JsonResponse
from chainrule.server.run_folders import RunFolders
from chainrule.server.server import Server


def run_routes(server: Server) -> list[Route]:
    """Files of runs, read on another thread than that which computes."""
    folders = RunFolders(server.library.given)

    async def leaderboard(request: Request) -> Response:
        return JsonResponse({"runs": await asyncio.to_thread(folders.leaderboard)})

    async def details(request: Request) -> Response:
        return JsonResponse(await asyncio.to_thread(folders.details, _name(request)))

    async def metrics(request: Request) -> Response:
        return JsonResponse(await asyncio.to_thread(folders.metrics, _name(request), _offset(request)))

    return [
        Route("/page/api/leaderboard", leaderboard),
        Route("/page/api/run", details),
        Route("/page/api/metrics", metrics),
    ]


def _name(request: Request) -> str:
    name = request.query_params.get("run")
    if not name:
        raise invalid("run is missing", "run", "missing_field")
    return name


def _offset(request: Request) -> int:
    given = request.query_params.get("offset", "0")
    if not given.isascii() or not given.isdigit() or len(given) > 15:
        raise invalid(f"offset is {given[:20]!r}; expected a number of bytes", "offset", "invalid_type")
    return int(given)
