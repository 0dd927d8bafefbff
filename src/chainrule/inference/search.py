"""How translations are searched: by a beam, all words in parallel, or greedily with drafts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from chainrule.base.grammar import plural
from chainrule.data.pairs import pad_sources
from chainrule.decoding import (
    ControlledStepper,
    Controls,
    Drafter,
    DraftStatistics,
    Ensemble,
    Hypothesis,
    LookupDrafter,
    StepperDrafter,
    beam_search,
    generate_with_drafts,
)
from chainrule.decoding.beam import LENGTH_PENALTY
from chainrule.decoding.beam_trace import BeamRecorder, BeamTrace
from chainrule.decoding.constrained import constrained_beam_search
from chainrule.decoding.parallel import draft_in_parallel, translate_in_parallel
from chainrule.decoding.phrases import Phrase, Phrases
from chainrule.decoding.speculative import DRAFT_TOKENS, check_draft_tokens
from chainrule.errors import ConfigError
from chainrule.inference.drafts import LOOKUP
from chainrule.inference.phrases import Glossary
from chainrule.inference.subject import TextModel, TranslationModel
from chainrule.types import Source

PHRASES = ("force", "glossary", "keep")
"""Options that decide what a translation contains."""


@dataclass(frozen=True)
class Search(Controls):
    """Options of the search for translations."""

    num_beams: int = 5
    length_penalty: float = LENGTH_PENALTY
    num_return_sequences: int = 1
    max_new_tokens: int | None = None  # None: depends on the length of the source
    max_length_ratio: float | None = None  # tokens of a translation per token of its source, at most; None: any number
    min_length: int = 0  # tokens of a translation, its prefix included, at least
    force: str | Sequence[str] = ()  # phrases that every translation contains
    glossary: Glossary = ()  # phrases that a translation contains if its source contains others
    keep: bool = False  # numbers, URLs, e-mail addresses, tags and {placeholders} stay as they are
    split: bool = False  # lines are paragraphs: translate their sentences separately
    prefix: str | Sequence[int] = ""  # text, or target tokens, with which every translation begins
    copy_unknown: bool = True  # replace <unk> by the source word with the largest attention weight
    attention: bool = False  # return the attention weights
    trace: bool = False  # return what the beam search did at every step
    batch_size: int = 32  # lines translated together, at most
    mode: str = "ar"  # hybrid: ar step by step, nar all words in parallel, draft greedy ar with checked drafts
    lengths: int = 1  # mode nar: number of target lengths tried; the autoregressive branch selects the best
    refine: int = 0  # mode nar: number of times that the least certain words are predicted again
    draft: Any = None  # a run that drafts for greedy search, or "lookup": drafts from the source and the output so far
    draft_tokens: int = DRAFT_TOKENS  # tokens per draft, at most

    def given(self, *names: str) -> list[str]:
        """Those of these options that are set."""
        return [name for name in names if getattr(self, name)]

    @property
    def description(self) -> str:
        """The search in words, for a protocol."""
        if self.mode == "nar":
            return f"one parallel pass, {plural(self.lengths, 'length')}, {plural(self.refine, 'refinement')}"
        if self.mode == "draft" or self.draft is not None:
            return "greedy search, checked drafts"
        if self.num_beams == 1:
            return "greedy search"
        return f"beam search, {self.num_beams} beams, length penalty {self.length_penalty:g}"


class SearchResult(NamedTuple):
    """The translations of a line, best first, and statistics of the drafts where there were some."""

    hypotheses: list[Hypothesis]
    drafted: DraftStatistics | None = None
    passes: int | None = None  # passes over the target; None: not counted
    trace: BeamTrace | None = None


def check_search(models: Sequence[TranslationModel], search: Search) -> None:
    """Refuse options that do not fit the models or each other. Models of an ensemble must share target tokens."""
    first = models[0]
    for other in models[1:]:
        if other.tokenizer.fingerprint != first.tokenizer.fingerprint:
            raise ConfigError(
                f"{first.name} and {other.name} write different tokens, so they cannot form an ensemble; train them "
                "with one tokenizer (--tokenizer FOLDER)"
            )
    if search.attention and not first.model.attends:
        raise ConfigError(f"{first.name} has no attention to show; leave --attention out")
    if search.mode != "ar":
        _check_mode(models, search)
    elif search.lengths != 1 or search.refine:
        raise ConfigError("--lengths and --refine apply to --mode nar only; add --mode nar, or leave them out")
    if search.draft is not None:
        _check_draft(models, search)
    _check_controls(search)
    for name in ("num_beams", "max_new_tokens", "batch_size"):
        if (value := getattr(search, name)) is not None and value < 1:
            raise ConfigError(f"{name} is {value}; expected at least 1")


def _check_mode(models: Sequence[TranslationModel], search: Search) -> None:
    """Parallel modes are for one `hybrid`, one translation, and no given prefix."""
    first = models[0]
    if search.mode not in first.model.modes:
        raise ConfigError(
            f"--mode is {search.mode}, but {first.name} has the mode {', '.join(first.model.modes)} only; train a "
            "hybrid for the others"
        )
    if len(models) > 1 or search.prefix or search.num_return_sequences > 1:
        raise ConfigError(f"--mode {search.mode} gives one translation of one run; leave ensemble, prefix, n-best out")
    if search.num_beams > 1:
        raise ConfigError(f"--mode {search.mode} has no beam; leave --num-beams out, or use --mode ar")
    if search.lengths < 1 or search.refine < 0 or (search.mode == "draft" and (search.lengths > 1 or search.refine)):
        raise ConfigError(
            f"--mode {search.mode} with lengths = {search.lengths} and refine = {search.refine}: mode nar takes at "
            "least 1 length and 0 refinements, mode draft takes neither"
        )


def _check_controls(search: Search) -> None:
    """Controls need a search word by word, and limits that can be met."""
    search.check_controls()
    if search.min_length < 0:
        raise ConfigError(f"min_length is {search.min_length}; expected at least 0 (0: any length)")
    if search.max_length_ratio is not None and not search.max_length_ratio > 0:
        raise ConfigError(f"max_length_ratio is {search.max_length_ratio}; expected a number above 0")
    for name in ("min_new_tokens", "min_length"):
        least = getattr(search, name)
        if search.max_new_tokens is not None and least > search.max_new_tokens:
            raise ConfigError(
                f"{name} is {least}, but max_new_tokens is {search.max_new_tokens}; expected at most as many"
            )
    if search.mode != "ar" and (names := [*search.controlled, *search.given("min_length", *PHRASES)]):
        raise ConfigError(f"--mode {search.mode} takes no {names[0]}; leave it out, or use --mode ar")
    if search.draft is not None and (names := search.given(*PHRASES)):
        raise ConfigError(f"--draft takes no {names[0]}, which needs a beam; leave one of them out")
    if search.split and (search.num_return_sequences > 1 or search.attention or search.trace or search.prefix):
        raise ConfigError("--split translates sentences one by one; leave n-best, attention, trace and prefix out")
    if search.trace and (search.mode != "ar" or search.draft is not None or search.given(*PHRASES)):
        raise ConfigError(
            "--trace shows a plain beam search; leave --mode, --draft, --force, --glossary and --keep out"
        )


def _check_draft(models: Sequence[TranslationModel], search: Search) -> None:
    """Drafts are for greedy search by one model; a drafting model has the same target tokens."""
    check_draft_tokens(search.draft_tokens)
    if len(models) > 1 or search.num_beams > 1 or search.num_return_sequences > 1 or search.mode != "ar":
        raise ConfigError("--draft is for greedy search by one run; leave ensemble, --num-beams, n-best and --mode out")
    if isinstance(search.draft, TextModel):
        if search.draft.tokenizer.fingerprint != models[0].tokenizer.fingerprint:
            raise ConfigError(
                f"{search.draft.name} has other tokens than {models[0].name}, so it cannot draft for it; train it with "
                "the tokeniser of the translator (--tokenizer FOLDER)"
            )
    elif search.draft != LOOKUP:
        raise ConfigError(f"--draft is '{search.draft}'; expected a run, or {LOOKUP}")


def search_translations(
    models: Sequence[TranslationModel],
    sources: list[Source],
    texts: list[str],
    prompt_BT: Tensor,
    limits: list[int],
    phrases: list[list[Phrase]],
    search: Search,
) -> list[SearchResult]:
    """The translations of some lines, given each model's source of them, their texts, length limits and phrases."""
    eos, networks = models[0].tokenizer.eos, [one.model for one in models]
    if search.mode != "ar":
        return _in_parallel(networks[0], sources[0], eos, limits, search)
    if search.draft is not None:
        return [
            _with_draft(
                models[0], Source(*(part[row : row + 1] for part in sources[0])), text, prompt_BT[:1], limit, search
            )
            for row, (text, limit) in enumerate(zip(texts, limits, strict=True))
        ]
    if not any(phrases):
        return _by_beam(models, sources, prompt_BT, limits, search)
    if search.force:  # few sentences contain a forced word of themselves
        return _with_phrases(models, sources, prompt_BT, limits, phrases, search)
    results = _by_beam(models, sources, prompt_BT, limits, search)
    given = prompt_BT[0].tolist()
    for row, (one, some) in enumerate(zip(results, phrases, strict=True)):
        results[row] = one._replace(hypotheses=_containing(one.hypotheses, given, some))
    lacking = [row for row, one in enumerate(results) if len(one.hypotheses) < search.num_return_sequences]
    if lacking:
        some_sources = [Source(*(part[lacking] for part in source)) for source in sources]
        limits, phrases = [limits[row] for row in lacking], [phrases[row] for row in lacking]
        found = _with_phrases(models, some_sources, prompt_BT[lacking], limits, phrases, search)
        for row, one in zip(lacking, found, strict=True):
            results[row] = one
    return results


def _containing(hypotheses: list[Hypothesis], given: list[int], phrases: list[Phrase]) -> list[Hypothesis]:
    """The hypotheses that contain the phrases."""
    wanted = Phrases(phrases)
    return [one for one in hypotheses if wanted.occur_in(given, one.tokens)] if phrases else hypotheses


def _begin(
    models: Sequence[TranslationModel], sources: list[Source], prompt_BT: Tensor, limits: list[int], search: Search
) -> tuple[Any, Any, dict[str, Any]]:
    """The model or ensemble with its controls, its state after the sources, and the options of a beam."""
    networks = [one.model for one in models]
    stepper: Any = _control(networks[0] if len(networks) == 1 else Ensemble(networks), models[0], search, prompt_BT)
    state = stepper.start(sources[0] if len(networks) == 1 else sources)
    options: dict[str, Any] = {
        "eos": models[0].tokenizer.eos,
        "beams": search.num_beams,
        "max_new_tokens": limits,
        "length_penalty": search.length_penalty,
        "num_return_sequences": search.num_beams if search.keep else search.num_return_sequences,
    }
    return stepper, state, options


def _by_beam(
    models: Sequence[TranslationModel], sources: list[Source], prompt_BT: Tensor, limits: list[int], search: Search
) -> list[SearchResult]:
    stepper, state, options = _begin(models, sources, prompt_BT, limits, search)
    recorder = BeamRecorder(search.num_beams, search.length_penalty)
    found = beam_search(stepper, state, prompt_BT, observer=recorder, **options)
    passes = recorder.passes(len(found))
    traces = recorder.traces(len(found)) if search.trace else [None] * len(found)
    return [
        SearchResult(hypotheses, None, count, trace)
        for hypotheses, count, trace in zip(found, passes, traces, strict=True)
    ]


def _with_phrases(
    models: Sequence[TranslationModel],
    sources: list[Source],
    prompt_BT: Tensor,
    limits: list[int],
    phrases: list[list[Phrase]],
    search: Search,
) -> list[SearchResult]:
    stepper, state, options = _begin(models, sources, prompt_BT, limits, search)
    found = constrained_beam_search(stepper, state, prompt_BT, phrases, **options)
    return [SearchResult(hypotheses) for hypotheses in found]


def _control(stepper: Any, subject: TranslationModel, search: Search, prompt_BT: Tensor) -> Any:
    """The model, controlled if there are controls."""
    eos, given = subject.tokenizer.eos, prompt_BT.shape[1] - 1
    least = max(search.min_new_tokens, search.min_length - given)
    controls = replace(search, min_new_tokens=least).chain(eos=eos, unk=subject.tokenizer.unk, prompt=given)
    return ControlledStepper(stepper, controls, eos) if controls else stepper


def _in_parallel(model: Any, source: Source, eos: int, limits: list[int], search: Search) -> list[SearchResult]:
    """All words at once; their probability is not known."""
    if search.mode == "nar":
        rows = translate_in_parallel(model, source, lengths=search.lengths, refine=search.refine, eos=eos)
        selecting = search.lengths > 1  # the autoregressive branch reads the translation of each length
        results = [SearchResult([], None, 1 + search.refine + selecting) for _ in rows]
    else:
        rows, checks = draft_in_parallel(model, source, eos=eos, limits=limits)
        results = [SearchResult([], DraftStatistics(passes=count), 1 + count) for count in checks]
    return [
        result._replace(hypotheses=[Hypothesis(row[:limit], math.nan, math.nan)])
        for result, row, limit in zip(results, rows, limits, strict=True)
    ]


def _with_draft(
    subject: TranslationModel, source_1: Source, text: str, prompt_1T: Tensor, limit: int, search: Search
) -> SearchResult:
    """One line, greedily, with checked drafts."""
    length = int(source_1.mask_BS.sum())
    source_1 = Source(*(part[:, :length] for part in source_1))
    drafter = _drafter(subject, source_1, text, search.draft)
    stepper = _control(subject.model, subject, search, prompt_1T)
    tokens, drafted = generate_with_drafts(
        stepper,
        stepper.start(source_1),
        prompt_1T,
        drafter,
        subject.tokenizer.eos,
        limit,
        draft_tokens=search.draft_tokens,
    )
    return SearchResult([Hypothesis(tokens, math.nan, math.nan)], drafted, drafted.passes + (prompt_1T.shape[1] > 1))


def _drafter(subject: TranslationModel, source_1: Source, text: str, draft: TextModel | str) -> Drafter:
    """Drafts of a line from another translator, from a language model, or from what was seen already."""
    if isinstance(draft, str):
        shared = subject.source_tokenizer.fingerprint == subject.tokenizer.fingerprint
        return LookupDrafter(source_1.tokens_BS[0].tolist() if shared else ())
    if not isinstance(draft, TranslationModel):
        return StepperDrafter(draft.model, draft.model.start(1))
    source = pad_sources([draft.encode_source(text)], draft.source_tokenizer.eos, draft.device)
    return StepperDrafter(draft.model, draft.model.start(source), window=draft.model.window)
