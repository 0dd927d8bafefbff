"""The option `data.pair_field`: the field of the second text in JSON lines of labelled pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import chainrule as cr

RECORDS = [
    {"text": "a cat sat", "hypothesis": "an animal sat", "label": "yes"},
    {"text": "a dog ran", "hypothesis": "a cat ran", "label": "no"},
]


def train(data: Path, out: Path, **fields: str) -> Any:
    settings = {"data": fields, "model": {"embedding": 4, "hidden": 4}, "training": {"batch_size": 4}}
    return cr.train(data, valid=data, model="classifier", steps=1, out=out, settings=settings)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS * 4))
    return path


def test_the_named_field_is_the_second_text(data: Path, tmp_path: Path) -> None:
    run = train(data, tmp_path / "pairs", pair_field="hypothesis")
    assert run.config.data.pair_field == "hypothesis"
    assert run.config.model.options["pairs"] is True
    renamed = tmp_path / "renamed.jsonl"
    renamed.write_text(data.read_text().replace("hypothesis", "text_pair"))
    same = train(renamed, tmp_path / "default")  # text_pair is the name by default
    measured = [one.evaluate(path).loss for one, path in ((run, data), (same, renamed))]
    assert measured[0] == pytest.approx(measured[1], abs=1e-6)


def test_another_field_is_left_out(data: Path, tmp_path: Path) -> None:
    run = train(data, tmp_path / "texts")
    assert run.config.model.options["pairs"] is False
