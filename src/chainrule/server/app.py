"""The routes of a server, and `serve`: runs as an ASGI application.

app = chainrule.serve(["runs/ngram", "runs/lstm"])   # for uvicorn, or to mount in another application
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chainrule.errors import ChainruleError
from chainrule.server.auth import ApiKeys
from chainrule.server.errors import ApiError, as_api_error
from chainrule.server.gate import Gate, error_response
from chainrule.server.limits import Limits
from chainrule.server.routes.completions import completion_routes
from chainrule.server.routes.operations import operation_routes
from chainrule.server.routes.page import page_routes
from chainrule.server.routes.runs import run_routes
from chainrule.server.routes.tokens import token_routes
from chainrule.server.routes.verbs import verb_routes
from chainrule.server.routes.views import view_routes
from chainrule.server.server import Server

ROUTES: tuple[Callable[[Server], list[Route]], ...] = (
    operation_routes,
    completion_routes,
    token_routes,
    verb_routes,
    view_routes,
    run_routes,
    page_routes,
)
"""The routes by concept; a further concept is one more function here."""


def serve(
    runs: str | Path | Iterable[str | Path],
    *,
    limits: Limits | None = None,
    api_keys: Iterable[str] = (),
    memory: int | None = None,
    languages: Mapping[str, tuple[str, str]] | None = None,
    cors: Iterable[str] = (),
    log: bool = False,
    log_prompts: bool = False,
    device: str = "auto",
    precision: str | None = None,
    threads: int = 1,
) -> Starlette:
    """Runs as an ASGI application.

    Args:
        runs: Folders of runs, or folders that contain runs.
        limits: Limits of requests and of the queue, a `chainrule.server.limits.Limits`.
        api_keys: Keys that requests must have; none: every request is accepted.
        memory: Bytes of runs that are kept loaded; None: no limit.
        languages: Source and target language of translators, by name: {"en-de": ("en", "de")}.
        cors: Origins of web pages that may send requests.
        log: Whether each request is logged on standard error as a line of JSON.
        log_prompts: Whether the log has the prompts of completions.
        device: Device that computes.
        precision: Precision of the weights, "float32" or "int8". None: as they are stored.
        threads: Threads that divide the texts of a step; one is fastest for small models and few clients.
    """
    given = [runs] if isinstance(runs, str | Path) else list(runs)
    server = Server(
        given,
        limits=limits,
        keys=ApiKeys(api_keys),
        memory=memory,
        languages=languages,
        device=device,
        precision=precision,
        threads=threads,
    )
    server.log_prompts = log_prompts
    routes = [route for make in ROUTES for route in make(server)]
    middleware = [Middleware(Gate, server=server, routes=routes, log=log)]
    if origins := list(cors):
        middleware.insert(
            0,
            Middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "retry-after"],
            ),
        )
    handlers: Any = {
        ApiError: _answer_error,
        ChainruleError: _answer_error,
        HTTPException: _answer_http_error,
        500: _answer_error,
    }

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with server.running():
            yield

    app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers, lifespan=lifespan)
    app.state.server = server
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    return error_response(request.scope, as_api_error(error))


async def _answer_http_error(request: Request, error: HTTPException) -> Response:
    allowed = (error.headers or {}).get("Allow", "another method")
    what = {
        404: f"there is no route {request.url.path}",
        405: f"{request.method} does not apply to {request.url.path}; use {allowed}",
    }
    failure = ApiError(error.status_code, what.get(error.status_code, error.detail), code="unknown_route")
    return error_response(request.scope, failure, error.headers)
