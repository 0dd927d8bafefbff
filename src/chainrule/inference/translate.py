"""Translating lines in batches of similar length, results in the order of the lines, while lines are still being read.

Lines are read in windows that double in size, so the first translation is ready soon and later ones are made in full
batches; memory holds one window. Several models form an ensemble that averages their probabilities.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch

from chainrule.base.devices import threads
from chainrule.base.modes import evaluating
from chainrule.data.grouping import by_length, in_windows, map_batches
from chainrule.data.pairs import pad_sources
from chainrule.decoding import DraftStatistics, Hypothesis
from chainrule.decoding.limits import length_limit
from chainrule.errors import ConfigError
from chainrule.inference.search import Search, SearchResult, check_search, search_translations
from chainrule.inference.subject import TranslationModel
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


@dataclass(frozen=True)
class _Line:
    """A line to translate, as tokens of each model's source vocabulary."""

    number: int
    text: str
    rows: list[list[int]]

    @property
    def length(self) -> int:
        return max(map(len, self.rows))


def translate_lines(
    models: Sequence[TranslationModel], lines: Iterable[str], search: Search
) -> Iterator[list[Translation]]:
    """The translations of each line, best first, in the order of the lines. An empty line stays empty."""
    check_search(models, search)
    # With a batch size of 1 no line has to wait for another, so that whoever types one is answered at once.
    sizes = (FIRST_WINDOW, LAST_WINDOW) if search.batch_size > 1 else (1, 1)
    for window in in_windows(enumerate(lines, start=1), *sizes):
        yield from _translate_window(models, window, search)


def _translate_window(
    models: Sequence[TranslationModel], window: list[tuple[int, str]], search: Search
) -> Iterator[list[Translation]]:
    lines = [
        _Line(number, text, [one.encode_source(text, number) for one in models] if text.strip() else [[]])
        for number, text in window
    ]
    waiting = [line for line in lines if line.length]  # the others have nothing that the tokeniser keeps
    # The longest first, so that a shortage of memory shows at once.
    batches = by_length(
        [(line.length + 1) * search.num_beams for line in waiting], max_tokens=BATCH_TOKENS, max_rows=search.batch_size
    )
    found = iter(map_batches(batches, lambda batch: _translate_batch(models, [waiting[i] for i in batch], search)))
    return (next(found) if line.length else [Translation("")] for line in lines)


def _translate_batch(
    models: Sequence[TranslationModel], lines: list[_Line], search: Search
) -> Iterator[list[Translation]]:
    first, eos, device = models[0], models[0].tokenizer.eos, models[0].device
    sources = [
        pad_sources([line.rows[index] for line in lines], one.source_tokenizer.eos, device)
        for index, one in enumerate(models)
    ]
    given = first.tokenizer.encode(search.prefix)
    prompt_BT = torch.tensor([[eos, *given]] * len(lines), device=device)
    limits = [_limit(models, line, search, len(given)) for line in lines]
    texts = [line.text for line in lines]
    # One line is too little work for several threads: they would wait for one another longer than they compute.
    with threads(1) if len(lines) == 1 else nullcontext(), evaluating(first.model):
        results = search_translations(models, sources, texts, prompt_BT, limits, search)
        for line, result in zip(lines, results, strict=True):
            yield [_translation(first, line, given, one, search, result) for one in result.hypotheses]


def _limit(models: Sequence[TranslationModel], line: _Line, search: Search, given: int) -> int:
    """The maximum number of tokens of a translation after the given prefix."""
    limit = search.max_new_tokens or length_limit(line.length, None)
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
    if unknown and attention is not None:
        text = _copy_unknown(text, tokens, attention, tokenizer)
    return Translation(
        text,
        hypothesis.score,
        hypothesis.log_prob,
        len(hypothesis.tokens),
        result.drafted,
        attention if search.attention else None,
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


def _copy_unknown(text: str, tokens: list[int], attention: Attention, tokenizer: Tokenizer) -> str:
    """The text with each unknown word replaced by the source word with the largest attention weight."""
    assert tokenizer.unk is not None
    words = len(attention.source) - 1  # without the end of the line
    copies = iter(
        attention.source[max(range(words), key=weights.__getitem__)]
        for token, weights in zip(tokens, attention.weights, strict=False)
        if token == tokenizer.unk
    )
    return re.sub(re.escape(tokenizer.piece(tokenizer.unk)), lambda match: next(copies, match[0]), text)
