"""From the bytes of a request to a checked record: size, time, JSON, fields."""

from __future__ import annotations

import asyncio
import codecs
import difflib
import json
from typing import Any, TypeVar

import pydantic_core
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from chainrule.server.errors import ApiError, invalid
from chainrule.server.limits import Limits

R = TypeVar("R", bound="Fields")

SHOWN = 60
"""Characters of a wrong value that a message repeats."""


class Fields(BaseModel):
    """The fields of a request. Values must have the right type, and unknown fields are refused by name."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: str | None = None


async def read_json(request: Request, limits: Limits) -> dict[str, Any]:
    """The JSON object of a request, within the limits of size and time."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size > limits.body:
                    raise limits.too_large()
                parts.append(part)
    except TimeoutError:
        raise ApiError(408, f"the request took more than {limits.body_seconds:g} seconds to arrive") from None
    except ClientDisconnect:
        raise ApiError(400, "the client has disconnected", code="disconnected") from None
    body = b"".join(parts)
    try:
        # Refuses NaN, lone surrogates and deep nesting. Texts recur rarely, so only names are cached.
        value = pydantic_core.from_json(body.removeprefix(codecs.BOM_UTF8), allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise invalid(f"the request is not JSON: {str(error)[:200]}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise invalid(f"the request is a JSON {type(value).__name__}; expected an object", code="invalid_json")
    return value


def parse_fields(kind: type[R], values: dict[str, Any]) -> R:
    """Check the fields of a request; null is the same as a missing field."""
    try:
        return kind.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        raise _field_error(kind, error) from None


async def read_fields(request: Request, kind: type[R], limits: Limits) -> R:
    """The checked fields of a request."""
    return parse_fields(kind, await read_json(request, limits))


def _field_error(kind: type[Fields], error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        known = sorted(kind.model_fields)
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known fields: {', '.join(known)}"
        return invalid(f"unknown field {name[:SHOWN]!r}: {hint}", name, "unknown_field")
    if first["type"] == "missing":
        return invalid(f"{name} is missing", name, "missing_field")
    shown = repr(first["input"])
    shown = shown if len(shown) <= SHOWN else shown[:SHOWN] + "…"
    message = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return invalid(f"{name} is {shown}; expected {message}", name, "invalid_type")


class JsonResponse(Response):
    """An answer in JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


class JsonBytes(bytes):
    """A value that is JSON already, at the first level of an answer."""

    __slots__ = ()


def to_json(content: Any) -> bytes:
    """JSON in UTF-8; null for infinity and NaN, which JSON lacks. Lone surrogates of a model's text are escaped."""
    if isinstance(content, JsonBytes):
        return content
    if isinstance(content, dict) and any(isinstance(value, JsonBytes) for value in content.values()):
        return b"{" + b",".join(to_json(name) + b":" + to_json(value) for name, value in content.items()) + b"}"
    try:
        return pydantic_core.to_json(content, inf_nan_mode="null")
    except pydantic_core.PydanticSerializationError:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")
