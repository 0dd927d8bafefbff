"""Runs as ONNX graphs: they compute what the run computes, and the runner needs neither torch nor chainrule."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_ctranslate2 import SIDES, SMALL, texts, trained

import chainrule as cr
from chainrule.errors import ConfigError
from requirements import need

need("export")

__all__ = ["texts"]  # the fixture

UNITS: dict[str, Any] = {"embedding": 8, "hidden": 8}
FORMS: list[tuple[str, dict[str, Any]]] = [
    ("lstm", {**UNITS, "layers": 2}),
    ("gru", UNITS),
    ("transformer", {**SMALL, "layers": 2}),
    ("transformer", {**SMALL, "layers": 1, "positions": "learned", "norm": "post", "bias": True}),
    ("seq2seq-rnn", UNITS),
    ("seq2seq-attention", {**UNITS, "score": "additive", "cell": "gru"}),
    ("seq2seq-transformer", {**SIDES, "encoder_layers": 1}),
    ("t5", {**SIDES, "encoder_layers": 1, "sentinels": 3}),
]
SLOW: list[tuple[str, dict[str, Any]]] = [
    ("rnn", UNITS),
    ("lstm-peephole", UNITS),
    ("lstm-coupled", UNITS),
    ("seq2seq-rnn", {**UNITS, "cell": "gru", "reversed_source": False}),
    ("seq2seq-attention", {**UNITS, "score": "location", "input_feeding": False, "encoder_layers": 2}),
    ("seq2seq-transformer", {**SIDES, "positions": "rotary", "shared": False}),
]


@pytest.mark.parametrize(
    ("model", "options"), [*FORMS, *(pytest.param(*form, marks=pytest.mark.slow) for form in SLOW)]
)
def test_graphs_compute_what_the_run_computes(model: str, options: dict[str, Any], texts: Path, tmp_path: Path) -> None:
    """Several exports in one process, each compared at batch and text sizes other than those of its examples."""
    run = trained(texts, tmp_path / "run", model, options)
    done = cr.export(run.folder.path, tmp_path / "out", to="onnx")
    assert done.difference is not None
    assert done.difference < 1e-5
    assert (tmp_path / "out" / "encoder.onnx").exists() == (model.startswith("seq2seq") or model == "t5")


def run_folder(folder: Path, *arguments: str) -> str:
    """What the runner prints, in a process that cannot import torch or this package."""
    blocked = "import sys; sys.modules['torch'] = sys.modules['chainrule'] = None; import runpy; "
    call = f"runpy.run_path({str(folder / 'generate.py')!r}, run_name='__main__')"
    code = f"{blocked}sys.argv[1:] = {list(arguments)!r}; {call}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout


def test_the_runner_continues_a_text_as_the_run_does(texts: Path, tmp_path: Path) -> None:
    run = trained(texts, tmp_path / "run", "lstm", UNITS, steps=60)
    cr.export(run.folder.path, tmp_path / "out", to="onnx")
    ours = run.generate("the ", max_new_tokens=12, temperature=0.0)[0].text
    assert run_folder(tmp_path / "out", "the ", "--max-new-tokens", "12") == ours + "\n"
    ids = " ".join(map(str, run.tokenizer.encode("the ")))
    found = [int(one) for one in run_folder(tmp_path / "out", "--ids", ids, "--max-new-tokens", "12").split()]
    assert "the " + run.tokenizer.decode(found) == ours


def test_the_runner_translates_as_the_run_does(texts: Path, tmp_path: Path) -> None:
    run = trained(texts, tmp_path / "run", "seq2seq-attention", UNITS, steps=150)
    cr.export(run.folder.path, tmp_path / "out", to="onnx")
    ours = run.translate(["the cat 7"], num_beams=1, max_new_tokens=20)[0]
    assert ours
    assert run_folder(tmp_path / "out", "the cat 7", "--max-new-tokens", "20").rstrip("\n") == ours
    about = json.loads((tmp_path / "out" / "model.json").read_text())
    assert about["memory"] == ["keys", "values"]


def test_models_without_graphs_are_refused(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the model average has no step graph"):
        cr.train(texts / "text.txt", model="average", out=tmp_path / "run", export_to="onnx")


def test_an_export_that_differs_is_not_left_behind(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(texts, tmp_path / "run", "lstm", UNITS)
    monkeypatch.setattr("chainrule.interop.onnx.runs.greatest_difference", lambda *arguments: 0.5)
    with pytest.raises(ConfigError, match=r"differs from its export by 0\.5, more than the rounding"):
        cr.export(run.folder.path, tmp_path / "out", to="onnx")
    assert not (tmp_path / "out").exists()
