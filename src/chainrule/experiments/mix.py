"""From runs to a mixture of them, itself a run: what each component says of a text is gathered, weights are fitted by
EM, and the parts are put beside them into one folder.

    parts/0, parts/1 …   the runs that were mixed, without what only their training needs
    model.safetensors    `weights` (buckets × components) and `unigram_counts`; its metadata names the parts
    the rest             as in any run

Legend: E components (the parts, then the caches), N tokens, Z buckets, V vocabulary.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import Field
from safetensors.torch import save as save_bytes
from torch import nn

from chainrule.base.devices import PeakMemory, device_of
from chainrule.base.files import folder_atomically, write_atomically
from chainrule.base.modes import evaluating
from chainrule.base.progress import Progress
from chainrule.checkpoint.build import COUNTS
from chainrule.checkpoint.folder import TRAINING_SECTIONS, RunFolder
from chainrule.config import DataConfig, NamedSection, RunConfig, Section, parse
from chainrule.data.store import TokenStore
from chainrule.errors import ConfigError, DataError, RunError, unknown_name
from chainrule.evaluation.perplexity import CHUNK
from chainrule.evaluation.tracks import Tracks, cut_tracks
from chainrule.models.adaptive_cache import CacheConfig, ContinuousCacheConfig, UnigramCacheConfig
from chainrule.models.mixture import Fitted, Mixture, MixtureConfig, fit_weights
from chainrule.runs.base import Paths, path_strings
from chainrule.runs.language_model import LanguageModelRun
from chainrule.runs.load import load_for
from chainrule.training.fit import fit
from chainrule.training.fitting.fitting import TrainingListener, fitting_of
from chainrule.training.request import make_config
from chainrule.types import Vocabulary

Array = np.ndarray[Any, Any]
CACHES = ("unigram", "continuous")
DECAYS = (0.98, 0.99, 0.995, 0.998, 0.999, 0.9995)
THETAS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
MOST_TOKENS = 2_000_000
"""Of the validation text, that weights are fitted on: more would change nothing that can be seen."""
TUNING_TOKENS = 40_000
"""Of the validation text, that the options of caches are chosen on."""


class CacheSettings(Section):
    """What may be set about caches; what is not is chosen on the validation text."""

    decay: float | None = Field(None, gt=0, le=1)
    theta: float | None = Field(None, gt=0)
    window: int | None = Field(None, ge=1)


class MixSettings(Section):
    """What may be set about a mixture."""

    cache: CacheSettings = CacheSettings()


def mix(
    runs: Sequence[str | Path | LanguageModelRun],
    *,
    valid: Paths | None = None,
    out: str | Path,
    caches: Sequence[str] = (),
    buckets: bool = False,
    settings: Mapping[str, Any] | None = None,
    field: str | None = None,
    device: str = "auto",
    note: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
) -> LanguageModelRun:
    """Mix runs of one vocabulary, and caches, by the weights that make the text `valid` most likely.

    Without `valid` that is the validation text of the first run. `caches` are names of `CACHES`, `settings` are those
    of `MixSettings`, nested. The same call again finds it done.
    """
    began, memory = time.monotonic(), PeakMemory()
    opened = [run if isinstance(run, LanguageModelRun) else _load(run, device) for run in runs]
    caches = list(dict.fromkeys(caches))
    chosen = parse(MixSettings, settings or {})
    _check(opened, caches, chosen.cache)
    store = opened[0].open(valid, field=field) if valid else opened[0].open_held_out()
    request = _request(opened, caches, buckets, chosen, store)
    if _is_made(Path(out), request):
        note(f"{out} is finished already; choose another --out to mix anew")
        return _load(out, device)
    mixture, fitted, tokens = _fit(opened, store, _candidates(opened, caches, chosen.cache), buckets, note, progress)
    own = time.monotonic() - began
    result = _result(opened, mixture, fitted, tokens, own) | {"peak_memory": _peak(opened, memory)}
    with folder_atomically(Path(out)) as place:
        _write(RunFolder(place), opened, mixture, result, request)
        RunFolder(place).write_config(_config(opened[0], mixture, valid, field), without=TRAINING_SECTIONS)
    return _load(out, device)


def _load(path: str | Path, device: str = "auto") -> LanguageModelRun:
    return load_for("mix", LanguageModelRun, path, device=device)


def _fit(
    runs: Sequence[LanguageModelRun],
    store: TokenStore,
    candidates: Candidates,
    buckets: bool,
    note: Callable[[str], None],
    progress: Progress | None,
) -> tuple[Mixture, Fitted, int]:
    """The mixture with its weights, how they were found, and on how many tokens."""
    parts, vocabulary = [run.model for run in runs], _vocabulary(runs[0])
    tokens = store.tokens[:MOST_TOKENS]
    if len(store) > MOST_TOKENS:
        note(f"the validation text has {len(store):,} tokens; the weights are fitted on the first {MOST_TOKENS:,}")
    chosen = _tune(parts, vocabulary, candidates, tokens[:TUNING_TOKENS], progress)
    for cache in chosen:
        note(f"{cache.kind} cache: " + ", ".join(f"{name} {value}" for name, value in cache if name != "kind"))
    config = MixtureConfig(parts=len(parts), caches=chosen, buckets=buckets)
    mixture = Mixture(config, vocabulary, parts)
    fitted = fit_weights(*gather(mixture, tokens, progress), mixture.bucketing.count)
    return Mixture(config, vocabulary, parts, torch.from_numpy(fitted.weights_ZE)), fitted, len(tokens)


class Ingredients(Section):
    """The section `model` of a recipe for a mixture."""

    parts: tuple[dict[str, Any], ...] = Field(min_length=1, description="a configuration each, beside what they share")
    caches: tuple[str, ...] = ()
    buckets: bool = False
    cache: CacheSettings = CacheSettings()


def train_mixture(config: RunConfig, out: str | Path, listener: TrainingListener) -> LanguageModelRun:
    """Train the parts that a recipe names, each a run in `OUT-parts`, then mix them.

    A part that is stopped before its end is given back as it is; the same call goes on with it.
    """
    recipe = parse(Ingredients, config.model.options, "model")
    shared = config.model_dump(mode="json", exclude_unset=True, include={"seed", "data", "tokenizer", "training"})
    runs = []
    for number, part in enumerate(recipe.parts):
        whole = make_config(None, _shared_options(shared, part), part)
        listener.note(f"part {number}: {whole.model.name}")
        folder = Path(f"{out}-parts") / f"{number}-{whole.model.name}"
        if not fit(whole, folder, listener).finished:
            return _load(folder)
        runs.append(folder)
    settings = {"cache": recipe.cache.model_dump(exclude_none=True)}
    mixed = mix(runs, out=out, caches=recipe.caches, buckets=recipe.buckets, settings=settings, note=listener.note)
    mixed.config = mixed.config.model_copy(update={"recipe": config.recipe})
    return mixed


def _shared_options(shared: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """The shared options of a recipe that apply to a part: a counted model takes no options of gradient steps."""
    model = part.get("model", {}).get("name", "lstm")
    used = fitting_of(model).training_options
    if used is None:
        return shared
    training = {name: value for name, value in shared.get("training", {}).items() if name in used}
    return {**shared, "training": training}


# What may be mixed


def _check(runs: Sequence[LanguageModelRun], caches: Sequence[str], settings: CacheSettings) -> None:
    if not runs or len(runs) + len(caches) < 2:
        raise ConfigError(
            f"mixing needs two models or a cache, but got {len(runs)} run(s) and no cache; name another run, or add "
            "--cache unigram"
        )
    for kind in caches:
        if kind not in CACHES:
            raise unknown_name("cache", kind, CACHES)
    for option, kind in (("decay", "unigram"), ("theta", "continuous"), ("window", "continuous")):
        if getattr(settings, option) is not None and kind not in caches:
            raise ConfigError(f"cache.{option} is set, but there is no {kind} cache; add --cache {kind}")
    for run in runs:
        _check_run(run, runs[0])
    if "continuous" in caches and not any(run.model.feature_width is not None for run in runs):
        raise ConfigError(
            "a continuous cache compares the features of a network, but none of these runs is one; add a neural model, "
            "or use --cache unigram"
        )


def _check_run(run: LanguageModelRun, first: LanguageModelRun) -> None:
    path = run.folder.path
    if not run.result:
        raise RunError(f"{path} was stopped before it was finished; run the same train command again, then mix")
    one, other = first.tokenizer, run.tokenizer
    if one.fingerprint != other.fingerprint:
        raise ConfigError(
            f"{first.folder.path} and {path} have different vocabularies "
            f"({one.kind}#{one.fingerprint[:8]} of {one.vocab_size} tokens, "
            f"{other.kind}#{other.fingerprint[:8]} of {other.vocab_size}); mix runs of one tokeniser: "
            f"train with --tokenizer {first.folder.path / 'tokenizer.json'}"
        )
    if not run.model.normalised:
        raise RunError(f"{path} gives scores, which are no probabilities, so it cannot be mixed; leave it out")


def _request(
    runs: Sequence[LanguageModelRun], caches: Sequence[str], buckets: bool, settings: MixSettings, store: TokenStore
) -> dict[str, Any]:
    """What makes a mixture what it is, to recognise the same command."""
    if not len(store):
        raise DataError("the validation text has no tokens; give a text with at least one line")
    return {
        "parts": [run.fingerprint.hex() for run in runs],
        "valid": store.fingerprint,
        "caches": list(caches),
        "buckets": buckets,
        **settings.model_dump(mode="json"),
    }


def _is_made(out: Path, request: dict[str, Any]) -> bool:
    """Whether the folder holds this very mixture; one that holds anything else must not be lost."""
    if not out.exists():
        return False
    if not out.is_dir() or RunFolder(out).read_request() != request:
        raise ConfigError(f"{out} exists already and was not made by this command; choose another --out")
    return True


# The options of caches

Candidates = list[list[CacheConfig]]
"""For each cache of the mixture, what it may be."""


def _candidates(runs: Sequence[LanguageModelRun], kinds: Sequence[str], settings: CacheSettings) -> Candidates:
    groups: Candidates = []
    if "unigram" in kinds:
        decays = (settings.decay,) if settings.decay else DECAYS
        groups.append([UnigramCacheConfig(decay=decay) for decay in decays])
    if "continuous" in kinds:
        thetas = (settings.theta,) if settings.theta else THETAS
        window = {"window": settings.window} if settings.window else {}
        for number, run in enumerate(runs):
            if run.model.feature_width is not None:
                groups.append([ContinuousCacheConfig(part=number, theta=theta, **window) for theta in thetas])
    return groups


def _tune(
    parts: Sequence[nn.Module], vocabulary: Vocabulary, groups: Candidates, tokens: Array, progress: Progress | None
) -> tuple[Any, ...]:
    """One of each group: the one that helps most beside the parts and the chosen of the other groups.

    All candidates are components of one mixture, so that the parts read the text once for all of them.
    """
    chosen = [group[0] for group in groups]
    if any(len(group) > 1 for group in groups):
        everyone = [cache for group in groups for cache in group]
        config = MixtureConfig.model_validate({"parts": len(parts), "caches": everyone})
        log_probs_EN = gather(Mixture(config, vocabulary, parts), tokens, progress).log_probs_EN
        row_of = {cache: len(parts) + number for number, cache in enumerate(everyone)}
        for number in [*range(len(groups))] * 2:  # twice: the first groups are chosen again beside the last ones
            rows = [*range(len(parts)), *(row_of[one] for place, one in enumerate(chosen) if place != number)]
            chosen[number] = min(groups[number], key=partial(_nats_beside, log_probs_EN, rows, row_of))
    return tuple(chosen)


def _nats_beside(log_probs_EN: Array, rows: list[int], row_of: Mapping[CacheConfig, int], cache: CacheConfig) -> float:
    """-log p a token of the best mixture of some components and a cache."""
    return fit_weights(log_probs_EN[[*rows, row_of[cache]]]).nats


# What the components say


class Experts(NamedTuple):
    """What each component says of each token of a text, and the bucket of its context."""

    log_probs_EN: Array  # float32
    buckets_N: Array


def gather(mixture: Mixture, tokens: Array, progress: Progress | None = None) -> Experts:
    """Let every component score a text, in as many tracks as an evaluation has."""
    layout, device = cut_tracks(len(tokens), mixture.tracks), device_of(mixture)
    log_probs, buckets, done = [], [], 0
    with evaluating(mixture):
        state = mixture.start(layout.count)
        for begin, end in layout.chunks(CHUNK):
            tokens_BT = torch.from_numpy(layout.read(tokens, begin, end, mixture.eos)).to(device)
            buckets_BT = mixture.buckets_of(tokens_BT, state)
            answers_EBT, state = mixture.experts(tokens_BT, state)
            real_BT = _real(layout, begin, end)
            log_probs.append(answers_EBT.cpu().numpy()[:, real_BT])
            buckets.append(buckets_BT.cpu().numpy()[real_BT])
            done += int(real_BT.sum())
            if progress:
                progress(done, len(tokens))
    return Experts(np.concatenate(log_probs, 1), np.concatenate(buckets))


def _real(layout: Tracks, begin: int, end: int) -> Array:
    """Where there is a token and no padding, bool BT; only the last column can be shorter than the rest."""
    real_BT = np.ones((layout.count, end - begin), bool)
    real_BT[layout.rows_at(end - 1) :, -1] = False
    return real_BT


# The folder


def component_names(runs: Sequence[LanguageModelRun], mixture: Mixture) -> list[str]:
    """What each component is called: 0:lstm, unigram cache, continuous cache of 0:lstm."""
    parts = [f"{number}:{run.config.model.name}" for number, run in enumerate(runs)]
    caches = [
        f"{cache.kind} cache" + (f" of {parts[cache.part]}" if cache.kind == "continuous" else "")
        for cache in mixture.config.caches
    ]
    return parts + caches


def _result(
    runs: Sequence[LanguageModelRun], mixture: Mixture, fitted: Fitted, tokens: int, seconds: float
) -> dict[str, Any]:
    """What the mixing came to; the time is that of the parts and its own."""
    weights = dict(zip(component_names(runs, mixture), np.round(fitted.whole_E, 6).tolist(), strict=True))
    return {
        "steps": fitted.iterations,
        "seconds": round(sum(run.result.get("seconds", 0) for run in runs) + seconds, 2),
        "tokens": tokens,
        "parameters": sum(run.parameters for run in runs),
        "tokens_per_second": round(tokens / seconds, 1),
        "budget": {},
        "weights": weights,
    }


def _peak(runs: Sequence[LanguageModelRun], memory: PeakMemory) -> int:
    """The most memory that making a part, or mixing them, took."""
    return max(memory.bytes, *(int(run.result.get("peak_memory", 0)) for run in runs))


def _config(first: LanguageModelRun, mixture: Mixture, valid: Paths | None, field: str | None) -> RunConfig:
    data = first.config.data
    if valid:
        data = DataConfig(train=data.train, valid=tuple(path_strings(valid)), field=field or data.field)
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
    # The fingerprint of a run is that of this file, so it must change with the parts and with the caches.
    about = {"parts": " ".join(request["parts"]), "mixture": mixture.config.model_dump_json()}
    tensors = {"weights": mixture.weights.cpu(), COUNTS: mixture.unigram_counts.cpu()}
    write_atomically(folder.path / "model.safetensors", save_bytes(tensors, {"about": json.dumps(about)}))
    tokenizer = f"{runs[0].tokenizer.kind}#{runs[0].tokenizer.fingerprint}"
    folder.write_signature({"parts": about["parts"], "valid": request["valid"], "tokenizer": tokenizer})
    folder.write_request(request)
    folder.write_result(result)


def _copy_run(source: Path, target: Path) -> None:
    """All that using a run needs; what only its training needs is left behind."""
    ignore = shutil.ignore_patterns("training", "metrics.jsonl", ".*.tmp")
    shutil.copytree(source, target, copy_function=_link_or_copy, ignore=ignore)


def _link_or_copy(source: str, target: str) -> None:
    """Runs replace their files and never write into them, so two names of one file are as good as two files."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _vocabulary(run: LanguageModelRun) -> Vocabulary:
    size = run.tokenizer.vocab_size
    return Vocabulary(size, run.tokenizer.eos, run.model.unigram_counts.cpu().numpy())
