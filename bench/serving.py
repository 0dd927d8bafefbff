"""A server under load against `transformers serve` on the same weights, and n-gram scoring over HTTP against the verb.

    serving.py [--rounds 3] [--no-peer]

Servers and clients run on the loopback address and share the machine. A GPT-2 of 4 layers and width 128 is trained for
a moment, exported, and served by both. 1, 8 and 32 clients ask for 128 tokens each. Every request has a seed, and its
text must be the same alone and under load. The peer needs `pip install fastapi accelerate`. It is measured without
`--continuous-batching`, with which transformers 5.22 on a CPU does not answer at all. Speed is given by the clock and
by the time that the server's process computed, which depends less on what else the machine does. The time to the first
token is measured by one thread over sockets, which sends the requests of all clients at once; a thread per client
would measure the clients.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO
from urllib.parse import urlsplit

import chainrule as cr
from chainrule.runs.language_model import LanguageModelRun
from chainrule.text.samples.texts import english_text

TOKENS, LINES = 128, 1000
CLIENTS = (1, 8, 32)
PEER_PORT = 8951
GPT2: dict[str, Any] = {
    "model": {
        **{"embedding": 128, "heads": 4, "layers": 4, "context": 256},
        **{"positions": "learned", "bias": True, "activation": "gelu-tanh"},
    },
    "tokenizer": {"vocab_size": 1000},
    "output": {"bias": False},
}


class Client:
    """One connection that is kept open, as clients of a service do."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=300)

    def renew(self) -> None:
        """Connect again: a server closes a connection that was idle for some seconds."""
        self._connection.close()
        self._connection.connect()

    def post(self, path: str, body: str) -> http.client.HTTPResponse:
        """Send a request."""
        self._connection.request("POST", path, body, {"content-type": "application/json"})
        answer = self._connection.getresponse()
        assert answer.status == 200, answer.read()
        return answer

    def json(self, path: str, body: dict[str, Any]) -> Any:
        """The answer to a request."""
        return json.load(self.post(path, json.dumps(body)))


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """The time of a call, and its result."""
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


# Generation


def request(model: str, seed: int, **options: Any) -> dict[str, Any]:
    """Fields that both servers know."""
    fields = {"model": model, "prompt": "To be or", "max_tokens": TOKENS, "temperature": 1, "seed": seed}
    return {**fields, **options}


def generate(clients: list[Client], model: str) -> tuple[float, list[str]]:
    """Tokens per second of several clients in total, and their texts."""

    for client in clients:
        client.renew()

    def ask(number: int) -> Any:
        return clients[number].json("/v1/completions", request(model, number))

    with ThreadPoolExecutor(len(clients)) as pool:
        seconds, answers = seconds_of(lambda: list(pool.map(ask, range(len(clients)))))
    tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    assert tokens == len(clients) * TOKENS, "a text ended early"
    return tokens / seconds, [answer["choices"][0]["text"] for answer in answers]


def first_tokens(connections: list[socket.socket], model: str) -> list[float]:
    """Seconds from sending a request to the first part of its streamed text, of each of several clients."""
    requests = [_raw(request(model, number, stream=True)) for number in range(len(connections))]
    began, found = [0.0] * len(requests), dict[int, float]()
    with selectors.DefaultSelector() as answers:
        for number, connection in enumerate(connections):
            answers.register(connection, selectors.EVENT_READ, number)
        for number, connection in enumerate(connections):
            began[number] = time.perf_counter()
            connection.sendall(requests[number])
        received = [b""] * len(requests)
        while answers.get_map():
            for key, _ in answers.select():
                part, number = connections[key.data].recv(1 << 16), key.data
                now = time.perf_counter()
                received[number] += part
                if b"data: " in received[number]:
                    found.setdefault(number, now - began[number])
                if received[number].endswith(b"0\r\n\r\n"):
                    answers.unregister(connections[number])
    assert all(b"data: [DONE]" in answer for answer in received)
    return list(found.values())


def _raw(body: dict[str, Any]) -> bytes:
    """A request for a completion as bytes."""
    content = json.dumps(body).encode()
    return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(content), content)


def percentile(values: list[float], share: float = 0.95) -> float:
    """The value that `share` of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


# Servers


@contextmanager
def process(command: list[str], address: str, **environment: str) -> Iterator[tuple[str, int]]:
    """A server process that listens -> its address, and the number of the process."""
    with tempfile.TemporaryFile("w+") as log:
        running = subprocess.Popen(
            command, stderr=log, stdout=subprocess.DEVNULL, text=True, env={**os.environ, **environment}
        )
        try:
            yield _address(running, log, address), running.pid
        finally:
            running.terminate()
            running.wait(30)


def _address(running: subprocess.Popen[str], log: TextIO, address: str) -> str:
    """Where a process listens, as its log states."""
    while running.poll() is None:
        log.seek(0)
        if found := re.search(address, log.read()):
            return found[0]
        time.sleep(0.1)
    log.seek(0)
    raise SystemExit(f"the server did not start: {log.read()[-1000:]}")


def chainrule(folder: Path) -> Any:
    """`chainrule serve` of a folder of runs."""
    command = [sys.executable, "-m", "chainrule.cli.main", "serve", str(folder), "--port", "0", "--quiet"]
    return process(command, r"http://\S+")


def transformers(folder: Path) -> Any:
    """`transformers serve` of a folder."""
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(folder), "--device", "cpu"]
    command += ["--host", "127.0.0.1", "--port", str(PEER_PORT)]
    return process(command, r"http://127\.0\.0\.1:\d+", HF_HUB_OFFLINE="1")


def export(run: Path, folder: Path) -> None:
    """The same weights for the peer; every text has 128 tokens."""
    cr.export(run, folder, to="hf")
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "min_new_tokens": TOKENS}))


# Figures


class Served(NamedTuple):
    """A server under test: its address, the name of its model, its process."""

    url: str
    model: str
    process: int

    @property
    def cpu(self) -> float:
        """Seconds that the process has computed."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compare(servers: dict[str, Served], rounds: int) -> None:
    """Tokens per second by number of clients, of the clock and of computing time; servers take turns."""
    connections = {name: [Client(server.url) for _ in range(max(CLIENTS))] for name, server in servers.items()}
    for name, server in servers.items():  # warm up
        generate(connections[name][:1], server.model)
    _, expected = generate(connections["chainrule"], servers["chainrule"].model)
    first = 0.0
    for clients in CLIENTS:
        speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in servers}
        for _ in range(rounds):
            for name, server in servers.items():
                before = server.cpu
                speed, texts = generate(connections[name][:clients], server.model)
                speeds[name].append((speed, clients * TOKENS / max(0.01, server.cpu - before)))
                assert name != "chainrule" or texts == expected[:clients], (
                    "the text of a seed depends on its neighbours"
                )
        middle = {
            name: [statistics.median(part) for part in zip(*found, strict=True)] for name, found in speeds.items()
        }
        speed, computed = middle["chainrule"]
        first = first or computed
        print(f"{clients} clients: {speed:,.0f} tokens/s, {computed:,.0f} per second of computing", end="")
        print(f", {computed / first:.2f} times one client", end="")
        for name, (other, other_computed) in list(middle.items())[1:]:
            print(f"; {name} {other:,.0f} and {other_computed:,.0f}", end="")
            print(f", ratios {speed / other:.2f} and {computed / other_computed:.2f}", end="")
        print(flush=True)
    compare_first_tokens(servers["chainrule"], rounds)


def compare_first_tokens(server: Served, rounds: int) -> None:
    """Time to the first token, with 1 and with 8 clients."""
    found: dict[int, list[float]] = {1: [], 8: []}
    with ExitStack() as stack:
        address = urlsplit(server.url)
        connections = [
            stack.enter_context(socket.create_connection((address.hostname, address.port), timeout=60))
            for _ in range(8)
        ]
        for _ in range(10 * rounds):
            for _ in range(8):
                found[1] += first_tokens(connections[:1], server.model)
            found[8] += first_tokens(connections, server.model)
    one, eight = (percentile(values) for values in found.values())
    half = [statistics.median(values) for values in found.values()]
    print(
        f"first token, p95: {1e3 * one:.1f} ms with 1 client, {1e3 * eight:.1f} ms with 8, ratio {eight / one:.2f}",
        end="",
    )
    print(f"; median: {1e3 * half[0]:.1f} and {1e3 * half[1]:.1f} ms")


def compare_scores(server: Served, run: LanguageModelRun, lines: list[str], file: Path, rounds: int) -> None:
    """Speed of scoring lines over HTTP, divided by that of the verb with its JSON lines; requests have other lines.

    The verb makes the text of an answer from a file. So the clock of a request runs from its text to that of the
    answer; the time with the client's own JSON is printed as well.
    """
    client = Client(server.url)
    parts = [lines[begin : begin + LINES] for begin in range(0, len(lines) - LINES, LINES)]
    client.json("/score", {"input": parts[0], "model": server.model})

    def verb() -> list[str]:
        blocks = run.score_text(str(file), threads=1)
        return [
            f'{{"log_prob": {log_prob!r}, "tokens": {tokens}}}'
            for block in blocks
            for log_prob, tokens in zip(*block, strict=True)
        ]

    ratios, with_json, plain_cpu, began_cpu = [], [], 0.0, server.cpu
    for part in parts * rounds:
        file.write_text("".join(line + "\n" for line in part), encoding="utf-8")
        written, body = seconds_of(lambda part=part: json.dumps({"input": part, "model": server.model}))
        whole, content = seconds_of(lambda body=body: client.post("/score", body).read())
        parsed, answer = seconds_of(lambda content=content: json.loads(content))
        cpu = time.process_time()
        plain, found = seconds_of(verb)
        plain_cpu += time.process_time() - cpu
        assert [one["tokens"] for one in answer["data"]] == [json.loads(line)["tokens"] for line in found]
        ratios.append(plain / whole)
        with_json.append(plain / (written + whole + parsed))
    computed = plain_cpu / (server.cpu - began_cpu)
    shown = f"{statistics.median(ratios):.2f} of the verb's speed, {computed:.2f} by computing time"
    shown += f", {statistics.median(with_json):.2f} by the clock with the client's JSON"
    print(f"n-gram, {LINES} lines a request, {len(ratios)} requests: {shown}")


def main() -> None:
    """Train tiny runs, serve them, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--only", choices=["generation", "scores"], help="measure one part")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        text = folder / "text.txt"
        text.write_text(english_text(), encoding="utf-8")
        runs = folder / "runs"
        if options.only != "scores":
            cr.train(text, model="transformer", tokenizer="bpe", steps=20, out=runs / "gpt2", settings=GPT2)
        ngram = cr.train(text, model="ngram", tokenizer="word", out=runs / "ngram")
        assert isinstance(ngram, LanguageModelRun)
        url, number = stack.enter_context(chainrule(runs))
        if options.only != "scores":
            servers = {"chainrule": Served(url, "gpt2", number)}
            if not options.no_peer:
                export(runs / "gpt2", folder / "peer")
                address, peer = stack.enter_context(transformers(folder / "peer"))
                servers["transformers serve"] = Served(address, str(folder / "peer"), peer)
            compare(servers, options.rounds)
        if options.only != "generation":
            lines = [line for line in text.read_text(encoding="utf-8").split("\n") if line]
            compare_scores(Served(url, "ngram", number), ngram, lines, folder / "lines.txt", options.rounds)


if __name__ == "__main__":
    main()
