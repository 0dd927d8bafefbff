"""The training loop against updates made by hand."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from builders import OUTPUT_LAYERS, small_model
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import TrainingConfig
from chainrule.data.batches import BlockBatches, StreamBatches
from chainrule.errors import ConfigError, DiskError
from chainrule.objectives.likelihood import Likelihood
from chainrule.objectives.scheduled_sampling import ScheduledSampling
from chainrule.training.checkpoint_state import Average
from chainrule.training.gradient_norms import GradientNorms
from chainrule.training.loop import Hooks, Trainer
from chainrule.training.optimizers import make_optimizers, set_rate

TOKENS = np.random.default_rng(0).integers(0, 13, 400).astype(np.uint8)
PLAIN: dict[str, Any] = {"optimizer": "sgd", "lr": 0.5, "schedule": "constant", "warmup": 0, "clip": 0, "log_steps": 1}


def trainer(
    model: nn.Module, path: Path, *, stream: bool = False, rows: int = 4, validate: Any = None, **options: Any
) -> Trainer:
    kind = StreamBatches if stream else BlockBatches
    path.mkdir(exist_ok=True)
    return Trainer(
        model=model,
        objective=options.pop("objective", Likelihood(Likelihood.Config())),
        batches=kind(TOKENS, rows, 6, eos=0, seed=1),
        config=TrainingConfig.model_validate({**PLAIN, "validations": 1, **options}),
        folder=RunFolder(path),
        hooks=Hooks(validate=lambda model: {"loss": validate(model) if validate else 1.0}),
        carries=stream,
        device=torch.device("cpu"),
    )


def parameters(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def assert_same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_a_step_is_the_mean_gradient_times_the_rate(tmp_path: Path) -> None:
    model, twin = small_model("lstm"), small_model("lstm")
    one = trainer(model, tmp_path, steps=1)
    batch, _ = one.batches.batch(0)
    total = Likelihood(Likelihood.Config()).loss(twin, batch, None, 0).total
    total.backward()
    assert one.fit()
    assert_same(parameters(model), [p.detach() - 0.5 * p.grad / 24 for p in twin.parameters()])
    record = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert record["loss"] == pytest.approx(float(total.detach()) / 24, rel=1e-5)
    assert (record["step"], record["tokens"], record["lr"]) == (1, 24, 0.5)


def test_accumulated_batches_make_the_step_of_one_larger_batch(tmp_path: Path) -> None:
    small, large = small_model("transformer"), small_model("transformer")
    halves = trainer(small, tmp_path / "small", rows=2, accumulate=2, steps=3)
    whole = trainer(large, tmp_path / "large", rows=4, steps=3)
    assert halves.fit()
    assert whole.fit()
    assert_same(parameters(small), parameters(large))


def test_the_state_is_carried_between_batches_and_reset_with_each_epoch(tmp_path: Path) -> None:
    model, twin = small_model("gru"), small_model("gru")
    walk = trainer(model, tmp_path, stream=True, rows=40, lr=1e-9, steps=3)
    assert walk.batches.per_epoch == 2
    walk.fit()
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    state, expected = twin.start(40), []
    for index in range(3):
        batch, fresh = walk.batches.batch(index)
        assert fresh == (index != 1)
        loss = Likelihood(Likelihood.Config()).loss(twin, batch, twin.start(40) if fresh else state, 0)
        expected.append(float(loss.total.detach()) / loss.count)
        state = loss.state
    assert [record["loss"] for record in records if "loss" in record] == pytest.approx(expected, rel=1e-5)


def test_clipping_shortens_the_gradient_to_its_largest_norm(tmp_path: Path) -> None:
    free, clipped = small_model("rnn"), small_model("rnn")
    before = parameters(free)
    trainer(free, tmp_path / "free", steps=1, lr=1.0).fit()
    trainer(clipped, tmp_path / "clipped", steps=1, lr=1.0, clip=0.01).fit()
    moved = [[a - b for a, b in zip(parameters(model), before, strict=True)] for model in (free, clipped)]
    norms = [float(torch.cat([m.flatten() for m in move]).norm()) for move in moved]
    assert norms[0] > 0.1
    assert norms[1] == pytest.approx(0.01, rel=1e-3)
    assert_same(moved[1], [m * 0.01 / norms[0] for m in moved[0]])


@pytest.mark.parametrize("clip", [0, 0.01])
def test_the_log_has_the_norm_of_the_mean_gradient_before_clipping(tmp_path: Path, clip: float) -> None:
    model, twin = small_model("lstm"), small_model("lstm")
    one = trainer(model, tmp_path, steps=1, clip=clip, gradient_norms="layers")
    batch, _ = one.batches.batch(0)
    Likelihood(Likelihood.Config()).loss(twin, batch, None, 0).total.backward()
    one.fit()
    record = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    by_layer: dict[str, list[Tensor]] = {}
    for name, parameter in twin.named_parameters():
        by_layer.setdefault(name.rpartition(".")[0], []).append(parameter.grad.flatten() / 24)
    expected = {f"gradient_norm/{layer}": float(torch.cat(parts).norm()) for layer, parts in by_layer.items()}
    assert {name: value for name, value in record.items() if "/" in name} == pytest.approx(expected, rel=1e-5)
    assert set(expected) == {
        "gradient_norm/embedding",
        "gradient_norm/features.recurrence.layers.0",
        "gradient_norm/output",
    }
    total = sum(value**2 for value in expected.values()) ** 0.5
    assert record["gradient_norm"] == pytest.approx(total, rel=1e-5)


def test_the_log_has_the_mean_of_the_global_norm_since_the_last_line(tmp_path: Path) -> None:
    trainer(small_model("gru"), tmp_path / "each", steps=4).fit()
    trainer(small_model("gru"), tmp_path / "pairs", steps=4, log_steps=2).fit()
    each, pairs = (
        [record["gradient_norm"] for record in map(json.loads, log.read_text().splitlines()) if "loss" in record]
        for log in (tmp_path / "each" / "metrics.jsonl", tmp_path / "pairs" / "metrics.jsonl")
    )
    assert pairs == pytest.approx([(each[0] + each[1]) / 2, (each[2] + each[3]) / 2])
    assert "/" not in "".join(json.loads((tmp_path / "each" / "metrics.jsonl").read_text().splitlines()[0]))


def test_the_log_of_scheduled_sampling_has_epsilon(tmp_path: Path) -> None:
    objective = ScheduledSampling(ScheduledSampling.Config(decay="linear", slope=0.25))
    trainer(small_model("gru"), tmp_path, steps=6, objective=objective).fit()
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["epsilon"] for record in records if "loss" in record] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


def test_early_stopping_ends_after_as_many_validations_without_improvement_and_keeps_the_best(tmp_path: Path) -> None:
    losses = iter([3.0, 2.0, 2.5, 2.1, 2.2, 1.0])
    model, seen = small_model("rnn"), []

    def validate(model: nn.Module) -> float:
        seen.append(parameters(model))
        return next(losses)

    stopped = trainer(model, tmp_path, steps=60, validations=6, patience=3, validate=validate)
    assert stopped.fit()
    assert (stopped.training_state.step, stopped.training_state.best, stopped.training_state.best_step) == (50, 2.0, 20)
    assert len(seen) == 5
    assert_same(parameters(model), seen[1])


def test_a_plateau_lowers_the_rate_after_each_validation_without_improvement(tmp_path: Path) -> None:
    losses = iter([3.0, 3.5, 2.0, 2.5])
    options = {"schedule": "plateau", "decay_factor": 0.1, "steps": 8, "validations": 4}
    trainer(small_model("rnn"), tmp_path, validate=lambda model: next(losses), **options).fit()
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    rates = [record["lr"] for record in records if "lr" in record]
    assert rates == pytest.approx([0.5] * 4 + [0.05] * 4)


def test_averaging_is_the_mean_of_the_weights_over_the_last_steps(tmp_path: Path) -> None:
    model, weights = small_model("rnn"), []
    averaged = trainer(model, tmp_path, steps=10, average_from=0.6, validations=1, validate=lambda m: next(answers))
    answers = iter([2.0, 1.0])  # the average is better than the last weights
    step = averaged.stepper._update

    def update(count: float) -> GradientNorms:
        norms = step(count)
        weights.append(parameters(model))
        return norms

    averaged.stepper._update = update  # type: ignore[method-assign]
    averaged.fit()
    assert_same(parameters(model), [torch.stack(column).mean(0) for column in zip(*weights[6:], strict=True)])


def test_the_running_mean_is_the_mean_and_can_be_swapped_in_and_out() -> None:
    model, average, seen = nn.Linear(3, 2), Average(), []
    for _ in range(7):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
        seen.append(parameters(model))
        average.add(model)
    average.swap(model)
    assert_same(parameters(model), [torch.stack(column).mean(0) for column in zip(*seen, strict=True)])
    average.swap(model)
    assert_same(parameters(model), seen[-1])


# Optimisers


def names_of(model: nn.Module, optimizer: torch.optim.Optimizer, *, decays: bool | None = None) -> set[str]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = [g for g in optimizer.param_groups if decays is None or (g["weight_decay"] > 0) == decays]
    return {names[parameter] for group in groups for parameter in group["params"]}


def test_muon_takes_the_inner_matrices_and_adamw_the_rest() -> None:
    model = small_model("transformer", positions="learned", bias=True)
    muon, adamw = make_optimizers(model, TrainingConfig(optimizer="muon"), 0.02)
    inner = {f"features.blocks.0.{name}.weight" for name in ("project_in", "project_out", "widen", "narrow")}
    assert names_of(model, muon) == inner
    assert names_of(model, adamw) == {name for name, _ in model.named_parameters()} - inner
    assert {"embedding.weight", "features.positions.table_CD", "output.bias_V"} <= names_of(model, adamw)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_matrices_decay_and_vectors_do_not(kind: str) -> None:
    model = small_model("lstm", tied=False)
    (only,) = make_optimizers(model, TrainingConfig(optimizer=kind, weight_decay=0.1), 0.1)  # type: ignore[arg-type]
    vectors = {name for name, parameter in model.named_parameters() if parameter.dim() == 1}
    assert vectors
    assert names_of(model, only, decays=False) == vectors
    assert names_of(model, only, decays=True) == {name for name, _ in model.named_parameters()} - vectors


def test_a_rate_is_a_share_of_each_groups_own_full_rate() -> None:
    optimizers = make_optimizers(small_model("transformer"), TrainingConfig(optimizer="muon"), 0.02)
    full = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    for share in (0.5, 0.1):
        set_rate(optimizers, share)
        rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
        assert rates == pytest.approx([share * one for one in full])


# Precision


@pytest.mark.parametrize("output", OUTPUT_LAYERS)
@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_bfloat16_follows_the_curve_of_float32(name: str, output: str, tmp_path: Path) -> None:
    curves = []
    for precision in ("float32", "bfloat16"):
        torch.manual_seed(0)
        model = small_model(name, output)
        run = trainer(model, tmp_path / precision, stream=name == "lstm", precision=precision, steps=6, lr=0.1)
        torch.manual_seed(1)
        run.fit()
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        lines = (tmp_path / precision / "metrics.jsonl").read_text().splitlines()
        curves.append([json.loads(line)["loss"] for line in lines if '"loss"' in line])
    assert len(curves[0]) == 6
    assert curves[1] == pytest.approx(curves[0], rel=0.05)
    assert curves[1] != curves[0]


@pytest.mark.parametrize("by", ["steps", "two-pass"])
@pytest.mark.parametrize("name", ["lstm", "transformer", "average", "conv-attention", "sr", "feedforward"])
def test_scheduled_sampling_learns_in_bfloat16(name: str, by: str, tmp_path: Path) -> None:
    objective = ScheduledSampling(ScheduledSampling.Config(decay="linear", start=0.5, by=by))  # type: ignore[arg-type]
    model = small_model(name)
    before = parameters(model)
    trainer(model, tmp_path, objective=objective, precision="bfloat16", steps=2, lr=0.1).fit()
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert not any(torch.equal(p, q) for p, q in zip(parameters(model), before, strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own use, in torch.utils.mkldnn
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, while tracing
@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_a_compiled_model_gives_equal_losses(name: str, tmp_path: Path) -> None:
    curves = []
    for compiled in (False, True):
        path = tmp_path / str(compiled)
        trainer(small_model(name), path, stream=name == "lstm", compile=compiled, steps=4).fit()
        lines = (path / "metrics.jsonl").read_text().splitlines()
        curves.append([json.loads(line)["loss"] for line in lines if '"loss"' in line])
    assert curves[1] == pytest.approx(curves[0], rel=1e-5)


# Errors


def test_a_loss_that_is_not_a_number_is_an_error_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    model = small_model("rnn")
    run = trainer(model, tmp_path, steps=20, validations=10)
    step = run.stepper._update

    def poisoned(count: float) -> GradientNorms:
        norms = step(count)
        if run.training_state.step == 6:
            torch.nn.init.constant_(model.embedding.weight, float("nan"))
        return norms

    run.stepper._update = poisoned  # type: ignore[method-assign]
    with pytest.raises(ConfigError) as caught:
        run.fit()
    assert str(caught.value) == (
        "the loss became nan at step 8: the learning rate of 0.5 is too high; train into another --out with a lower "
        "one: --set training.lr=0.17"
    )
    checkpoint = RunFolder(tmp_path).read_checkpoint()
    assert checkpoint is not None
    assert checkpoint.values["step"] == 6
    assert all(torch.isfinite(tensor).all() for tensor in RunFolder(tmp_path).read_weights().values())


def test_a_full_disk_is_an_error_and_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer(small_model("rnn"), tmp_path, steps=4).fit()
    before = RunFolder(tmp_path).read_checkpoint()
    weights = (tmp_path / "model.safetensors").read_bytes()

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DiskError) as caught:
            trainer(small_model("rnn"), tmp_path, steps=8).fit()
    assert str(caught.value).startswith("the disk is full, ")
    assert str(caught.value).endswith(" was not written; free some space and rerun the command")
    after = RunFolder(tmp_path).read_checkpoint()
    assert before is not None
    assert after is not None
    assert after.values == before.values
    assert (tmp_path / "model.safetensors").read_bytes() == weights
    assert [path.name for path in (tmp_path / "training").iterdir()] == ["step-000000004"]
    assert trainer(small_model("rnn"), tmp_path, steps=8).fit()
