"""/ and /page/…: the page over all runs, made of files of this package, with a policy that forbids any others."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chainrule.server.errors import ApiError
from chainrule.server.server import Server

FOLDER = Path(__file__).parent.parent / "page"

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""The files of the page, and their types."""

HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # ask each time; the answer is usually 304
}


class _File(NamedTuple):
    content: bytes
    headers: dict[str, str]


def page_routes(server: Server) -> list[Route]:
    """The files of the page. What it computes is in `routes/views.py`."""
    files = {path.relative_to(FOLDER).as_posix(): _read(path) for path in FOLDER.rglob("*") if path.suffix in KINDS}

    async def page(request: Request) -> Response:
        return _answer(request, files["index.html"])

    async def file(request: Request) -> Response:
        name = request.path_params["file"]
        if name not in files:
            raise ApiError(404, f"there is no route {request.url.path}", code="unknown_route")
        return _answer(request, files[name])

    return [Route("/", page), Route("/page/{file:path}", file)]


def _read(path: Path) -> _File:
    content = path.read_bytes()
    tag = f'"{hashlib.blake2b(content, digest_size=8).hexdigest()}"'
    return _File(content, {**HEADERS, "etag": tag, "content-type": KINDS[path.suffix]})


def _answer(request: Request, file: _File) -> Response:
    if request.headers.get("if-none-match") == file.headers["etag"]:
        return Response(status_code=304, headers=file.headers)
    return Response(file.content, headers=file.headers)
