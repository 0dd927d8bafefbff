"""Runs lose nothing and are never silently wrong: foreign folders, kills, damage, other runs' files, two writers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from faults import count, failing_at, killed_at

from chainrule import load, train
from chainrule.base.files import _host, aside, file_atomically, folder_atomically, write_atomically
from chainrule.base.locks import lock
from chainrule.base.targets import check_file, check_folder
from chainrule.checkpoint.build import load_model
from chainrule.checkpoint.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from chainrule.checkpoint.folder import RunFolder
from chainrule.errors import ChainruleError, ConfigError, DataError, DiskError, RunError
from chainrule.experiments.mix import mix
from chainrule.training.loop import Trainer
from chainrule.training.signals import stop_signals

SETTINGS: dict[str, Any] = {
    "model": {"embedding": 4, "hidden": 4, "layers": 1},
    "training": {"batch_size": 4, "length": 8, "device": "cpu", "validations": 1},
}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("ab ba abba baab\n" * 30)
    return path


@pytest.fixture
def run(text: Path, tmp_path: Path) -> RunFolder:
    return made(text, tmp_path / "run")


def made(text: Path, out: Path, steps: int | None = 2, **options: Any) -> RunFolder:
    given = {"model": "lstm", "tokenizer": "char", **options}
    train(text, out=out, steps=steps, settings=given.pop("settings", SETTINGS), **given)
    return RunFolder(out)


def message(work: Callable[[], object], kind: type[ChainruleError] = RunError) -> str:
    with pytest.raises(kind) as caught:
        work()
    return str(caught.value)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Where results may be written


def test_a_folder_that_no_run_began_is_refused_and_unchanged(text: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        (foreign / name).write_text("mine")
    before = content(foreign)
    assert message(lambda: made(text, foreign), ConfigError) == (
        f"{foreign} is not empty and was not made by this command; choose another place"
    )
    assert content(foreign) == before


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    long, below = "x" * 300, tmp_path / "file" / "below"
    cases: dict[str | Path, str] = {
        "a\0b": "'a\\x00b' contains a NUL character; choose another name",
        below: f"{below} is below {tmp_path / 'file'}, which is a file; choose another place",
        long: f"{long[:60]}… has a name of more than 230 bytes; choose a shorter one",
        "/proc/x": "/proc/x is in /proc, which belongs to the system; choose another place",
    }
    for place, expected in cases.items():
        assert message(partial(check_file, place), ConfigError) == expected
        assert message(partial(check_folder, place), ConfigError) == expected
    check_file(tmp_path / "new" / "deep")
    check_folder(tmp_path / "new" / "deep")
    assert "is a folder" in message(lambda: check_file(tmp_path / "folder"), ConfigError)
    assert "is not a regular file" in message(lambda: check_file("/dev/null"), ConfigError)
    assert "is a file" in message(lambda: check_folder(tmp_path / "file"), ConfigError)
    check_folder(tmp_path / "folder")
    check_file(tmp_path / "file")


def test_a_training_killed_before_its_first_file_is_recognised(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / "training").mkdir(parents=True)
    (out / "training" / "lock").touch()
    (out / "tokenizer.json").write_text("{")
    assert made(text, out).read_result()


# Kills


def test_a_kill_at_any_file_operation_of_saving_a_step_again_leaves_a_checkpoint(tmp_path: Path) -> None:
    def save(folder: Path, value: float) -> None:
        write_checkpoint(folder, Checkpoint({"x": torch.tensor([value])}, {"step": 7}))

    operations = count(lambda: save(tmp_path / "counted", 1.0), tmp_path) + ["room"] * 12
    for number in range(1, len(operations) + 1):
        folder = tmp_path / str(number)
        save(folder, 1.0)
        survived = not killed_at(number, lambda folder=folder: save(folder, 2.0), tmp_path)  # type: ignore[misc]
        kept = read_checkpoint(folder)
        assert kept is not None, operations[number - 1]
        assert kept.tensors["x"].item() in ((2.0,) if survived else (1.0, 2.0))
        save(folder, 3.0)
        assert [path.name for path in folder.iterdir()] == ["step-000000007"], "leftovers stay"
    assert survived, "not all operations were tried"


def test_a_kill_at_any_file_operation_of_writing_weights_leaves_a_run_that_loads(run: RunFolder) -> None:
    weights = run.read_weights()
    other = {name: tensor + 1 for name, tensor in weights.items()}
    number = 0
    while True:
        number += 1
        run.write_weights(weights)
        killed = killed_at(number, lambda: run.write_weights(other), run.path)
        assert run.check_model(anew=True)
        if not killed:
            break
    assert number > 5
    assert torch.equal(run.read_weights()["unigram_counts"], other["unigram_counts"])


@pytest.mark.parametrize("whole", ["old", "damaged new"])
def test_the_newest_whole_checkpoint_is_resumed(whole: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Checkpoint({"x": torch.ones(1)}, {"step": 3}))
    (tmp_path / "step-000000003").rename(aside(tmp_path / "step-000000003"))
    if whole == "damaged new":
        (tmp_path / "step-000000004").mkdir()
        (tmp_path / "step-000000004" / "values.json").write_text('{"step": 4}')
    found = read_checkpoint(tmp_path)
    assert found is not None
    assert found.values == {"step": 3}


def test_flipped_bits_of_a_checkpoint_are_noticed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Checkpoint({"x": torch.ones(100)}, {"step": 3}))
    flip(tmp_path / "step-000000003" / "tensors.safetensors")
    assert "is damaged" in message(lambda: read_checkpoint(tmp_path))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def test_what_a_killed_process_left_is_cleaned_up(text: Path, tmp_path: Path) -> None:
    run = made(text, tmp_path / "run")
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    leftovers = [run.path / f".config.toml.{_host()}-{child}.tmp", run.path / f"training/.step-1.{_host()}-{child}.tmp"]
    others = [run.path / ".config.toml.00000000-1.tmp", run.path / f".config.toml.{_host()}-{os.getppid()}.tmp"]
    leftovers[1].mkdir()
    for path in (leftovers[0], leftovers[1] / "tensors.safetensors", *others):
        path.touch()
    made(text, run.path, steps=3)
    assert not any(path.exists() for path in leftovers)
    assert all(path.exists() for path in others), "they may belong to a process that is alive"


def test_a_write_that_fails_at_any_file_operation_is_one_sentence_and_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    operations = count(lambda: write_atomically(path, "old"), tmp_path)
    assert operations.count("fsync") == 2, "the file and its folder are flushed"
    assert operations.index("fsync") < operations.index("replace")
    for number in range(1, len(operations)):
        with failing_at(number, tmp_path), pytest.raises(DiskError) as caught:
            write_atomically(path, "new")
        assert str(caught.value) == f"the disk is full, {path} was not written; free some space and rerun the command"
        assert path.read_text() in ("old", "new")
        path.write_text("old")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_signals_save_and_stop(number: signal.Signals) -> None:
    with stop_signals() as stopping:
        assert not stopping()
        os.kill(os.getpid(), number)
        assert stopping()


def test_an_ignored_hang_up_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals() as stopping:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stopping()
    finally:
        signal.signal(signal.SIGHUP, before)


# Files of other runs, and damage


def test_a_tokeniser_of_the_same_size_is_refused(text: Path, run: RunFolder, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text(text.read_text().replace("a", "x"))
    foreign = made(other, tmp_path / "foreign")
    shutil.copy(foreign.path / "tokenizer.json", run.path / "tokenizer.json")
    assert foreign.read_tokenizer().vocab_size == RunFolder(run.path).read_weights()["unigram_counts"].numel()
    assert "is not the one that the model was trained with" in message(lambda: load(run.path).model)


def test_flipped_bits_of_weights_are_noticed_and_whole_files_are_read_once(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    import chainrule.checkpoint.integrity as integrity

    read: list[Path] = []
    original = integrity.hash_file
    monkeypatch.setattr(integrity, "hash_file", lambda path: read.append(path) or original(path))  # type: ignore[func-returns-value]
    _ = load(run.path).model
    assert not read, "the process that wrote the file noted that it is whole"
    moved = run.path.with_name("copy")
    shutil.copytree(run.path, moved)
    monkeypatch.setattr(integrity, "SETTLED", 3600)
    _ = load(moved).model, load(moved).model
    assert len(read) == 2, "another write in the same tick of the clock would not show"
    read.clear()
    os.utime(moved / "model.safetensors", (0, 0))
    _ = load(moved).model, load(moved).model
    assert len(read) == 1
    flip(run.model_path)
    assert message(lambda: load(run.path).model) == (
        f"{run.model_path} is damaged or of another run; restore the file, or train again into another --out"
    )


def test_a_lost_line_of_the_configuration_is_noticed_but_not_another_layout_or_place(run: RunFolder) -> None:
    path = run.path / "config.toml"
    text = path.read_text()
    path.write_text(text.replace("hidden = 4\n", ""))
    assert message(lambda: load(run.path)) == (
        f"{path} differs from the options that the model was made with; restore the file (to accept the change, delete "
        "the line `configuration` of signature)"
    )
    moved = tomllib.loads(text)["data"]["train"][0]
    path.write_text(text.replace(moved, "/elsewhere/text.txt").replace("hidden = 4", "hidden=4  # the width"))
    assert load(run.path).config.data.train == ("/elsewhere/text.txt",)


def test_runs_without_checksums_still_load(run: RunFolder) -> None:
    path = run.path / "signature"
    lines = [line for line in path.read_text().splitlines() if not line.startswith(("weights", "configuration"))]
    path.write_text("\n".join(lines) + "\n")
    flip(run.model_path)
    assert not run.check_model()
    assert load(run.path).model is not None


def test_counted_models_and_parts_of_mixtures_are_checked_too(text: Path, run: RunFolder, tmp_path: Path) -> None:
    grams = made(text, tmp_path / "grams", None, model="ngram", settings={"model": {"order": 2}})
    mixture = mix([run.path, grams.path], valid=text, out=tmp_path / "mixture")
    assert mixture.folder.check_model(anew=True)
    part = RunFolder(mixture.folder.path / "parts" / "1")
    os.unlink(part.model_path)  # a link to the file of the run
    shutil.copy(grams.model_path, part.model_path)
    flip(part.model_path)
    assert "parts/1/model.safetensors is damaged" in message(lambda: load(mixture.folder.path).model)
    other = made(text, tmp_path / "other", None, model="ngram", settings={"model": {"order": 3}})
    shutil.rmtree(part.path)
    shutil.copytree(other.path, part.path)
    assert "parts/1 is not the run that was mixed" in message(lambda: load(mixture.folder.path).model)


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"no colon\n"])
def test_a_damaged_signature_is_a_sentence(damage: bytes, run: RunFolder) -> None:
    (run.path / "signature").write_bytes(damage)
    assert message(lambda: load(run.path)) == (
        f"{run.path / 'signature'} is damaged; restore the file, or delete it to load the run unchecked"
    )


@pytest.mark.parametrize("result", ['{"mine": 1}', '{"budget": 3}'])
def test_a_foreign_result_is_a_sentence(result: str, text: Path, run: RunFolder) -> None:
    (run.path / "result.json").write_text(result)
    assert "is not the result of a training" in message(lambda: made(text, run.path))


def test_a_model_that_is_a_folder_is_a_sentence(run: RunFolder) -> None:
    run.model_path.unlink()
    run.model_path.mkdir()
    assert "cannot be read (Is a directory)" in message(lambda: load(run.path).model)


def test_a_checkpoint_that_lacks_a_value_is_a_sentence(text: Path, run: RunFolder) -> None:
    path = run.path / "training" / "step-000000002" / "values.json"
    values = json.loads(path.read_text())
    path.write_text(
        json.dumps({name: value for name, value in values.items() if name not in ("tokens", "values_checksum")})
    )
    assert message(lambda: made(text, run.path, steps=4)) == (
        f"the checkpoint of {run.path} has no valid tokens; restore the folder training, or choose another --out"
    )


# Resuming


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_without_the_request_the_options_are_compared_with_the_configuration(
    damage: str, text: Path, run: RunFolder
) -> None:
    request = run.path / "training" / "request.json"
    request.unlink() if damage == "missing" else request.write_text("{")
    before = run.model_path.read_bytes()
    assert message(lambda: made(text, run.path, model="gru"), ConfigError) == (
        f"{run.path} was made with other options (model.name was 'lstm', now 'gru'); rerun the command it was made "
        "with to resume, or choose another --out"
    )
    wider = {**SETTINGS, "model": {"embedding": 5, "hidden": 4, "layers": 1}}
    assert "model.embedding was 4, now 5" in message(lambda: made(text, run.path, settings=wider), ConfigError)
    assert run.model_path.read_bytes() == before
    assert made(text, run.path, steps=4).read_result()["steps"] == 4  # type: ignore[index]


def test_a_finished_run_without_its_checkpoint_is_not_trained_again(text: Path, run: RunFolder) -> None:
    shutil.rmtree(run.path / "training")
    before = content(run.path)
    assert message(lambda: made(text, run.path, steps=4)) == (
        f"{run.path} has weights but no checkpoint in its folder training, so its training cannot continue; choose "
        f"another --out, and --init {run.path} to start from these weights"
    )
    assert content(run.path) == before


def test_another_validation_text_is_refused(text: Path, tmp_path: Path) -> None:
    valid = tmp_path / "valid.txt"
    valid.write_text("ab ba\n" * 20)
    made(text, tmp_path / "run", valid=valid)
    valid.write_text("ba ab\n" * 20)
    assert message(lambda: made(text, tmp_path / "run", steps=4, valid=valid), DataError) == (
        f"the validation text has changed since {tmp_path / 'run'} was begun; restore the old text to resume, or "
        "choose another --out"
    )


@pytest.mark.parametrize("steps", [1, 2, None])
def test_a_smaller_budget_leaves_a_finished_run_alone(steps: int | None, text: Path, run: RunFolder) -> None:
    before = content(run.path)
    made(text, run.path, steps=steps)
    assert content(run.path) == before


def test_a_checkpoint_of_several_processes_of_an_earlier_version_is_refused(text: Path, run: RunFolder) -> None:
    from safetensors.torch import load_file, save

    place = run.path / "training" / "step-000000002"
    checkpoint = run.read_checkpoint()
    assert checkpoint is not None
    second = {
        name.replace("process/0/", "process/1/"): tensor
        for name, tensor in load_file(place / "tensors.safetensors").items()
        if name.startswith("process/0/")
    }
    assert save(second)
    run.write_checkpoint(Checkpoint({**checkpoint.tensors, **second}, checkpoint.values))
    assert message(lambda: made(text, run.path, steps=4), RunError) == (
        f"{run.path} was trained by 2 processes of a version before 0.4, whose batches depended on their number; "
        "finish it with that version, or choose another --out"
    )


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_no_result(
    loss: float, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "_measure", lambda self: {"loss": loss})
    assert message(lambda: made(text, tmp_path / "run"), ConfigError) == (
        f"the validation loss became {loss} at step 2: the learning rate of 0.003 is too high; train into another "
        "--out with a lower one: --set training.lr=0.001"
    )
    assert not (tmp_path / "run" / "result.json").exists()
    settings = {"training": {"lr": loss}}
    assert message(lambda: made(text, tmp_path / "other", settings=settings), ConfigError).startswith("training.lr = ")


# Two writers, and a full disk


def test_two_trainings_of_one_folder(text: Path, run: RunFolder) -> None:
    before = content(run.path)
    ready, done = run.path.with_name("ready"), run.path.with_name("done")
    os.mkfifo(ready)
    os.mkfifo(done)
    child = os.fork()
    if child == 0:
        with lock(run.lock_path, run.path):
            ready.write_text("x")
            done.read_text()
            os._exit(0)
    ready.read_text()
    try:
        refusal = message(lambda: made(text, run.path, steps=4))
        assert refusal.startswith(f"{run.path} is being written by process {child} on ")
        assert refusal.endswith("; wait until it ends, or choose another --out")
    finally:
        done.write_text("x")
        os.waitpid(child, 0)
    assert {**content(run.path), "training/lock": b""} == {**before, "training/lock": b""}
    assert made(text, run.path, steps=4).read_result()["steps"] == 4  # type: ignore[index]


def test_arrays_on_disk_are_allocated_before_they_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chainrule.engines.ngram.scratch import open_array_pool
    from chainrule.inference.compress import _token_file

    with open_array_pool(1, 2, tmp_path) as pool:
        array = pool.empty(1000, np.uint32)
        assert Path(array.filename).stat().st_blocks * 512 >= 4000  # type: ignore[attr-defined]
    assert (_token_file(tmp_path / "tokens", 1000) == 0).all()
    assert (tmp_path / "tokens").stat().st_blocks * 512 >= 4000
    for work in (lambda: _token_file(tmp_path / "huge", 1 << 46), lambda: _fill(tmp_path)):
        assert message(work, DiskError).startswith("the disk is full, ")


def _fill(folder: Path) -> None:
    from chainrule.engines.ngram.scratch import open_array_pool

    with open_array_pool(1, 2, folder) as pool:
        pool.empty(1 << 46, np.uint32)


def test_a_folder_is_replaced_without_a_moment_without_it(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    for value in ("1", "2"):
        with folder_atomically(target) as building:
            (building / "x").write_text(value)
    assert (target / "x").read_text() == "2"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(DiskError), file_atomically(target) as file:
        file.write(b"x")
    assert (target / "x").read_text() == "2"


def test_a_run_loads_for_use_in_mixtures_of_earlier_releases(run: RunFolder, tmp_path: Path, text: Path) -> None:
    mixture = mix([run.path, run.path], valid=text, out=tmp_path / "mixture").folder
    lines = [line for line in (mixture.path / "signature").read_text().splitlines() if "part_weights" not in line]
    (mixture.path / "signature").write_text("\n".join(lines) + "\n")
    assert load_model(mixture, mixture.read_tokenizer()) is not None


def test_a_checkpoint_that_was_being_replaced_does_not_stay(text: Path, run: RunFolder) -> None:
    place = run.path / "training" / "step-000000002"
    shutil.copytree(place, aside(place))
    shutil.copytree(place, place.with_name("step-000000001"))
    (run.path / "result.json").unlink()
    assert made(text, run.path).read_result()
    assert place.exists()
    assert not aside(place).exists()
    assert not place.with_name("step-000000001").exists()
    shutil.copytree(place, aside(place))
    flip(place / "tensors.safetensors")
    run.write_result({"budget": {}})
    assert aside(place).exists(), "it is the only whole one"


def test_a_kill_while_the_tokeniser_is_replaced(text: Path, tmp_path: Path) -> None:
    """An n-gram fits its tokeniser to a part of the text, then to all of it."""
    text.write_text("ab ba abba baab\n" * 300 + "new words\n" * 30)

    def count(out: Path) -> RunFolder:
        return made(text, out, None, model="ngram", tokenizer="word", settings={"model": {"order": 2}})

    whole, number, killed = count(tmp_path / "whole"), 0, True
    while killed:
        number += 1
        out = tmp_path / str(number)
        killed = killed_at(number, lambda out=out: count(out), out)  # type: ignore[misc]
        assert count(out).model_path.read_bytes() == whole.model_path.read_bytes(), number
    assert number > 40
    assert "tokenizer_before" not in whole.read_signature()


def test_a_folder_with_an_empty_folder_training_was_begun(text: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "training").mkdir(parents=True)
    assert made(text, tmp_path / "run").read_result()
    (tmp_path / "other" / "training").mkdir(parents=True)
    (tmp_path / "other" / "training" / "mine.txt").touch()
    assert "is not empty" in message(lambda: made(text, tmp_path / "other"), ConfigError)


def test_changed_values_of_a_checkpoint_are_noticed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, Checkpoint({"x": torch.ones(1)}, {"step": 3, "lr": 0.1, "by": {2: "b", 10: "a"}}))
    assert read_checkpoint(tmp_path) is not None
    path = tmp_path / "step-000000003" / "values.json"
    path.write_text(path.read_text().replace("0.1", "0.2"))
    assert "is damaged" in message(lambda: read_checkpoint(tmp_path))
