"""TensorBoard: event files in the folder `tensorboard` of the run; `tensorboard --logdir runs` shows them."""

from __future__ import annotations

import shutil
from typing import Any, ClassVar

from chainrule.training.trackers.tracker import TrackedRun, Tracker

FOLDER = "tensorboard"


class TensorBoard(Tracker):
    """Writes event files anew whenever a training begins or continues, so that no point is there twice."""

    name = "tensorboard"
    package = "tensorboard"
    remembers: ClassVar[bool] = False

    def open(self, run: TrackedRun) -> None:
        folder = run.folder / FOLDER
        shutil.rmtree(folder, ignore_errors=True)
        self._writer: Any = self.load("torch.utils.tensorboard").SummaryWriter(str(folder))

    def log(self, figures: dict[str, float], step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
