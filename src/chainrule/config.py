"""Everything that can be set about a run, in one record that reads and writes TOML.

    [tokenizer] kind, vocab_size …      [model] name and the options of that model      [output] name, options
    [objective] name, options           [training] how long, how fast, in which pieces  [data] which text

A field left at None is chosen from the size of the text and the budget (`training/presets.py`); the `config.toml` of a
finished run has every choice written out.
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
    """A group of options: nothing unknown is accepted, nothing changes after it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DataConfig(Section):
    """Which text."""

    train: tuple[str, ...] = Field((), description="files, folders, '-' or hf:NAME/CONFIG:SPLIT")
    valid: tuple[str, ...] = Field(
        (), description="validation text; without it the end of the training text is held out"
    )
    field: str = Field("text", description="the field that holds the text in JSON lines and data sets")
    lines: int | None = Field(None, ge=1, description="train on the first so many lines")
    valid_lines: int | None = Field(None, ge=1, description="validate with the first so many lines of `valid`")
    held_out: float = Field(
        0.05, gt=0, lt=0.5, description="share held out for validation when no text is given for it"
    )
    label_field: str = Field("label", description="labelled text: the field of the label, or labels, in JSON lines")
    pair_field: str = Field("text_pair", description="labelled text: the field of the second text of a pair")
    source_field: str = Field("source", description="pairs: the field of the source in JSON lines")
    target_field: str = Field("target", description="pairs: the field of the target in JSON lines")
    prefix: str = Field("", description="pairs: what is put before every source, such as a task's name for t5")
    max_length: int | None = Field(
        None, ge=1, description="pairs: train without those longer than so many tokens (default: the model's context)"
    )
    max_ratio: float | None = Field(
        None, ge=1, description="pairs: train without those of which one side has so many times the other's tokens"
    )


class TokenizerConfig(Section):
    """How text becomes tokens."""

    kind: str | None = Field(None, description="word, char, byte, bpe, unigram, jieba, or a tokenizer file")
    vocab_size: int | None = Field(None, ge=2)
    min_count: int | None = Field(None, ge=1, description="rarer words become <unk>")
    split: Literal["space", "unicode"] = Field("space", description="where the word tokeniser cuts")
    joint: bool = Field(True, description="pairs: one vocabulary for both sides, or one each")
    source: str | None = Field(
        None, description="pairs: the source's own tokeniser, a kind or a file; without it, `kind` is of both sides"
    )


class NamedSection(BaseModel):
    """A registered thing by name, with its options beside the name."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


LEAST_MEMORY = 1 << 16


class TrainingConfig(Section):
    """How a model is fitted."""

    minutes: float | None = Field(None, gt=0, description="budget in minutes of training")
    steps: int | None = Field(None, ge=1, description="budget in optimiser steps")
    epochs: float | None = Field(None, gt=0, description="budget in passes over the text")
    batching: Literal["stream", "blocks"] | None = Field(
        None, description="contiguous text with carried state, or random blocks"
    )
    batch_size: int | None = Field(None, ge=1, description="rows of a batch, on each process")
    max_tokens: int | None = Field(None, ge=1, description="pairs: rows of a batch times the tokens of its longest")
    length: int | None = Field(None, ge=1, description="tokens a row: the unroll of a stream, the size of a block")
    accumulate: int = Field(1, ge=1, description="batches whose gradients make one step")
    optimizer: Literal["adamw", "sgd", "muon"] | None = Field(
        None, description="default: muon for Transformers and conv-attention, adamw for others and for rewards"
    )
    lr: float | None = Field(None, gt=0)
    tuned_lr: float = Field(5e-5, gt=0, description="AdamW's lr for a pretrained encoder that is tuned")
    table_lr: float = Field(3e-3, gt=0, description="muon: AdamW's lr for embeddings, output tables, norms and biases")
    weight_decay: float = Field(0.0, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's first moment; momentum of SGD and Muon is `momentum`")
    beta2: float = Field(0.99, ge=0, lt=1)
    momentum: float = Field(0.0, ge=0, lt=1)
    schedule: Literal["constant", "cosine", "linear", "step", "plateau"] = "cosine"
    warmup: float = Field(0.02, ge=0, description="share of the budget (below 1) or steps over which lr rises from 0")
    final_lr: float = Field(0.05, ge=0, le=1, description="where cosine and linear end, as a share of lr")
    decay_start: float = Field(4.0, ge=0, description="step schedule: epochs at full lr")
    decay_every: float = Field(1.0, gt=0, description="step schedule: epochs between decays")
    decay_factor: float = Field(0.5, gt=0, le=1, description="step and plateau schedules: what lr is multiplied by")
    clip: float = Field(1.0, ge=0, description="largest norm of the gradient; 0: no clipping")
    validations: int = Field(10, ge=1, description="validations spread evenly over the budget")
    valid_tokens: int = Field(
        200_000, ge=1, description="at most this many tokens in each of those; fewer in a short budget of minutes"
    )
    select: Literal["loss", "bleu", "accuracy", "f1"] = Field(
        "loss", description="what the best weights are best in; bleu: of pairs; accuracy and f1: of labelled text"
    )
    valid_pairs: int = Field(500, ge=1, description="select = bleu: at most so many pairs are translated to measure it")
    patience: int = Field(0, ge=0, description="stop after this many validations without improvement; 0: never")
    average_from: float = Field(
        1.0, ge=0, le=1, description="share of the budget after which weights are averaged; 1: never"
    )
    compile: bool = Field(False, description="torch.compile the model")
    device: str = Field("auto", description="auto, cpu, cuda, mps")
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    threads: int = Field(0, ge=0, description="CPU threads; 0: one a physical core")
    memory: str | None = Field(None, description="most memory for counting n-grams, e.g. 1G or 500M")
    save_seconds: float = Field(60.0, gt=0, description="seconds between checkpoints")
    log_steps: int = Field(50, ge=1, description="steps between lines of metrics.jsonl")

    @field_validator("memory", mode="before")
    @classmethod
    def _check_memory(cls, value: Any) -> str | None:
        text = None if value is None else str(value)
        if text is not None and not re.fullmatch(r"\d+(\.\d+)?\s*[kKmMgGtT]?[bB]?", text):
            raise ConfigError(f"training.memory = {value!r}: expected a number of bytes, such as 1G, 500M or 65536")
        if text is not None and parse_bytes(text) < LEAST_MEMORY:
            raise ConfigError(f"training.memory = {value!r}: counting needs at least 64K; give it more")
        return text


class Recipe(Section):
    """What a recipe file says about itself; printed when it has run."""

    about: str
    expected: str


class RunConfig(Section):
    """A run, whole."""

    seed: int = 1
    init: str | None = Field(None, description="a run whose tokeniser, model and weights are the start of this one")
    init_embedding: str | None = Field(
        None, description="vectors that words start from: a run, or a file in the format of word2vec"
    )
    data: DataConfig = DataConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: NamedSection = NamedSection(name="lstm")
    output: NamedSection = NamedSection(name="softmax")
    objective: NamedSection = NamedSection(name="likelihood")
    training: TrainingConfig = TrainingConfig()
    recipe: Recipe | None = None


C = TypeVar("C", bound=BaseModel)


def parse(kind: type[C], values: Mapping[str, Any], where: str = "") -> C:
    """Build a record from plain values; the first thing wrong becomes one sentence."""
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
        raise ConfigError(f"{path} = {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}") from None


def _fields_at(kind: type[BaseModel], path: list[str]) -> Iterable[str]:
    """Names of the options of the section that `path` leads to."""
    for part in path:
        annotation = kind.model_fields[part].annotation if part in kind.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return ()
        kind = annotation
    return kind.model_fields


def read_toml(path: str | Path) -> dict[str, Any]:
    """The plain values of a TOML file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no configuration file at {path}; give the path of a .toml file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def write_toml(config: RunConfig, without: Collection[str] = ()) -> str:
    """A run's configuration as TOML; options at None are left out, and so are the sections of `without`."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True, exclude=set(without)))


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The values of both, those of `over` winning, section by section."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def parse_bytes(text: str) -> int:
    """1G, 500M, 2.5G, 4096 -> bytes."""
    number, unit = text.strip().lower().rstrip("b").strip(), 1
    if number[-1:] in "kmgt" and number:
        number, unit = number[:-1], 1024 ** ("kmgt".index(number[-1]) + 1)
    return int(float(number) * unit)


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """`["model.hidden=200", …]` as nested values."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set got '{setting}'; it takes key=value, for example --set model.hidden=200")
        for part in reversed(key.strip().split(".")):
            text = {part: _value(text) if isinstance(text, str) else text}  # type: ignore[assignment]
        values = merge(values, text)  # type: ignore[arg-type]
    return values


def _value(text: str) -> Any:
    """A number, boolean or list if it reads as one, else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text.strip()
