"""Early stopping: select the best checkpoint, and end a training whose validations no longer improve."""

from __future__ import annotations

from collections.abc import Mapping

from chainrule.config import TrainingConfig
from chainrule.training.checkpoint_state import TrainingState


class EarlyStopping:
    """Compares the validations of a training. Its counters are fields of the training state, so they are resumed."""

    def __init__(self, config: TrainingConfig, state: TrainingState) -> None:
        self.select, self.patience, self.state = config.select, config.patience, state

    @property
    def metrics(self) -> list[str]:
        """The metrics that must be the same in all processes: the loss, and the one that selects the checkpoint."""
        return ["loss"] if self.select == "loss" else ["loss", self.select]

    def update(self, figures: Mapping[str, float]) -> bool:
        """Record a validation at the current step -> whether it is the best so far."""
        state = self.state
        value = figures["loss"] if self.select == "loss" else -figures[self.select]
        if value < state.best:
            state.best, state.best_step, state.stale = value, state.step, 0
            return True
        state.stale, state.plateaus = state.stale + 1, state.plateaus + 1
        return False

    @property
    def out_of_patience(self) -> bool:
        """Whether `training.patience` validations in a row brought no improvement; a patience of 0 never ends."""
        return 0 < self.patience <= self.state.stale
