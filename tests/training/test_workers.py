"""Worker processes that share each batch: the same training as in one process, within the order of sums."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from builders import small_model
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import TrainingConfig
from chainrule.data.batches import BlockBatches, StreamBatches
from chainrule.errors import ConfigError, RunError
from chainrule.objectives.likelihood import Likelihood
from chainrule.training.loop import Hooks, Trainer
from chainrule.training.threads import ThreadChooser, Way
from chainrule.training.workers import can_share, owners

TOKENS = np.random.default_rng(0).integers(0, 13, 400).astype(np.uint8)
ALONE, SHARED = Way(1, 1), Way(2, 1)


@pytest.fixture(autouse=True)
def _threads() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def trainer(path: Path, kind: str, ways: list[Way], **options: Any) -> Trainer:
    stream, rows = kind != "transformer", options.pop("rows", 5)
    path.mkdir(exist_ok=True)
    batches = (StreamBatches if stream else BlockBatches)(TOKENS, rows, 6, eos=0, seed=1)
    made = Trainer(
        model=small_model(kind, dropout=0.3),
        objective=Likelihood(Likelihood.Config()),
        batches=batches,
        config=TrainingConfig.model_validate({"lr": 0.01, "validations": 1, "log_steps": 1, **options}),
        folder=RunFolder(path),
        hooks=Hooks(validate=lambda model: {"loss": 1.0}),
        carries=stream,
        device=torch.device("cpu"),
        threads=ThreadChooser(ways),
    )
    assert can_share(made.stepper)
    return made


def fit(one: Trainer) -> None:
    torch.manual_seed(7)
    assert one.fit()


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("transformer", {"optimizer": "adamw"}),
        ("transformer", {"optimizer": "muon", "accumulate": 2}),
        ("lstm", {"optimizer": "sgd", "momentum": 0.5, "clip": 0.1}),
        ("lstm", {"optimizer": "adamw", "rows": 1}),  # one process has no row
    ],
)
def test_workers_train_like_one_process(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    alone = trainer(tmp_path / "alone", kind, [ALONE], steps=12, **options)
    shared = trainer(tmp_path / "shared", kind, [SHARED], steps=12, **options)
    fit(alone)
    fit(shared)
    assert_close(weights(shared.model), weights(alone.model))
    ours, theirs = (one.folder.read_checkpoint() for one in (shared, alone))
    assert ours is not None
    assert theirs is not None
    assert ours.tensors.keys() == theirs.tensors.keys()
    assert torch.equal(ours.tensors["process/0/random/cpu"], theirs.tensors["process/0/random/cpu"])
    assert_close([ours.tensors[name] for name in theirs.tensors], list(theirs.tensors.values()))


@pytest.mark.parametrize("kind", ["lstm", "hybrid-lm"])  # the state of the latter grows with the text
def test_the_way_may_change_at_every_step(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changing = trainer(tmp_path / "changing", kind, [ALONE, SHARED], steps=12)
    assert changing.threads is not None
    ways = iter([ALONE, SHARED, SHARED, ALONE, SHARED, ALONE, ALONE, SHARED, SHARED, SHARED, ALONE, SHARED])
    monkeypatch.setattr(
        changing.threads, "after_step", lambda seconds, work: setattr(changing.threads, "way", next(ways))
    )
    alone = trainer(tmp_path / "alone", kind, [ALONE], steps=12)
    fit(changing)
    fit(alone)
    assert_close(weights(changing.model), weights(alone.model))


def test_a_killed_worker_is_an_error_and_the_training_resumes(tmp_path: Path) -> None:
    killed = trainer(tmp_path / "killed", "lstm", [SHARED], steps=12, save_seconds=1e-9)
    killed.hooks.stopping = lambda: _kill_after(killed, 6)
    torch.manual_seed(7)
    with pytest.raises(RunError) as error:
        killed.fit()
    assert str(error.value) == (
        "a worker process of the training ended (signal 9); rerun the same command to resume, with --set "
        "training.workers=1 for none"
    )
    resumed = trainer(tmp_path / "killed", "lstm", [SHARED], steps=12)
    alone = trainer(tmp_path / "alone", "lstm", [ALONE], steps=12)
    fit(resumed)
    fit(alone)
    assert_close(weights(resumed.model), weights(alone.model))


def _kill_after(one: Trainer, step: int) -> bool:
    if one.training_state.step == step and one.workers is not None:
        os.kill(one.workers.children[0], signal.SIGKILL)
    return False


def test_an_error_of_a_worker_is_reported(tmp_path: Path) -> None:
    failing = trainer(tmp_path, "lstm", [SHARED], steps=3)
    main, loss = os.getpid(), failing.objective.loss

    def fail(*arguments: Any) -> Any:
        if os.getpid() != main:
            raise ValueError("no such row")
        return loss(*arguments)

    failing.objective.loss = fail  # type: ignore[method-assign]
    with pytest.raises(RunError, match=r"ended \(ValueError: no such row\); rerun"):
        failing.fit()


def test_a_loss_that_is_not_finite_stops_all(tmp_path: Path) -> None:
    wild = trainer(tmp_path, "lstm", [SHARED], steps=30)
    with torch.no_grad():
        next(wild.model.parameters()).fill_(torch.nan)
    with pytest.raises(ConfigError, match="the loss became nan at step 1"):
        wild.fit()
    assert wild.workers is None


def test_every_parameter_has_one_owner(tmp_path: Path) -> None:
    stepper = trainer(tmp_path, "transformer", [ALONE], optimizer="muon").stepper
    owned = owners(stepper, 3)
    assert sorted(index for indices in owned for index in indices) == list(range(len(stepper.parameters)))
    assert all(owned)


def test_workers_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        ThreadChooser.for_training(TrainingConfig(workers=2), 2, can_fork=False)
    assert str(error.value) == (
        "training.workers = 2: worker processes need Linux on x86-64, the device cpu, float32, an objective that does "
        "not sample, and neither compile nor torchrun; leave training.workers out"
    )
