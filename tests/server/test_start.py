"""What a server imports before it listens, and how its connections are set up."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

import chainrule as cr
from chainrule.errors import ConfigError
from chainrule.server.process import _listen
from commands import chainrule

LISTENS = """
import sys
import chainrule.cli.serve, chainrule.server.process
import chainrule as cr

cr.serve({runs!r})
print(*[name for name in ("torch", "numba") if name in sys.modules])
"""

SERVES_NGRAMS = """
import sys
import chainrule as cr
from starlette.testclient import TestClient

with TestClient(cr.serve({run!r})) as client:
    for path, body in {requests!r}.items():
        answer = client.post(path, json=body) if body else client.get(path)
        assert answer.status_code == 200, answer.text
print(*[name for name in ("torch",) if name in sys.modules])
"""


def output_of(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_no_model_library_is_imported_before_the_server_listens(runs: Path) -> None:
    assert output_of(LISTENS.format(runs=str(runs))) == ""


def test_ngrams_are_served_without_torch(runs: Path) -> None:
    requests = {
        "/v1/completions": {"prompt": "ab", "max_tokens": 4, "seed": 1, "logprobs": 2, "echo": True, "n": 2},
        "/score": {"input": ["abab", "cd"]},
        "/tokenize": {"prompt": "ab"},
        "/page/api/bits": {"text": "abab"},
        "/page/api/next": {"text": "ab"},
        "/page/api/why": {"text": "abab"},
        "/page/api/runs": None,
        "/page/api/leaderboard": None,
    }
    assert output_of(SERVES_NGRAMS.format(run=str(runs / "ngram"), requests=requests)) == ""


def test_an_answer_in_two_parts_does_not_wait_for_an_acknowledgement() -> None:
    listener = _listen("127.0.0.1", 0)
    with listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_wrong_options_are_refused_at_the_start(runs: Path) -> None:
    for languages, message in (
        (
            {"foo": ("xx", "yy")},
            "--languages has 'foo', which is no translator of this server; its translators are more",
        ),
        ({"lstm": ("xx", "yy")}, "--languages has 'lstm', which is no translator of this server"),
    ):
        with pytest.raises(ConfigError, match=message):
            cr.serve(runs, languages=languages)
    with pytest.raises(ConfigError, match="it has none, so leave --languages out"):
        cr.serve(runs / "lstm", languages={"lstm": ("xx", "yy")})
    for options, message in (
        (["--memory", "nan"], "--memory is nan; expected a number of gigabytes above 0"),
        (["--memory", "-1"], "--memory is -1; expected a number of gigabytes above 0"),
        (["--precision", "int4"], "--precision is 'int4'; expected float32 or int8"),
        (["--max-tokens", "-3"], "--max-tokens"),
        (["--drain", "-1"], "--drain"),
    ):
        done = chainrule("serve", runs / "lstm", *options, "--port", "0")
        assert (done.code, message in done.err) == (2, True), done.err
