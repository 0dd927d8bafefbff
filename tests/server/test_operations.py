"""Keys, limits, overload, disconnects, shutdown, metrics, replaced runs, and independence of neighbours."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import openai
import pytest

import chainrule as cr
from services import Service

TEXTS = [
    ("lstm", "abab"),
    ("lstm", "c"),
    ("transformer", "abab"),
    ("transformer", "ef"),
    ("ngram", "gh"),
    ("mixture", "ij"),
]

IN_WORK = ("requests_running", "requests_waiting", "texts_running")


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_seeded_text_is_the_same_alone_and_under_load(
    runs: Path, start: Callable[..., Service], threads: str
) -> None:
    """Requests of different models, prompts and lengths run beside each other, some with a seed and some without."""
    service = start(runs, "--threads", threads, "--quiet")
    service.wait_until_ready()
    client = service.client()

    def text(number: int) -> tuple[str, list[float]]:
        model, prompt = TEXTS[number % len(TEXTS)]
        tokens = 10 + number % 7
        answer = client.completions.create(model=model, prompt=prompt, max_tokens=tokens, seed=number, logprobs=0)
        return answer.choices[0].text, answer.choices[0].logprobs.token_logprobs

    alone = [text(number) for number in range(24)]
    with ThreadPoolExecutor(12) as pool:
        noise = [pool.submit(client.completions.create, model="lstm", prompt="ab", max_tokens=25) for _ in range(6)]
        together = list(pool.map(text, range(24)))
    assert all(one.result() for one in noise)
    assert together == alone  # to the last bit


def test_keys_are_asked_for_everywhere_but_at_health(runs: Path, start: Callable[..., Service], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# keys\nsecret-one\n")
    environment = {"CHAINRULE_API_KEYS": "secret-two,secret-three"}
    service = start(runs / "ngram", "--api-key-file", keys, environment=environment)
    service.wait_until_ready()
    assert httpx2.get(f"{service.url}/health").json() == {"status": "ok"}
    for path in ("/v1/models", "/metrics", "/tokenizer_info", "/nothing"):
        assert httpx2.get(service.url + path).status_code == 401
    for key in ("secret-one", "secret-two", "secret-three"):
        answered = openai.OpenAI(base_url=f"{service.url}/v1", api_key=key).models.list()
        assert [model.id for model in answered] == ["ngram"]
    with pytest.raises(openai.AuthenticationError, match="has no valid API key"):
        openai.OpenAI(base_url=f"{service.url}/v1", api_key="other", max_retries=0).models.list()


def test_more_than_the_queue_holds_is_refused_with_429(runs: Path, start: Callable[..., Service]) -> None:
    service = start(runs / "lstm", "--rows", "1", "--queue", "2", "--quiet")
    body = {"prompt": "ab", "max_tokens": 150, "seed": 1}
    before = service.post("/v1/completions", body).json()["choices"]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: service.post("/v1/completions", body), range(16)))
    codes = [answer.status_code for answer in answers]
    assert set(codes) == {200, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert all(answer.json()["choices"] == before for answer in answers if answer.status_code == 200)
    assert service.post("/v1/completions", body).json()["choices"] == before


def figures(service: Service) -> dict[str, float]:
    lines = httpx2.get(f"{service.url}/metrics").text.splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}


def test_a_client_that_goes_frees_its_place(runs: Path, start: Callable[..., Service]) -> None:
    """Streaming or not, running or in the queue."""
    service = start(runs / "transformer", "--rows", "2", "--max-tokens", "100000", "--quiet")
    host, port = service.url.removeprefix("http://").split(":")
    sockets = []
    for stream in (True, False, True, False):
        body = json.dumps({"prompt": "ab", "max_tokens": 100_000, "stream": stream}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        opened = socket.create_connection((host, int(port)))
        opened.sendall(head + body)
        sockets.append(opened)
    wait_for(lambda: figures(service)["chainrule_num_requests_waiting"] == 2)
    assert figures(service)["chainrule_num_requests_running"] == 2
    for opened in sockets:
        opened.close()
    wait_for(lambda: not any(figures(service)[f"chainrule_num_{what}"] for what in IN_WORK))
    assert service.post("/v1/completions", {"prompt": "ab", "max_tokens": 3}).status_code == 200


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


def test_sigterm_finishes_what_runs_and_refuses_what_comes(runs: Path, start: Callable[..., Service]) -> None:
    service = start(runs / "lstm", "--quiet")
    client = service.client()
    parts = iter(client.completions.create(model="lstm", prompt="ab", max_tokens=2000, stream=True, seed=1))
    next(parts)
    service.process.send_signal(signal.SIGTERM)
    wait_for(lambda: httpx2.get(f"{service.url}/health").status_code == 503)
    assert service.post("/v1/completions", {"prompt": "a"}).json()["error"]["code"] == "shutting_down"
    assert [part.choices[0].finish_reason for part in parts][-1] == "length"
    assert service.process.wait(20) == 0


def test_what_was_accepted_before_sigterm_is_answered(runs: Path, start: Callable[..., Service]) -> None:
    """Also if it is not computed yet: here its body arrives late, and then its run has to be loaded."""
    service = start(runs / "lstm", "--quiet")
    service.wait_until_ready()
    host, port = service.url.removeprefix("http://").split(":")
    body = json.dumps({"prompt": "ab", "max_tokens": 3}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(head.encode())
        assert client.recv(100).startswith(b"HTTP/1.1 100")  # the server waits for the body
        service.process.send_signal(signal.SIGTERM)
        wait_for(lambda: httpx2.get(f"{service.url}/health").status_code == 503)
        client.sendall(body)
        assert client.recv(12) == b"HTTP/1.1 200"
    assert service.process.wait(20) == 0


def test_a_second_signal_gives_what_runs_an_error_frame(runs: Path, start: Callable[..., Service]) -> None:
    service = start(runs / "lstm", "--quiet", "--max-tokens", "1000000")
    parts = iter(service.client().completions.create(model="lstm", prompt="a", max_tokens=1_000_000, stream=True))
    next(parts)
    service.process.send_signal(signal.SIGINT)
    wait_for(lambda: httpx2.get(f"{service.url}/health").status_code == 503)
    service.process.send_signal(signal.SIGINT)
    with pytest.raises(openai.APIError, match="the server is shutting down; try again later"):
        list(parts)
    assert service.process.wait(20) == 0
    assert not service.log


def test_what_runs_when_the_time_to_drain_is_over_gets_an_error_frame(
    runs: Path, start: Callable[..., Service]
) -> None:
    service = start(runs / "lstm", "--quiet", "--drain", "0.3", "--rows", "1", "--max-tokens", "1000000")
    client, body = service.client(), {"model": "lstm", "prompt": "ab", "max_tokens": 1_000_000}
    parts = iter(client.completions.create(**body, stream=True))
    next(parts)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(service.post, "/v1/completions", body)
        wait_for(lambda: figures(service)["chainrule_num_requests_waiting"] == 1)
        service.process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="shutting down"):
            list(parts)
        assert waiting.result().json()["error"]["code"] == "shutting_down"
    assert service.process.wait(20) == 0


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_go_at_any_stage_or_never_finish_leave_nothing(
    runs: Path, start: Callable[..., Service], stream: bool
) -> None:
    service = start(runs / "lstm", "--max-body-seconds", "0.5", "--max-tokens", "1000000", "--quiet")
    host, port = service.url.removeprefix("http://").split(":")
    body = json.dumps({"prompt": "ab", "max_tokens": 1_000_000, "stream": stream}).encode()
    whole = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    for cut in (0, 1, 20, len(whole) - len(body), len(whole) - 5, len(whole)):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(whole[:cut])
    slow = socket.create_connection((host, int(port)), timeout=20)
    with slow:
        slow.sendall(whole[:-5])
        assert slow.recv(12) == b"HTTP/1.1 408"
    wait_for(lambda: not any(figures(service)[f"chainrule_num_{what}"] for what in IN_WORK))
    assert not [name for name in figures(service) if 'code="500"' in name]


def test_an_error_after_the_first_part_is_a_frame(runs: Path, start: Callable[..., Service]) -> None:
    service = start(runs / "lstm", "--max-seconds", "1", "--max-tokens", "1000000", "--quiet")
    parts = service.client().completions.create(model="lstm", prompt="ab", max_tokens=1_000_000, stream=True)
    with pytest.raises(openai.APIError, match="took more than 1 seconds"):
        list(parts)
    with pytest.raises(openai.BadRequestError, match="took more than 1 seconds"):
        service.client().completions.create(model="lstm", prompt="ab", max_tokens=1_000_000)


def test_a_text_with_drafts_lets_others_compute_and_has_an_end(runs: Path, start: Callable[..., Service]) -> None:
    service = start(runs / "lstm", "--max-seconds", "2", "--max-tokens", "1000000", "--quiet")
    service.wait_until_ready()
    assert service.post("/score", {"input": "ab"}).status_code == 200
    with ThreadPoolExecutor(1) as pool:
        drafted = pool.submit(service.post, "/v1/completions", {"prompt": "ab", "max_tokens": 10**6, "draft": "lookup"})
        wait_for(lambda: figures(service)["chainrule_num_requests_running"] == 1)
        assert service.post("/score", {"input": "ab"}).status_code == 200
        assert not drafted.done()
        assert "took more than 2 seconds" in drafted.result().json()["error"]["message"]


def test_a_replaced_run_is_used_and_requests_in_work_end(
    runs: Path, start: Callable[..., Service], tmp_path: Path
) -> None:
    shutil.copytree(runs / "lstm", tmp_path / "model")
    service = start(tmp_path / "model", "--quiet")
    client = service.client()
    before = client.completions.create(model="model", prompt="ab", max_tokens=3, temperature=0)
    parts = iter(client.completions.create(model="model", prompt="ab", max_tokens=300, stream=True))
    first = next(parts)
    shutil.copytree(runs / "ngram", tmp_path / "new")
    (tmp_path / "model").rename(tmp_path / "old")
    (tmp_path / "new").rename(tmp_path / "model")
    after = client.completions.create(model="model", prompt="ab", max_tokens=3, temperature=0)
    assert before.system_fingerprint == first.system_fingerprint != after.system_fingerprint
    assert [part.system_fingerprint for part in parts][-1] == before.system_fingerprint
    (tmp_path / "model").rename(tmp_path / "gone")  # requests between two renames are answered by what is loaded
    between = client.completions.create(model="model", prompt="ab", max_tokens=3, temperature=0)
    (tmp_path / "old").rename(tmp_path / "model")
    last = client.completions.create(model="model", prompt="ab", max_tokens=3, temperature=0)
    assert between.system_fingerprint == after.system_fingerprint
    assert last.choices == before.choices


def test_runs_are_loaded_when_used_and_unloaded_for_others(runs: Path, start: Callable[..., Service]) -> None:
    size = sum(path.stat().st_size for path in (runs / "mixture").rglob("*") if path.is_file())
    service = start(runs / "mixture", runs / "lstm", "--memory", str(size * 1.01 / 1e9), "--quiet")

    def state() -> list[bool]:
        return [model["loaded"] for model in httpx2.get(f"{service.url}/v1/models").json()["data"]]

    assert state() == [False, False]
    for model, expected in (("mixture", [True, False]), ("lstm", [False, True]), ("mixture", [True, False])):
        assert service.post("/v1/completions", {"model": model, "prompt": "a"}).status_code == 200
        assert state() == expected


def test_hostile_requests_get_an_answer_and_no_500(service: Service) -> None:
    rng = random.Random(0)
    good: dict[str, Any] = {"model": "lstm", "prompt": "ab", "max_tokens": 2, "n": 1, "stop": "x", "logprobs": 1}
    odd: list[Any] = [None, True, -1, 1e308, "", "\ud800", [], [[]], [None], {}, {"a": 1}, "x" * 5000, 2**70, [2**70]]
    for number in range(300):
        body: Any = dict(good)
        for name in rng.sample(sorted(body), 2):
            body[name] = rng.choice(odd)
        raw = json.dumps(body).encode()
        if number % 3 == 0:
            place = rng.randrange(len(raw))
            raw = raw[:place] + bytes([rng.randrange(256)]) + raw[place + rng.randrange(3) :]
        path = rng.choice(
            ["/v1/completions", "/score", "/v1/embeddings", "/tokenize", "/classify", "/translate", "/fill"]
        )
        answer = httpx2.post(service.url + path, content=raw, timeout=60)
        assert answer.status_code in (200, 400, 404), (path, raw, answer.text)
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert error if path == "/translate" else error["message"]
    deep = b"[" * 100_000
    assert httpx2.post(f"{service.url}/score", content=deep).status_code == 400
    for wrong in (b'{"input": NaN}', b'{"input": "\\ud800"}', b'{"input": "\xff"}', b'{"input": "a"} {}', b"[1]", b""):
        assert httpx2.post(f"{service.url}/score", content=wrong).json()["error"]["code"] == "invalid_json"
    refused = httpx2.get(f"{service.url}/score")
    assert refused.status_code == 405
    assert refused.json()["error"]["message"] == "GET does not apply to /score; use POST"
    assert httpx2.get(f"{service.url}/nowhere").json()["error"]["code"] == "unknown_route"


def test_a_body_above_the_limit_is_refused_while_it_is_sent(runs: Path, start: Callable[..., Service]) -> None:
    service = start(runs / "ngram", "--max-body", "1000", "--quiet")

    def endless() -> Any:
        for _ in range(100_000):
            yield b"x" * 100

    with contextlib.suppress(httpx2.TransportError):  # the server may close the connection before all is sent
        assert httpx2.post(f"{service.url}/score", content=endless(), timeout=30).status_code == 413
    assert service.post("/score", {"input": "x" * 2000}).status_code == 413
    assert service.post("/score", {"input": "ab"}).status_code == 200


def test_headers_without_end_are_refused(service: Service) -> None:
    address = urlsplit(service.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(b"POST /score HTTP/1.1\r\nhost: x\r\n")
        with pytest.raises(ConnectionError):
            connection.sendall((b"x-header: " + b"x" * 1000 + b"\r\n") * 20_000)


def test_the_metrics_and_the_log_have_no_texts(service: Service) -> None:
    client = service.client()
    client.completions.create(model="lstm", prompt="efefsecret", max_tokens=4)
    service.post("/v1/completions", {"model": "secret-name", "prompt": "a"})
    page = httpx2.get(f"{service.url}/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = figures(service)
    assert values['chainrule_generation_tokens_total{model="lstm"}'] >= 4
    assert values['chainrule_requests_total{code="200",route="/v1/completions"}'] >= 1
    wait_for(lambda: any('"status": 404' in line for line in service.log))
    assert "secret" not in page.text + "".join(service.log)
    record = json.loads(next(line for line in service.log if '"status": 200' in line))
    assert {"time", "id", "method", "route", "status", "seconds"} <= set(record)


def test_the_prompts_are_logged_if_asked_and_headers_are_shown_to_allowed_pages(
    runs: Path, start: Callable[..., Service]
) -> None:
    service = start(runs / "ngram", "--log-prompts", "--cors", "https://a.example")
    body = {"prompt": "abc", "max_tokens": 1}
    answer = service.post("/v1/completions", body, headers={"origin": "https://a.example"})
    assert answer.headers["access-control-expose-headers"] == "x-request-id, retry-after"
    service.post("/compare", {**body, "prompt": "cd", "models": ["ngram"]})
    wait_for(lambda: sum('"prompt"' in line for line in service.log) == 2)
    assert [json.loads(line)["prompt"] for line in service.log if '"prompt"' in line] == ["abc", "cd"]
    assert "access-control-allow-origin" not in service.post("/score", {"input": "a"}).headers


def test_the_thread_of_an_application_ends_with_it(runs: Path) -> None:
    from starlette.testclient import TestClient

    app = cr.serve([runs / "ngram"])
    for _ in range(2):  # an application may be started again
        with TestClient(app) as client:
            assert client.post("/v1/completions", json={"prompt": "ab", "max_tokens": 2}).status_code == 200
            assert [one.name for one in threading.enumerate()].count("chainrule engine") == 1
        assert "chainrule engine" not in [one.name for one in threading.enumerate()]


def test_an_application_can_be_mounted_in_another(runs: Path) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from starlette.testclient import TestClient

    app = cr.serve([runs / "ngram"], api_keys=["k"])

    @contextlib.asynccontextmanager
    async def lifespan(outer: Starlette) -> AsyncIterator[None]:
        async with app.router.lifespan_context(app):
            yield

    outer = Starlette(routes=[Mount("/models", app=app)], lifespan=lifespan)
    with TestClient(outer) as client:
        assert client.get("/models/health").json() == {"status": "ok"}
        assert client.get("/models/v1/models").status_code == 401
        headers = {"authorization": "Bearer k"}
        answer = client.post("/models/v1/completions", json={"prompt": "ab", "max_tokens": 2}, headers=headers)
        assert answer.json()["usage"]["completion_tokens"] == 2
        page = client.get("/models/").text
        for file in re.findall(r'(?:src|href)="(page/[^"]+)"', page):  # relative, so that they are found here, too
            assert client.get(f"/models/{file}").status_code == 200
        assert "page/core/main.js" in page
