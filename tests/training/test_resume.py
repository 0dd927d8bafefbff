"""A training that is killed, stopped or shared out ends exactly where an unbroken one does."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from builders import pairs_text
from chainrule.runs import RunFolder

COMMON = ["training.log_steps=4", "training.validations=5", "training.batch_size=8", "training.length=8"]
KINDS = {
    # dropout on and state carried: the random state and the carried state must survive too
    "lstm": ["model.embedding=8", "model.hidden=8", "model.layers=2", "model.dropout=0.3", "model.variational=true"],
    "transformer": ["model.embedding=8", "model.layers=1", "model.heads=2", "model.context=8", "model.dropout=0.2"],
    "muon": ["model.embedding=8", "model.layers=1", "model.heads=2", "model.context=8", "training.optimizer=muon"],
    "gru": ["model.embedding=8", "model.hidden=8", "training.average_from=0.3", "training.schedule=plateau"],
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "pairs.txt"
    path.write_text(pairs_text(150))
    return path


def command(kind: str, text: Path, out: Path, steps: int, *settings: str) -> list[str]:
    model = "transformer" if kind == "muon" else kind
    options = ["--model", model, "--tokenizer", "char", "--steps", str(steps), "--device", "cpu", "--out", str(out)]
    for setting in (*COMMON, *KINDS[kind], *settings):
        options += ["--set", setting]
    return [sys.executable, "-m", "chainrule.cli.main", "train", str(text), *options, "--json"]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(arguments: list[str]) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def wait_for(process: subprocess.Popen[str], run: Path, step: int) -> None:
    """Until a training that is under way has saved this step or a later one."""
    for _ in range(3000):
        saved = sorted((run / "training").glob("step-*"))
        if process.poll() is not None or (saved and int(saved[-1].name.removeprefix("step-")) >= step):
            return
        time.sleep(0.01)
    raise AssertionError("the training saved nothing")


def everything(run: Path) -> dict[str, torch.Tensor]:
    """The weights to use, and all that is in the last checkpoint."""
    folder = RunFolder(run)
    checkpoint = folder.read_checkpoint()
    assert checkpoint is not None
    return {**folder.read_weights(), **{f"checkpoint/{name}": t for name, t in checkpoint.tensors.items()}}


def metrics(run: Path) -> list[dict[str, Any]]:
    """The log without what depends on the clock."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def assert_same_run(one: Path, other: Path) -> None:
    ours, theirs = everything(one), everything(other)
    assert ours.keys() == theirs.keys()
    different = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert not different
    assert metrics(one) == metrics(other)


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_a_training_killed_at_several_moments_ends_as_if_unbroken(kind: str, text: Path, tmp_path: Path) -> None:
    steps, rng = 120, random.Random(kind)
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    finish(command(kind, text, unbroken, steps))
    for least in (10, 40, 70):
        process = start(command(kind, text, broken, steps, "training.save_seconds=0.001"))
        wait_for(process, broken, least)
        time.sleep(rng.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not (broken / "result.json").exists(), "the training was over before it was killed"
    finish(command(kind, text, broken, steps, "training.save_seconds=0.001"))
    assert_same_run(unbroken, broken)
    logged = [record["step"] for record in metrics(broken) if "loss" in record]
    assert logged == list(range(4, steps + 1, 4))
    assert [record["step"] for record in metrics(broken) if "valid_loss" in record] == [24, 48, 72, 96, 120]


@pytest.mark.parametrize("kind", ["gru", "muon"])
def test_a_training_stopped_by_ctrl_c_saves_and_goes_on_the_same(kind: str, text: Path, tmp_path: Path) -> None:
    unbroken, broken, steps = tmp_path / "unbroken", tmp_path / "broken", 120
    finish(command(kind, text, unbroken, steps))
    process = start(command(kind, text, broken, steps, "training.save_seconds=0.001"))
    wait_for(process, broken, 20)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == f"stopped and saved; the same command goes on from here: {broken}"
    assert 20 <= RunFolder(broken).read_checkpoint().values["step"] < steps  # type: ignore[union-attr]
    finish(command(kind, text, broken, steps))
    assert_same_run(unbroken, broken)


def losses(run: Path) -> list[float]:
    return [value for record in metrics(run) for key, value in record.items() if key.endswith("loss")]


def torchrun(arguments: list[str], count: int) -> list[str]:
    options = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
    return [sys.executable, *options, *arguments[1:]]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("lstm", ["model.dropout=0", "training.clip=0.5"]),
        ("transformer", ["model.dropout=0", "training.optimizer=sgd", "training.lr=0.5"]),
    ],
)
def test_two_processes_follow_the_curve_of_one_with_the_doubled_batch(
    kind: str, settings: list[str], text: Path, tmp_path: Path
) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    finish(command(kind, text, alone, 40, *settings, "training.batch_size=16"))
    finish(torchrun(command(kind, text, shared, 40, *settings), 2))
    assert losses(shared) == pytest.approx(losses(alone), abs=1e-5)
    assert [r.get("tokens") for r in metrics(shared)] == [r.get("tokens") for r in metrics(alone)]
    ours, theirs = RunFolder(alone).read_weights(), RunFolder(shared).read_weights()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-4, rtol=1e-3)


def test_two_processes_resume_as_if_unbroken(text: Path, tmp_path: Path) -> None:
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    finish(torchrun(command("lstm", text, unbroken, 60, "training.warmup=0", "training.schedule=constant"), 2))
    arguments = command("lstm", text, broken, 30, "training.warmup=0", "training.schedule=constant")
    finish(torchrun(arguments, 2))  # 30 steps, then a larger budget: both processes go on from what they had
    arguments[arguments.index("30")] = "60"
    finish(torchrun(arguments, 2))
    ours, theirs = (
        {name: t for name, t in everything(run).items() if name.startswith(("checkpoint/model", "checkpoint/process"))}
        for run in (unbroken, broken)
    )
    assert any(name.startswith("checkpoint/process/1/state") for name in ours)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
