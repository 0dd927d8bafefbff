"""A running server, and how tests talk to it."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import httpx2
import openai

T = TypeVar("T")


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in a thread of its own: tests of pages leave an event loop running in that of the tests."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, main).result()


class Service(NamedTuple):
    """A running server."""

    url: str
    process: subprocess.Popen[str]
    log: list[str]
    clients: list[openai.OpenAI]  # closed at the end of the tests

    def client(self, **options: Any) -> openai.OpenAI:
        """The official client."""
        made = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", **{"max_retries": 0, **options})
        self.clients.append(made)
        return made

    def wait_until_ready(self) -> None:
        """Wait until the libraries of the models are imported, and the runs loaded if the server does so at once."""
        while httpx2.get(f"{self.url}/health").status_code == 503:
            time.sleep(0.02)

    def post(self, path: str, body: Any, **options: Any) -> httpx2.Response:
        return httpx2.post(self.url + path, json=body, timeout=60, **options)
