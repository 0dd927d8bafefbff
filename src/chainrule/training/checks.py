"""What cannot be trained is refused before any text is read: misspelt names, and options that do not fit together."""

from __future__ import annotations

from chainrule.base.devices import choose_device
from chainrule.config import RunConfig, parse
from chainrule.errors import ConfigError
from chainrule.registry import MODELS, OBJECTIVES, OUTPUTS
from chainrule.tasks.task import Task
from chainrule.training.fitting.fitting import Fitting
from chainrule.training.trackers.mirror import check_trackers


def check_options(config: RunConfig, task: Task, fitting: Fitting) -> None:
    """Refuse unknown names and options, and combinations that cannot be trained."""
    if MODELS.get(config.model.name).make.has_parts:
        fitting.check(config)
    for where, registry in (("model", MODELS), ("output", OUTPUTS), ("objective", OBJECTIVES)):
        section = getattr(config, where)
        parse(registry.get(section.name).make.Config, section.options, where)
    choose_device(config.training.device)
    _check_objective(config, task)
    task.check(config)
    fitting.check(config)
    check_trackers(config.training.log)


def _check_objective(config: RunConfig, task: Task) -> None:
    """Some models are trained with one objective only, and some objectives need certain models."""
    asked, only = config.objective.name, MODELS.get(config.model.name).objective
    if only is not None and asked != only:
        raise ConfigError(f"{config.model.name} is trained with the objective {only} only; leave --objective out")
    users = [entry.name for entry in MODELS.entries() if entry.objective == asked]
    if only is None and users:
        raise ConfigError(
            f"the objective {asked} is for {' and '.join(users)}, not for {config.model.name}; leave --objective out"
        )
    if OBJECTIVES.get(asked).make.needs_reward and not task.rewarded:
        raise ConfigError(
            f"{asked} rewards translations, and {config.model.name} does not translate; choose likelihood or "
            "scheduled-sampling, or a translator"
        )
