"""Translating lines in batches of similar length, results in the order of the lines, while lines are still being read.

Lines are read in windows that double in size, so the first translation is ready soon and later ones are made in full
batches; memory holds one window. Several models form an ensemble that averages their probabilities.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch

from chainrule.base.devices import threads
from chainrule.base.modes import evaluating
from chainrule.data.grouping import by_length, in_windows, map_batches
from chainrule.data.pairs import pad_sources
from chainrule.decoding import DraftStatistics, Hypothesis
from chainrule.decoding.limits import length_limit
from chainrule.errors import ConfigError
from chainrule.inference.beam_tree import BeamTree, make_tree
from chainrule.inference.phrases import LinePhrases, PhraseBook
from chainrule.inference.search import Search, SearchResult, check_search, search_translations
from chainrule.inference.subject import TranslationModel
from chainrule.inference.target_choices import prefix_tokens
from chainrule.text.protected import keeps, repair
from chainrule.text.sentences import join_sentences, split_sentences
from chainrule.text.tokenizers import Tokenizer

FIRST_WINDOW, LAST_WINDOW = 8, 1024
"""Lines read before any is translated: at first, and later."""

BATCH_TOKENS = 4096
"""Source tokens per batch, times the number of beams."""


@dataclass(frozen=True)
class Attention:
    """Attention weights: one row over the source's pieces for each piece of the target."""

    source: list[str]
    target: list[str]
    weights: list[list[float]]


@dataclass(frozen=True)
class Translation:
    """One translation of a line: its text, the score it is ranked by, and its log-probability in nats."""

    text: str
    score: float = 0.0
    log_prob: float = 0.0
    tokens: int = 0
    drafted: DraftStatistics | None = None  # statistics of the drafts, where there were some
    attention: Attention | None = field(default=None, repr=False)
    passes: int | None = None  # passes of the model over the target; None: not counted
    target: list[int] = field(default_factory=list, repr=False)  # its tokens, a given prefix included, without `eos`
    trace: BeamTree | None = field(default=None, repr=False)  # with `trace`, of the best translation of a line


@dataclass(frozen=True)
class _Line:
    """A line to translate, as tokens of each model's source vocabulary."""

    number: int
    text: str
    rows: list[list[int]]
    contains: LinePhrases  # what its translation must contain

    @property
    def length(self) -> int:
        return max(map(len, self.rows))


def translate_lines(
    models: Sequence[TranslationModel], lines: Iterable[str], search: Search
) -> Iterator[list[Translation]]:
    """The translations of each line, best first, in the order of the lines. An empty line stays empty."""
    check_search(models, search)
    if search.split:
        yield from _translate_paragraphs(models, lines, search)
        return
    yield from _translate_numbered(models, enumerate(lines, start=1), search)


def _translate_paragraphs(
    models: Sequence[TranslationModel], lines: Iterable[str], search: Search
) -> Iterator[list[Translation]]:
    """The translation of each line, sentence by sentence."""
    counts: deque[int] = deque()  # sentences of the lines that were read and not yet answered

    def sentences() -> Iterator[tuple[int, str]]:
        for number, line in enumerate(lines, start=1):
            parts = split_sentences(line) or [""]
            counts.append(len(parts))
            yield from ((number, part) for part in parts)

    found = _translate_numbered(models, sentences(), search)
    for first, *_ in found:
        parts = [first, *(next(found)[0] for _ in range(counts.popleft() - 1))]
        tokens, log_prob = sum(part.tokens for part in parts), sum(part.log_prob for part in parts)
        score = sum(part.score for part in parts) / len(parts)
        yield [Translation(join_sentences([part.text for part in parts]), score, log_prob, tokens)]


def _translate_numbered(
    models: Sequence[TranslationModel], lines: Iterable[tuple[int, str]], search: Search
) -> Iterator[list[Translation]]:
    """The translations of lines with their numbers."""
    book = PhraseBook(models[0].tokenizer, search.force, search.glossary, keep=search.keep)
    # With a batch size of 1 no line has to wait for another, so that whoever types one is answered at once.
    sizes = (FIRST_WINDOW, LAST_WINDOW) if search.batch_size > 1 else (1, 1)
    for window in in_windows(lines, *sizes):
        yield from _translate_window(models, [_line(models, number, text, book) for number, text in window], search)


def _line(models: Sequence[TranslationModel], number: int, text: str, book: PhraseBook) -> _Line:
    rows = [one.encode_source(text, number) for one in models] if text.strip() else [[]]
    return _Line(number, text, rows, book.of(text) if book else LinePhrases())


def _translate_window(
    models: Sequence[TranslationModel], lines: list[_Line], search: Search
) -> Iterator[list[Translation]]:
    waiting = [line for line in lines if line.length]  # the others have nothing that the tokeniser keeps
    # The longest first, so that a shortage of memory shows at once.
    batches = by_length(
        [int((line.length + 1) * search.num_beams * (line.contains.width if search.force else 1)) for line in waiting],
        max_tokens=BATCH_TOKENS,
        max_rows=search.batch_size,
    )
    translated = map_batches(
        batches, lambda batch: _translate_batch(models, [waiting[i] for i in batch], search), models[0].model
    )
    found = iter(translated)
    return (next(found) if line.length else [Translation("")] for line in lines)


def _translate_batch(
    models: Sequence[TranslationModel], lines: list[_Line], search: Search
) -> Iterator[list[Translation]]:
    first, eos, device = models[0], models[0].tokenizer.eos, models[0].device
    sources = [
        pad_sources([line.rows[index] for line in lines], one.source_tokenizer.eos, device)
        for index, one in enumerate(models)
    ]
    given = prefix_tokens(first.tokenizer, search.prefix)
    prompt_BT = torch.tensor([[eos, *given]] * len(lines), device=device)
    limits = [_limit(models, line, search, len(given)) for line in lines]
    texts = [line.text for line in lines]
    # One line is too little work for several threads: they would wait for one another longer than they compute.
    with threads(1) if len(lines) == 1 else nullcontext(), evaluating(first.model):
        phrases = [line.contains.within(limit) for line, limit in zip(lines, limits, strict=True)]
        results = search_translations(models, sources, texts, prompt_BT, limits, phrases, search)
        for line, result in zip(lines, results, strict=True):
            found = [_translation(first, line, given, one, search, result) for one in result.hypotheses]
            if result.trace is not None:
                found[0] = replace(found[0], trace=make_tree(result.trace, first.tokenizer, given))
            yield _keep(found, line.contains.protected, search)


def _keep(found: list[Translation], protected: dict[str, int], search: Search) -> list[Translation]:
    """The best translations with each protected string as often as in the source; the others are repaired."""
    if not search.keep:
        return found
    ordered = sorted(found, key=lambda one: not keeps(one.text, protected))  # the order of the others is unchanged
    return [replace(one, text=repair(one.text, protected)) for one in ordered[: search.num_return_sequences]]


def _limit(models: Sequence[TranslationModel], line: _Line, search: Search, given: int) -> int:
    """The maximum number of tokens of a translation after the given prefix."""
    limit = search.max_new_tokens or length_limit(line.length, None) + line.contains.tokens
    if search.max_length_ratio is not None:
        limit = max(1, min(limit, int(search.max_length_ratio * line.length + 1e-9) - given))
    windows: list[int] = [one.model.window for one in models if one.model.window is not None]
    if windows and given + 1 >= min(windows):
        raise ConfigError(
            f"the prefix has {given} tokens, but the model writes at most {min(windows) - 1}; give a shorter prefix"
        )
    return min([limit, *(window - 1 - given for window in windows)])


def _translation(
    subject: TranslationModel,
    line: _Line,
    given: list[int],
    hypothesis: Hypothesis,
    search: Search,
    result: SearchResult,
) -> Translation:
    tokenizer = subject.tokenizer
    written = [*given, *hypothesis.tokens]
    tokens = [token for token in written if token != tokenizer.eos and token < tokenizer.vocab_size]
    text = tokenizer.decode(tokens)
    unknown = search.copy_unknown and tokenizer.unk in tokens and subject.model.attends
    attention = _attention(subject, line, tokens) if search.attention or unknown else None
    copies = _copies(tokens, attention, tokenizer) if unknown and attention is not None else []
    if kept := line.contains.unwritable:
        copies = [*kept, *copies[len(kept) :]]
    if copies and tokenizer.unk is not None:
        remaining = iter(copies)
        text = re.sub(re.escape(tokenizer.piece(tokenizer.unk)), lambda match: next(remaining, match[0]), text)
    return Translation(
        text,
        hypothesis.score,
        hypothesis.log_prob,
        len(hypothesis.tokens),
        result.drafted,
        attention if search.attention else None,
        result.passes,
        tokens,
    )


def _attention(subject: TranslationModel, line: _Line, tokens: list[int]) -> Attention:
    """The attention weights of a finished translation, from one more pass over it."""
    row, tokenizer, source_tokenizer = line.rows[0], subject.tokenizer, subject.source_tokenizer
    source = pad_sources([row], source_tokenizer.eos, subject.device)
    target_BT = torch.tensor([[*tokens, tokenizer.eos]], device=subject.device)
    weights_TS = subject.model.attention(target_BT, source)[0]
    return Attention(
        [*subject.source_pieces(line.text, row), source_tokenizer.piece(source_tokenizer.eos)],
        [tokenizer.piece(token) for token in [*tokens, tokenizer.eos]],
        weights_TS.cpu().tolist(),
    )


def _copies(tokens: list[int], attention: Attention, tokenizer: Tokenizer) -> list[str]:
    """For each unknown word of a translation, the source word with the largest attention weight."""
    words = len(attention.source) - 1  # without the end of the line
    return [
        attention.source[max(range(words), key=weights.__getitem__)]
        for token, weights in zip(tokens, attention.weights, strict=False)
        if token == tokenizer.unk
    ]
