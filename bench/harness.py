"""Shared parts of the benchmarks: timing in turn, medians, one line per figure, a description of the machine.

On a shared machine a single time means little, but a ratio of two times taken within the same second means much. So
the contestants of a benchmark take turns, and a ratio is the median over the rounds of the ratio within a round. It may
differ slightly from the quotient of the two medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from chainrule.base.devices import physical_cores
from chainrule.checkpoint.build import build_model
from chainrule.checkpoint.folder import Checkpoint, RunFolder
from chainrule.config import RunConfig, parse
from chainrule.data.batches import Batches
from chainrule.objectives.likelihood import Likelihood
from chainrule.training.loop import Hooks, Trainer
from chainrule.training.threads import ThreadChooser, Way
from chainrule.training.workers import can_share
from chainrule.types import Batch, Vocabulary

Times = dict[str, list[float]]


# Timing


def alternate(
    contestants: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> Times:
    """Return the seconds of every contestant in every round; the first round is a warm-up and is not counted.

    For contestants on one thread `time.process_time` is a steadier clock than the time of day if the machine is busy.
    """
    times: Times = {name: [] for name in contestants}
    for number in range(repeats + 1):
        for name, run in contestants.items():
            began = clock()
            run()
            if number:
                times[name].append(clock() - began)
    return times


def speed(times: Times, name: str, tokens: int) -> float:
    """Return the median tokens/s of a contestant that processes `tokens` per round."""
    return tokens / statistics.median(times[name])


def speed_up(times: Times, name: str, over: str) -> float:
    """Return how many times as fast as `over` a contestant is: the median over the rounds."""
    return statistics.median(theirs / ours for ours, theirs in zip(times[name], times[over], strict=True))


# Figures


@dataclass(frozen=True)
class Figure:
    """One measured value of the project, with the peer's value if there is one."""

    name: str
    value: float
    unit: str
    peer: float | None = None
    ratio: float | None = None  # project / peer
    at_least: float | None = None  # target for the ratio
    at_most: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the ratio meets its target; None without a target."""
        if self.ratio is None or (self.at_least is None and self.at_most is None):
            return None
        high_enough = self.at_least is None or self.ratio >= self.at_least
        return high_enough and (self.at_most is None or self.ratio <= self.at_most)

    def line(self) -> str:
        parts = [f"{self.name:<34} {_number(self.value):>10} {self.unit}"]
        if self.peer is not None:
            parts.append(f"peer {_number(self.peer):>8}")
        if self.ratio is not None:
            parts.append(f"ratio {self.ratio:6.3f}")
        if self.met is not None:
            target = f">= {self.at_least}" if self.at_least is not None else f"<= {self.at_most}"
            parts.append(f"target {target}: {'met' if self.met else 'MISSED'}")
        return "  ".join([*parts, self.note]).rstrip()


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def machine() -> dict[str, Any]:
    """Describe the machine and the versions."""
    return {
        "cores": physical_cores(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "cpu": _cpu_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


# The command line


def arguments(about: str | None, *, repeats: int = 9) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=physical_cores(), help="CPU threads (default: one per core)")
    parser.add_argument("--repeats", type=int, default=repeats, help="number of rounds (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="only check that it runs; the figures mean nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    return parser


def begin(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line and set the number of threads."""
    options = parser.parse_args()
    if options.quick:
        options.repeats = min(options.repeats, 3)
    torch.set_num_threads(options.threads)
    return options


def report(figures: Sequence[Figure], options: argparse.Namespace, **more: Any) -> None:
    """Print the machine, the values of `more` and the figures, as lines or as JSON."""
    about = {**machine(), "repeats": options.repeats, **more}
    if options.json:
        print(json.dumps({**about, "figures": [{**asdict(figure), "met": figure.met} for figure in figures]}))
        return
    print("  ".join(f"{key}: {value}" for key, value in about.items()))
    for figure in figures:
        print(figure.line())


# The project's training loop, a few steps at a time


class NoFolder(RunFolder):
    """A run folder that stores nothing: a paused training continues from memory."""

    def __init__(self) -> None:
        super().__init__(os.devnull)

    def write_weights(self, weights: dict[str, Tensor]) -> None:
        return

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        return

    def read_checkpoint(self) -> None:
        return None

    def log(self, record: dict[str, Any]) -> int:
        return 0

    def cut_log(self, length: int) -> None:
        return


WARMING_STEPS = 20
"""Steps in which a training measures its ways."""


class FixedBatches:
    """A cycle of a few batches; the state is reset at the first one."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches, self.per_epoch = batches, len(batches)

    def batch(self, index: int) -> tuple[Batch, bool]:
        return self.batches[index % self.per_epoch], index % self.per_epoch == 0


def random_batches(tokens: np.ndarray[Any, Any], count: int, rows: int, length: int) -> list[Batch]:
    """Arrange the stream `tokens` in rows and cut it into `count` batches of rows × length."""
    track = torch.from_numpy(tokens[: rows * (count * length + 1)].astype(np.int64)).view(rows, -1)
    places = range(0, count * length, length)
    return [Batch(track[:, at : at + length], track[:, at + 1 : at + length + 1]) for at in places]


class Project:
    """The project's training loop over given batches, run a number of steps at a time."""

    def __init__(self, values: Mapping[str, Any], vocabulary: Vocabulary, batches: Batches) -> None:
        """`values` are nested as in config.toml; everything else has the project's defaults."""
        training = {"validations": 1, "save_seconds": 1e9, "log_steps": 10**9, "steps": 10**9}
        config = parse(RunConfig, {**values, "training": {**training, **values.get("training", {})}})
        torch.manual_seed(config.seed)
        self.model = build_model(config, vocabulary)
        self.trainer = Trainer(
            model=self.model,
            objective=Likelihood(Likelihood.Config()),
            batches=batches,
            config=config.training,
            folder=NoFolder(),
            hooks=Hooks(validate=lambda model: {"loss": 0.0}, stopping=self._at_target),
            carries=config.training.batching == "stream" and self.model.window is None,
            device=torch.device("cpu"),
        )
        self.target = 0

    def _at_target(self) -> bool:
        return self.trainer.training_state.step >= self.target

    def choose_threads(self, most: int) -> None:
        """Choose among one thread, `most` workers and `most` threads by measuring, as a training does by default."""
        before = torch.get_num_threads()
        self.trainer.threads = ThreadChooser.for_training(
            self.trainer.config, most, can_fork=can_share(self.trainer.stepper)
        )
        self.steps(WARMING_STEPS)
        torch.set_num_threads(before)

    @property
    def way(self) -> Way | None:
        """The workers and threads that were chosen."""
        return None if self.trainer.threads is None else self.trainer.threads.current

    def steps(self, count: int) -> None:
        """Take `count` more steps, with the threads that were chosen, if any."""
        self.target, before = self.trainer.training_state.step + count, torch.get_num_threads()
        if self.trainer.threads is not None:
            torch.set_num_threads(self.trainer.threads.way.threads)
        self.trainer.fit()
        torch.set_num_threads(before)


def parameter_count(model: nn.Module) -> int:
    """Return the number of parameters; a shared matrix counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def update(loss: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer, clip: float) -> None:
    """One training step of a peer: gradients, clipping, update."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
