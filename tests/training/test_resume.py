"""A training that is killed, stopped or distributed ends exactly like an uninterrupted one."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from builders import pairs_text
from chainrule.checkpoint.checkpoints import Checkpoint, read_checkpoint, write_divided
from chainrule.checkpoint.folder import RunFolder
from chainrule.errors import RunError
from commands import SECONDS, Command, chainrule

COMMON = ["training.log_steps=4", "training.validations=5", "training.batch_size=8", "training.length=8"]
SMALL_TRANSFORMER = ["model.embedding=8", "model.layers=1", "model.heads=2", "model.context=8"]
KINDS = {
    # dropout on and state carried: the random state and the carried state must survive too
    "lstm": ["model.embedding=8", "model.hidden=8", "model.layers=2", "model.dropout=0.3", "model.variational=true"],
    "transformer": [*SMALL_TRANSFORMER, "model.dropout=0.2", "training.optimizer=adamw"],
    "muon": [*SMALL_TRANSFORMER, "training.optimizer=muon"],
    "gru": ["model.embedding=8", "model.hidden=8", "training.average_from=0.3", "training.schedule=plateau"],
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "pairs.txt"
    path.write_text(pairs_text(150))
    return path


def arguments(kind: str, text: Path, out: Path, steps: int, *settings: str) -> list[str]:
    model = "transformer" if kind == "muon" else kind
    options = ["--model", model, "--tokenizer", "char", "--steps", str(steps), "--device", "cpu", "--out", str(out)]
    for setting in (*COMMON, *KINDS[kind], *settings):
        options += ["--set", setting]
    return ["train", str(text), *options, "--json"]


def finish(given: list[str]) -> None:
    done = chainrule(*given)
    assert done.code == 0, done.err


def finish_together(given: list[str], port: int, ranks: int = 2) -> None:
    """Run several processes with the environment that torchrun sets."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    for command in [Command(*given, RANK=str(rank), LOCAL_RANK=str(rank), **place) for rank in range(ranks)]:
        done = command.wait()
        assert done.code == 0, done.err


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(command: Command, run: Path, step: int) -> None:
    """Wait until a running training has saved this step or a later one."""
    for _ in range(100 * SECONDS):
        saved = sorted((run / "training").glob("step-*"))
        if not command.process.is_alive() or (saved and int(saved[-1].name.removeprefix("step-")) >= step):
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
    """The log without times."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def assert_same_run(one: Path, other: Path) -> None:
    ours, theirs = everything(one), everything(other)
    assert ours.keys() == theirs.keys()
    different = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert not different
    assert metrics(one) == metrics(other)


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_a_training_killed_at_several_moments_ends_like_an_uninterrupted_one(
    kind: str, text: Path, tmp_path: Path
) -> None:
    steps, rng = 120, random.Random(kind)
    uninterrupted, interrupted = tmp_path / "uninterrupted", tmp_path / "interrupted"
    finish(arguments(kind, text, uninterrupted, steps))
    for least in (10, 40, 70):
        command = Command(*arguments(kind, text, interrupted, steps, "training.save_seconds=0.001"))
        wait_for(command, interrupted, least)
        time.sleep(rng.random() * 0.05)
        command.process.kill()
        assert command.wait().code == -signal.SIGKILL, "the training was over before it was killed"
    finish(arguments(kind, text, interrupted, steps, "training.save_seconds=0.001"))
    assert_same_run(uninterrupted, interrupted)
    logged = [record["step"] for record in metrics(interrupted) if "loss" in record]
    assert logged == list(range(4, steps + 1, 4))
    assert [record["step"] for record in metrics(interrupted) if "valid_loss" in record] == [24, 48, 72, 96, 120]


@pytest.mark.parametrize("kind", ["gru", "muon"])
def test_a_training_stopped_by_ctrl_c_is_saved_and_resumes_exactly(kind: str, text: Path, tmp_path: Path) -> None:
    uninterrupted, interrupted, steps = tmp_path / "uninterrupted", tmp_path / "interrupted", 120
    finish(arguments(kind, text, uninterrupted, steps))
    command = Command(*arguments(kind, text, interrupted, steps, "training.save_seconds=0.001"))
    wait_for(command, interrupted, 20)
    os.kill(command.process.pid, signal.SIGINT)
    done = command.wait()
    assert (done.code, done.out) == (130, "")
    assert done.err.splitlines()[-1] == f"stopped and saved in {interrupted}; rerun the same command to resume"
    assert 20 <= RunFolder(interrupted).read_checkpoint().values["step"] < steps  # type: ignore[union-attr]
    finish(arguments(kind, text, interrupted, steps))
    assert_same_run(uninterrupted, interrupted)


def losses(run: Path) -> list[float]:
    return [value for record in metrics(run) for key, value in record.items() if key.endswith("loss")]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("lstm", ["training.clip=0.5"]),
        ("transformer", ["training.optimizer=sgd", "training.lr=0.5"]),
    ],
)
def test_two_processes_follow_the_curve_of_one(kind: str, settings: list[str], text: Path, tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    finish(arguments(kind, text, alone, 40, *settings, "training.batch_size=9"))  # uneven shares
    finish_together(arguments(kind, text, shared, 40, *settings, "training.batch_size=9"), free_port())
    assert losses(shared) == pytest.approx(losses(alone), abs=1e-5)
    assert [r.get("tokens") for r in metrics(shared)] == [r.get("tokens") for r in metrics(alone)]
    ours, theirs = RunFolder(alone).read_weights(), RunFolder(shared).read_weights()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_a_data_set_of_many_files_is_resumed_exactly(kind: str, tmp_path: Path) -> None:
    """Batch i is a function of i over all of its records, whichever file they are in."""
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"text": pairs_text(150).splitlines()})
    datasets.DatasetDict({"train": table}).save_to_disk(tmp_path / "set", num_shards={"train": 7})
    assert len(list((tmp_path / "set" / "train").glob("*.arrow"))) == 7
    source, settings = f"hf:{tmp_path / 'set'}:train", ["training.warmup=0", "training.schedule=constant"]
    uninterrupted, interrupted = tmp_path / "uninterrupted", tmp_path / "interrupted"
    for out, steps in ((uninterrupted, 12), (interrupted, 5), (interrupted, 12)):
        given = arguments(kind, Path("data"), out, steps, *settings, "training.validations=1")
        done = Command("train", source, *given[2:]).wait()
        assert done.code == 0, done.err
    ours, theirs = (
        {name: t for name, t in everything(run).items() if name.startswith(("checkpoint/model", "checkpoint/process"))}
        for run in (uninterrupted, interrupted)
    )
    assert len(ours) > 3
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    ours, theirs = ([r["loss"] for r in metrics(run) if "loss" in r] for run in (uninterrupted, interrupted))
    assert ours == theirs


def test_torchrun_starts_such_processes(text: Path, tmp_path: Path) -> None:
    options = ["--standalone", "--nproc_per_node", "2", "-m", "chainrule.cli.main"]
    given = arguments("lstm", text, tmp_path / "run", 8)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, *given], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)  # one of the two prints
    assert result["steps"] == 8
    assert RunFolder(tmp_path / "run").read_checkpoint().values["tokens"] == 8 * 8 * 8  # type: ignore[union-attr]


def test_two_processes_resume_exactly(text: Path, tmp_path: Path) -> None:
    uninterrupted, interrupted = tmp_path / "uninterrupted", tmp_path / "interrupted"
    settings = ["training.warmup=0", "training.schedule=constant", "training.validations=1"]
    finish_together(arguments("lstm", text, uninterrupted, 40, *settings), free_port())
    for steps in (20, 40):  # a larger budget resumes both
        finish_together(arguments("lstm", text, interrupted, steps, *settings), free_port())
    ours, theirs = (
        {name: t for name, t in everything(run).items() if name.startswith(("checkpoint/model", "checkpoint/process"))}
        for run in (uninterrupted, interrupted)
    )
    assert any(name.startswith("checkpoint/process/0/state") for name in ours)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_the_number_of_processes_may_change_between_one_two_and_one(kind: str, text: Path, tmp_path: Path) -> None:
    """Dropout, carried state and uneven shares: the curve is that of an unbroken run within the order of sums."""
    settings = ["training.batch_size=9", "training.warmup=0", "training.schedule=constant", "training.validations=1"]
    alone, changing = tmp_path / "alone", tmp_path / "changing"
    finish(arguments(kind, text, alone, 36, *settings))
    finish(arguments(kind, text, changing, 12, *settings))
    finish_together(arguments(kind, text, changing, 24, *settings), free_port())
    finish(arguments(kind, text, changing, 36, *settings))
    ours, theirs = ([record["loss"] for record in metrics(run) if "loss" in record] for run in (alone, changing))
    assert ours == pytest.approx(theirs, abs=1e-5)
    ours, theirs = RunFolder(alone).read_weights(), RunFolder(changing).read_weights()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-4, rtol=1e-3)


def test_a_model_divided_among_processes_follows_the_curve_of_one(text: Path, tmp_path: Path) -> None:
    """One process, two with a part of the weights each, and one again; the folder is that of any other run."""
    settings = ["training.batch_size=9", "training.warmup=0", "training.schedule=constant", "training.validations=1"]
    alone, divided = tmp_path / "alone", tmp_path / "divided"
    finish(arguments("transformer", text, alone, 36, *settings))
    for steps in (12, 36):
        finish(arguments("transformer", text, divided, steps - 4, *settings))
        given = arguments("transformer", text, divided, steps, *settings)
        finish_together([*given, "--set", "training.shard=true"], free_port())
    ours, theirs = ([record["loss"] for record in metrics(run) if "loss" in record] for run in (alone, divided))
    assert ours == pytest.approx(theirs, abs=1e-5)
    ours, theirs = everything(alone), everything(divided)
    assert ours.keys() == theirs.keys()
    for name in (name for name in ours if name.startswith(("checkpoint/model", "checkpoint/optimizer"))):
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-4, rtol=1e-3)


def test_a_divided_checkpoint_is_resumed_by_any_number_of_processes(text: Path, tmp_path: Path) -> None:
    """Every process writes its rows; two processes, three and one follow the curve of an unbroken run."""
    settings = ["training.batch_size=9", "training.warmup=0", "training.schedule=constant", "training.validations=1"]
    settings += ["training.average_from=0.2"]
    alone, divided = tmp_path / "alone", tmp_path / "divided"
    finish(arguments("transformer", text, alone, 12, *settings))
    for steps, ranks in ((4, 2), (8, 3)):
        given = arguments("transformer", text, divided, steps, *settings, "training.shard=true")
        finish_together(given, free_port(), ranks)
        (step,) = (divided / "training").glob("step-*")
        parts = [load_file(step / f"part-{rank}.safetensors") for rank in range(ranks)]
        rest = [one for one in load_file(step / "tensors.safetensors") if one.startswith("model/")]
        assert rest == ["model/unigram_counts"]  # a buffer, which is not divided
        whole = everything(divided)
        for name in parts[0]:
            assert sum(len(part[name]) for part in parts) == len(whole[f"checkpoint/{name}"])
        assert len(parts[0]["model/embedding.weight"]) < len(whole["checkpoint/model/embedding.weight"])
        assert not (divided / "training" / ".parts").exists()
    finish(arguments("transformer", text, divided, 12, *settings))
    assert not list((divided / "training").glob("step-*/part-*"))
    ours, theirs = ([record["loss"] for record in metrics(run) if "loss" in record] for run in (alone, divided))
    assert ours == pytest.approx(theirs, abs=1e-5)
    ours, theirs = everything(alone), everything(divided)
    assert ours.keys() == theirs.keys()
    for name in (name for name in ours if name.startswith(("checkpoint/model", "checkpoint/optimizer"))):
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-4, rtol=1e-3)


def test_a_damaged_part_of_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    rows = {"model/a": torch.arange(6.0).view(3, 2), "model/b": torch.empty(0, 2)}
    write_divided(tmp_path, Checkpoint({"random/cpu": torch.zeros(2)}, {"step": 3}), rows)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.values == {"step": 3}
    assert all(torch.equal(checkpoint.tensors[name], one) for name, one in rows.items())
    part = tmp_path / "step-000000003" / "part-0.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"\1")
    with pytest.raises(RunError, match="step-000000003 is damaged; restore it, or train from the start"):
        read_checkpoint(tmp_path)
    part.unlink()
    with pytest.raises(RunError, match="is damaged"):
        read_checkpoint(tmp_path)


def test_a_model_is_divided_only_where_that_is_possible(text: Path, tmp_path: Path) -> None:
    done = chainrule(*arguments("transformer", text, tmp_path / "run", 4, "training.shard=true"))
    assert done.code == 2
    assert done.err.splitlines()[-1].endswith("but this is the only one; start it with torchrun")
    assert not (tmp_path / "run").exists()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    given = arguments("lstm", text, tmp_path / "run", 4, "training.shard=true")
    commands = [Command(*given, RANK=str(rank), LOCAL_RANK=str(rank), **place) for rank in range(2)]
    for done in [command.wait() for command in commands]:
        assert done.code == 2
        assert "training.shard needs --model transformer, training.optimizer=adamw or sgd" in done.err.splitlines()[-1]


def test_models_without_gradient_steps_are_refused_under_torchrun(text: Path, tmp_path: Path) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    given = ["train", str(text), "--model", "ngram", "--out", str(tmp_path / "run")]
    commands = [Command(*given, RANK=str(rank), LOCAL_RANK=str(rank), **place) for rank in range(2)]
    for done in [command.wait() for command in commands]:
        assert done.code == 2
        assert done.err.splitlines()[-1].endswith(
            "ngram is trained by one process, but torchrun started 2; run chainrule train without torchrun: it uses "
            "all cores of the machine"
        )


@pytest.mark.slow
def test_killed_processes_of_an_elastic_torchrun_change_nothing(text: Path, tmp_path: Path) -> None:
    """Processes are killed at random; torchrun starts all of them again, and they resume from the last checkpoint."""
    settings = ["training.save_seconds=0.001", "training.batch_size=9"]
    alone, killed, steps, rng = tmp_path / "alone", tmp_path / "killed", 4000, random.Random(1)
    finish(arguments("lstm", text, alone, steps, *settings))
    options = ["--standalone", "--nproc_per_node", "2", "--max-restarts", "1000", "--monitor-interval", "0.1"]
    given = [*options, "-m", "chainrule.cli.main", *arguments("lstm", text, killed, steps, *settings)]
    with (tmp_path / "log").open("w") as log:
        command = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *given], stdout=log, stderr=log)
        kills = 0
        while command.poll() is None:
            time.sleep(4 + 4 * rng.random())
            workers = children_of(command.pid)
            if workers and kills < KILLS:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(workers), signal.SIGKILL)
                    kills += 1
    assert command.returncode == 0, (tmp_path / "log").read_text()[-2000:]
    assert kills > 2
    ours, theirs = ([r["loss"] for r in metrics(run) if "loss" in r] for run in (alone, killed))
    assert ours == pytest.approx(theirs, abs=1e-3)
    print(f"{kills} kills")


KILLS = int(os.environ.get("CHAINRULE_TEST_KILLS", "5"))


def children_of(process: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]
