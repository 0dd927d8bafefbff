"""What cannot be trained is told before any text is read: misspelt names, and options that do not go together."""

from __future__ import annotations

from chainrule.base.devices import choose_device
from chainrule.config import RunConfig, parse
from chainrule.errors import ConfigError
from chainrule.registry import MODELS, OBJECTIVES, OUTPUTS
from chainrule.tasks.language_model import reads, reads_pairs, reads_spans


def check_names(config: RunConfig) -> None:
    """A misspelt name or option is told before any text is read."""
    for where, registry in (("model", MODELS), ("output", OUTPUTS), ("objective", OBJECTIVES)):
        section = getattr(config, where)
        entry = registry.get(section.name)
        if entry.about.get("made_by") == "mix":
            raise ConfigError(
                f"a {entry.name} is not trained but made of runs: chainrule mix RUN RUN --valid TEXT --out RUN"
            )
        parse(entry.make.Config, section.options, where)
    choose_device(config.training.device)
    _check_task(config)
    if is_counted(config):
        _refuse_training_options(config)
    elif is_swept(config):
        _refuse_other_sections(config, "is trained by sweeps of its own")
    elif config.training.memory is not None:
        raise ConfigError(
            f"training.memory bounds the counting of n-grams; {config.model.name} streams its text anyway"
        )


def _check_task(config: RunConfig) -> None:
    """Objectives and choices that only some models know are not asked of others, nor the other way round."""
    _check_objective(config)
    translates = MODELS.get(config.model.name).about["task"] == "seq2seq"
    objective = OBJECTIVES.get(config.objective.name).make
    if getattr(objective, "needs_reward", False) and not translates:
        raise ConfigError(
            f"{config.objective.name} rewards translations, and {config.model.name} is a language model; choose "
            "likelihood or scheduled-sampling, or a translator"
        )
    if reads_spans(config) and config.model.name != "t5":
        raise ConfigError(
            f"the objective spans needs the sentinels of t5; {config.model.name} has none, use --model t5"
        )
    if config.data.valid_lines and not config.data.valid:
        raise ConfigError("data.valid_lines is of a validation text, but none was given; name one with --valid")
    if config.training.select == "bleu" and not reads_pairs(config):
        raise ConfigError("training.select = 'bleu' is for pairs; a model of one text is selected by its loss")
    if config.training.select in ("accuracy", "f1") and reads(config) != "labels":
        raise ConfigError(
            f"training.select = '{config.training.select}' is for labelled text; {config.model.name} is selected by "
            "its loss"
        )


def _check_objective(config: RunConfig) -> None:
    """Models that are trained in one way only, and the ways that are theirs alone."""
    asked, only = config.objective.name, MODELS.get(config.model.name).about.get("objective")
    if only is not None and asked != only:
        raise ConfigError(f"{config.model.name} is trained with the objective {only} alone; leave --objective out")
    trained = [entry.name for entry in MODELS.entries() if entry.about.get("objective") == asked]
    if only is None and trained:
        raise ConfigError(
            f"the objective {asked} is of {' and '.join(trained)}; {config.model.name} is not trained so, leave "
            "--objective out"
        )


def is_swept(config: RunConfig) -> bool:
    """Whether the model is trained by sweeps over its text that are its own."""
    return MODELS.get(config.model.name).about.get("made_by") == "sweeps"


def is_counted(config: RunConfig) -> bool:
    """Whether the model is counted rather than trained by gradients."""
    return MODELS.get(config.model.name).about.get("made_by") == "counting"


def _refuse_training_options(config: RunConfig) -> None:
    """What a counted model has no use for must not be asked of it."""
    _refuse_other_sections(config, "is counted, not trained,")
    if config.model.options.get("smoothing") == "imported":
        raise ConfigError(
            "the smoothing 'imported' is that of a file which another program made; choose one that can be estimated, "
            "such as modified-kneser-ney"
        )


def _refuse_other_sections(config: RunConfig, way: str) -> None:
    for section, usual in (("output", "softmax"), ("objective", "likelihood")):
        given = getattr(config, section)
        if given.name != usual or given.options:
            raise ConfigError(f"{config.model.name} {way} and has no {section} to choose; leave --{section} out")
