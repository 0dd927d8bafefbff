"""The JSON of answers, and of requests beyond its plain form."""

from __future__ import annotations

import json
import math
import random
import struct

import httpx2
import pytest

from chainrule.server.requests import JsonBytes, to_json
from services import Service


def test_numbers_keep_every_bit() -> None:
    bits = random.Random(0)
    numbers = [struct.unpack("d", struct.pack("Q", bits.getrandbits(64)))[0] for _ in range(10_000)]
    numbers = [number for number in [*numbers, 1e16, -0.0, 5e-324, 0.1, 1e-5] if math.isfinite(number)]
    assert list(map(repr, json.loads(to_json(numbers)))) == list(map(repr, numbers))


@pytest.mark.parametrize("text", ['é\u2028\0"\\', "a\ud800", "\udcff"])
def test_any_text(text: str) -> None:
    answer = {"text": [text, 1], "done": JsonBytes(b"[1]")}
    assert json.loads(to_json(answer)) == {**answer, "done": [1]}


def test_what_is_no_number_is_null() -> None:
    assert json.loads(to_json([{"log_prob": -math.inf}, math.nan])) == [{"log_prob": None}, None]


def test_a_byte_order_mark_is_ignored(service: Service) -> None:
    body = json.dumps({"model": "ngram", "input": "ab"}).encode()
    plain, marked = (httpx2.post(f"{service.url}/score", content=mark + body) for mark in (b"", b"\xef\xbb\xbf"))
    assert plain.status_code == marked.status_code == 200
    assert plain.json() == marked.json()
