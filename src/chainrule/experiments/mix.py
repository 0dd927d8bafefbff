"""`mix`: combine runs and caches into a mixture, which is a run itself. mix_weights.py fits its weights.

The folder of a mixture:

    parts/0, parts/1 …   the runs that were mixed, without the files of their training
    model.safetensors    `weights` (buckets × components) and `unigram_counts`; its metadata names the parts

All other files are as in any run.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from safetensors import safe_open
from safetensors.torch import save as save_bytes

from chainrule.base.devices import PeakMemory
from chainrule.base.files import folder_atomically, write_atomically
from chainrule.base.grammar import plural
from chainrule.base.progress import Progress
from chainrule.base.targets import check_folder
from chainrule.checkpoint.build import COUNTS, adjust
from chainrule.checkpoint.folder import TRAINING_SECTIONS, RunFolder
from chainrule.config import DataConfig, NamedSection, RunConfig, Section, merge, parse
from chainrule.data.in_memory import Data
from chainrule.data.store import TokenStore
from chainrule.errors import ConfigError, DataError, RunError, unknown_name
from chainrule.experiments.mix_temperature import fit_temperature
from chainrule.experiments.mix_weights import (
    CACHES,
    CacheSettings,
    FittedMixture,
    cache_candidates,
    fit_mixture,
    score_components,
)
from chainrule.experiments.shared_options import held_out_options, options_for
from chainrule.models.mixture import Mixture
from chainrule.models.mixture_weights import fit_weights
from chainrule.runs.base import Run
from chainrule.runs.language_model import LanguageModelRun
from chainrule.runs.load import load_for
from chainrule.training.fit import fit
from chainrule.training.fitting.fitting import TrainingListener
from chainrule.training.request import make_config
from chainrule.types import Vocabulary


class MixSettings(Section):
    """Options of a mixture."""

    cache: CacheSettings = CacheSettings()


def mix(
    runs: Sequence[str | Path | LanguageModelRun],
    *,
    valid: Data | None = None,
    out: str | Path,
    caches: Sequence[str] = (),
    buckets: bool = False,
    temperature: bool = False,
    settings: Mapping[str, Any] | None = None,
    field: str | None = None,
    device: str = "auto",
    note: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
) -> LanguageModelRun:
    """Mix runs of one vocabulary, and caches, with the weights that make the text `valid` most likely.

    The same call again returns the finished mixture.

    Args:
        runs: The runs or their folders.
        valid: The text on which the weights are fitted. None: the validation text of the first run.
        out: Folder of the mixture.
        caches: Caches to add: "unigram", "continuous", or both.
        buckets: Whether contexts are grouped into buckets with weights of their own.
        temperature: Whether the temperature of the mixture is fitted, too; scoring is then slower.
        settings: Options of the caches: {"cache": {…}}.
        field: Name of the column or JSON field with the texts. None: that of the first run.
        device: "cpu", "cuda" or "auto".
        note: Called with messages.
        progress: Called with the tokens scored and the total.
    """
    began, memory = time.monotonic(), PeakMemory()
    opened = [run if isinstance(run, LanguageModelRun) else _load(run, device) for run in runs]
    caches = list(dict.fromkeys(caches))
    options = parse(MixSettings, settings or {})
    _check(opened, caches, options.cache)
    files = None if valid is None else opened[0].files(valid, field)
    store = opened[0].open(files, field=field) if files else _held_out(opened)
    request = _request(opened, caches, buckets, options, store) | ({"temperature": True} if temperature else {})
    check_folder(out, lambda: RunFolder(out).is_finished(request))
    if RunFolder(out).exists():
        note(f"{out} is already finished; choose another --out to mix again")
        return _load(out, device)
    parts = [run.model for run in opened]
    candidates = cache_candidates(parts, caches, options.cache)
    fitted = fit_mixture(parts, _vocabulary(opened[0]), candidates, buckets, temperature, store.tokens, note, progress)
    seconds = time.monotonic() - began
    result = _result(opened, fitted, seconds) | {"peak_memory": _peak_memory(opened, memory)}
    with folder_atomically(Path(out)) as place:
        folder = RunFolder(place)
        _write(folder, opened, fitted.mixture, result, request)
        folder.write_config(_config(opened[0], fitted.mixture, files, field), without=TRAINING_SECTIONS)
    return _load(out, device)


def _load(path: str | Path, device: str = "auto") -> LanguageModelRun:
    return load_for("mix", LanguageModelRun, path, device=device)


def _held_out(runs: Sequence[LanguageModelRun]) -> TokenStore:
    """The validation text of the first run; no run may have counted it."""
    for run in runs[1:]:
        if run.counted_all:
            run.open_held_out()  # raises the error that explains what to do
    return runs[0].open_held_out()


def _vocabulary(run: LanguageModelRun) -> Vocabulary:
    size = run.tokenizer.vocab_size
    return Vocabulary(size, run.tokenizer.eos, run.model.unigram_counts.cpu().numpy())


def refit_weights(run: Run, valid: Data | None, limit: int) -> tuple[list[list[float]], list[list[float]]]:
    """Fit the weights of a mixture on other text, in memory -> the weights before and after, by bucket."""
    assert isinstance(run, LanguageModelRun)
    mixture, store = run.model, run.open(valid) if valid else run.open_held_out()
    fitted = fit_weights(*score_components(mixture, store.tokens[:limit]), mixture.bucketing.count)
    before = mixture.weights.tolist()
    mixture.weights.copy_(torch.from_numpy(fitted.weights_ZK))
    return before, mixture.weights.tolist()


def refit_temperature(run: Run, valid: Data | None, limit: int) -> None:
    """Fit the temperature of a mixture on other text, in memory."""
    assert isinstance(run, LanguageModelRun)
    store = run.open(valid) if valid else run.open_held_out()
    found = fit_temperature(run.model, store.tokens[:limit])
    adjust(run.model, {"temperature": found.temperature})


def save_weights(run: Run) -> None:
    """Write the weights of a mixture to its file, which keeps its metadata."""
    path, mixture = run.folder.model_path, run.model
    with safe_open(path, "pt") as file:
        about = file.metadata()
    tensors = {"weights": mixture.weights.cpu(), COUNTS: mixture.unigram_counts.cpu()}
    run.folder.write_model(lambda beside: write_atomically(beside, save_bytes(tensors, about)))


# Recipes


class MixtureRecipe(Section):
    """The section `model` of a recipe for a mixture."""

    parts: tuple[dict[str, Any], ...] = Field(
        min_length=1, description="configuration of each part, without the shared options"
    )
    caches: tuple[str, ...] = ()
    buckets: bool = False
    temperature: bool = Field(False, description="fit a temperature")
    cache: CacheSettings = CacheSettings()


def train_mixture(config: RunConfig, out: str | Path, listener: TrainingListener) -> LanguageModelRun:
    """Train the parts of a recipe, each a run in the folder `OUT-parts`, then mix them.

    A part that is stopped before its end is returned unfinished; the same call resumes it.
    """
    recipe = parse(MixtureRecipe, config.model.options, "model")
    shared = config.model_dump(mode="json", exclude_unset=True, include={"seed", "data", "tokenizer", "training"})
    runs = []
    for number, part in enumerate(recipe.parts):
        name = part.get("model", {}).get("name", "lstm")
        whole = make_config(None, options_for(name, shared), merge(held_out_options(name), part))
        listener.note(f"part {number}: {whole.model.name}")
        folder = Path(f"{out}-parts") / f"{number}-{whole.model.name}"
        if not fit(whole, folder, listener).finished:
            return _load(folder)
        runs.append(folder)
    settings = {"cache": recipe.cache.model_dump(exclude_none=True)}
    options: dict[str, Any] = {name: getattr(recipe, name) for name in ("caches", "buckets", "temperature")}
    mixed = mix(runs, out=out, settings=settings, note=listener.note, **options)
    mixed.config = mixed.config.model_copy(update={"recipe": config.recipe})
    return mixed


# Checks


def _check(runs: Sequence[LanguageModelRun], caches: Sequence[str], settings: CacheSettings) -> None:
    if not runs or len(runs) + len(caches) < 2:
        raise ConfigError(
            f"mixing needs two runs, or one run and a cache, but got {plural(len(runs), 'run')} and no cache; name "
            "another run, or add --cache unigram"
        )
    for kind in caches:
        if kind not in CACHES:
            raise unknown_name("cache", kind, CACHES)
    for option, kind in (("decay", "unigram"), ("theta", "continuous"), ("window", "continuous")):
        if getattr(settings, option) is not None and kind not in caches:
            raise ConfigError(f"cache.{option} has no effect without a {kind} cache; add --cache {kind}")
    for run in runs:
        _check_run(run, runs[0])
    if "continuous" in caches and not any(run.model.feature_width is not None for run in runs):
        raise ConfigError(
            "a continuous cache compares the features of a network, but none of these runs has features; add a neural "
            "model, or use --cache unigram"
        )


def _check_run(run: LanguageModelRun, first: LanguageModelRun) -> None:
    path = run.folder.path
    if not run.result:
        raise RunError(f"{path} was stopped before it was finished; rerun its train command, then mix")
    one, other = first.tokenizer, run.tokenizer
    if one.fingerprint != other.fingerprint:
        raise ConfigError(
            f"{first.folder.path} and {path} have different vocabularies "
            f"({one.kind}#{one.fingerprint[:8]} of {one.vocab_size} tokens, "
            f"{other.kind}#{other.fingerprint[:8]} of {other.vocab_size}); {_same_vocabulary(run, first)}"
        )
    if not run.model.normalised:
        raise RunError(f"{path} gives scores, which are not probabilities, so it cannot be mixed; leave it out")


def _same_vocabulary(run: LanguageModelRun, first: LanguageModelRun) -> str:
    """How two runs get one vocabulary."""
    if run.counted_all == first.counted_all or run.config.data.train != first.config.data.train:
        return f"mix runs of one tokeniser: train with --tokenizer {first.folder.path / 'tokenizer.json'}"
    counted, other = (run, first) if run.counted_all else (first, run)
    return (
        f"{counted.folder.path} counted all of its text, of which {other.folder.path} held a part out: train "
        f"{counted.folder.path} with --set training.count_all=false, or {other.folder.path} with --tokenizer "
        f"{counted.folder.path / 'tokenizer.json'}"
    )


def _request(
    runs: Sequence[LanguageModelRun], caches: Sequence[str], buckets: bool, settings: MixSettings, store: TokenStore
) -> dict[str, Any]:
    """The values that determine a mixture, to recognise the same command."""
    if not len(store):
        raise DataError("the validation text has no tokens; give a text with at least one line")
    return {
        "parts": [run.fingerprint.hex() for run in runs],
        "valid": store.fingerprint,
        "caches": list(caches),
        "buckets": buckets,
        **settings.model_dump(mode="json"),
    }


# The folder


def component_names(runs: Sequence[LanguageModelRun], mixture: Mixture) -> list[str]:
    """The names of the components, for example 0:lstm, unigram cache, continuous cache of 0:lstm."""
    parts = [f"{number}:{run.config.model.name}" for number, run in enumerate(runs)]
    caches = [
        f"{cache.kind} cache" + (f" of {parts[cache.part]}" if cache.kind == "continuous" else "")
        for cache in mixture.config.caches
    ]
    return parts + caches


def _result(runs: Sequence[LanguageModelRun], fitted: FittedMixture, seconds: float) -> dict[str, Any]:
    """The result of mixing; the time of the parts is included in its own."""
    names = component_names(runs, fitted.mixture)
    return {
        "steps": fitted.weights.iterations,
        "seconds": round(sum(run.result.get("seconds", 0) for run in runs) + seconds, 2),
        "tokens": fitted.tokens,
        "parameters": sum(run.parameters for run in runs),
        "tokens_per_second": round(fitted.tokens / seconds, 1),
        "budget": {},
        "weights": dict(zip(names, np.round(fitted.weights.overall_K, 6).tolist(), strict=True)),
    }


def _peak_memory(runs: Sequence[LanguageModelRun], memory: PeakMemory) -> int:
    """The peak memory of training the parts or of mixing them, whichever is larger."""
    return max(memory.bytes, *(int(run.result.get("peak_memory", 0)) for run in runs))


def _config(first: LanguageModelRun, mixture: Mixture, valid: Sequence[str] | None, field: str | None) -> RunConfig:
    data = first.config.data
    if valid:
        data = DataConfig(train=data.train, valid=tuple(valid), field=field or data.field)
    model = NamedSection(name="mixture", **mixture.config.model_dump(mode="json"))
    return RunConfig(data=data, tokenizer=first.config.tokenizer, model=model)


def _write(
    folder: RunFolder,
    runs: Sequence[LanguageModelRun],
    mixture: Mixture,
    result: dict[str, Any],
    request: dict[str, Any],
) -> None:
    for number, run in enumerate(runs):
        _copy_run(run.folder.path, folder.path / "parts" / str(number))
    runs[0].tokenizer.save(folder.path)
    # The fingerprint of a run is that of this file, so the file must change with the parts and the caches.
    about = {"parts": " ".join(request["parts"]), "mixture": mixture.config.model_dump_json()}
    tensors = {"weights": mixture.weights.cpu(), COUNTS: mixture.unigram_counts.cpu()}
    content = save_bytes(tensors, {"about": json.dumps(about)})
    tokenizer = f"{runs[0].tokenizer.kind}#{runs[0].tokenizer.fingerprint}"
    signature = {"parts": about["parts"], "valid": request["valid"], "tokenizer": tokenizer}
    folder.write_signature({**signature, "part_weights": " ".join(run.folder.weights_hash() for run in runs)})
    folder.write_model(lambda path: write_atomically(path, content))
    folder.write_request(request)
    folder.write_result(result)


def _copy_run(source: Path, target: Path) -> None:
    """Copy the files that using a run needs, without those that only its training needs."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.name in ("training", "metrics.jsonl") or path.name.startswith("."):
            continue
        if path.is_dir():
            _copy_run(path, target / path.name)
        else:
            _link_or_copy(path, target / path.name)


def _link_or_copy(source: Path, target: Path) -> None:
    """Link a file instead of copying it if possible: runs replace their files and never write into them."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
