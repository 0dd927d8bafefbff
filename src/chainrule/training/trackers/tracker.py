"""What a tracker does, and what it receives of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from chainrule.errors import ConfigError

PROJECT = "chainrule"
"""The project or experiment that runs belong to, unless the environment of the tracker names another."""


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker knows it."""

    folder: Path
    options: dict[str, Any]  # the configuration, nested
    key: str | None  # what the tracker called the run when it was begun; None: it is new

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.resolve().name

    def flat_options(self) -> dict[str, Any]:
        """The options by their whole names, as in --set: model.hidden."""
        return dict(_flat(self.options, ""))


def _flat(values: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        found += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]
    return found


class Tracker(ABC):
    """Draws the metrics of one training."""

    name: ClassVar[str]
    package: ClassVar[str]  # that must be installed
    remembers: ClassVar[bool] = True  # whether a run that is opened again still has its points

    @abstractmethod
    def open(self, run: TrackedRun) -> str | None:
        """Begin or continue a run -> what the tracker calls it, if that is needed to continue."""

    @abstractmethod
    def log(self, figures: dict[str, float], step: int) -> None:
        """Add one point to each curve."""

    @abstractmethod
    def close(self) -> None:
        """End the run."""

    def check(self) -> None:
        """Refuse a tracker that is not installed."""
        if find_spec(self.package) is None:
            raise ConfigError(
                f"--log {self.name} needs the package {self.package}, which is not installed: "
                f"pip install {self.package}"
            )

    def load(self, module: str | None = None) -> Any:
        """Its package, or a module of it."""
        return import_module(module or self.package)
