"""A server under load: tokens per second in total by number of clients, and n-gram scoring over HTTP against the verb.

    serving.py [--rounds 3]

The server and its clients run on the loopback address and share the machine. Every request has a seed, and its text
must be the same alone and under load.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import chainrule as cr
from chainrule.runs.language_model import LanguageModelRun
from chainrule.text.samples.texts import english_text

TOKENS = 128
SHAPES: dict[str, dict[str, Any]] = {
    "transformer": {"embedding": 128, "heads": 4, "layers": 4, "context": 256},
    "lstm": {"embedding": 256, "hidden": 256, "layers": 1},
}


def ask(url: str, path: str, body: dict[str, Any]) -> Any:
    """Send a request."""
    request = urllib.request.Request(url + path, json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request, timeout=300))


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """The time of a call, and its result."""
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def generate(url: str, model: str, clients: int) -> tuple[float, list[str]]:
    """Tokens per second of several clients in total, and their texts."""

    def text(seed: int) -> str:
        body = {"model": model, "prompt": "To be or", "max_tokens": TOKENS, "seed": seed}
        found: str = ask(url, "/v1/completions", body)["choices"][0]["text"]
        return found

    with ThreadPoolExecutor(clients) as pool:
        seconds, texts = seconds_of(lambda: list(pool.map(text, range(clients))))
    return clients * TOKENS / seconds, texts


def score(url: str, run: LanguageModelRun, lines: list[str]) -> float:
    """Speed of scoring lines over HTTP divided by that of the same call in Python."""
    seconds, answer = seconds_of(lambda: ask(url, "/score", {"model": "ngram", "input": lines}))
    plain, found = seconds_of(lambda: [pair for block in run.score_text(lines) for pair in zip(*block, strict=True)])
    assert [one["tokens"] for one in answer["data"]] == [tokens for _, tokens in found]
    return plain / seconds


def main() -> None:
    """Train tiny runs, serve them, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "text.txt"
        text.write_text(english_text(), encoding="utf-8")
        for model, shape in SHAPES.items():
            options: dict[str, Any] = {"model": shape}
            cr.train(text, model=model, tokenizer="char", steps=2, out=folder / "runs" / model, settings=options)
        ngram = cr.train(text, model="ngram", tokenizer="word", out=folder / "runs" / "ngram")
        assert isinstance(ngram, LanguageModelRun)
        command = [sys.executable, "-m", "chainrule.cli.main", "serve", str(folder / "runs"), "--port", "0", "--quiet"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            found = re.search(r"http://\S+", process.stderr.readline())
            assert found is not None
            measure(found[0], ngram, text.read_text(encoding="utf-8").split("\n"), rounds)
        finally:
            process.terminate()
            process.wait(30)


def measure(url: str, ngram: LanguageModelRun, lines: list[str], rounds: int) -> None:
    """Print medians over rounds in which the numbers of clients alternate."""
    for model in SHAPES:
        _, expected = generate(url, model, 1)
        speeds: dict[int, list[float]] = {1: [], 8: [], 32: []}
        for _ in range(rounds):
            for clients, found in speeds.items():
                speed, texts = generate(url, model, clients)
                assert texts[0] == expected[0], "the text of a seed depends on its neighbours"
                found.append(speed)
        middle = {clients: statistics.median(found) for clients, found in speeds.items()}
        for clients, speed in middle.items():
            print(f"{model}, {clients} clients: {speed:,.0f} tokens/s, {speed / middle[1]:.2f} times one client")
    some = [line for line in lines if line][:1000]
    score(url, ngram, some)
    ratios = [score(url, ngram, some) for _ in range(2 * rounds)]
    print(f"n-gram, {len(some)} lines a request: {statistics.median(ratios):.2f} of the speed of the call in Python")


if __name__ == "__main__":
    main()
