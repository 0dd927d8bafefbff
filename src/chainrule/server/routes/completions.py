"""/v1/completions, /v1/chat/completions and /compare."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chainrule.server.completion_request import CompletionRequest
from chainrule.server.completions import Completion
from chainrule.server.engine import Work
from chainrule.server.errors import invalid
from chainrule.server.requests import JsonResponse, read_fields
from chainrule.server.server import Server
from chainrule.server.sse import unless_disconnected


class CompareRequest(CompletionRequest):
    """One prompt for several runs."""

    models: list[str] = Field(min_length=1, max_length=32)


def completion_routes(server: Server) -> list[Route]:
    """Texts continued and scored."""

    async def completions(request: Request) -> Response:
        wanted = await read_fields(request, CompletionRequest, server.limits)
        if server.log_prompts:
            request.state.prompt = wanted.prompt
        return await server.complete(request, wanted)

    async def compare(request: Request) -> Response:
        wanted = await read_fields(request, CompareRequest, server.limits)
        if server.log_prompts:
            request.state.prompt = wanted.prompt
        if wanted.stream:
            raise invalid("/compare has no streams; leave stream out", "stream")
        if wanted.model is not None:
            raise invalid("/compare takes models, a list, instead of model; leave model out", "model")
        return JsonResponse({"object": "list", "data": await _compare(server, request, wanted)})

    async def chat(request: Request) -> Response:
        raise invalid(
            "these models continue a text and have no chat template; send the conversation as one prompt to "
            "/v1/completions",
            "messages",
            "no_chat_template",
        )

    return [
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/compare", compare, methods=["POST"]),
    ]


async def _compare(server: Server, request: Request, wanted: CompareRequest) -> list[Any]:
    """The completions of one prompt by several runs, computed at the same time."""
    begun: list[tuple[Completion, Work]] = []
    fields = wanted.model_dump(exclude={"models"}, exclude_unset=True)

    def cancel() -> None:
        for _, work in begun:
            server.engine.cancel(work)

    async def compute() -> list[Any]:
        for name in wanted.models:
            begun.append(await server.begin(request, CompletionRequest(**{**fields, "model": name}), stack))
        answers = []
        for completion, work in begun:
            answers.append(await work.result())
            server.count(completion, work)
        return answers

    async with AsyncExitStack() as stack:
        answers: list[Any] = await unless_disconnected(request, compute(), cancel)
    return answers
