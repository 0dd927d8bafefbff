"""From the bytes of a request to a checked record: size, time, JSON, fields."""

from __future__ import annotations

import asyncio
import codecs
import difflib
import json
import re
from typing import Any, TypeVar, get_args
from urllib.parse import parse_qsl

import pydantic_core
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from chainrule.runs.base import Run
from chainrule.server.errors import ApiError, invalid
from chainrule.server.limits import Limits

R = TypeVar("R", bound="Fields")

KINDS = {
    "str": "a text",
    "list[str]": "a list of texts",
    "list[int]": "a list of integers",
    "list[list[int]]": "a list of lists of integers",
    "list[list[str]]": "a list of lists of words",
    "list[tuple[str, str]]": "a list of pairs of texts",
}
"""The types of fields that may have several, as pydantic calls them, and in the words of a message."""

LENGTH = re.compile(r"(?:List|Tuple) should have (at least|at most) (\d+) items? after validation")

FORM = "application/x-www-form-urlencoded"
"""The type that curl states, too, when it sends JSON."""

MAX_FIELDS = 100
"""Fields of a form."""

SHOWN = 60
"""Characters of a wrong value that a message repeats."""


class Record(BaseModel):
    """Fields in a request. Values must have the right type, and unknown fields are refused by name."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Fields(Record):
    """The fields of a request."""

    model: str | None = None

    def long_texts(self, limits: Limits) -> list[str]:
        """Texts that may have more tokens than the limits allow, which `check_tokens` counts."""
        return []

    def check_tokens(self, run: Run, limits: Limits) -> None:
        """Refuse texts with more tokens than the limits allow."""


async def read_body(request: Request, limits: Limits) -> bytes:
    """The bytes of a request, within the limits of size and time."""
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
    return b"".join(parts)


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object that a request consists of."""
    try:
        # Refuses NaN, lone surrogates and deep nesting. Texts recur rarely, so only names are cached.
        value = pydantic_core.from_json(body.removeprefix(codecs.BOM_UTF8), allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise invalid(f"the request is not JSON: {str(error)[:200]}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise invalid(f"the request is a JSON {type(value).__name__}; expected an object", code="invalid_json")
    return value


def parse_fields(kind: type[R], values: dict[str, Any], *, form: bool = False) -> R:
    """Check the fields of a request; null is the same as a missing field. In a form "1" is a number, too."""
    given = {name: value for name, value in values.items() if value is not None}
    try:
        return kind.model_validate(given, strict=False if form else None)
    except ValidationError as error:
        raise _field_error(kind, values, error) from None


async def read_fields(request: Request, kind: type[R], limits: Limits) -> R:
    """The checked fields of a request."""
    return parse_fields(kind, json_object(await read_body(request, limits)))


async def read_form_fields(request: Request, kind: type[R], limits: Limits) -> R:
    """The checked fields of a request in JSON or, as some clients send them, in the form of a web page."""
    body = await read_body(request, limits)
    if not request.headers.get("content-type", "").startswith(FORM) or body.lstrip().startswith(b"{"):
        return parse_fields(kind, json_object(body))
    try:
        values = dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS))
    except ValueError as error:
        raise invalid(f"the request is no form in UTF-8: {str(error)[:200]}", code="invalid_form") from None
    return parse_fields(kind, values, form=True)


def _field_error(kind: type[Fields], values: dict[str, Any], error: ValidationError) -> ApiError:
    """The first error of a field, in the words of JSON."""
    errors = error.errors(include_url=False, include_context=False)
    first = errors[0]
    place = first["loc"]
    field, name = str(place[0]), ".".join(map(str, place))
    if first["type"] == "extra_forbidden":
        return _unknown_field(_fields_of(kind, place[:-1]), name)
    if first["type"] == "missing":
        return invalid(f"{name} is missing", field, "missing_field")
    branches = dict.fromkeys(str(one["loc"][1]) for one in errors if one["loc"][0] == field and len(one["loc"]) > 1)
    if kinds := [KINDS[branch] for branch in branches if branch in KINDS]:  # none of several types fits
        return _wrong_value(field, values[field], " or ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1]))))
    return _wrong_value(name, first["input"], _expected(first["msg"]))


def _wrong_value(name: str, value: Any, expected: str) -> ApiError:
    shown = json.dumps(value, ensure_ascii=False)
    shown = shown if len(shown) <= SHOWN else shown[:SHOWN] + "…"
    return invalid(f"{name} is {shown}; expected {expected}", name.partition(".")[0], "invalid_type")


def _unknown_field(kind: type[BaseModel], name: str) -> ApiError:
    prefix, _, last = name.rpartition(".")
    known = sorted(kind.model_fields)
    close = difflib.get_close_matches(last, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known fields: {', '.join(known)}"
    return invalid(f"unknown field {name[:SHOWN]!r}: {hint}", (prefix or name).partition(".")[0], "unknown_field")


def _fields_of(kind: type[BaseModel], place: tuple[int | str, ...]) -> type[BaseModel]:
    """The record at a place of a request."""
    for name in place:
        annotation = kind.model_fields[str(name)].annotation
        parts = (annotation, *get_args(annotation))
        kind = next(part for part in parts if isinstance(part, type) and issubclass(part, BaseModel))
    return kind


def _expected(message: str) -> str:
    """What pydantic expects, in the words of JSON."""
    message = message.removeprefix("Input should be ").removeprefix("Value error, ")
    if found := LENGTH.match(message):
        return f"{found[1]} {found[2]} entries" if found[2] != "1" else f"{found[1]} one entry"
    for ours, theirs in (("an object", "a valid dictionary"), ("a list", "a valid list"), ("a text", "a valid string")):
        if message.startswith(theirs):
            return ours
    return f"a number {message}" if message.startswith(("greater", "less")) else message


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
