"""The public face in Python: `train`, `load`, and the `Run` they give.

import chainrule as cr
run = cr.train("book.txt", model="lstm", minutes=5)
run.evaluate("test.txt").bits_per_byte
run.generate("The ")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig, merge, parse, read_toml
from chainrule.errors import ConfigError, RunError
from chainrule.registry import MODELS
from chainrule.runs.language_model import Paths, Run, path_strings
from chainrule.runs.translator import TranslatorRun
from chainrule.tasks.language_model import form_for
from chainrule.training.fit import Listener, fit


def load(path: str | Path, *, device: str = "auto", settings: Mapping[str, Any] | None = None) -> Run:
    """The run in a folder, its model on the best device there is, as what its model is: a TranslatorRun, for example.

    `settings` are nested as in config.toml and change what needs no training, such as {"model": {"gamma": 0.2}}.
    """
    run = _kind_of_run(RunFolder(path).read_config().model.name)(path, device=device)
    for section, options in (settings or {}).items():
        if section != "model" or not isinstance(options, Mapping):
            raise ConfigError(
                f"--set {section} is for training; of a finished run some options of the model can be set, such as "
                "--set model.gamma=0.2"
            )
        run.adjust(**options)
    return run


KINDS = {
    "word2vec": "chainrule.runs.vectors.VectorRun",
    "bert": "chainrule.runs.masked.MaskedRun",
    "classifier": "chainrule.runs.labels.ClassifierRun",
    "tagger": "chainrule.runs.labels.TaggerRun",
}
"""What a run of some models can do, where that is not what a language model or a translator can do."""


def _kind_of_run(model: str) -> type[Run]:
    if model in KINDS:
        module, _, name = KINDS[model].rpartition(".")
        kind: type[Run] = getattr(import_module(module), name)
        return kind
    return TranslatorRun if MODELS.get(model).about["task"] == "seq2seq" else Run


def load_translator(
    path: str | Path, *, device: str = "auto", settings: Mapping[str, Any] | None = None
) -> TranslatorRun:
    """The translator in a folder; what is no translator is refused."""
    run = load(path, device=device, settings=settings)
    if not isinstance(run, TranslatorRun):
        raise RunError(
            f"{path} is a {run.config.model.name}, which is no translator; train one with: chainrule train SOURCE "
            "TARGET --model seq2seq-transformer, or use chainrule generate"
        )
    return run


def import_model(path: str | Path, out: str | Path, *, note: Callable[[str], None] = lambda text: None) -> Run:
    """A model that another program made, as a run: an ARPA file, word vectors, or a Hugging Face folder or package."""
    from chainrule.interop.formats import import_run

    return load(import_run(path, out, note=note).path)


def train(
    *data: str | Path,
    model: str | None = None,
    valid: Paths = (),
    tokenizer: str | None = None,
    vocab_size: int | None = None,
    output: str | None = None,
    objective: str | None = None,
    init: str | Path | None = None,
    init_embedding: str | Path | None = None,
    config: str | Path | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    seed: int | None = None,
    device: str | None = None,
    memory: str | None = None,
    max_tokens: int | None = None,
    field: str | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    listener: Listener | None = None,
    **model_options: Any,
) -> Run:
    """Train a model on text; the same call again goes on where it stopped.

    `settings` are nested as in config.toml; `model_options` are those of its section `model`, such as order=3.
    """
    named: dict[str, Any] = {
        "seed": seed,
        "init": None if init is None else str(init),
        "init_embedding": None if init_embedding is None else str(init_embedding),
        "data": {"train": [str(path) for path in data], "valid": path_strings(valid), "field": field},
        "tokenizer": {"kind": tokenizer, "vocab_size": vocab_size},
        "model": {"name": model, **model_options},
        "output": {"name": output},
        "objective": {"name": objective},
        "training": {
            "minutes": minutes,
            "steps": steps,
            "epochs": epochs,
            "device": device,
            "memory": memory,
            "max_tokens": max_tokens,
        },
    }
    whole = make_config(config, named, settings or {})
    place = Path(out) if out else default_folder(whole)
    if "parts" in whole.model.options:  # a recipe for a mixture
        from chainrule.experiments.mix import train_mixture

        return train_mixture(whole, place, listener or Listener())
    return load(fit(whole, place, listener).folder.path)


def make_config(file: str | Path | None, named: Mapping[str, Any], settings: Mapping[str, Any]) -> RunConfig:
    """A run's configuration from a file, then named options, then settings, the later ones winning."""
    values = merge(read_toml(file) if file else {}, _without_empty(named))
    values = merge(values, settings)
    if name := values.get("model", {}).get("name"):
        values = merge(values, {"model": {"name": form_for(name, values.get("data", {}).get("train", ()))}})
    if values.get("init"):
        names = (values.get(section, {}).get(key) for section, key in (("model", "name"), ("tokenizer", "kind")))
        values = merge(_start(Path(values["init"]), *names), values)
    values["model"] = {"name": "lstm", **values.get("model", {})}
    objective = MODELS.get(values["model"]["name"]).about.get("objective", "likelihood")
    for section, default in (("output", "softmax"), ("objective", objective)):
        values[section] = {"name": default, **values.get(section, {})}
    return parse(RunConfig, values)


def _start(path: Path, model: str | None, tokenizer: str | None) -> dict[str, Any]:
    """What a run that starts from another one takes over: tokeniser, model and output layer."""
    start = RunFolder(path).read_config()
    if model is not None and model != start.model.name:
        raise ConfigError(
            f"{path} is a {start.model.name} and cannot be the start of a {model}; leave --model out, or start anew"
        )
    if tokenizer is not None and tokenizer != start.tokenizer.kind:
        raise ConfigError(
            f"{path} has the tokeniser {start.tokenizer.kind}, which goes with its weights, but {tokenizer} was asked "
            "for; leave --tokenizer out, or start anew"
        )
    taken = start.model_dump(mode="json", exclude_none=True, include={"tokenizer", "model", "output"})
    return {"data": {"prefix": start.data.prefix} if start.data.prefix else {}, **taken}


def default_folder(config: RunConfig) -> Path:
    """runs/MODEL-TEXT."""
    return Path("runs") / f"{config.model.name}-{text_name(config.data.train[0] if config.data.train else 'text')}"


def text_name(source: str | Path) -> str:
    """A short name for a text, fit for a folder: dir/book.txt.gz -> book."""
    return "stdin" if str(source) == "-" else Path(str(source)).name.partition(".")[0].replace(":", "-")


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options that were not given left out, at every depth."""
    kept = {key: _without_empty(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    return {key: value for key, value in kept.items() if value not in (None, {}, [])}
