"""The run folder: what is written is read back, damage is an error, and resuming needs the same command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from builders import small_config, small_model
from chainrule import load, train
from chainrule.checkpoint.build import load_weights, weights_of
from chainrule.checkpoint.checkpoints import Checkpoint
from chainrule.checkpoint.folder import RunFolder
from chainrule.errors import ConfigError, DataError, RunError

SETTINGS: dict[str, Any] = {
    "model": {"embedding": 8, "hidden": 8, "layers": 1},
    "training": {"batch_size": 4, "length": 8, "device": "cpu", "validations": 1},
}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("ab ba abba baab\n" * 30)
    return path


def made(text: Path, out: Path, steps: int = 2, **options: Any) -> RunFolder:
    train(text, out=out, steps=steps, tokenizer="char", settings={**SETTINGS, **options})
    return RunFolder(out)


def test_a_run_has_the_files_of_the_format(text: Path, tmp_path: Path) -> None:
    folder = made(text, tmp_path / "run")
    names = {path.name for path in folder.path.iterdir()}
    expected = {"config.toml", "tokenizer.json", "model.safetensors", "metrics.jsonl", "result.json", "signature"}
    assert names == expected | {"training"}
    assert {path.name for path in (folder.path / "training").iterdir()} == {
        "lock",
        "request.json",
        "step-000000002",
    }
    config = folder.read_config()
    assert config.model.options["embedding"] == 8
    assert None not in (config.training.lr, config.training.batching, config.training.length, config.tokenizer.kind)
    versions, checksums = {"chainrule", "torch", "numpy", "python"}, {"weights", "configuration"}
    assert {"data", "valid", "tokenizer", "seed"} | versions | checksums == set(folder.read_signature())


def test_a_tied_matrix_is_written_once_and_loaded_tied(tmp_path: Path) -> None:
    model, other = small_model("lstm"), small_model("lstm", seed=5)
    names = set(weights_of(model))
    assert len({"embedding.weight", "output.weight_VD"} & names) == 1
    load_weights(other, weights_of(model))
    assert other.output.weight_VD is other.embedding.weight
    assert torch.equal(other.embedding.weight, model.embedding.weight)


def test_weights_of_another_model_are_refused() -> None:
    message = "the weights do not fit the model of config.toml; the run's files come from different runs"
    for foreign in (small_model("lstm", hidden=9), small_model("gru"), small_model("lstm", layers=2)):
        with pytest.raises(RunError) as caught:
            load_weights(small_model("lstm"), weights_of(foreign))
        assert str(caught.value) == message


def test_only_the_newest_checkpoint_is_kept(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_checkpoint() is None
    for step in (1, 20, 300):
        folder.write_checkpoint(Checkpoint({"x": torch.full((2,), float(step))}, {"step": step}))
    assert [path.name for path in (tmp_path / "training").iterdir()] == ["step-000000300"]
    newest = folder.read_checkpoint()
    assert newest is not None
    assert (newest.values, newest.tensors["x"].tolist()) == ({"step": 300}, [300.0, 300.0])


def test_the_log_can_be_cut_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    lengths = [folder.log({"step": step}) for step in range(3)]
    folder.cut_log(lengths[1])
    folder.log({"step": 9})
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [0, 1, 9]


# Damage


def test_damaged_and_missing_files_are_errors(text: Path, tmp_path: Path) -> None:
    folder = made(text, tmp_path / "run")
    weights = folder.path / "model.safetensors"
    whole = weights.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"\xff" * 100):
        weights.write_bytes(damaged)
        with pytest.raises(RunError) as caught:
            load(folder.path).model  # noqa: B018
        assert str(caught.value) == (
            f"{weights} is damaged or of another run; restore the file, or train again into another --out"
        )
    weights.unlink()
    with pytest.raises(RunError) as caught:
        load(folder.path).model  # noqa: B018
    assert str(caught.value) == f"{folder.path} has no model yet; rerun the same train command to finish its training"
    (folder.path / "signature").unlink()
    with pytest.raises(RunError) as caught:
        folder.read_signature()
    assert str(caught.value) == f"{folder.path} has no signature: its training never began; train it again"
    (folder.path / "config.toml").write_text("[model\n")
    with pytest.raises(ConfigError) as wrong:
        load(folder.path)
    assert str(wrong.value).startswith(f"{folder.path / 'config.toml'} is not valid TOML: ")


def test_a_damaged_checkpoint_is_an_error(text: Path, tmp_path: Path) -> None:
    folder = made(text, tmp_path / "run")
    checkpoint = folder.path / "training" / "step-000000002"
    message = f"{checkpoint} is damaged; restore it, or train from the start into another --out"
    for name in ("tensors.safetensors", "values.json"):
        (checkpoint / name).write_bytes((checkpoint / name).read_bytes()[:20])
        with pytest.raises(RunError) as caught:
            folder.read_checkpoint()
        assert str(caught.value) == message


def test_the_tokeniser_of_another_run_is_refused(text: Path, tmp_path: Path) -> None:
    folder = made(text, tmp_path / "run")
    other = tmp_path / "other.txt"
    other.write_text("many more letters than before\n" * 30)
    foreign = made(other, tmp_path / "foreign")
    (folder.path / "tokenizer.json").write_bytes((foreign.path / "tokenizer.json").read_bytes())
    ours, theirs = (one.read_signature()["tokenizer"].partition("#")[2][:8] for one in (folder, foreign))
    with pytest.raises(RunError) as caught:
        load(folder.path).model  # noqa: B018
    assert str(caught.value) == (
        f"the tokeniser in {folder.path} is not the one that the model was trained with ({theirs}, expected {ours}); "
        "restore the tokenizer files that were saved with the run"
    )


# Resuming


def test_other_options_are_refused(text: Path, tmp_path: Path) -> None:
    made(text, tmp_path / "run")
    with pytest.raises(ConfigError) as caught:
        made(text, tmp_path / "run", model={"embedding": 9, "hidden": 8, "layers": 1})
    assert str(caught.value) == (
        f"{tmp_path / 'run'} was made with other options (model.embedding was 8, now 9); "
        "rerun the command it was made with to resume, or choose another --out"
    )


def test_another_text_is_refused(text: Path, tmp_path: Path) -> None:
    made(text, tmp_path / "run")
    text.write_text("ab ba abba baab\n" * 31)
    with pytest.raises(DataError) as caught:
        made(text, tmp_path / "run", steps=4)
    assert str(caught.value) == (
        f"the training text has changed since {tmp_path / 'run'} was begun; restore the old text to resume, or choose "
        "another --out"
    )


def test_a_larger_budget_continues_and_a_mistake_leaves_no_folder(text: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        made(text, tmp_path / "run", training={**SETTINGS["training"], "length": 500}, model=_windowed())
    assert str(caught.value) == (
        "training.length is 500, but transformer reads at most model.context = 8 tokens; "
        "reduce the one or increase the other"
    )
    assert made(text, tmp_path / "run").read_result()["steps"] == 2  # type: ignore[index]
    assert made(text, tmp_path / "run", steps=5).read_result()["steps"] == 5  # type: ignore[index]
    checkpoint = RunFolder(tmp_path / "run").read_checkpoint()
    assert checkpoint is not None
    assert checkpoint.values["step"] == 5


def _windowed() -> dict[str, Any]:
    return {"name": "transformer", **small_config("transformer", context=8).model.options}
