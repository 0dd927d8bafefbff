"""Translators: BLEU and chrF with intervals and tests, quality by length, n-grams, examples, attention, calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chainrule.evaluation.calibration import calibrate, most_tokens
from chainrule.evaluation.metrics import Bleu, Chrf, choose_bleu_tokenizer
from chainrule.evaluation.pairs import PairEvaluation, target_distributions
from chainrule.inference.translate import Attention
from chainrule.reports.blocks.table import Column, decimals, percent
from chainrule.reports.metrics import METRICS, ranked
from chainrule.reports.parts.part import Options, Part, facts_of
from chainrule.reports.section import Section
from chainrule.reports.sections.calibration import PAIRS, token_calibration_section
from chainrule.reports.sections.curves import learning_curves
from chainrule.reports.sections.leaderboard import leaderboard
from chainrule.reports.sections.time import time_section
from chainrule.reports.sections.translations import (
    Translated,
    attention_section,
    length_section,
    ngrams_section,
    worst_translations,
)
from chainrule.reports.system import System
from chainrule.runs.base import Run
from chainrule.runs.translator import TranslatorRun
from chainrule.tasks.translation import open_pair_store
from chainrule.text.formats.pairs import Pairs
from chainrule.text.readers import lines_in

SHOWN_ATTENTION, ATTENTION_WORDS = 2, range(4, 13)
"""Sentences whose attention is shown, and how many words they have."""


@dataclass(frozen=True)
class TestPairs:
    """Sources and references."""

    pairs: Pairs
    sources: Sequence[str]
    references: Sequence[str]
    key: str  # fingerprint

    @classmethod
    def of(cls, pairs: Pairs) -> TestPairs:
        key = f"{pairs.source.fingerprint()}+{pairs.target.fingerprint()}"
        return cls(pairs, list(lines_in(pairs.source)), list(lines_in(pairs.target)), key)


@dataclass(frozen=True)
class Measured:
    """One translator with its translations."""

    run: TranslatorRun
    test: TestPairs
    evaluation: PairEvaluation
    translated: Translated


def measure_translators(runs: Mapping[str, Run], options: Options) -> Part:
    """Translate the test pairs with each run and compare the translations."""
    found: dict[str, Measured] = {}
    for name, run in runs.items():
        if isinstance(run, TranslatorRun):
            options.note(f"translating with {name}")
            found[name] = _translate(name, run, options)
    systems = ranked([_system(name, one, options.speed) for name, one in found.items()], METRICS["bleu"])
    ordered = {system.name: found[system.name] for system in systems}
    data = {f"{one.test.pairs.source.name}, {one.test.pairs.target.name}": one.test.key for one in ordered.values()}
    return Part(systems, _sections(systems, ordered, options), data)


def _translate(name: str, run: TranslatorRun, options: Options) -> Measured:
    test = TestPairs.of(run.pairs(options.data) if options.data else run.held_out_pairs())
    search: dict[str, Any] = dict(options.search)
    outputs = run.outputs(test.sources, len(test.sources), **search)
    if options.data:
        evaluation = run.evaluate(options.data, outputs=outputs, **search)
    else:
        evaluation = run.evaluate_held_out(outputs=outputs, **search)
    bleu, chrf = _bleu(test.references), Chrf()
    tables = (metric.table(outputs, [test.references]) for metric in (bleu, chrf))
    return Measured(run, test, evaluation, Translated(name, outputs, *tables))


def _bleu(references: Sequence[str]) -> Bleu:
    return Bleu(tokenizer=choose_bleu_tokenizer([references]))


def _system(name: str, one: Measured, speed: bool) -> System:
    measured, translated = one.evaluation, one.translated
    milliseconds = 1000 / one.run.generation_speed() if speed else None
    ratio = translated.bleu_PF[:, 0].sum() / max(1, translated.bleu_PF[:, 1].sum())
    return System(
        name=name,
        run=str(one.run.folder.given),
        model=one.run.config.model.name,
        task="translation",
        data=one.test.key,
        scores=[
            METRICS["bleu"].score(measured.bleu, translated.bleu_PF, measured.bleu_signature),
            METRICS["chrf"].score(measured.chrf, translated.chrf_PF, measured.chrf_signature),
        ],
        protocol=measured.protocol,
        facts={
            "bits/byte": measured.bits_per_byte,
            "exact": measured.exact_match,
            "length ratio": float(ratio),
            **facts_of(one.run, milliseconds),
        },
    )


def _sections(systems: Sequence[System], found: Mapping[str, Measured], options: Options) -> list[Section]:
    further = [Column("bits/byte", decimals(4)), Column("exact", percent), Column("length ratio", decimals(3))]
    runs = {name: one.run for name, one in found.items()}
    sections: list[Section | None] = [leaderboard(systems, ["bleu", "chrf"], further), learning_curves(runs)]
    best = next(iter(found.values()))
    same = [one for one in found.values() if one.test.key == best.test.key]
    bleu, references = _bleu(best.test.references), best.test.references
    sections.append(length_section([one.translated for one in same], bleu))
    if len(same) > 1:
        sections.append(ngrams_section(same[0].translated, same[1].translated, references, bleu))
    sections.append(worst_translations(best.translated, best.test.sources, references))
    if attention := _attention(best, options):
        sections.append(attention_section(best.translated.name, attention))
    options.note("measuring calibration")
    sections.append(token_calibration_section({one.translated.name: _calibrate(one) for one in same}, PAIRS))
    sections.append(time_section(systems, "bleu"))
    return [section for section in sections if section is not None]


def _calibrate(one: Measured) -> Any:
    run = one.run
    store = open_pair_store(run.config, one.test.pairs, run.source_tokenizer, run.tokenizer)
    return calibrate(target_distributions(run.model, store, most_tokens(run.tokenizer.vocab_size)))


def _attention(one: Measured, options: Options) -> list[Attention]:
    """The attention of a few short translations; none if the model has no attention or decodes in parallel."""
    if not one.run.model.attends or options.search.get("mode", "ar") != "ar":
        return []
    short = [source for source in one.test.sources if len(source.split()) in ATTENTION_WORDS][:SHOWN_ATTENTION]
    search = {**options.search, "attention": True}
    return [best.attention for best, *_ in one.run.translate_lines(short, **search) if best.attention is not None]
