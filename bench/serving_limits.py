"""What a server survives: more clients than it can serve, hostile clients, and hours of mixed load.

    serving_limits.py overload | hostile [--requests 10000] | soak [--minutes 20]

The server and all clients run on the loopback address. A part ends with an error if a request gets neither an answer
nor a refusal, if the server answers 500, if a text is still in work after its client has gone, or if an answer
changes. Memory is the resident set of the server process.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import re
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from serving import process

import chainrule as cr
from chainrule.text.samples.texts import english_text

CLIENTS, QUEUE, WAVES = 500, 64, 6
SHAPES: dict[str, dict[str, Any]] = {
    "lstm": {"embedding": 64, "hidden": 64, "layers": 1},
    "transformer": {"embedding": 64, "heads": 2, "layers": 2, "context": 64},
}
ODD_VALUES: list[Any] = [
    *(None, True, -1, 0, 1e308, "", "\ud800", "\x00", [], [[]], [None], {}, {"a": 1}, "x" * 5000, 2**70, [2**70], -0.0),
]
PATHS: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        **{"model": "lstm", "prompt": "ab", "max_tokens": 2, "n": 1, "stop": "x", "logprobs": 1, "temperature": 1},
        **{"top_p": 0.5, "seed": 1, "echo": True, "logit_bias": {"1": 1}, "best_of": 1, "stream": False, "top_k": 3},
    },
    "/compare": {"models": ["lstm", "ngram"], "prompt": "ab", "max_tokens": 2, "seed": 1},
    "/score": {"model": "ngram", "input": ["ab", "The"], "tokens": True, "oov": "spell"},
    "/v1/embeddings": {"model": "lstm", "input": "ab", "encoding_format": "base64"},
    "/tokenize": {"model": "lstm", "prompt": "ab"},
    "/detokenize": {"model": "lstm", "tokens": [1, 2]},
    "/neighbours": {"model": "lstm", "word": "a", "top": 3},
    "/fill": {"model": "lstm", "input": "a"},
    "/translate": {"q": "a", "source": "en", "target": "de"},
    "/v1/chat/completions": {"model": "lstm", "messages": []},
}
"""A sound request to each route."""


class Service:
    """The server under test, seen from outside."""

    def __init__(self, url: str, number: int) -> None:
        self.host, self.port = urlsplit(url).hostname or "", urlsplit(url).port or 0
        self.process = number

    def ask(self, path: str, body: Any, method: str = "POST", timeout: float = 120) -> tuple[int, bytes]:
        """Status and body of an answer; `body` may be bytes."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        with contextlib.closing(connection):
            connection.request(method, path, body if isinstance(body, bytes) else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, answer.read()

    def open(self) -> socket.socket:
        """A connection without a request."""
        return socket.create_connection((self.host, self.port), timeout=120)

    @property
    def memory(self) -> float:
        """Resident megabytes."""
        status = Path(f"/proc/{self.process}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024

    @property
    def files(self) -> int:
        """Open files and connections."""
        return len(list(Path(f"/proc/{self.process}/fd").iterdir()))

    def figures(self) -> dict[str, float]:
        """The figures of /metrics."""
        lines = self.ask("/metrics", b"", "GET")[1].decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}

    def check_idle(self) -> None:
        """Everything is over within a minute, and nothing was answered with 500."""
        names = [f"chainrule_num_{what}" for what in ("requests_running", "requests_waiting", "texts_running")]
        end = time.monotonic() + 60
        while any(self.figures()[name] for name in names):
            assert time.monotonic() < end, "work goes on for clients that have gone"
            time.sleep(0.2)
        failed = [name for name, value in self.figures().items() if 'code="500"' in name and value]
        assert not failed, failed


def completion(number: int, **options: Any) -> dict[str, Any]:
    """A request with a seed."""
    return {"model": "lstm", "prompt": "The", "max_tokens": 64, "seed": number % 10, **options}


def overload(service: Service) -> None:
    """500 clients at once, in waves."""
    before = [json.loads(service.ask("/v1/completions", completion(seed))[1])["choices"] for seed in range(10)]
    memory, codes = [], Counter[int]()

    def ask(number: int) -> None:
        status, body = service.ask("/v1/completions", completion(number))
        codes[status] += 1
        assert status in (200, 429), body
        if status == 200:
            assert json.loads(body)["choices"] == before[number % 10], "an answer under load differs"

    for _ in range(WAVES):
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(ask, range(CLIENTS)))
        memory.append(service.memory)
    service.check_idle()
    after = [json.loads(service.ask("/v1/completions", completion(seed))[1])["choices"] for seed in range(10)]
    assert after == before
    shown = ", ".join(f"{one:.0f}" for one in memory)
    print(f"overload: {CLIENTS} clients, queue of {QUEUE}, {WAVES} waves: {dict(codes)}; MB after each wave: {shown}")


# Hostile clients


def head(length: int | None, path: str = "/v1/completions") -> bytes:
    """The head of a request; without a length its body comes in chunks."""
    size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return f"POST {path} HTTP/1.1\r\nhost: x\r\n{size}\r\n\r\n".encode()


def disconnects(service: Service) -> None:
    """Clients that go at every stage: before, in and after the head, in and after the body, in the answer."""
    for stream in (False, True):
        body = json.dumps(completion(1, max_tokens=100_000, stream=stream)).encode()
        whole = head(len(body)) + body
        cuts = [0, 1, 20, len(whole) - len(body), len(whole) - 5, len(whole)]
        for cut in cuts * 8:
            with service.open() as client:
                client.sendall(whole[:cut])
        clients = []
        for _ in range(2 * QUEUE // 3):  # more than run at the same time, so that some wait in the queue
            clients.append(service.open())
            clients[-1].sendall(whole)
        time.sleep(0.5)
        for client in clients:
            if stream and random.random() < 0.3:
                client.recv(200)
            client.close()
    service.check_idle()


def slow_and_endless(service: Service) -> None:
    """Bodies that come byte by byte, and bodies that never end; others are served meanwhile."""
    slow = [service.open() for _ in range(20)]
    for client in slow:
        client.sendall(head(1000))
    answers = []

    def endless() -> None:
        with service.open() as client, contextlib.suppress(OSError):
            client.sendall(head(None))
            for _ in range(2000):
                client.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            answers.append(client.recv(100))

    sending = [threading.Thread(target=endless) for _ in range(4)]
    for thread in sending:
        thread.start()
    for _ in range(35):
        for client in slow:
            with contextlib.suppress(OSError):
                client.sendall(b" ")
        assert service.ask("/v1/completions", completion(1, max_tokens=2))[0] == 200
        time.sleep(1)
    got = Counter(client.recv(12) for client in slow)
    for client in slow:
        client.close()
    for thread in sending:
        thread.join(60)
        assert not thread.is_alive(), "an endless body is read without end"
    assert set(got) == {b"HTTP/1.1 408"}, got
    service.check_idle()


def fuzz(service: Service, requests: int) -> Counter[int]:
    """Requests with odd values and damaged bytes, over a few connections -> statuses."""

    def ask(seed: int) -> Counter[int]:
        rng, codes = random.Random(seed), Counter[int]()
        for number in range(requests // 8):
            path, body = rng.choice(list(PATHS.items()))
            body = body | {name: rng.choice(ODD_VALUES) for name in rng.sample(sorted(body), rng.randrange(3))}
            raw = json.dumps(body).encode()
            if number % 3 == 0:
                place = rng.randrange(len(raw))
                raw = raw[:place] + bytes([rng.randrange(256)]) + raw[place + rng.randrange(3) :]
            status, answer = service.ask(path, raw)
            codes[status] += 1
            assert status in (200, 400, 404, 429), (path, raw, answer)
        return codes

    with ThreadPoolExecutor(8) as pool:
        total: Counter[int] = sum(pool.map(ask, range(8)), Counter[int]())
    service.check_idle()
    return total


def hostile(service: Service, requests: int) -> None:
    """All of it; afterwards nothing is left of it."""
    expected = service.ask("/score", {"model": "ngram", "input": ["The end"]})
    files = service.files
    disconnects(service)
    print("disconnects at every stage: nothing is left in work", flush=True)
    slow_and_endless(service)
    print("20 slow bodies: 408; 4 endless bodies: refused; others were served meanwhile", flush=True)
    codes = fuzz(service, requests)
    print(f"{sum(codes.values())} fuzzed requests: {dict(codes)}", flush=True)
    time.sleep(1)
    assert service.files <= files + 2, (files, service.files)
    assert service.ask("/score", {"model": "ngram", "input": ["The end"]}) == expected
    print(f"no 500; open files before and after: {files}, {service.files}")


# Soak


def mixed(service: Service, rng: random.Random, lines: list[str]) -> None:
    """One request of an ordinary day."""
    model = rng.choice(["lstm", "transformer", "ngram"])
    some = rng.sample(lines, rng.randrange(1, 50))
    choices: list[Callable[[], tuple[int, bytes]]] = [
        lambda: service.ask("/v1/completions", completion(rng.randrange(10**6), model=model, logprobs=1, n=2)),
        lambda: service.ask("/v1/completions", completion(1, model=model, prompt=some[0], stream=True)),
        lambda: service.ask("/v1/completions", completion(1, model="lstm", num_beams=3, max_tokens=8)),
        lambda: service.ask("/v1/completions", completion(1, prompt=some, max_tokens=0, echo=True, logprobs=2)),
        lambda: service.ask("/score", {"model": model, "input": some}),
        lambda: service.ask("/v1/embeddings", {"model": "lstm", "input": some}),
        lambda: service.ask("/v1/completions", b'{"damaged'),
        lambda: service.ask("/v1/models", b"", "GET"),
    ]
    if rng.random() < 0.1:  # goes before its answer
        body = json.dumps(completion(1, model=model, max_tokens=500)).encode()
        with service.open() as client:
            client.sendall(head(len(body)) + body)
            time.sleep(rng.random() / 20)
        return
    status, answer = rng.choice(choices)()
    assert status in (200, 400, 429), answer


def soak(service: Service, minutes: float) -> None:
    """Mixed load; the first sixth is the warm-up."""
    lines = [line for line in english_text().split("\n") if line.strip()]
    end, counts, memory = time.monotonic() + 60 * minutes, [0] * 4, list[tuple[float, float]]()

    def work(number: int) -> None:
        rng = random.Random(number)
        while time.monotonic() < end:
            mixed(service, rng, lines)
            counts[number] += 1
            time.sleep(0.02)

    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(work, number) for number in range(4)]
        while time.monotonic() < end:
            time.sleep(min(5.0, minutes))
            memory.append((end - time.monotonic(), service.memory))
        for worker in workers:
            worker.result()
    service.check_idle()
    warm = [value for left, value in memory if left < 50 * minutes]
    size = max(1, len(warm) // 10)
    first, last = statistics.mean(warm[:size]), statistics.mean(warm[-size:])
    print(
        f"soak: {minutes:g} minutes, {sum(counts):,} requests; {first:.1f} MB after the warm-up, {last:.1f} MB at the "
        f"end: {100 * (last / first - 1):+.2f} %"
    )


def main() -> None:
    """Train tiny runs, serve them, and let clients loose."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["overload", "hostile", "soak"])
    parser.add_argument("--requests", type=int, default=10_000, help="fuzzed requests")
    parser.add_argument("--minutes", type=float, default=20.0, help="length of the soak")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        text, runs = Path(name) / "text.txt", Path(name) / "serving-limits-runs"
        text.write_text(english_text(), encoding="utf-8")
        for model, shape in SHAPES.items():
            cr.train(text, model=model, tokenizer="char", steps=2, out=runs / model, settings={"model": shape})
        cr.train(text, model="ngram", tokenizer="word", out=runs / "ngram")
        command = [
            sys.executable,
            "-m",
            "chainrule.cli.main",
            "serve",
            str(runs),
            "--port",
            "0",
            "--quiet",
            "--queue",
            str(QUEUE),
        ]
        command += ["--load", "--max-tokens", "100000", "--max-body", "1000000"]
        with process(command, r"http://\S+") as found:
            service = Service(*found)
            while service.ask("/health", b"", "GET")[0] != 200:
                time.sleep(0.1)
            {
                "overload": lambda: overload(service),
                "hostile": lambda: hostile(service, options.requests),
                "soak": lambda: soak(service, options.minutes),
            }[options.part]()


if __name__ == "__main__":
    main()
