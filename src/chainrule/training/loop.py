"""The one training loop: batches in, smaller losses out, a run folder that can be killed at any moment.

A step: read a batch (or several, accumulated), let the objective turn it into a loss, sum gradients over the processes,
divide by the number of targets, clip, update. Batch i, the schedule and the random state are functions of what a
checkpoint holds, so a resumed training takes exactly the steps that an unbroken one would.
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
from chainrule.base.processes import Processes
from chainrule.checkpoint.folder import Checkpoint, RunFolder, load_weights, weights_of
from chainrule.config import TrainingConfig
from chainrule.data.batches import Batches, to_device
from chainrule.errors import ConfigError
from chainrule.training.budget import Clock, progress
from chainrule.training.optimizers import make_optimizers, set_rate
from chainrule.training.schedules import Place, rate
from chainrule.training.snapshot import (
    Average,
    optimizer_tensors,
    restore_optimizers,
    restore_state,
    state_tensors,
)
from chainrule.types import State, detach_state


@dataclass
class Standing:
    """What a training has come to so far: the plain values of a checkpoint."""

    step: int = 0
    tokens: int = 0
    train_seconds: float = 0.0  # in steps alone, for tokens a second
    seconds: float = 0.0  # validation and saving included
    best: float = math.inf  # what weights are selected by: validation loss in nats a token, or BLEU or the like below 0
    best_step: int = 0
    plateaus: int = 0
    validated: int = 0  # how many validations are done
    averaged: int = 0
    log_length: int = 0
    window_loss: float = 0.0  # summed since the last log line
    window_count: int = 0
    window_steps: int = 0
    window_figures: dict[str, float] = field(default_factory=dict)  # what the objective measures beside its loss
    stale: int = 0  # validations since the best
    measured_step: int = -1  # of the last validation
    ended_step: int = -1  # when the budget was last spent and all that follows from it was done


class Update(NamedTuple):
    """What a progress display is told."""

    standing: Standing
    progress: float
    loss: float  # nats a token over the last steps
    lr: float
    seconds_left: float


@dataclass
class Hooks:
    """What the loop asks of its surroundings."""

    validate: Callable[[nn.Module], dict[str, float]]  # `loss` in nats a token, and what else is measured
    show: Callable[[Update], None] = lambda update: None
    stopping: Callable[[], bool] = lambda: False  # Ctrl-C


@dataclass
class Trainer:
    """Fits one model."""

    model: nn.Module
    objective: Any
    batches: Batches
    config: TrainingConfig
    folder: RunFolder
    hooks: Hooks
    carries: bool  # whether state is carried from batch to batch
    device: torch.device
    processes: Processes = field(default_factory=Processes)

    def __post_init__(self) -> None:
        assert self.config.lr is not None, "presets choose the learning rate"
        self.optimizers = make_optimizers(self.model, self.config, self.config.lr)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.standing, self.average, self.state = Standing(), Average(), None
        self.steps_per_epoch = self.batches.per_epoch / self.config.accumulate
        self.forward = compile_model(self.model) if self.config.compile else self.model

    # The whole

    def fit(self) -> bool:
        """Train until the budget is spent -> True, or until asked to stop -> False. The folder then holds the best."""
        self._resume()
        self.processes.same_start(self.model.state_dict().values())
        self.clock = Clock(self.standing.seconds)
        self.standing.validated = math.floor(self._progress() * self.config.validations)
        saved = time.monotonic()
        while (used := self._progress()) < 1.0 and not self._out_of_patience():
            self._step(used)
            stop, save = self._asked(time.monotonic() - saved > self.config.save_seconds)
            if (due := math.floor(self._progress() * self.config.validations)) > self.standing.validated:
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
            step=self.standing.step,
            steps_per_epoch=self.steps_per_epoch,
            seconds=self.clock.seconds if self.config.minutes else 0.0,
        )
        return self.processes.agree([used])[0] if self.config.minutes else used

    def _asked(self, overdue: bool) -> tuple[bool, bool]:
        """Whether to stop and whether to save; several processes ask one another now and then, to do the same."""
        if self.processes.world == 1:
            return self.hooks.stopping(), overdue
        if self.standing.step % 10:
            return False, False
        stop, save = self.processes.total([float(self.hooks.stopping()), float(overdue)])
        return stop > 0, save > 0

    def _out_of_patience(self) -> bool:
        return 0 < self.config.patience <= self.standing.stale

    # One step

    def _step(self, used: float) -> None:
        began = time.monotonic()
        self.model.train()
        place = Place(self.standing.step, used, self.standing.step / self.steps_per_epoch, self.standing.plateaus)
        set_rate(self.optimizers, rate(self.config, place))
        loss, count = self._gradients()
        loss, total = self.processes.total([loss, float(count)])
        self.processes.sum_gradients(self.parameters)
        self._update(total)
        self._account(loss, int(total), time.monotonic() - began, used)

    def _gradients(self) -> tuple[float, int]:
        """Add the gradients of the accumulated batches -> the summed loss and how many targets it is over."""
        loss, count = 0.0, 0
        for part in range(self.config.accumulate):
            batch, fresh = self.batches.batch(self.standing.step * self.config.accumulate + part)
            batch = to_device(batch, self.device)
            state = self._state_before(fresh, batch.inputs_BT.shape[0])
            with self._autocast():
                result = self.objective.loss(self.forward, batch, state, self.standing.step)
            result.total.backward()
            self.state = detach_state(result.state) if self.carries else None
            loss, count = loss + float(result.total.detach()), count + result.count
        if not math.isfinite(loss):
            raise ConfigError(
                f"the loss became {loss} at step {self.standing.step + 1}; lower the learning rate "
                f"(--set training.lr={self.config.lr or 0:g} is too high) or clip more, then run the command again"
            )
        return loss, count

    def _state_before(self, fresh: bool, rows: int) -> State:
        if not self.carries:
            return None
        return self.model.start(rows) if fresh or self.state is None else self.state  # type: ignore[operator]

    def _update(self, count: float) -> None:
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        torch._foreach_div_(gradients, count)
        if self.config.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.config.clip, foreach=True)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        wanted = self.config.precision
        usable = self.device.type == "cuda" and torch.cuda.is_bf16_supported()
        if wanted == "bfloat16" or (wanted == "auto" and usable):
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()

    def _account(self, loss: float, count: int, seconds: float, used: float) -> None:
        s = self.standing
        s.step, s.tokens, s.train_seconds = s.step + 1, s.tokens + count, s.train_seconds + seconds
        s.seconds = self.clock.seconds
        s.window_loss, s.window_count, s.window_steps = s.window_loss + loss, s.window_count + count, s.window_steps + 1
        for name, value in getattr(self.objective, "figures", {}).items():
            s.window_figures[name] = s.window_figures.get(name, 0.0) + value
        if used >= self.config.average_from:
            self.average.add(self.model)
        if s.step % self.config.log_steps == 0 and self.processes.leads:
            mean, lr = s.window_loss / s.window_count, self.optimizers[0].param_groups[0]["lr"]
            figures = {name: value / s.window_steps for name, value in s.window_figures.items()}
            s.window_loss, s.window_count, s.window_steps, s.window_figures = 0.0, 0, 0, {}
            told = {"step": s.step, "tokens": s.tokens, "seconds": round(s.seconds, 3), "loss": mean, "lr": lr}
            self._log({**told, **figures})
            left = s.seconds / used * (1 - used) if used else math.inf
            self.hooks.show(Update(s, used, mean, lr, left))

    def _log(self, record: dict[str, Any]) -> None:
        self.standing.log_length = self.folder.log(record)

    # Validation

    def _validate(self, number: int) -> None:
        """Measure; keep the weights if they are the best so far."""
        s = self.standing
        s.validated, s.measured_step = number, s.step
        figures = self._measure()
        if self.processes.leads:
            named = {f"valid_{name}": value for name, value in figures.items()}
            self._log({"step": s.step, "seconds": round(s.seconds, 3), **named})
        rank = figures["loss"] if self.config.select == "loss" else -figures[self.config.select]
        if rank < s.best:
            s.best, s.best_step, s.stale = rank, s.step, 0
            if self.processes.leads:
                self.folder.write_model(self.model)
        else:
            s.stale, s.plateaus = s.stale + 1, s.plateaus + 1

    def _measure(self) -> dict[str, float]:
        self.model.eval()
        names = ["loss"] if self.config.select == "loss" else ["loss", self.config.select]
        figures = self.hooks.validate(self.model) if self.processes.leads else {}
        agreed = self.processes.agree([figures.get(name, 0.0) for name in names])
        return {**figures, **dict(zip(names, agreed, strict=True))}

    def _finish(self) -> None:
        """The last weights and their average have a say too; the folder and the model end with the best of all."""
        s = self.standing
        if s.ended_step != s.step:  # not again what was done before a kill
            if s.measured_step != s.step:
                self._validate(self.config.validations)
            if self.average.count:
                with self._averaged():
                    self._validate(self.config.validations)
            s.ended_step = s.step
            self._save()
        if self.processes.leads:
            load_weights(self.model, self.folder.read_weights())

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        self.average.swap(self.model)
        yield
        self.average.swap(self.model)

    # Saving and resuming

    def _save(self) -> None:
        self.standing.seconds = self.clock.seconds
        own = self.processes.gather(self._own_tensors())
        if not self.processes.leads:
            return
        if self.standing.best == math.inf:
            self.folder.write_model(self.model)
        tensors, values = optimizer_tensors(self.optimizers)
        tensors |= {f"model/{name}": tensor for name, tensor in weights_of(self.model).items()}
        tensors |= {f"average/{name}": tensor for name, tensor in self.average.mean.items()}
        tensors |= {f"process/{name}": tensor for name, tensor in own.items()}
        self.standing.averaged = self.average.count
        self.folder.write_checkpoint(Checkpoint(tensors, {**asdict(self.standing), **values}))

    def _own_tensors(self) -> dict[str, Tensor]:
        """What differs between the processes of one training: what they draw, and the text their state comes from."""
        own = {"random/cpu": torch.get_rng_state(), **state_tensors(self.state)}
        if self.device.type == "cuda":
            own["random/cuda"] = torch.cuda.get_rng_state(self.device)
        return own

    def _restore_own(self, own: dict[str, Tensor]) -> None:
        if saved := {name: tensor for name, tensor in own.items() if name.startswith("state/")}:
            self.state = restore_state(self.model.start(next(iter(saved.values())).shape[0]), saved)  # type: ignore[operator]
        torch.set_rng_state(own["random/cpu"])
        if "random/cuda" in own and self.device.type == "cuda":
            torch.cuda.set_rng_state(own["random/cuda"], self.device)

    def _resume(self) -> None:
        checkpoint = self.folder.read_checkpoint()
        if checkpoint is None:
            if self.processes.leads:
                self.folder.cut_log(0)
            return
        parts = _by_prefix(checkpoint.tensors)
        names = Standing.__dataclass_fields__
        self.standing = Standing(**{name: checkpoint.values[name] for name in names})
        load_weights(self.model, parts.get("model", {}))
        restore_optimizers(self.optimizers, checkpoint.tensors, checkpoint.values)
        self.average.mean, self.average.count = parts.get("average", {}), self.standing.averaged
        own = _by_prefix(parts["process"])
        if len(own) == self.processes.world:  # with another number of processes the text is shared out otherwise
            self._restore_own(own[str(self.processes.rank)])
        if self.processes.leads:
            self.folder.cut_log(self.standing.log_length)


def _by_prefix(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """{"model/a": x} -> {"model": {"a": x}}."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        prefix, _, rest = name.partition("/")
        parts.setdefault(prefix, {})[rest] = tensor
    return parts
