"""Logs that grow, are cut and become long."""

from __future__ import annotations

import json
import random
from pathlib import Path

from chainrule.checkpoint.folder import RunFolder
from chainrule.checkpoint.log_tail import read_tail, thin


def test_only_whole_new_lines_are_read(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    assert read_tail(log) == ([], 0, True)
    log.write_text('{"step": 1}\n{"step": 2}\n{"st', encoding="utf-8")
    first = read_tail(log)
    assert [one["step"] for one in first.records] == [1, 2]
    assert first.offset == 24
    with log.open("a", encoding="utf-8") as file:
        file.write('ep": 3}\nnot json\n[4]\n' + "[" * 100_000 + '\n{"step": 5}\n')
    second = read_tail(log, first.offset)
    assert ([one["step"] for one in second.records], second.restarted) == ([3, 5], False)
    assert second.offset == log.stat().st_size
    assert read_tail(log, second.offset) == ([], second.offset, False)
    log.write_text('{"step": 1}\n', encoding="utf-8")  # cut, as by a training that resumes
    third = read_tail(log, second.offset)
    assert ([one["step"] for one in third.records], third.restarted) == ([1], True)


def test_a_large_log_is_read_in_parts(tmp_path: Path) -> None:
    log, offset, steps = tmp_path / "metrics.jsonl", 0, []
    log.write_text("".join(f'{{"step": {step}}}\n' for step in range(100)), encoding="utf-8")
    while offset < log.stat().st_size:
        part = read_tail(log, offset, most=50)
        steps += [one["step"] for one in part.records]
        offset = part.offset
    assert steps == list(range(100))


def test_a_thin_log_keeps_the_outline_of_every_figure() -> None:
    """In each part, the smallest and the largest value of every figure are those of the whole log."""
    draw = random.Random(3)
    whole = [
        {"step": step, "loss": draw.gauss(3, 1), **({"valid_loss": draw.random()} if step % 97 == 0 else {})}
        for step in range(100_000)
    ]
    kept = thin(whole, 100)
    assert len(kept) <= 100 * 6 + 2
    assert [one["step"] for one in kept] == sorted(one["step"] for one in kept)
    assert (kept[0], kept[-1]) == (whole[0], whole[-1])
    for part in range(100):
        inside = range(1000 * part, 1000 * (part + 1))
        for name in ("loss", "valid_loss"):
            values = [one[name] for one in whole[inside.start : inside.stop] if name in one]
            left = [one[name] for one in kept if one["step"] in inside and name in one]
            assert (min(left), max(left)) == (min(values), max(values))
    assert thin(whole[:150], 100) == whole[:150]
    assert len(thin([{"loss": float("nan"), "note": "x"}] * 500, 10)) == 2


def test_figures_belong_to_the_weights_that_were_measured(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.signature.begin({"seed": "1"})
    folder.signature.record({"weights": "a" * 64})
    assert folder.read_figures() is None
    folder.write_figures({"bits_per_byte": 2.5})
    assert folder.read_figures() == {"bits_per_byte": 2.5}
    assert json.loads((tmp_path / "valid.json").read_text())["weights"] == "a" * 64
    (tmp_path / "valid.json").write_text(json.dumps({"weights": "a" * 64, "figures": 3}))
    assert folder.read_figures() is None
    folder.write_figures({"bits_per_byte": 2.5})
    folder.write_figures({"bits_per_byte": 2.0}, "test.json")
    assert (folder.read_figures("test.json"), folder.read_figures()) == ({"bits_per_byte": 2.0}, {"bits_per_byte": 2.5})
    folder.signature.record({"weights": "b" * 64})
    assert folder.read_figures() is None
