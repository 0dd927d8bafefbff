"""What the ways of fitting a model share: gradient steps, counting in one pass, and sweeps over the words.

The registration of a model names its way of fitting. A new way is one file here, registered in `FITTINGS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from chainrule.base.files import remove_leftovers
from chainrule.base.locks import lock
from chainrule.base.processes import Processes
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig
from chainrule.errors import ConfigError
from chainrule.registry import FITTINGS, MODELS
from chainrule.tasks.task import Corpus, Listener, Task

if TYPE_CHECKING:  # what counts n-grams needs no torch, which takes seconds to import
    from chainrule.training.loop import Update

BUDGET = ("minutes", "steps", "epochs")


@dataclass
class TrainingListener(Listener):
    """Receives messages and progress of a training. The default ignores them."""

    update: Callable[[Update], None] = lambda update: None


@dataclass
class Fitted:
    """The outcome of a training."""

    folder: RunFolder
    finished: bool
    result: dict[str, Any] = field(default_factory=dict)
    model: Any = None  # the trained model in evaluation mode; None: it is to be loaded from the folder
    corpus: Corpus | None = None  # what it was trained on; None: nothing was opened


@dataclass
class Job:
    """What a way of fitting works on."""

    config: RunConfig
    task: Task
    corpus: Corpus
    folder: RunFolder
    request: dict[str, Any]  # the options as given
    listener: TrainingListener
    processes: Processes
    held: ExitStack = field(default_factory=ExitStack)  # released when the training ends

    def begin(self, config: RunConfig, unused: tuple[str, ...] = ()) -> None:
        """Lock the folder and write what identifies the run, before its first weights.

        `unused` are sections that do not apply.
        """
        self.held.enter_context(lock(self.folder.lock_path, self.folder.path))
        for place in (self.folder.path, self.folder.path / "training"):
            remove_leftovers(place)
        self.folder.remove_result()
        self.identify(config, unused)

    def identify(self, config: RunConfig, unused: tuple[str, ...] = ()) -> None:
        """Write the tokenisers, the signature, and the options as given and as resolved."""
        self.folder.write_signature({**self.corpus.signature, "seed": str(config.seed)})
        self.corpus.save(self.folder.path)
        self.folder.signature.forget_tokenizers()
        self.folder.write_request(self.request)
        self.folder.write_config(config, without=unused)

    def end(self, result: dict[str, Any]) -> dict[str, Any]:
        """Write the result of the training, with what it was validated with -> the whole result."""
        if "validation" not in result and (validation := self.corpus.validation_data) is not None:
            result = {**result, "validation": validation.to_dict()}
        self.folder.write_result(result)
        return result


class Fitting(ABC):
    """One way to fit a model to a corpus. Instances have no state."""

    name: ClassVar[str]
    extends: ClassVar[bool] = True  # whether a larger budget continues a finished run
    distributed: ClassVar[bool] = False  # whether the processes of torchrun can share the work
    training_options: ClassVar[tuple[str, ...] | None] = None  # of the section `training`, those used; None: all

    def check(self, config: RunConfig) -> None:
        """Refuse options that have no effect on this way of fitting."""
        if self.training_options is not None:
            _refuse_unused(config, self.training_options)
        elif config.training.memory is not None:
            raise ConfigError(
                f"training.memory bounds the counting of n-grams; {config.model.name} reads its text in a stream"
            )

    def prepare(self, config: RunConfig, task: Task, folder: RunFolder, note: Callable[[str], None]) -> RunConfig:
        """Options that follow from other options, filled in before any text is read."""
        from chainrule.training.init.embedding import with_width  # here, for they need torch
        from chainrule.training.init.pretrained import with_pretrained

        config = with_pretrained(config, task, folder)
        return with_width(config, note) if config.init_embedding and not folder.exists() else config

    @abstractmethod
    def fit(self, job: Job) -> Fitted:
        """Train, or continue."""


def fitting_of(model: str) -> Fitting:
    """The way in which a registered model is fitted."""
    fitting: Fitting = FITTINGS.get(MODELS.get(model).fitting).make
    return fitting


def budget_of(config: RunConfig) -> dict[str, Any]:
    """Minutes, steps and epochs."""
    return config.training.model_dump(include=set(BUDGET))


def is_spent(result: dict[str, Any], config: RunConfig) -> bool:
    """Whether a finished training has used up the budget asked for; without a budget, nothing more is asked for."""
    asked = {name: value for name, value in budget_of(config).items() if value}
    used = {"steps": result.get("steps") or 0, "minutes": (result.get("seconds") or 0) / 60}
    before = {name: value or 0 for name, value in result["budget"].items()}
    return not asked or any(max(before.get(name, 0), used.get(name, 0)) >= value for name, value in asked.items())


def refuse_sections(config: RunConfig, reason: str) -> None:
    """Refuse an output layer or an objective where the model has none."""
    for section, default in (("output", "softmax"), ("objective", "likelihood")):
        given = getattr(config, section)
        if given.name != default or given.options:
            raise ConfigError(f"{config.model.name} {reason} and has no {section}; leave --{section} out")


def _refuse_unused(config: RunConfig, used: tuple[str, ...]) -> None:
    """Refuse options of the section `training` that have no effect; those in `used` do."""
    defaults = type(config.training)()
    for name in sorted(config.training.model_fields_set - set(used)):
        if getattr(config.training, name) != getattr(defaults, name):
            raise ConfigError(f"training.{name} has no effect on {config.model.name}; leave it out")
