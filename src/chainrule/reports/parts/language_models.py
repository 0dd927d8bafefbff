"""Language models: bits per byte with intervals, where the bits go, what is hard, calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chainrule.errors import ChainruleError
from chainrule.evaluation.calibration import calibrate_tokens
from chainrule.evaluation.text import Evaluation
from chainrule.reports.blocks.table import Column, decimals
from chainrule.reports.metrics import METRICS, ranked
from chainrule.reports.parts.part import Options, Part, facts_of
from chainrule.reports.section import Section
from chainrule.reports.sections.bits import bits_section
from chainrule.reports.sections.calibration import token_calibration_section
from chainrule.reports.sections.curves import learning_curves
from chainrule.reports.sections.leaderboard import leaderboard
from chainrule.reports.sections.mixtures import mixtures_section
from chainrule.reports.sections.sample import sample_section
from chainrule.reports.sections.time import time_section
from chainrule.reports.sections.worst import worst_section
from chainrule.reports.system import Score, System
from chainrule.reports.text_scores import TestText, TextScores, count_words, score_text
from chainrule.runs.base import Run
from chainrule.runs.language_model import LanguageModelRun
from chainrule.tasks.text_corpus import refuse_pairs, training_texts, validation_text
from chainrule.text.readers import open_texts

COUNTED = 20_000_000
"""Characters of a training text whose words are counted."""

METRIC = "bits_per_byte"


def measure_language_models(runs: Mapping[str, Run], options: Options) -> Part:
    """Measure language models on one text, or each on its own validation text."""
    models = {name: run for name, run in runs.items() if isinstance(run, LanguageModelRun)}
    texts: dict[str, TestText] = {}
    scored: dict[str, TextScores] = {}
    systems = []
    for name, run in models.items():
        options.note(f"measuring {name}")
        if not options.data and run.counted_all:
            systems.append(_stored(name, run))
            continue
        text = _open(run, options, texts)
        scored[name] = score_text(run, name, text)
        systems.append(_system(name, run, scored[name], options.speed))
    systems = ranked(systems, METRICS[METRIC])
    ordered = {system.name: models[system.name] for system in systems}
    best_first = [scored[name] for name in ordered if name in scored]
    sections = _sections(systems, ordered, best_first, options)
    return Part(systems, sections, {one.name: key for key, one in texts.items()})


def _open(run: LanguageModelRun, options: Options, known: dict[str, TestText]) -> TestText:
    """The text of a run; texts that are read before are not read again."""
    if options.data:
        files = run.files(options.data, options.text_field)
        refuse_pairs(files, run.config.model.name)
        texts = open_texts(files, field=options.text_field or run.config.data.field)
    else:
        texts = validation_text(run.config.data)
    key = texts.fingerprint()
    if key not in known:
        known[key] = TestText(texts, any_bytes=run.tokenizer.any_bytes)
    return known[key]


def _system(name: str, run: LanguageModelRun, scores: TextScores, speed: bool) -> System:
    measured = scores.evaluation
    milliseconds = 1000 / run.generation_speed() if speed else None
    return System(
        name=name,
        run=str(run.folder.given),
        model=run.config.model.name,
        task="lm",
        data=scores.text.texts.fingerprint(),
        scores=[METRICS[METRIC].score(measured.bits_per_byte, scores.line_table, measured.signature)],
        protocol=measured.protocol,
        facts={**_figures(measured), **facts_of(run, milliseconds)},
    )


def _stored(name: str, run: LanguageModelRun) -> System:
    """A run that has counted its validation text since: what it measured before."""
    measured = run.evaluate_held_out()
    return System(
        name=name,
        run=str(run.folder.given),
        model=run.config.model.name,
        task="lm",
        data="",
        scores=[Score(METRIC, measured.bits_per_byte, None, measured.signature)],
        protocol=f"{measured.protocol} The text has been counted since, so that nothing else is measured on it.",
        facts={**_figures(measured), **facts_of(run)},
    )


def _figures(measured: Evaluation) -> dict[str, float]:
    return {"perplexity": measured.perplexity, "tokens": measured.tokens, "unknown": measured.oov}


def _sections(
    systems: Sequence[System], runs: Mapping[str, Run], scores: Sequence[TextScores], options: Options
) -> list[Section]:
    normalised = [one for one in scores if one.run.model.normalised]
    same = [one for one in normalised if one.text is normalised[0].text]
    further = [
        Column("perplexity", decimals(2), "per token of the run's tokeniser"),
        Column("tokens"),
        Column("unknown"),
    ]
    sections: list[Section | None] = [leaderboard(systems, [METRIC], further), learning_curves(runs)]
    if same:
        options.note("reading the training text")
        sections += [bits_section(same, _training_counts(same[0].run)), worst_section(same), sample_section(same)]
        options.note("measuring calibration")
        found = {one.name: calibrate_tokens(one.run.model, one.tokens_N, eos=one.run.tokenizer.eos) for one in same}
        sections.append(token_calibration_section(found))
    sections += [mixtures_section(runs), time_section(systems, METRIC)]
    return [section for section in sections if section is not None]


def _training_counts(run: LanguageModelRun) -> dict[str, int] | None:
    """How often words occur in the training text of a run; None: it cannot be read."""
    try:
        return count_words(training_texts(run.config.data)[0], COUNTED) if run.config.data.train else None
    except (ChainruleError, OSError):  # the files are gone, or on another machine
        return None
