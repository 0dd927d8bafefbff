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

from chainrule.base.compiling import compile_model
from chainrule.base.grammar import plural
from chainrule.base.processes import Processes
from chainrule.checkpoint.build import load_weights, save_model, weights_of
from chainrule.checkpoint.checkpoints import Checkpoint
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import TrainingConfig
from chainrule.data.batches import Batches, to_device
from chainrule.errors import ConfigError
from chainrule.evaluation.validation_budget import VALIDATION_SHARE
from chainrule.training.budget import Clock, progress, spent_budget
from chainrule.training.checkpoint_state import (
    Average,
    TrainingState,
    optimizer_tensors,
    read_training_state,
    restore_optimizers,
    restore_state,
    state_tensors,
)
from chainrule.training.early_stopping import EarlyStopping
from chainrule.training.gradient_norms import GradientNorms, gradient_norms
from chainrule.training.optimizers import make_optimizers, set_rate
from chainrule.training.schedules import SchedulePoint, rate
from chainrule.training.threads import ThreadChooser
from chainrule.types import Objective, State, detach_state

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

    validate: Callable[[nn.Module], dict[str, float]]  # `loss` in nats per token, and other metrics
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
        assert self.config.lr is not None, "presets choose the learning rate"
        self.optimizers = make_optimizers(self.model, self.config, self.config.lr)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.training_state, self.average, self.carried_state = TrainingState(), Average(), None
        self.steps_per_epoch = self.batches.per_epoch / self.config.accumulate
        self.forward = compile_model(self.model) if self.config.compile else self.model

    # Loop

    def fit(self) -> bool:
        """Train until the budget is spent -> True, or until asked to stop -> False; the best weights are saved."""
        self._resume()
        self.processes.broadcast(self.model.state_dict().values())
        if self.config.minutes:
            self._warm_up()
        self.shown = self.last_validation = 0.0
        self.clock = Clock(self.training_state.seconds)
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

    def _warm_up(self) -> None:
        """Compute one batch and discard the result, so that compiling kernels is not part of a budget of minutes."""
        devices = [self.device] if self.device.type == "cuda" else []
        carried = self.carried_state
        with torch.random.fork_rng(devices):
            self.model.train()
            self._gradients()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self.carried_state = carried
        self.objective.figures = {}

    # One step

    def _step(self, used: float) -> None:
        began = time.monotonic()
        self.model.train()
        point = SchedulePoint(
            self.training_state.step,
            used,
            self.training_state.step / self.steps_per_epoch,
            self.training_state.plateaus,
        )
        set_rate(self.optimizers, rate(self.config, point))
        loss, count = self._gradients()
        loss, total = self.processes.sum([loss, float(count)])
        self.processes.sum_gradients(self.parameters)
        norms = self._update(total)
        seconds = time.monotonic() - began
        figures = {**self.objective.figures, **norms.figures(layers=self.config.gradient_norms == "layers")}
        self._record(loss, int(total), seconds, used, figures)
        if self.threads is not None:
            self.threads.after_step(seconds, count)

    def _gradients(self) -> tuple[float, int]:
        """Sum the gradients of the accumulated batches -> the summed loss and the number of targets."""
        loss, count = 0.0, 0
        for part in range(self.config.accumulate):
            batch, fresh = self.batches.batch(self.training_state.step * self.config.accumulate + part)
            batch = to_device(batch, self.device)
            state = self._state_before(fresh, batch.inputs_BT.shape[0])
            with self._autocast():
                result = self.objective.loss(self.forward, batch, state, self.training_state.step)
            result.total.backward()
            self.carried_state = detach_state(result.state) if self.carries else None
            loss, count = loss + float(result.total.detach()), count + result.count
        self._check_finite("loss", loss, self.training_state.step + 1)
        return loss, count

    def _check_finite(self, what: str, value: float, step: int) -> None:
        if not math.isfinite(value):
            raise ConfigError(
                f"the {what} became {value} at step {step}: the learning rate of {self.config.lr or 0:g} is too high; "
                f"train into another --out with a lower one: --set training.lr={(self.config.lr or 0) / 3:.2g}"
            )

    def _state_before(self, fresh: bool, rows: int) -> State:
        if not self.carries:
            return None
        return self.model.start(rows) if fresh or self.carried_state is None else self.carried_state

    def _update(self, count: float) -> GradientNorms:
        """Clip the mean gradients and let the optimisers step -> the norms before clipping; `count`: of targets."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        torch._foreach_div_(gradients, count)
        norms = gradient_norms(self.model)
        if self.config.clip:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.config.clip, norms.total, foreach=True)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return norms

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The precision of the forward pass."""
        precision = self.config.precision
        supported = self.device.type == "cuda" and torch.cuda.is_bf16_supported()
        if precision == "bfloat16" or (precision == "auto" and supported):
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()

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
        mean, lr = s.window_loss / s.window_count, self.optimizers[0].param_groups[0]["lr"]
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

    # Validation

    def _validate(self, number: int) -> None:
        """Measure the model; write its weights if they are the best so far."""
        s = self.training_state
        s.validated, s.measured_step, began = number, s.step, time.monotonic()
        figures = self._measure()
        self._check_finite("validation loss", figures["loss"], s.step)
        self.last_validation = time.monotonic() - began
        s.validation_seconds += self.last_validation
        if self.processes.is_main:
            named = {f"valid_{name}": value for name, value in figures.items()}
            self._log({"step": s.step, "seconds": round(s.seconds, 3), **named})
        if self.early_stopping.update(figures) and self.processes.is_main:
            save_model(self.folder, self.model)

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
        figures = self.hooks.validate(self.model) if self.processes.is_main else {}
        agreed = self.processes.from_main([figures.get(name, 0.0) for name in names])
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
        if self.processes.is_main:
            load_weights(self.model, self.folder.read_weights())

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        self.average.swap(self.model)
        yield
        self.average.swap(self.model)

    # Saving and resuming

    def _save(self) -> None:
        self.training_state.seconds = self.clock.seconds
        by_process = self.processes.gather(self._process_tensors())
        if not self.processes.is_main:
            return
        if self.training_state.best == math.inf:
            save_model(self.folder, self.model)
        tensors, values = optimizer_tensors(self.optimizers)
        tensors |= {f"model/{name}": tensor for name, tensor in weights_of(self.model).items()}
        tensors |= {f"average/{name}": tensor for name, tensor in self.average.mean.items()}
        tensors |= {f"process/{name}": tensor for name, tensor in by_process.items()}
        self.training_state.averaged = self.average.count
        self.folder.write_checkpoint(Checkpoint(tensors, {**asdict(self.training_state), **values}))

    def _process_tensors(self) -> dict[str, Tensor]:
        """Tensors that differ between processes: random state, and carried state."""
        tensors = {"random/cpu": torch.get_rng_state(), **state_tensors(self.carried_state)}
        if self.device.type == "cuda":
            tensors["random/cuda"] = torch.cuda.get_rng_state(self.device)
        return tensors

    def _restore_process(self, tensors: dict[str, Tensor]) -> None:
        if saved := {name: tensor for name, tensor in tensors.items() if name.startswith("state/")}:
            self.carried_state = restore_state(self.model.start(next(iter(saved.values())).shape[0]), saved)
        torch.set_rng_state(tensors["random/cpu"])
        if "random/cuda" in tensors and self.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random/cuda"], self.device)

    def _resume(self) -> None:
        """Continue from the checkpoint of the folder, if it has one."""
        checkpoint = self.folder.read_checkpoint()
        if checkpoint is None:
            if self.processes.is_main:
                self.folder.cut_log(0)
            return
        parts = _by_prefix(checkpoint.tensors)
        by_process = _by_prefix(parts.get("process", {}))
        self.processes.check_count(len(by_process), self.folder.path)
        self.training_state = read_training_state(checkpoint.values, self.folder.path)
        load_weights(self.model, parts.get("model", {}))
        restore_optimizers(self.optimizers, checkpoint.tensors, checkpoint.values)
        self.average.mean, self.average.count = parts.get("average", {}), self.training_state.averaged
        self._restore_process(by_process[str(self.processes.rank)])
        if self.processes.is_main:
            self.folder.cut_log(self.training_state.log_length)


def _by_prefix(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """{"model/a": x} -> {"model": {"a": x}}."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        prefix, _, rest = name.partition("/")
        parts.setdefault(prefix, {})[rest] = tensor
    return parts
