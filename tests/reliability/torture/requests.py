"""Bodies of requests to a server as targets of fuzzing: the application is called in this process, without a socket."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from chainrule import serve
from chainrule.errors import DataError
from chainrule.server.app import ROUTES
from chainrule.server.limits import Limits
from torture.fuzzing import Target
from torture.toys import TRAININGS

RUNS = ("ngram", "lm lstm", "translator", "masked bert", "classifier", "tagger", "word2vec")
SAMPLING = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 3,
    "min_p": 0.1,
    "seed": 3,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
}
COMPLETION = {"prompt": "ab ba", "max_tokens": 4, "n": 2, "stop": ["c"], "logprobs": 2, "echo": True}
REFUSED = {"/v1/chat/completions"}
"""Routes that refuse every body."""

BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "/v1/completions": ("lm_lstm", {**COMPLETION, **SAMPLING, "logit_bias": {"3": 1.5}, "best_of": 2}),
    "/v1/completions, beams": ("ngram", {"prompt": ["ab", "ba"], "max_tokens": 4, "num_beams": 2, "length_penalty": 1}),
    "/v1/completions, stream": (
        "lm_lstm",
        {"prompt": [3, 4], "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}},
    ),
    "/compare": ("", {"models": ["ngram", "lm_lstm"], "prompt": "ab", "max_tokens": 3}),
    "/tokenize": ("ngram", {"prompt": "ab ba", "add_special_tokens": False}),
    "/detokenize": ("ngram", {"tokens": [3, 4, 5]}),
    "/v1/embeddings": ("masked_bert", {"input": ["ab ba", "cab"], "encoding_format": "float"}),
    "/score": ("lm_lstm", {"input": ["ab ba", "cab"]}),
    "/classify": ("classifier", {"input": ["ab ba"]}),
    "/tag": ("tagger", {"input": ["ab ba"]}),
    "/fill": ("masked_bert", {"input": ["ab [MASK]"], "top": 2}),
    "/neighbours": ("word2vec", {"word": "ab", "top": 2}),
    "/translate": ("", {"q": ["ab ba"], "source": "auto", "target": "yy", "format": "text"}),
}
"""By name, which begins with the route: the run, and the other fields of a request."""


def request_targets(place: Path) -> Iterator[Target]:
    """A target for each route with a body."""
    served = place / "served"
    for name in RUNS:
        TRAININGS[name](place, served / name.replace(" ", "_"))
    app = partial(application, served)
    for name, (model, fields) in BODIES.items():
        path = place / f"body-{name.strip('/').replace('/', '-')}"
        path.write_text(json.dumps({**({"model": model} if model else {}), **fields}))
        yield Target(f"POST {name}", path, "json", partial(_post, app, name.partition(",")[0], path))
    known = {name.partition(",")[0] for name in BODIES} | REFUSED
    missing = [route.path for make in ROUTES for route in make(app().state.server) if _reads(route) - known]
    assert not missing, f"no bodies for {missing}"


def _reads(route: Any) -> set[str]:
    """The path of a route that reads a body; those of the page are called by the page alone."""
    posts = "POST" in (route.methods or ()) and not route.path.startswith("/page/")
    return {route.path} if posts else set()


@cache
def application(served: Path, process: int = 0) -> Starlette:
    """The server of all runs, one in each process: the thread that computes is not forked."""
    return serve(served, languages={"translator": ("xx", "yy")}, limits=Limits(tokens=512))


@cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _post(app: Any, route: str, path: Path) -> None:
    """Send the body -> nothing; a refusal is a DataError, an error of the server an AssertionError."""
    process = os.getpid()
    status, answer = _loop(process).run_until_complete(call(app(process), route, path.read_bytes()))
    if 400 <= status < 500 or status == 503:
        error = json.loads(answer)["error"]
        raise DataError(error if isinstance(error, str) else error["message"])
    assert status == 200, f"status {status}: {answer[:150]!r}"


async def call(app: Starlette, route: str, body: bytes) -> tuple[int, bytes]:
    """One request of ASGI -> the status and the body of the answer."""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": route, "raw_path": route.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 1),
    }  # fmt: skip
    parts: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[dict[str, Any]] = []
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)  # type: ignore[arg-type]
    gone.set()
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:])
