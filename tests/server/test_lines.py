"""Lines of requests: which are refused before anything is computed, and how many are computed at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

import chainrule as cr
from chainrule.server.limits import Limits
from chainrule.server.lines import WIDTH, characters, in_slices, slices, texts_above


@pytest.fixture(scope="module")
def client(runs: Path) -> Iterator[TestClient]:
    """A server that allows few tokens."""
    limits = Limits(prompt_tokens=20, tokens=20)
    with TestClient(cr.serve(runs, limits=limits, languages={"more/translator": ("xx", "yy")})) as client:
        yield client


LONG = "ab" * 11
LINES: list[tuple[str, dict[str, Any], int]] = [
    ("/score", {"model": "ngram", "input": ["ab", LONG]}, 22),
    ("/score", {"model": "lstm", "input": LONG, "tokens": True}, 22),
    ("/classify", {"model": "more/classifier", "input": ["a b", "a " * 21]}, 21),
    ("/tag", {"model": "more/tagger", "input": "the " * 21}, 21),
    ("/tag", {"model": "more/tagger", "input": [["the"], ["the"] * 21]}, 21),
    ("/fill", {"model": "more/bert", "input": LONG}, 22),
    ("/v1/embeddings", {"model": "lstm", "input": ["ab", LONG]}, 22),
    ("/v1/embeddings", {"model": "lstm", "input": [[3] * 5, [3] * 21]}, 21),
]


@pytest.mark.parametrize(("path", "body", "tokens"), LINES)
def test_a_line_with_too_many_tokens_is_refused(
    client: TestClient, path: str, body: dict[str, Any], tokens: int
) -> None:
    refused = client.post(path, json=body)
    error = refused.json()["error"]
    assert refused.status_code == 400
    assert error["message"] == f"input has a line of {tokens} tokens; this server allows at most 20: divide it"
    assert (error["code"], error["param"]) == ("above_limit", "input")


def test_both_texts_of_a_pair_are_counted(client: TestClient) -> None:
    body = {"model": "more/classifier", "input": [["a", "b " * 21]]}
    assert "input has a line of 21 tokens" in client.post("/classify", json=body).json()["error"]["message"]


def test_a_line_to_translate_with_too_many_tokens_is_refused(client: TestClient) -> None:
    refused = client.post("/translate", json={"q": ["abc", "abc" * 7], "source": "xx", "target": "yy"})
    assert refused.json() == {"error": "q has a line of 21 tokens; this server allows at most 20: divide it"}
    assert client.post("/translate", json={"q": "abc" * 6, "source": "xx", "target": "yy"}).status_code == 200


def test_tokens_are_counted_and_not_characters(client: TestClient) -> None:
    """Many lines may have more characters than the limit in total, and so may one line of long words."""
    assert client.post("/score", json={"model": "ngram", "input": ["abab"] * 20}).status_code == 200
    assert client.post("/score", json={"model": "ngram", "input": LONG[:20]}).status_code == 200
    assert client.post("/tag", json={"model": "more/tagger", "input": "dog " * 20}).status_code == 200
    assert client.post("/v1/embeddings", json={"model": "lstm", "input": [3] * 20}).status_code == 200


def test_only_texts_that_may_be_too_long_are_counted() -> None:
    assert texts_above([], 20) == []
    assert texts_above(["a" * 5, "é" * 10], 20) == []
    assert texts_above(["a" * 20, "é" * 11, "字" * 7, "a" * 21], 20) == ["é" * 11, "字" * 7, "a" * 21]


@given(st.lists(st.one_of(st.integers(0, 9), st.integers(0, 4 * WIDTH)), max_size=40), st.integers(1, 9))
def test_slices_are_as_long_as_they_may_be(lengths: list[int], size: int) -> None:
    found = list(slices(lengths, size))
    assert [place for one in found for place in range(one.start, one.stop)] == list(range(len(lengths)))
    for one in found:
        part = lengths[one]
        assert len(part) == 1 or (len(part) <= size and sum(part) <= size * WIDTH)
        if one.stop < len(lengths):
            assert len(part) == size or sum(lengths[one.start : one.stop + 1]) > size * WIDTH


def test_others_have_their_turn_before_every_slice() -> None:
    lines, seen = [["x" * WIDTH * 2], ["a", "b" * WIDTH], ["c"], ["d"], ["e"]], list[int]()

    def compute(some: Sequence[list[str]]) -> list[str]:
        seen.append(len(some))
        return ["".join(one)[:1] for one in some]

    results: list[str] = []

    def steps() -> Iterator[Any]:
        results.extend((yield from in_slices(lines, 2, compute, characters)))

    assert [len(seen) for moves in steps() if moves == []] == [0, 1, 2]
    assert seen == [1, 2, 2]
    assert results == ["x", "a", "c", "d", "e"]
