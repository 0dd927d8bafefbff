"""`chainrule report` and `compare --report`: files, what is printed, and mistakes in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders import pairs_text
from commands import chainrule


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.txt").write_text(pairs_text(60))
    (tmp_path / "test.txt").write_text(pairs_text(10, seed=5))
    return tmp_path


def test_compare_writes_a_report_and_report_writes_the_same_figures(folder: Path) -> None:
    page, values = folder / "compared.html", folder / "report.json"
    command = ["compare", folder / "train.txt", "--test", folder / "test.txt", "--tokenizer", "char"]
    models = "ngram(order=2),ngram(order=3)"
    compared = chainrule(*command, "--models", models, "--out", folder / "runs", "--report", page, "--json")
    rows = json.loads(compared.out)
    assert "milliseconds per generated token" in page.read_text(encoding="utf-8")
    runs = [row["run"] for row in rows]
    done = chainrule("report", *runs, "--data", folder / "test.txt", "--json", values, "--markdown", folder / "a.md")
    assert not done.out
    systems = json.loads(values.read_text(encoding="utf-8"))["systems"]
    assert [one["scores"][0]["value"] for one in systems] == [row["bits_per_byte"] for row in rows]
    assert [one["run"] for one in systems] == runs
    for row in rows:
        assert f"{row['bits_per_byte']:.4f}" in page.read_text(encoding="utf-8")
        assert f"{row['bits_per_byte']:.4f}" in (folder / "a.md").read_text(encoding="utf-8")
    printed = chainrule("report", "--diff", values, values)
    assert "| equal |" in printed.out
    whole = json.loads(chainrule("report", "--diff", values, values, "--json", "-").out)
    assert whole["format"] == "chainrule report"


def test_mistakes_are_one_line(folder: Path) -> None:
    for arguments, message in (
        (["--diff", "a.json"], "--diff got 1 files; expected two JSON files of chainrule report --json"),
        (["--diff", "a", "b", "--speed"], "--speed has no effect with --diff; leave it out"),
        (["--diff", folder / "no.json", folder / "no.json"], "cannot be read (No such file or directory)"),
        ([folder / "nothing"], "no run at"),
    ):
        failed = chainrule("report", *arguments)
        assert failed.code == 2
        assert message in failed.err
        assert failed.err.count("\n") == 1
