"""Speed against quality: the contenders of a recipe are trained, and each is measured in its decoding modes.

The recipe is a configuration whose options apply to all contenders, and a list of contenders:

    [[contenders]]
    name = "hybrid, distilled"
    teacher = "transformer 3+3"                    # trained on that contender's translations
    model = { name = "hybrid", hidden = 256 }
    ways = [{}, { mode = "nar", lengths = 3 }, { mode = "draft" }, { set = { gamma = 0.5 } }]

Each contender is an ordinary run in its own folder. Finished trainings and measurements are not repeated. Times are
medians over several rounds, each over all contenders and modes, on one thread: compare them only within one table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import Field

from chainrule.base.devices import threads
from chainrule.base.files import write_atomically
from chainrule.base.targets import check_folder
from chainrule.checkpoint.folder import holds_runs
from chainrule.config import Section, merge, parse, read_toml
from chainrule.errors import ConfigError, RunError
from chainrule.evaluation.speed import generation_speed
from chainrule.experiments.compare import check_comparable, folder_name
from chainrule.experiments.distill import distill
from chainrule.experiments.shared_options import options_for
from chainrule.experiments.train import train
from chainrule.runs.base import Paths, Run, path_strings
from chainrule.runs.load import load
from chainrule.runs.translator import TranslatorRun
from chainrule.text.readers import lines_in
from chainrule.training.fitting.fitting import TrainingListener

ROUNDS, TIMED_LINES, TIMED_TOKENS = 3, 96, 128
"""Number of timings per decoding mode, lines of the test pairs per timing, tokens of a text per timing."""

BATCHES = (1, 32)
"""Batch sizes that are timed."""


class DecodingMode(Section):
    """One way to decode with a trained model: an entry of `ways` in a recipe."""

    set: dict[str, Any] = Field({}, description="model options that can be changed without training")
    num_beams: int = Field(1, ge=1)
    mode: str = "ar"
    lengths: int = Field(1, ge=1)
    refine: int = Field(0, ge=0)
    draft: str | None = Field(None, description="language models: `lookup`, or the contender that drafts")

    @property
    def description(self) -> str:
        """The options that differ from the defaults, as text."""
        parts = [
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in self.set.items()
        ]
        parts += [f"beam {self.num_beams}"] if self.num_beams > 1 else []
        parts += [self.mode] if self.mode != "ar" else []
        parts += [f"{self.lengths} lengths"] if self.lengths > 1 else []
        parts += [f"{self.refine} refinements"] if self.refine else []
        parts += [f"draft by {self.draft}"] if self.draft else []
        return ", ".join(parts)

    @property
    def search(self) -> dict[str, Any]:
        """The options as fields of `inference.search.Search`."""
        return self.model_dump(include={"num_beams", "mode", "lengths", "refine"})


class RecipeContender(Section):
    """A contender of a recipe: its name, its options and its decoding modes (`ways`)."""

    name: str
    model: dict[str, Any]
    teacher: str | None = None
    training: dict[str, Any] = Field({})
    tokenizer: dict[str, Any] = Field({})
    output: dict[str, Any] = Field({})
    objective: dict[str, Any] = Field({})
    ways: tuple[DecodingMode, ...] = (DecodingMode(),)

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return folder_name(self.name)

    @property
    def settings(self) -> dict[str, Any]:
        """Its part of a run's configuration."""
        return self.model_dump(include={"model", "training", "tokenizer", "output", "objective"}, exclude_defaults=True)


@dataclass(frozen=True)
class Quality:
    """The quality of a contender in one decoding mode."""

    bits_per_byte: float
    bleu: float | None = None  # translators only, as is the next
    bleu_lowercase: float | None = None
    passes: float | None = None  # mean number of decoder passes per line; None: it does not draft


@dataclass(frozen=True)
class Point:
    """Quality and time of one contender in one decoding mode."""

    name: str
    way: str  # description of the decoding mode
    parameters: int
    train_seconds: float
    quality: Quality
    milliseconds: dict[int, float] = field(default_factory=dict)  # per line (of a text: per 100 tokens), by batch size
    run: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The fields for JSON, those of `quality` first."""
        values = asdict(self)
        return {**values.pop("quality"), **values}


def read_recipe(path: str | Path) -> tuple[dict[str, Any], list[RecipeContender]]:
    """The options for all contenders, and the contenders."""
    shared = read_toml(path)
    listed = enumerate(shared.pop("contenders", []))
    contenders = [parse(RecipeContender, values, f"contenders.{number}") for number, values in listed]
    names = [contender.name for contender in contenders]
    for contender in contenders:
        check_comparable(str(contender.model.get("name")))
        needed = [contender.teacher, *(mode.draft for mode in contender.ways if mode.draft != "lookup")]
        if missing := [name for name in needed if name is not None and name not in names]:
            raise ConfigError(f"{path}: '{contender.name}' needs '{missing[0]}', which is not a contender; add it")
        if contender.teacher and names.index(contender.teacher) > names.index(contender.name):
            raise ConfigError(f"{path}: '{contender.teacher}' teaches '{contender.name}'; list the teacher first")
    if len(set(names)) < len(names):
        raise ConfigError(f"{path}: two contenders have the same name; give each its own")
    return shared, contenders


def measure_tradeoffs(
    *data: str | Path,
    recipe: str | Path,
    test: Paths,
    out: str | Path,
    valid: Paths = (),
    only: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    listener: TrainingListener | None = None,
) -> list[Point]:
    """Train the contenders of a recipe (`only`: some of them) and measure them on `test` in all their decoding modes.

    `settings` override those of the recipe and of its contenders.
    """
    listener, folder = listener or TrainingListener(), Path(out)
    check_folder(folder, lambda: holds_runs(folder))
    shared, contenders = read_recipe(recipe)
    if unknown := set(only) - {contender.name for contender in contenders}:
        known = ", ".join(contender.name for contender in contenders)
        raise ConfigError(f"'{min(unknown)}' is not a contender of {recipe}; choose from {known}")
    chosen = [contender for contender in contenders if not only or contender.name in only]
    for contender in chosen:
        listener.note(f"{contender.name}:")
        texts = _distilled_pairs(folder, contender, contenders, data, listener) if contender.teacher else data
        name = str(contender.model.get("name"))
        options = merge(merge(options_for(name, shared), contender.settings), options_for(name, settings or {}))
        run = train(*texts, valid=valid, out=folder / contender.folder, settings=options, listener=listener)
        if not run.result:
            raise RunError(f"{run.folder.path} was stopped before it was finished; rerun the same command to resume")
    return measure_all(folder, chosen, contenders, path_strings(test), listener.note)


def _distilled_pairs(
    folder: Path,
    contender: RecipeContender,
    contenders: Sequence[RecipeContender],
    data: Sequence[str | Path],
    listener: TrainingListener,
) -> list[Path]:
    """The file of the training sources with the teacher's translations; it is written once."""
    teacher = next(other for other in contenders if other.name == contender.teacher)
    pairs = folder / f"by-{teacher.folder}.tsv"
    if not pairs.exists():
        run = load(folder / teacher.folder)
        if not isinstance(run, TranslatorRun):
            raise ConfigError(
                f"'{contender.teacher}' is not a translator and cannot teach '{contender.name}'; name a translator"
            )
        listener.note(f"{teacher.name} translates the training sources for {contender.name}")
        distill(run, data, pairs)
    return [pairs]


# Measuring


def measure_all(
    folder: Path,
    chosen: Sequence[RecipeContender],
    contenders: Sequence[RecipeContender],
    test: list[str],
    note: Callable[[str], None],
) -> list[Point]:
    """Measure the chosen contenders, which are trained, in all their decoding modes; the timings take turns."""
    folders = {contender.name: folder / contender.folder for contender in contenders}
    modes = {(contender.name, mode.description): mode for contender in chosen for mode in contender.ways}
    runs = {key: _load_with(folders[key[0]], mode) for key, mode in modes.items()}
    qualities = {key: _quality(folder, run, modes[key], test, note) for key, run in runs.items()}
    times: dict[tuple[str, str], dict[int, list[float]]] = {key: {batch: [] for batch in BATCHES} for key in runs}
    for number in range(ROUNDS):
        note(f"timing, round {number + 1} of {ROUNDS}")
        for key, run in runs.items():
            for batch in BATCHES:
                if (seconds := _time(run, modes[key], test, batch, folders)) is not None:
                    times[key][batch].append(1000 * seconds)
    return [
        Point(
            *key,
            run.parameters,
            run.result["seconds"],
            qualities[key],
            {batch: median(taken) for batch, taken in times[key].items() if taken},
            str(run.folder.given),
        )
        for key, run in runs.items()
    ]


def _load_with(folder: Path, mode: DecodingMode) -> Run:
    """Load a run with the model options of a decoding mode."""
    return load(folder, settings={"model": mode.set} if mode.set else None)


def _quality(folder: Path, run: Run, mode: DecodingMode, test: list[str], note: Callable[[str], None]) -> Quality:
    """The quality on the test text, which is measured once and kept in measured.json."""
    file = folder / "measured.json"
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    key = f"{run.fingerprint.hex()} {mode.model_dump_json(exclude_defaults=True)} {' '.join(test)}"
    if key not in known:
        note(f"measuring {run.folder.given.name} {mode.description}".rstrip())
        known[key] = asdict(_measure(run, mode, test))
        write_atomically(file, json.dumps(known, indent=1, ensure_ascii=False))
    return Quality(**known[key])


def _measure(run: Any, mode: DecodingMode, test: list[str]) -> Quality:
    """Decode and score the test text."""
    if not isinstance(run, TranslatorRun):
        return Quality(run.evaluate(test).bits_per_byte)
    translations = [best for best, *_ in run.translate_lines(lines_in(run.pairs(test).source), **mode.search)]
    measured = run.evaluate(test, outputs=[best.text for best in translations], **mode.search)
    passes = [best.drafted.passes for best in translations if best.drafted is not None]
    mean = sum(passes) / len(passes) if passes else None
    return Quality(measured.bits_per_byte, measured.bleu, measured.bleu_lowercase, mean)


def _time(run: Any, mode: DecodingMode, test: list[str], batch: int, folders: Mapping[str, Path]) -> float | None:
    """Seconds per line, or per 100 tokens of a text; None if the mode does not support the batch size."""
    with threads(1):
        if isinstance(run, TranslatorRun):
            lines = _sample_lines(run, test)
            # The first call is a warm-up.
            list(run.translate_lines(lines[: max(batch, 1)], batch_size=batch, **mode.search))
            began = time.perf_counter()
            list(run.translate_lines(lines, batch_size=batch, **mode.search))
            return (time.perf_counter() - began) / len(lines)
        if mode.draft is not None and batch > 1:
            return None
        return _time_generation(run, mode, batch, folders)


def _sample_lines(run: TranslatorRun, test: list[str]) -> list[str]:
    """Source lines at equal distances in the test pairs."""
    lines = list(lines_in(run.pairs(test).source))
    return lines[:: max(1, len(lines) // TIMED_LINES)][:TIMED_LINES]


def _time_generation(run: Any, mode: DecodingMode, batch: int, folders: Mapping[str, Path]) -> float:
    """Seconds per 100 tokens of one of `batch` texts that are generated greedily."""
    if mode.draft is None:
        return 100 / generation_speed(run.model, eos=run.tokenizer.eos, tokens=TIMED_TOKENS, batch=batch)
    draft: Any = mode.draft if mode.draft == "lookup" else load(folders[mode.draft])
    run.generate("", max_new_tokens=8, draft=draft, stop_at_eos=False)
    began = time.perf_counter()
    run.generate("", max_new_tokens=TIMED_TOKENS, draft=draft, stop_at_eos=False)
    return 100 * (time.perf_counter() - began) / TIMED_TOKENS
