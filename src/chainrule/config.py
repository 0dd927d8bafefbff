"""The configuration of a run: all its options in one record, read from and written to TOML.

    [data] texts and fields        [tokenizer] kind, vocab_size …   [model] name and the options of that model
    [output] name and options      [objective] name and options     [training] budget, batches, optimiser, schedule

Options left at None are chosen from the size of the text and the budget (`tasks/presets.py`). The `config.toml` of a
finished run contains the chosen values.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from chainrule.errors import ConfigError, unknown_name


class Section(BaseModel):
    """A group of options: immutable, and without unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


MAX_INTEGER = (1 << 63) - 1
"""The largest number that fits into 64 bits."""


class DataConfig(Section):
    """Training and validation data, and how their files are read."""

    train: tuple[str, ...] = Field(
        (), description="training data: files, folders, '-' for standard input, hf:NAME/CONFIG:SPLIT or sample:NAME"
    )
    valid: tuple[str, ...] = Field((), description="validation data; by default the end of the training data")
    field: str = Field("text", description="name of the text field in JSON lines and Hugging Face data sets")
    lines: int | None = Field(None, ge=1, description="train on the first N lines only")
    valid_lines: int | None = Field(None, ge=1, description="validate on the first N lines of `valid` only")
    held_out: float = Field(
        0.05, gt=0, lt=0.5, description="share of the training data held out for validation if `valid` is empty"
    )
    label_field: str = Field("label", description="labelled text: name of the field with the label or labels")
    pair_field: str = Field("text_pair", description="labelled text: name of the field with the second text of a pair")
    source_field: str = Field("source", description="pairs: name of the source field in JSON lines")
    target_field: str = Field("target", description="pairs: name of the target field in JSON lines")
    prefix: str = Field("", description="pairs: text put before every source, for example the task name of t5")
    max_length: int | None = Field(
        None, ge=1, description="pairs: drop training pairs with more tokens on a side (default: the model's context)"
    )
    max_ratio: float | None = Field(
        None, ge=1, description="pairs: drop training pairs whose longer side exceeds this multiple of the shorter"
    )


class TokenizerConfig(Section):
    """How text is split into tokens."""

    kind: str | None = Field(None, description="word, char, byte, bpe, unigram, jieba, or the path of a tokenizer file")
    vocab_size: int | None = Field(None, ge=2, description="maximum number of tokens, special tokens included")
    min_count: int | None = Field(None, ge=1, description="words that occur less often become <unk>")
    split: Literal["space", "unicode"] = Field(
        "space", description="word tokeniser: split at white space, or at Unicode word boundaries"
    )
    unk: Literal["token", "text"] | None = Field(
        None,
        description="word tokeniser: <unk> in the text is the unknown token, or text like any other, which needs split "
        "= unicode (default: text with that split, unless the text is already split into words)",
    )
    joint: bool = Field(True, description="pairs: one vocabulary for source and target; false: one for each")
    source: str | None = Field(
        None, description="pairs: tokeniser of the source, a kind or a file (default: `kind` serves both sides)"
    )


class NamedSection(BaseModel):
    """The name of a registered model, output layer or objective, and its options."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str = Field(description="registered name")

    @property
    def options(self) -> dict[str, Any]:
        """All values except the name."""
        return dict(self.model_extra or {})


MIN_MEMORY = 1 << 16
"""Bytes; the smallest bound accepted for `training.memory`."""


class TrainingConfig(Section):
    """Budget, batches, optimiser, schedule and validation of a training."""

    minutes: float | None = Field(None, gt=0, description="budget in minutes of training")
    steps: int | None = Field(None, ge=1, le=MAX_INTEGER, description="budget in optimiser steps")
    epochs: float | None = Field(None, gt=0, description="budget in passes over the training data")
    batching: Literal["stream", "blocks"] | None = Field(
        None, description="stream: contiguous text with carried state; blocks: random blocks of text"
    )
    batch_size: int | None = Field(None, ge=1, le=1 << 24, description="rows per batch; several processes share them")
    max_tokens: int | None = Field(
        None,
        ge=1,
        le=1 << 31,
        description="pairs: maximum size of a batch, its rows times the tokens of its longest row",
    )
    length: int | None = Field(
        None, ge=1, le=1 << 24, description="tokens per row: unroll length of a stream, size of a block"
    )
    accumulate: int = Field(
        1, ge=1, le=1 << 16, description="number of batches whose gradients are summed for one step"
    )
    optimizer: Literal["adamw", "sgd", "muon"] | None = Field(
        None,
        description="default: muon for Transformers and conv-attention, adamw for other models and for training on "
        "rewards",
    )
    lr: float | None = Field(None, gt=0, le=1e38, description="peak learning rate (default: depends on the optimiser)")
    tuned_lr: float = Field(
        5e-5, gt=0, le=1e38, description="learning rate of a pretrained encoder that is fine-tuned (AdamW)"
    )
    table_lr: float = Field(
        3e-3, gt=0, le=1e38, description="muon: learning rate of embeddings, output tables, norms and biases (AdamW)"
    )
    weight_decay: float = Field(0.0, ge=0, description="weight decay of matrices; norms and biases do not decay")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW: decay of the first moment (SGD and Muon use `momentum`)")
    beta2: float = Field(0.99, ge=0, lt=1, description="AdamW: decay of the second moment")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD and Muon; 0 means 0.95 for Muon")
    schedule: Literal["constant", "cosine", "linear", "step", "plateau"] = Field(
        "cosine", description="how the learning rate falls after warm-up"
    )
    warmup: float = Field(
        0.02, ge=0, description="linear warm-up of the learning rate: a share of the budget if below 1, else steps"
    )
    final_lr: float = Field(0.05, ge=0, le=1, description="cosine and linear schedules: final rate as a share of lr")
    decay_start: float = Field(4.0, ge=0, description="step schedule: number of epochs at the full rate")
    decay_every: float = Field(1.0, gt=0, description="step schedule: number of epochs between decays")
    decay_factor: float = Field(0.5, gt=0, le=1, description="step and plateau schedules: factor of each decay")
    clip: float = Field(1.0, ge=0, description="maximum norm of the gradient; 0: no clipping")
    gradient_norms: Literal["global", "layers"] = Field(
        "global", description="norms of the gradient in metrics.jsonl; layers: also one for each layer"
    )
    validations: int = Field(10, ge=1, le=1 << 24, description="number of validations, spread evenly over the budget")
    valid_tokens: int = Field(
        200_000, ge=1, description="maximum number of tokens per validation; fewer in a short budget of minutes"
    )
    select: Literal["loss", "bleu", "accuracy", "f1"] = Field(
        "loss", description="metric that selects the best weights; bleu: pairs only; accuracy, f1: labelled text only"
    )
    valid_pairs: int = Field(
        500, ge=1, description="select = bleu: maximum number of pairs translated in each validation"
    )
    patience: int = Field(0, ge=0, description="stop after N validations without improvement; 0: never")
    average_from: float = Field(
        1.0, ge=0, le=1, description="share of the budget after which weights are averaged; 1: never"
    )
    compile: bool = Field(False, description="compile the model with torch.compile")
    device: str = Field("auto", description="auto, cpu, cuda or mps")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="auto: bfloat16 autocast on CUDA devices that support it, else float32"
    )
    threads: int = Field(0, ge=0, le=1 << 12, description="number of CPU threads; 0: chosen by measuring")
    workers: int = Field(
        0,
        ge=0,
        le=1 << 10,
        description="number of CPU processes that share each batch; 0: chosen by measuring, 1: no further process",
    )
    shard: bool = Field(
        False,
        description="torchrun: divide weights, gradients and optimiser states among the processes (FSDP2)",
    )
    count_all: bool = Field(
        True,
        description="ngram: count the held-out text too, once it has been measured; a given `valid` is not",
    )
    memory: str | None = Field(
        None, description="ngram: maximum memory for counting, for example 1G or 500M; the rest goes to disk"
    )
    save_seconds: float = Field(60.0, gt=0, description="seconds between checkpoints")
    log_steps: int = Field(50, ge=1, le=MAX_INTEGER, description="steps between lines of metrics.jsonl")
    log: tuple[Literal["tensorboard", "trackio", "wandb", "mlflow"], ...] = Field(
        (), description="trackers that receive the lines of metrics.jsonl too"
    )

    @field_validator("memory", mode="before")
    @classmethod
    def _check_memory(cls, value: Any) -> str | None:
        text = None if value is None else str(value)
        if text is not None and parse_bytes(text, "training.memory") < MIN_MEMORY:
            raise ConfigError(f"training.memory = {value!r}: counting needs at least 64K; choose a larger value")
        return text


class DecodingConfig(Section):
    """Defaults of the search for translations; `chainrule tune` chooses them."""

    num_beams: int | None = Field(None, ge=1, description="translators: default beam width; not set: 5")
    length_penalty: float | None = Field(None, description="translators: default length penalty; not set: 1")


class Recipe(Section):
    """Notes in a recipe file; `train` prints `expected` when the recipe has run."""

    about: str = Field(description="what the recipe trains")
    expected: str = Field(description="the result to expect")


class RunConfig(Section):
    """The complete configuration of a run."""

    seed: int = Field(
        1, ge=0, le=MAX_INTEGER, description="random seed of the weights, dropout, sampling and the order of batches"
    )
    init: str | None = Field(None, description="start from the tokeniser, model and weights of this run")
    init_embedding: str | None = Field(
        None, description="start the embedding from these word vectors: a run, or a file in word2vec format"
    )
    data: DataConfig = Field(DataConfig(), description="training and validation data")
    tokenizer: TokenizerConfig = Field(TokenizerConfig(), description="how text is split into tokens")
    model: NamedSection = Field(NamedSection(name="lstm"), description="name and options of the model")
    output: NamedSection = Field(NamedSection(name="softmax"), description="name and options of the output layer")
    objective: NamedSection = Field(NamedSection(name="likelihood"), description="name and options of the objective")
    training: TrainingConfig = Field(TrainingConfig(), description="budget, batches, optimiser and schedule")
    decoding: DecodingConfig = Field(DecodingConfig(), description="defaults of the search for translations")
    recipe: Recipe | None = Field(None, description="notes of a recipe file")


C = TypeVar("C", bound=BaseModel)


def parse(kind: type[C], values: Mapping[str, Any], where: str = "") -> C:
    """Validate plain values as a record of type `kind`; the first invalid value raises a one-line ConfigError."""
    _check_integers(values, where)
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in (where, *first["loc"]) if str(part))
        if first["type"] == "extra_forbidden":
            known = _fields_at(kind, [str(part) for part in first["loc"][:-1]])
            raise unknown_name(
                "option", path, [f"{path.rpartition('.')[0]}.{name}".strip(".") for name in known]
            ) from None
        shown = shorten(repr(first["input"]))
        raise ConfigError(f"{path} = {shown}: {first['msg'][0].lower()}{first['msg'][1:]}") from None


def _check_integers(values: Any, where: str) -> None:
    """Refuse integers of more than 64 bits, which no part of a model can have."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            _check_integers(value, f"{where}.{name}".strip("."))
    elif isinstance(values, int) and abs(values) > MAX_INTEGER:
        raise ConfigError(f"{where} is an integer of {values.bit_length()} bits: expected at most {MAX_INTEGER}")


def shorten(text: str, length: int = 80) -> str:
    """A text for a message, cut if it is long."""
    return text if len(text) <= length else f"{text[:length]}…"


def _fields_at(kind: type[BaseModel], path: list[str]) -> Iterable[str]:
    """The option names of the section at `path`."""
    for part in path:
        annotation = kind.model_fields[part].annotation if part in kind.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return ()
        kind = annotation
    return kind.model_fields


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file as plain values."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"no configuration file at {path}; give the path of a .toml file") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); give the path of a .toml file") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def write_toml(config: RunConfig, without: Collection[str] = ()) -> str:
    """A configuration as TOML text, without options that are None and without the sections in `without`."""
    values = config.model_dump(mode="json", exclude_none=True, exclude=set(without))
    return tomli_w.dumps({name: value for name, value in values.items() if value != {}})


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` updated by `over`, recursively: values of `over` win."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def parse_bytes(text: str, name: str) -> int:
    """Parse a size such as 1G, 500M, 2.5G or 4096 as a number of bytes; `name` is what it is the value of."""
    found = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*([kmgt]?)b?", text.strip().lower(), re.ASCII)
    if found is None:
        raise ConfigError(f"{name} is {text[:30]!r}; expected a number of bytes, for example 1G, 500M or 65536")
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2] or " "))


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """Parse `["model.hidden=200", …]` as nested values."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set got '{setting}'; expected KEY=VALUE, for example --set model.hidden=200")
        for part in reversed(key.strip().split(".")):
            text = {part: _value(text) if isinstance(text, str) else text}  # type: ignore[assignment]
        values = merge(values, text)  # type: ignore[arg-type]
    return values


def _value(text: str) -> Any:
    """Parse a number, boolean or list; anything else stays text."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ConfigError(f"--set got {shorten(text)}, which is nested too deeply; give a plain value") from None
    except ValueError:  # text, or an integer with thousands of digits, which no option takes
        return text.strip()
