"""The routes of a server, and `serve`: runs as an ASGI application.

app = chainrule.serve(["runs/ngram", "runs/lstm"])   # for uvicorn, or to mount in another application
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from pydantic import Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chainrule.errors import ChainruleError
from chainrule.server.auth import ApiKeys
from chainrule.server.completion_request import CompletionRequest
from chainrule.server.completions import Completion
from chainrule.server.engine import Work
from chainrule.server.errors import ApiError, as_api_error, invalid
from chainrule.server.gate import Gate
from chainrule.server.limits import Limits
from chainrule.server.requests import JsonResponse, parse_fields, read_json
from chainrule.server.server import Server
from chainrule.server.sse import unless_disconnected
from chainrule.server.texts import (
    ClassifyRequest,
    DetokenizeRequest,
    EmbeddingsRequest,
    FillRequest,
    Lines,
    NeighboursRequest,
    ScoreRequest,
    TagRequest,
    TokenizeRequest,
    tokenizer_info,
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
"""Routes that are one call of a verb."""


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
    """
    given = [runs] if isinstance(runs, str | Path) else list(runs)
    server = Server(given, limits=limits, keys=ApiKeys(api_keys), memory=memory, languages=languages, device=device)
    routes = _Routes(server, log_prompts).routes()
    middleware = [Middleware(Gate, server=server, routes=routes, log=log)]
    if origins := list(cors):
        middleware.insert(
            0, Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
        )
    handlers: Any = {
        ApiError: _answer_error,
        ChainruleError: _answer_error,
        HTTPException: _answer_http_error,
        500: _answer_error,
    }
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)
    app.state.server = server
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    failure = as_api_error(error)
    return JsonResponse(failure.body, failure.status, failure.headers)


async def _answer_http_error(request: Request, error: HTTPException) -> Response:
    what = {404: f"there is no route {request.url.path}", 405: f"{request.method} is not allowed here"}
    failure = ApiError(error.status_code, what.get(error.status_code, error.detail), code="unknown_route")
    return JsonResponse(failure.body, failure.status, dict(error.headers or {}))


class CompareRequest(CompletionRequest):
    """One prompt for several runs."""

    models: list[str] = Field(min_length=1, max_length=32)


class _Routes:
    """One method per route."""

    def __init__(self, server: Server, log_prompts: bool) -> None:
        self.server, self._log_prompts = server, log_prompts

    def routes(self) -> list[Route]:
        calls = [Route(path, self._call(kind), methods=["POST"]) for path, kind in CALLS.items()]
        return [
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/compare", self.compare, methods=["POST"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/tokenizer_info", self.tokenizer_info),
            Route("/translate", self.translate, methods=["POST"]),
            Route("/languages", self.languages),
            *calls,
        ]

    # The server

    async def health(self, request: Request) -> Response:
        """200 if requests are accepted, 503 while runs are loaded or the server shuts down."""
        status = "draining" if self.server.draining else "loading" if self.server.loading else "ok"
        return JsonResponse({"status": status}, 200 if status == "ok" else 503)

    async def metrics(self, request: Request) -> Response:
        return Response(self.server.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(self, request: Request) -> Response:
        return JsonResponse({"object": "list", "data": [self._record(name) for name in self.server.library.entries]})

    async def model(self, request: Request) -> Response:
        return JsonResponse(self._record(request.path_params["name"]))

    def _record(self, name: str) -> dict[str, Any]:
        entry = self.server.library.entry(name)
        record = {"id": entry.name, "object": "model", "created": entry.created, "owned_by": "chainrule"}
        return record | {"architecture": entry.model, "loaded": entry.loaded is not None}

    # Completions

    async def completions(self, request: Request) -> Response:
        wanted = await self._fields(request, CompletionRequest)
        if self._log_prompts:
            request.state.prompt = wanted.prompt
        return await self.server.complete(request, wanted)

    async def compare(self, request: Request) -> Response:
        """The completions of one prompt by several runs, computed at the same time."""
        wanted = await self._fields(request, CompareRequest)
        if wanted.stream or wanted.model is not None:
            raise invalid("compare takes models instead of model, and no stream; leave it out", "models")
        answers: list[Any] = []
        works: list[Work] = []

        def cancel() -> None:
            for work in works:
                self.server.engine.cancel(work)

        async def compute() -> None:
            for name in wanted.models:
                one = CompletionRequest(**{**wanted.model_dump(exclude={"models"}, exclude_unset=True), "model": name})
                completion, work = await self.server.begin(request, one, stack)
                begun.append((completion, work))
                works.append(work)
            for completion, work in begun:
                answers.append(await work.result())
                self.server.count(completion, work)

        begun: list[tuple[Completion, Work]] = []
        async with AsyncExitStack() as stack:
            await unless_disconnected(request, compute(), cancel)
        return JsonResponse({"object": "list", "data": answers})

    async def chat(self, request: Request) -> Response:
        raise invalid(
            "these models continue a text and have no chat template; send the conversation as one prompt to "
            "/v1/completions",
            "messages",
            "no_chat_template",
        )

    # Tokens

    async def tokenize(self, request: Request) -> Response:
        wanted = await self._fields(request, TokenizeRequest)
        async with self.server.library.use(wanted.model) as loaded:
            return JsonResponse(wanted.tokens(loaded.run.tokenizer))

    async def detokenize(self, request: Request) -> Response:
        wanted = await self._fields(request, DetokenizeRequest)
        async with self.server.library.use(wanted.model) as loaded:
            return JsonResponse(wanted.text(loaded.run.tokenizer))

    async def tokenizer_info(self, request: Request) -> Response:
        async with self.server.library.use(request.query_params.get("model")) as loaded:
            return JsonResponse(tokenizer_info(loaded))

    # Verbs

    def _call(self, kind: type[Any]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            wanted = await self._fields(request, kind)
            return JsonResponse(await self.server.compute(request, wanted.model, wanted))

        return endpoint

    async def translate(self, request: Request) -> Response:
        wanted = await self._fields(request, TranslateRequest)
        if "authorization" not in request.headers and self.server.keys:
            self.server.keys.check(f"Bearer {wanted.api_key or ''}")
        name = self.server.languages.run_for(wanted, self.server.translators)
        return JsonResponse(await self.server.compute(request, name, wanted))

    async def languages(self, request: Request) -> Response:
        return JsonResponse(self.server.languages.listing())

    async def _fields(self, request: Request, kind: type[Any]) -> Any:
        return parse_fields(kind, await read_json(request, self.server.limits))
