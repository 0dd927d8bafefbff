"""API keys: read from a file or the environment, compared in constant time."""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable
from pathlib import Path

from chainrule.errors import ConfigError
from chainrule.server.errors import ApiError

VARIABLE = "CHAINRULE_API_KEYS"
"""The environment variable with keys, separated by commas."""


class ApiKeys:
    """The keys that are accepted; without any, every request is."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = [key.encode() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._keys)

    def accepts(self, given: str) -> bool:
        """Whether this is a key. Every key is compared, so that the time does not depend on which one matches."""
        found = False
        for key in self._keys:
            found |= hmac.compare_digest(key, given.encode(errors="surrogatepass"))
        return found

    def check(self, authorization: str | None) -> None:
        """Refuse a request whose header has no key."""
        scheme, _, given = (authorization or "").partition(" ")
        if not self._keys or (scheme.lower() == "bearer" and self.accepts(given.strip())):
            return
        what = "has no valid API key" if authorization else "has no API key"
        raise ApiError(401, f"the request {what}; send the header Authorization: Bearer KEY", code="invalid_api_key")


def read_keys(path: Path | None) -> list[str]:
    """The keys of a file, one per line, and those of $CHAINRULE_API_KEYS."""
    lines = os.environ.get(VARIABLE, "").split(",")
    if path is not None:
        try:
            lines += path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read ({error}); give a text file with one API key per line") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if path is not None and not keys:
        raise ConfigError(f"{path} has no API key; write one per line")
    return keys
