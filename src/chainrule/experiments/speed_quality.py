"""What quality costs in time: contenders of a recipe trained alike, then each measured in all the ways it can be used.

A recipe for a comparison is a configuration whose options hold for all, and a list of contenders:

    [[contenders]]
    name = "hybrid, distilled"
    teacher = "transformer 3+3"                    # trained on that contender's translations
    model = { name = "hybrid", hidden = 256 }
    ways = [{}, { mode = "nar", lengths = 3 }, { mode = "draft" }, { set = { gamma = 0.5 } }]

Each contender is an ordinary run in a folder of its own; what was trained or measured is not done again. Times are
taken in rounds over all ways, on one thread, and the medians kept: they compare within one table and nowhere else.
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
from chainrule.config import Section, merge, parse, read_toml
from chainrule.errors import ConfigError, RunError
from chainrule.evaluation.speed import generation_speed
from chainrule.experiments.compare import check_comparable, folder_name
from chainrule.experiments.distill import distill
from chainrule.experiments.train import train
from chainrule.runs.base import Paths, Run, path_strings
from chainrule.runs.load import load
from chainrule.runs.translator import TranslatorRun
from chainrule.text.readers import lines_in
from chainrule.training.fitting.fitting import TrainingListener

ROUNDS, TIMED_LINES, TIMED_TOKENS = 3, 96, 128
"""How often a way is timed, on how many lines of the test pairs, or on how many tokens of a text."""

BATCHES = (1, 32)


class DecodingMode(Section):
    """One way to use a trained model."""

    set: dict[str, Any] = Field({}, description="options of the model that need no training")
    num_beams: int = Field(1, ge=1)
    mode: str = "ar"
    lengths: int = Field(1, ge=1)
    refine: int = Field(0, ge=0)
    draft: str | None = Field(None, description="of a text: `lookup`, or the contender that drafts")

    @property
    def description(self) -> str:
        """What is special about it, in words."""
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
        """As fields of `translating.Search`."""
        return self.model_dump(include={"num_beams", "mode", "lengths", "refine"})


class Entry(Section):
    """A contender of a recipe."""

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
        """The name as that of a folder."""
        return folder_name(self.name)

    @property
    def settings(self) -> dict[str, Any]:
        """What it sets of a run's configuration."""
        return self.model_dump(include={"model", "training", "tokenizer", "output", "objective"}, exclude_defaults=True)


@dataclass(frozen=True)
class Quality:
    """How good a contender is in one mode."""

    bits_per_byte: float
    bleu: float | None = None  # these of translators
    bleu_lowercase: float | None = None
    passes: float | None = None  # of the decoder for a line, where it drafts


@dataclass(frozen=True)
class Point:
    """One contender in one way: what it gives and what it costs."""

    name: str
    way: str
    parameters: int
    train_seconds: float
    quality: Quality
    milliseconds: dict[int, float] = field(default_factory=dict)  # for a line (of a text: 100 tokens), by batch size
    run: str = ""

    def to_dict(self) -> dict[str, Any]:
        told = asdict(self)
        return {**told.pop("quality"), **told}


def read_entries(recipe: str | Path) -> tuple[dict[str, Any], list[Entry]]:
    """What a recipe sets for all, and its contenders."""
    values = read_toml(recipe)
    entries = [parse(Entry, entry, f"contenders.{number}") for number, entry in enumerate(values.pop("contenders", []))]
    names = [entry.name for entry in entries]
    for entry in entries:
        check_comparable(str(entry.model.get("name")))
        wanted = [entry.teacher, *(mode.draft for mode in entry.ways if mode.draft != "lookup")]
        if missing := [name for name in wanted if name is not None and name not in names]:
            raise ConfigError(f"{recipe}: '{entry.name}' needs '{missing[0]}', which is no contender; add it")
        if entry.teacher and names.index(entry.teacher) > names.index(entry.name):
            raise ConfigError(f"{recipe}: '{entry.teacher}' teaches '{entry.name}'; put it before")
    if len(set(names)) < len(names):
        raise ConfigError(f"{recipe}: two contenders have one name; give each its own")
    return values, entries


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
    """Train the contenders of a recipe (`only` those named) and measure them on `test` in all their ways.

    `settings` win over the recipe's, also over those of a contender.
    """
    listener, place = listener or TrainingListener(), Path(out)
    shared, entries = read_entries(recipe)
    if unknown := set(only) - {entry.name for entry in entries}:
        raise ConfigError(f"'{min(unknown)}' is no contender of {recipe}; it has {', '.join(e.name for e in entries)}")
    chosen = [entry for entry in entries if not only or entry.name in only]
    for entry in chosen:
        listener.note(f"{entry.name}:")
        texts = _distilled(place, entry, entries, data, listener) if entry.teacher else data
        wanted = merge(merge(shared, entry.settings), settings or {})
        run = train(*texts, valid=valid, out=place / entry.folder, settings=wanted, listener=listener)
        if not run.result:
            raise RunError(f"{run.folder.path} was stopped before it was finished; run the same command again to go on")
    return measure_all(place, chosen, entries, path_strings(test), listener.note)


def _distilled(
    place: Path, entry: Entry, entries: Sequence[Entry], data: Sequence[str | Path], listener: TrainingListener
) -> list[Path]:
    """The training sources with the teacher's translations, made once."""
    teacher = next(other for other in entries if other.name == entry.teacher)
    pairs = place / f"by-{teacher.folder}.tsv"
    if not pairs.exists():
        run = load(place / teacher.folder)
        if not isinstance(run, TranslatorRun):
            raise ConfigError(f"'{entry.teacher}' is no translator and cannot teach '{entry.name}'; name another")
        listener.note(f"{teacher.name} translates the training sources for {entry.name}")
        distill(run, data, pairs)
    return [pairs]


def measure_all(
    place: Path, chosen: Sequence[Entry], entries: Sequence[Entry], test: list[str], note: Callable[[str], None]
) -> list[Point]:
    """All ways of the trained contenders, timed in turns."""
    folders = {entry.name: place / entry.folder for entry in entries}
    runs = {(entry.name, mode.description): _used(folders[entry.name], mode) for entry in chosen for mode in entry.ways}
    ways = {(entry.name, mode.description): mode for entry in chosen for mode in entry.ways}
    qualities = {key: _quality(place, run, ways[key], test, note) for key, run in runs.items()}
    times: dict[tuple[str, str], dict[int, list[float]]] = {key: {batch: [] for batch in BATCHES} for key in runs}
    for number in range(ROUNDS):
        note(f"timing, round {number + 1} of {ROUNDS}")
        for key, run in runs.items():
            for batch in BATCHES:
                if (seconds := _seconds(run, ways[key], test, batch, folders)) is not None:
                    times[key][batch].append(1000 * seconds)
    return [
        Point(
            *key,
            run.parameters,
            run.result["seconds"],
            qualities[key],
            {batch: median(taken) for batch, taken in times[key].items() if taken},
            str(run.folder.path),
        )
        for key, run in runs.items()
    ]


def _used(folder: Path, mode: DecodingMode) -> Run:
    return load(folder, settings={"model": mode.set} if mode.set else None)


def _quality(place: Path, run: Run, mode: DecodingMode, test: list[str], note: Callable[[str], None]) -> Quality:
    """How good it is on the test text; what was measured before is kept in the folder."""
    kept = place / "measured.json"
    known: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    key = f"{run.fingerprint.hex()} {mode.model_dump_json(exclude_defaults=True)} {' '.join(test)}"
    if key not in known:
        note(f"measuring {run.folder.path.name} {mode.description}".rstrip())
        known[key] = asdict(_measure(run, mode, test))
        write_atomically(kept, json.dumps(known, indent=1, ensure_ascii=False))
    return Quality(**known[key])


def _measure(run: Any, mode: DecodingMode, test: list[str]) -> Quality:
    if not isinstance(run, TranslatorRun):
        return Quality(run.evaluate(test).bits_per_byte)
    found = [best for best, *_ in run.translate_lines(lines_in(run.pairs(test).source), **mode.search)]
    measured = run.evaluate(test, outputs=[best.text for best in found], **mode.search)
    passes = [best.drafted.passes for best in found if best.drafted is not None]
    mean = sum(passes) / len(passes) if passes else None
    return Quality(measured.bits_per_byte, measured.bleu, measured.bleu_lowercase, mean)


def _seconds(run: Any, mode: DecodingMode, test: list[str], batch: int, folders: Mapping[str, Path]) -> float | None:
    """The time for a line, or for 100 tokens of a text; None where a way does not go with that batch."""
    with threads(1):
        if isinstance(run, TranslatorRun):
            lines = _some_lines(run, test)
            found = run.translate_lines(lines[: max(batch, 1)], batch_size=batch, **mode.search)
            list(found)  # what is made at the first call is not timed
            begun = time.perf_counter()
            list(run.translate_lines(lines, batch_size=batch, **mode.search))
            return (time.perf_counter() - begun) / len(lines)
        if mode.draft is not None and batch > 1:
            return None
        return _seconds_of_text(run, mode, batch, folders)


def _some_lines(run: TranslatorRun, test: list[str]) -> list[str]:
    """Lines from all over the test pairs."""
    lines = list(lines_in(run.pairs(test).source))
    return lines[:: max(1, len(lines) // TIMED_LINES)][:TIMED_LINES]


def _seconds_of_text(run: Any, mode: DecodingMode, batch: int, folders: Mapping[str, Path]) -> float:
    """100 tokens of one of `batch` texts, greedily."""
    if mode.draft is None:
        return 100 / generation_speed(run.model, eos=run.tokenizer.eos, tokens=TIMED_TOKENS, batch=batch)
    draft: Any = mode.draft if mode.draft == "lookup" else load(folders[mode.draft])
    run.generate("", max_new_tokens=8, draft=draft, stop_at_eos=False)
    begun = time.perf_counter()
    run.generate("", max_new_tokens=TIMED_TOKENS, draft=draft, stop_at_eos=False)
    return 100 * (time.perf_counter() - begun) / TIMED_TOKENS
