"""Small runs of several kinds, and real server processes on the loopback address."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import chainrule as cr
from builders import letter_pairs, pairs_text, write_pairs
from services import Service

SMALL: dict[str, Any] = {"model": {"embedding": 16, "hidden": 16, "layers": 1}}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an n-gram, an LSTM, a Transformer, a mixture, and runs of other tasks in a folder below."""
    folder = tmp_path_factory.mktemp("served")
    text = folder / "text.txt"
    text.write_text(pairs_text(400), encoding="utf-8")
    made = folder / "runs"
    cr.train(text, model="ngram", tokenizer="char", out=made / "ngram")
    cr.train(text, model="lstm", tokenizer="char", steps=30, out=made / "lstm", settings=SMALL)
    narrow = {"model": {"embedding": 16, "heads": 2, "layers": 2, "context": 24}}
    cr.train(text, model="transformer", tokenizer="char", steps=30, out=made / "transformer", settings=narrow)
    cr.mix([made / "ngram", made / "lstm"], valid=text, out=made / "mixture")
    source, target = write_pairs(folder, letter_pairs(120))
    cr.train(
        [source, target],
        model="seq2seq-rnn",
        steps=10,
        out=made / "more" / "translator",
        settings={"model": {"embedding": 8, "hidden": 8}},
    )
    labelled = folder / "labels.tsv"
    labelled.write_text("".join(f"{'ab'[i % 2]}\t{'good' if i % 2 else 'bad'} text {i}\n" for i in range(60)))
    cr.train(labelled, model="classifier", steps=10, out=made / "more" / "classifier")
    words = folder / "tags.conll"
    words.write_text("the D\ncat N\nsat V\n\na D\ndog N\nran V\n\n" * 30)
    cr.train(words, model="tagger", steps=10, out=made / "more" / "tagger", settings={"model": {"embedding": 8}})
    shape = {"layers": 1, "heads": 2, "width": 16, "inner": 32, "positions": 24}
    cr.train(text, model="bert", tokenizer="char", steps=10, out=made / "more" / "bert", settings={"model": shape})
    return made


@pytest.fixture(scope="session")
def start() -> Iterator[Callable[..., Service]]:
    """Start `chainrule serve` with some arguments; it ends with the tests."""
    begun: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    clients: list[openai.OpenAI] = []

    def start_server(*arguments: str | Path, environment: dict[str, str] | None = None) -> Service:
        command = [sys.executable, "-m", "chainrule.cli.main", "serve", *map(str, arguments), "--port", "0"]
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
        )
        begun.append(process)
        assert process.stderr is not None
        first = process.stderr.readline()
        found = re.search(r"at (http://127\.0\.0\.1:\d+)", first)
        assert found, first + process.stderr.read()
        log: list[str] = []
        reader = threading.Thread(target=lambda: log.extend(process.stderr or ()), daemon=True)
        reader.start()
        readers.append(reader)
        return Service(found[1], process, log, clients)

    yield start_server
    for client in clients:
        client.close()
    for process in begun:
        process.terminate()
    for reader in readers:
        reader.join(20)
    for process in begun:
        process.wait(20)
        assert process.stderr is not None
        process.stderr.close()


@pytest.fixture(scope="session")
def service(runs: Path, start: Callable[..., Service]) -> Service:
    """A server of all runs."""
    return start(runs, "--languages", "more/translator=xx-yy")
