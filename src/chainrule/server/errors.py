"""Errors as answers, in the form that clients of OpenAI's API read; `gate.py` has that of LibreTranslate.

A 4xx other than 408, 409 and 429 means that the same request can never succeed, so clients do not repeat it.
"""

from __future__ import annotations

from typing import Any

from chainrule.errors import ChainruleError, DiskError, RunError
from chainrule.runs.base import MissingVerbError

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
"""The type of an error by its status."""


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after = retry_after  # seconds

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        kind = KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """Further headers of the answer."""
        return {} if self.retry_after is None else {"retry-after": str(self.retry_after)}


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """The error for a request that can never succeed."""
    return ApiError(400, message, code=code, param=param)


def overloaded(message: str) -> ApiError:
    """The error for a request that may succeed later."""
    return ApiError(429, message, code="overloaded", retry_after=1)


def shutting_down() -> ApiError:
    """The error for a request that comes or is left while the server ends."""
    return ApiError(503, "the server is shutting down; try again later", code="shutting_down", retry_after=5)


def as_api_error(error: BaseException) -> ApiError:
    """Any error as an answer: a user's mistake is a 400, anything unforeseen a 500 without details."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, DiskError):
        return ApiError(503, str(error), code="run_unavailable", retry_after=5)
    if isinstance(error, MissingVerbError | RunError):  # a run of another kind; see Library for damaged ones
        return invalid(str(error), "model", "unsupported_model")
    if isinstance(error, ChainruleError):
        return invalid(str(error))
    if isinstance(error, MemoryError):
        return ApiError(503, "the request needs more memory than is free; ask for less", code="out_of_memory")
    return ApiError(500, "the server failed to answer; its log has the reason", code="internal_error")
