"""Runs with weights of 8 bits: what is rounded, what it costs, and which runs refuse it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import chainrule as cr
from chainrule.errors import ConfigError
from commands import chainrule

TEXT = "the cat sat on the mat. the dog sat on the log. " * 40 + "\n"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("precision") / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def runs(text: Path) -> dict[str, Path]:
    found = {}
    for model in ("transformer", "lstm", "ngram"):
        options: dict[str, Any] = {} if model == "ngram" else {"steps": 30, "settings": {"model": {"embedding": 32}}}
        found[model] = text.parent / model
        cr.train(text, model=model, tokenizer="char", valid=text, out=found[model], **options)
    return found


@pytest.mark.parametrize("model", ["transformer", "lstm"])
def test_every_matrix_has_at_most_255_values_per_row(runs: dict[str, Path], model: str) -> None:
    exact, rounded = cr.load(runs[model]), cr.load(runs[model], precision="int8")
    for before, after in zip(exact.model.parameters(), rounded.model.parameters(), strict=True):
        if before.dim() == 2:
            scale_R1 = before.abs().amax(1, keepdim=True) / 127
            assert ((before - after).abs() <= 0.501 * scale_R1 + 1e-12).all()
            steps = after / scale_R1.clamp_min(1e-30)
            torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-3)
        else:
            assert torch.equal(before, after)
    assert rounded.model.precision == "int8"


@pytest.mark.parametrize("model", ["transformer", "lstm"])
def test_eval_prints_the_cost(runs: dict[str, Path], text: Path, model: str) -> None:
    result = chainrule("eval", str(runs[model]), str(text), "--precision", "int8", "--json")
    found = json.loads(result.out)
    plain = json.loads(chainrule("eval", str(runs[model]), str(text), "--json").out)
    assert found["precision"] == "int8"
    assert found["float32_bits_per_byte"] == pytest.approx(plain["bits_per_byte"], rel=1e-6)
    assert found["precision_cost"] == pytest.approx(found["bits_per_byte"] / plain["bits_per_byte"] - 1, abs=1e-9)
    assert found["bits_per_byte"] != plain["bits_per_byte"]
    assert abs(found["precision_cost"]) < 0.02


def test_other_verbs_take_it(runs: dict[str, Path], text: Path) -> None:
    generated = chainrule(
        "generate", str(runs["transformer"]), "--precision", "int8", "--max-new-tokens", "5", "--json"
    )
    assert json.loads(generated.out)["texts"]
    scored = chainrule("score", str(runs["transformer"]), str(text), "--precision", "int8", "--json")
    assert json.loads(scored.out.splitlines()[0])["log_prob"] < 0


def test_what_has_no_matrices_refuses_it(runs: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"--precision int8 is for networks, and .*ngram.* has no matrices"):
        cr.load(runs["ngram"], precision="int8")
    with pytest.raises(ConfigError, match="--precision is 'int4'; expected float32 or int8"):
        cr.load(runs["transformer"], precision="int4")
