"""Runs with weights of 8 bits: what is rounded, what it costs, and which runs refuse it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import chainrule as cr
from chainrule.errors import ConfigError, RunError
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
    for model in ("transformer", "lstm", "at", "ngram"):
        options: dict[str, Any] = {} if model == "ngram" else {"steps": 30, "settings": {"model": {"embedding": 32}}}
        found[model] = text.parent / model
        cr.train(text, model=model, tokenizer="char", valid=text, out=found[model], **options)
    return found


@pytest.mark.parametrize("model", ["transformer", "lstm", "at"])
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


@pytest.mark.parametrize("model", ["transformer", "lstm", "at"])
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


# Saved with 8 bits


@pytest.mark.parametrize("model", ["transformer", "lstm", "at"])
def test_an_exported_run_has_8_bit_weights_and_the_same_numbers(
    runs: dict[str, Path], text: Path, model: str, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    done = json.loads(
        chainrule("export", str(runs[model]), str(small), "--to", "run", "--quantize", "int8", "--json").out
    )
    before, after = (folder / "model.safetensors" for folder in (runs[model], small))
    assert done["format"] == "run"
    assert after.stat().st_size < 0.4 * before.stat().st_size
    assert not (small / "training").exists()
    stored, rounded = cr.load(small), cr.load(runs[model], precision="int8")
    assert stored.precision == "int8"
    assert stored.evaluate(text).bits_per_byte == pytest.approx(rounded.evaluate(text).bits_per_byte, rel=1e-6)
    found = json.loads(chainrule("eval", str(small), str(text), "--json").out)
    assert found["precision"] == "int8"
    assert "precision_cost" not in found  # the exact weights are not there
    assert cr.load(small, precision="float32").precision == "float32"


def test_damage_of_an_exported_run_is_found(runs: dict[str, Path], tmp_path: Path) -> None:
    small = tmp_path / "small"
    cr.export(runs["lstm"], small, to="run", quantize="int8")
    path = small / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match="damaged"):
        cr.load(small).evaluate(["the cat"])


def test_a_mixture_is_exported_with_its_networks_quantized(runs: dict[str, Path], text: Path, tmp_path: Path) -> None:
    mixed, small = tmp_path / "mixed", tmp_path / "small"
    cr.mix([runs["ngram"], runs["lstm"]], valid=text, out=mixed)
    cr.export(mixed, small, to="run", quantize="int8")
    rounded, stored = cr.load(mixed, precision="int8"), cr.load(small)
    assert stored.precision == "int8"
    assert stored.evaluate(text).bits_per_byte == pytest.approx(rounded.evaluate(text).bits_per_byte, rel=1e-6)
    sizes = [(folder / "parts" / "0" / "model.safetensors").stat().st_size for folder in (mixed, small)]
    assert sizes[0] == sizes[1]  # the n-gram model


def test_a_copy_in_single_precision_is_exact_and_an_ngram_has_nothing_to_quantize(
    runs: dict[str, Path], text: Path, tmp_path: Path
) -> None:
    for model in ("ngram", "transformer"):
        cr.export(runs[model], tmp_path / model, to="run")
        assert cr.load(tmp_path / model).evaluate(text) == cr.load(runs[model]).evaluate(text)
    with pytest.raises(ConfigError, match="has no matrices to quantize; leave out --quantize"):
        cr.export(runs["ngram"], tmp_path / "small", to="run", quantize="int8")


def test_the_leaderboard_has_a_row_for_8_bits(text: Path, tmp_path: Path) -> None:
    rows = cr.compare(
        text, models="ngram,gru(hidden=32)", int8=True, steps=20, valid=text, tokenizer="char", out=tmp_path / "runs"
    )
    found = {row.model: row for row in rows}
    assert set(found) == {"ngram", "gru(hidden=32)", "gru(hidden=32), int8"}
    exact, rounded = found["gru(hidden=32)"], found["gru(hidden=32), int8"]
    assert (exact.precision, rounded.precision) == ("float32", "int8")
    assert exact.bits_per_byte != rounded.bits_per_byte
    assert rounded.bits_per_byte == pytest.approx(exact.bits_per_byte, rel=0.02)
