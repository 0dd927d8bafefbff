"""The training loop. The process can be killed at any moment; the run folder stays consistent.

A step reads a batch (or several, accumulated), computes the loss of the objective, sums gradients over the processes,
divides by the number of targets, clips and updates. Batch i, the schedule and the random state are functions of what a
checkpoint holds, so a resumed training takes exactly the steps of an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from chainrule.base.compile_time import measuring_compilation
from chainrule.base.devices import keep_large_blocks, release_memory
from chainrule.base.grammar import plural
from chainrule.base.processes import Processes
from chainrule.checkpoint.checkpoints import Checkpoint
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import TrainingConfig
from chainrule.data.batches import Batches
from chainrule.errors import ConfigError, RunError
from chainrule.evaluation.validation_budget import VALIDATION_SHARE
from chainrule.training.budget import Clock, progress, spent_budget
from chainrule.training.checkpoint_state import (
    Average,
    TrainingState,
    optimizer_tensors,
    read_training_state,
    restore_optimizers,
)
from chainrule.training.early_stopping import EarlyStopping
from chainrule.training.optimizers import set_rate
from chainrule.training.schedules import SchedulePoint, rate
from chainrule.training.stepper import Stepper, StepResult
from chainrule.training.threads import ThreadChooser
from chainrule.training.trackers.mirror import Mirror
from chainrule.training.workers import Workers
from chainrule.types import Objective

SECONDS_BETWEEN_UPDATES = 1.0
"""A progress display is updated this often, besides at every log line."""


class Update(NamedTuple):
    """The progress of a training, for a display."""

    state: TrainingState
    progress: float
    loss: float  # nats per token over the last steps
    lr: float
    seconds_left: float


@dataclass
class Hooks:
    """Functions that the loop calls."""

    validate: Callable[[nn.Module], dict[str, float]]  # `loss` in nats per token, other metrics; in all processes
    show: Callable[[Update], None] = lambda update: None
    stopping: Callable[[], bool] = lambda: False  # whether to save and stop


@dataclass
class Trainer:
    """Trains one model."""

    model: Any
    objective: Objective
    batches: Batches
    config: TrainingConfig
    folder: RunFolder
    hooks: Hooks
    carries: bool  # whether state is carried from batch to batch
    device: torch.device
    processes: Processes = field(default_factory=Processes)
    threads: ThreadChooser | None = None  # None: the number of threads stays as it is

    def __post_init__(self) -> None:
        self.stepper = Stepper(
            self.model,
            self.objective,
            self.batches,
            self.config,
            carries=self.carries,
            device=self.device,
            processes=self.processes,
        )
        self.placement = self.stepper.placement
        self.workers: Workers | None = None
        self.mirror = Mirror(self.config.log if self.processes.is_main else (), self.folder)
        self.training_state, self.average = TrainingState(), Average()
        self.steps_per_epoch = self.batches.per_epoch / self.config.accumulate

    # Loop

    def fit(self) -> bool:
        """Train until the budget is spent -> True, or until asked to stop -> False; the best weights are saved."""
        keep_large_blocks()
        self._resume()
        self.placement.synchronise(self.model, self.processes)
        if self.objective.samples and not self.processes.is_main:  # samples of other rows must be others
            torch.manual_seed(
                torch.initial_seed() + self.training_state.step * self.processes.world + self.processes.rank
            )
        if self.config.minutes:  # compiling kernels is not part of a budget of minutes
            self.stepper.warm_up(self.training_state.step)
        try:
            with self.mirror, measuring_compilation() as compiling:
                self.clock = Clock(self.training_state.seconds, compiling)
                return self._loop()
        finally:
            if self.workers is not None:
                self.workers.close()
                self.workers = None

    def _loop(self) -> bool:
        self.shown = self.last_validation = 0.0
        self.early_stopping = EarlyStopping(self.config, self.training_state)
        self.training_state.validated = math.floor(self._progress() * self.config.validations)
        saved = time.monotonic()
        while (used := self._progress()) < 1.0 and not self.early_stopping.out_of_patience:
            self._step(used)
            stop, save = self._check_requests(time.monotonic() - saved > self.config.save_seconds)
            due = math.floor(self._progress() * self.config.validations)
            if due > self.training_state.validated and self._can_validate():
                self._validate(due)
                save = True
            if stop or save:
                self._save()
                saved = time.monotonic()
            if stop:
                return False
        self._finish()
        return True

    def _progress(self) -> float:
        used = progress(
            self.config,
            step=self.training_state.step,
            steps_per_epoch=self.steps_per_epoch,
            seconds=self.clock.seconds if self.config.minutes else 0.0,
        )
        return self.processes.from_main([used])[0] if self.config.minutes else used

    def _check_requests(self, overdue: bool) -> tuple[bool, bool]:
        """Whether to stop and whether to save; several processes agree on it every few steps."""
        if self.processes.world == 1:
            return self.hooks.stopping(), overdue
        if self.training_state.step % 10:
            return False, False
        stop, save = self.processes.sum([float(self.hooks.stopping()), float(overdue)])
        return stop > 0, save > 0

    # One step

    def _step(self, used: float) -> None:
        began = time.monotonic()
        self.model.train()
        step = self.training_state.step
        point = SchedulePoint(step, used, step / self.steps_per_epoch, self.training_state.plateaus)
        result = self._take_step(step, rate(self.config, point))
        self._check_finite("loss", result.loss, step + 1)
        assert result.norms is not None
        seconds = time.monotonic() - began
        norms = result.norms.figures(layers=self.config.gradient_norms == "layers")
        self._record(result.loss, result.targets, seconds, used, {**self.objective.figures, **norms})
        if self.threads is not None:
            self.threads.after_step(seconds, result.targets)

    def _take_step(self, number: int, multiplier: float) -> StepResult:
        """Take a step in this process, or with workers if the chooser has chosen them."""
        count = 1 if self.threads is None else self.threads.way.workers
        if count == 1:
            self._pause_workers()
            set_rate(self.stepper.optimizers, multiplier)
            return self.stepper.step(number)
        if self.workers is None:
            self.workers = Workers(self.stepper, count)
        return self.workers.step(number, multiplier)

    def _pause_workers(self) -> None:
        if self.workers is not None:
            self.workers.pause()

    def _check_finite(self, what: str, value: float, step: int) -> None:
        if not math.isfinite(value):
            raise ConfigError(
                f"the {what} became {value} at step {step}: the learning rate of {self.config.lr or 0:g} is too high; "
                f"train into another --out with a lower one: --set training.lr={(self.config.lr or 0) / 3:.2g}"
            )

    def _record(self, loss: float, count: int, seconds: float, used: float, figures: dict[str, float]) -> None:
        """Count a finished step, add its weights to the average, and log every few steps."""
        s = self.training_state
        s.step, s.tokens, s.train_seconds = s.step + 1, s.tokens + count, s.train_seconds + seconds
        s.seconds = self.clock.seconds
        s.window_loss, s.window_count, s.window_steps = s.window_loss + loss, s.window_count + count, s.window_steps + 1
        for name, value in figures.items():
            s.window_figures[name] = s.window_figures.get(name, 0.0) + value
        if used >= self.config.average_from:
            self.average.add(self.model)
        if not self.processes.is_main:
            return
        mean, lr = s.window_loss / s.window_count, self.stepper.optimizers[0].param_groups[0]["lr"]
        if s.step % self.config.log_steps == 0:
            means = {name: value / s.window_steps for name, value in s.window_figures.items()}
            s.window_loss, s.window_count, s.window_steps, s.window_figures = 0.0, 0, 0, {}
            record = {"step": s.step, "tokens": s.tokens, "seconds": round(s.seconds, 3), "loss": mean, "lr": lr}
            self._log({**record, **means})
        if s.step % self.config.log_steps == 0 or time.monotonic() - self.shown > SECONDS_BETWEEN_UPDATES:
            self.shown = time.monotonic()
            left = s.seconds / used * (1 - used) if used > 0.005 else math.inf  # an estimate needs some progress
            self.hooks.show(Update(s, used, mean, lr, left))

    def _log(self, record: dict[str, Any]) -> None:
        self.training_state.log_length = self.folder.log(record)
        self.mirror.send(record)

    # Validation

    def _validate(self, number: int) -> None:
        """Measure the model; write its weights if they are the best so far."""
        s = self.training_state
        s.validated, s.measured_step, began = number, s.step, self.clock.seconds
        figures = self._measure()
        self._check_finite("validation loss", figures["loss"], s.step)
        self.last_validation = self.clock.seconds - began
        s.validation_seconds += self.last_validation
        if self.processes.is_main:
            named = {f"valid_{name}": value for name, value in figures.items()}
            self._log({"step": s.step, "seconds": round(s.seconds, 3), **named})
        if self.early_stopping.update(figures):
            self._write_weights(self.placement.weights(self.model))

    def _can_validate(self) -> bool:
        """Whether another validation stays within its share of a budget of minutes; until then it is put off."""
        if not self.config.minutes:
            return True
        s = self.training_state
        after = s.validation_seconds + self.last_validation
        return self.processes.from_main([float(after <= VALIDATION_SHARE * self.clock.seconds)])[0] > 0

    @property
    def stopped(self) -> str:
        """Why the training ended."""
        if self.early_stopping.out_of_patience:
            return f"early: {plural(self.config.patience, 'validation')} without improvement (training.patience)"
        s = self.training_state
        return spent_budget(self.config, step=s.step, steps_per_epoch=self.steps_per_epoch, seconds=self.clock.seconds)

    def _measure(self) -> dict[str, float]:
        self.model.eval()
        names = self.early_stopping.metrics
        with self.placement.using(self.model) as model:
            figures = self.hooks.validate(model)
            agreed = self.processes.from_main([figures[name] for name in names])
        return {**figures, **dict(zip(names, agreed, strict=True))}

    def _finish(self) -> None:
        """Validate the last weights and their average too; the folder and the model end with the best of all."""
        s = self.training_state
        if s.ended_step != s.step:  # already done before a kill
            if s.measured_step != s.step:
                self._validate(self.config.validations)
            if self.average.count:
                with self._averaged():
                    self._validate(self.config.validations)
            s.ended_step = s.step
            self._save()
        if self.processes.is_main and self.placement.keeps_whole:
            self.placement.load(self.model, self.folder.read_weights())
        release_memory()

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        self.average.swap(self.model)
        yield
        self.average.swap(self.model)

    # Saving and resuming

    def _save(self) -> None:
        self.training_state.seconds = self.clock.seconds
        self._pause_workers()
        tensors, values = optimizer_tensors(self.stepper.optimizers)
        tensors |= {f"average/{name}": tensor for name, tensor in self.average.mean.items()}
        tensors |= {f"model/{name}": tensor for name, tensor in self.placement.placed(self.model).items()}
        tensors |= {f"process/0/{name}": tensor for name, tensor in self.stepper.tensors().items()}
        if self.training_state.best == math.inf:
            self._write_weights(self.placement.weights(self.model))
        self.training_state.averaged = self.average.count
        checkpoint = Checkpoint(tensors, {**asdict(self.training_state), **values})
        self.placement.save(self.folder, checkpoint, self.processes)

    def _write_weights(self, weights: dict[str, Tensor]) -> None:
        """Make these the weights of the run."""
        if self.processes.is_main:
            self.folder.write_weights(weights)

    def _resume(self) -> None:
        """Continue from the checkpoint of the folder, if it has one."""
        checkpoint = self.folder.read_checkpoint()
        if checkpoint is None:
            if self.processes.is_main:
                self.folder.cut_log(0)
            return
        parts = _by_prefix(checkpoint.tensors)
        by_process = _by_prefix(parts.get("process", {}))
        if len(by_process) > 1:
            raise RunError(
                f"{self.folder.path} was trained by {len(by_process)} processes of a version before 0.4, whose batches "
                "depended on their number; finish it with that version, or choose another --out"
            )
        self.training_state = read_training_state(checkpoint.values, self.folder.path)
        self.placement.load(self.model, parts.get("model", {}))
        like, own = self.placement.like, dict(self.model.named_parameters())
        restore_optimizers(self.stepper.optimizers, checkpoint.tensors, checkpoint.values, like)
        self.average.mean = {name: like(mean, own[name]) for name, mean in parts.get("average", {}).items()}
        self.average.count = self.training_state.averaged
        self.stepper.restore(by_process["0"], self.processes)
        if self.processes.is_main:
            self.folder.cut_log(self.training_state.log_length)


def _by_prefix(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """{"model/a": x} -> {"model": {"a": x}}."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        prefix, _, rest = name.partition("/")
        parts.setdefault(prefix, {})[rest] = tensor
    return parts
