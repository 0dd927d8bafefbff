"""What a server imports before it listens, and how its connections are set up."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from chainrule.server.process import _listen

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
