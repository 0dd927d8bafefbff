"""/tokenize, /detokenize and /tokenizer_info."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chainrule.server.requests import JsonResponse, read_fields
from chainrule.server.server import Server, tokenise
from chainrule.server.texts import DetokenizeRequest, TokenizeRequest, tokenizer_info


def token_routes(server: Server) -> list[Route]:
    """Text to tokens and back."""

    async def tokenize(request: Request) -> Response:
        wanted = await read_fields(request, TokenizeRequest, server.limits)
        async with server.library.use(wanted.model) as loaded:
            found = await tokenise(loaded, len(wanted.prompt), lambda: wanted.tokens(loaded.run.tokenizer))
            return JsonResponse(found)

    async def detokenize(request: Request) -> Response:
        wanted = await read_fields(request, DetokenizeRequest, server.limits)
        async with server.library.use(wanted.model) as loaded:
            found = await tokenise(loaded, len(wanted.tokens), lambda: wanted.text(loaded.run.tokenizer))
            return JsonResponse(found)

    async def info(request: Request) -> Response:
        async with server.library.use(request.query_params.get("model")) as loaded:
            return JsonResponse(tokenizer_info(loaded))

    return [
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/tokenizer_info", info),
    ]
