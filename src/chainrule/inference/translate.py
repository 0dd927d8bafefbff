"""Translating lines: sorted by length inside, in their own order outside, while they are still being read.

Lines come in windows that double in size, so the first translation is there at once and later ones are made in well
filled batches; memory holds one window. Several runs translate together by averaging their probabilities.

Legend: B batch, T time, S source time.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import torch

from chainrule.base.devices import threads
from chainrule.base.modes import evaluating
from chainrule.decoding import Drafted, Hypothesis
from chainrule.errors import ConfigError
from chainrule.evaluation.pairs import length_limit, source_of
from chainrule.inference.search import Found, Search, check_together, look_for
from chainrule.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from chainrule.runs.translator import TranslatorRun

FIRST_WINDOW, LAST_WINDOW = 8, 1024
"""Lines read before anything is translated: at first, and when the first are out."""

BATCH_TOKENS = 4096
"""Source tokens of a batch, beams counted in."""


@dataclass(frozen=True)
class Looked:
    """Where a model looked: a row of weights over the source's pieces for each piece of the target."""

    source: list[str]
    target: list[str]
    weights: list[list[float]]


@dataclass(frozen=True)
class Translation:
    """One translation of a line: its text, what it is ranked by, and its log-probability in nats."""

    text: str
    score: float = 0.0
    log_prob: float = 0.0
    tokens: int = 0
    drafted: Drafted | None = None  # how a draft fared, where there was one
    looked: Looked | None = field(default=None, repr=False)


@dataclass(frozen=True)
class _Line:
    """A line to translate, as tokens of each run's source vocabulary."""

    number: int
    text: str
    rows: list[list[int]]

    @property
    def length(self) -> int:
        return max(map(len, self.rows))


def translate_lines(runs: Sequence[TranslatorRun], lines: Iterable[str], search: Search) -> Iterator[list[Translation]]:
    """The translations of each line, the best first, in the order of the lines. An empty line stays empty."""
    check_together(runs, search)
    numbered = enumerate(lines, start=1)
    # Where lines are not translated together, none has to wait for another: whoever types one is answered.
    window, largest = (FIRST_WINDOW, LAST_WINDOW) if search.batch_size > 1 else (1, 1)
    while taken := list(islice(numbered, window)):
        yield from _translate_window(runs, taken, search)
        window = min(2 * window, largest)


def _translate_window(
    runs: Sequence[TranslatorRun], taken: list[tuple[int, str]], search: Search
) -> Iterator[list[Translation]]:
    found: dict[int, list[Translation]] = {}
    waiting = []
    for number, text in taken:
        line = _Line(number, text, [run.encode_source(text, number) for run in runs] if text.strip() else [[]])
        if line.length:
            waiting.append(line)
        else:  # or nothing in it that the tokeniser keeps
            found[number] = [Translation("")]
    for batch in _batches(waiting, search):
        for line, translations in zip(batch, _translate_batch(runs, batch, search), strict=True):
            found[line.number] = translations
    return (found[number] for number, _ in taken)


def _batches(lines: list[_Line], search: Search) -> Iterator[list[_Line]]:
    """Lines of about equal length, the longest first, so that what needs most memory fails at once if it fails."""
    order = sorted(lines, key=lambda line: -line.length)
    while order:
        affordable = BATCH_TOKENS // ((order[0].length + 1) * search.num_beams)
        rows = max(1, min(search.batch_size, affordable))
        yield order[:rows]
        order = order[rows:]


def _translate_batch(runs: Sequence[TranslatorRun], lines: list[_Line], search: Search) -> Iterator[list[Translation]]:
    first, eos = runs[0], runs[0].tokenizer.eos
    device = first.device
    sources = [
        source_of([line.rows[number] for line in lines], run.source_tokenizer.eos, device)
        for number, run in enumerate(runs)
    ]
    given = first.tokenizer.encode(search.prefix)
    prompt_BT = torch.tensor([[eos, *given]] * len(lines), device=device)
    limits = [_limit(runs, line, search, len(given)) for line in lines]
    # One line is too little work to share out: waiting for one another would take the threads longer than the work.
    with threads(1) if len(lines) == 1 else nullcontext(), evaluating(first.model):
        texts = [line.text for line in lines]
        for line, found in zip(lines, look_for(runs, sources, texts, prompt_BT, limits, search), strict=True):
            yield [_translation(first, line, given, one, search, found) for one in found.hypotheses]


def _limit(runs: Sequence[TranslatorRun], line: _Line, search: Search, given: int) -> int:
    """The most tokens that a translation of a line may have after those given."""
    limit = search.max_new_tokens or length_limit(line.length, None)
    windows: list[int] = [run.model.window for run in runs if run.model.window is not None]
    if windows and given + 1 >= min(windows):
        raise ConfigError(
            f"the prefix has {given} tokens, but the model writes at most {min(windows) - 1}; give a shorter prefix"
        )
    return min([limit, *(window - 1 - given for window in windows)])


def _translation(
    run: TranslatorRun, line: _Line, given: list[int], hypothesis: Hypothesis, search: Search, found: Found
) -> Translation:
    written = [*given, *hypothesis.tokens]
    tokens = [token for token in written if token != run.tokenizer.eos and token < run.tokenizer.vocab_size]
    text = run.tokenizer.decode(tokens)
    unknown = search.copy_unknown and run.tokenizer.unk in tokens and run.model.attends
    looked = None
    if search.attention or unknown:
        looked = _look(run, line, tokens)
        if unknown:
            text = _copy_unknown(text, tokens, looked, run.tokenizer)
    return Translation(
        text,
        hypothesis.score,
        hypothesis.log_prob,
        len(hypothesis.tokens),
        found.drafted,
        looked if search.attention else None,
    )


def _look(run: TranslatorRun, line: _Line, tokens: list[int]) -> Looked:
    """Where the model looks when it writes these tokens and then ends: one more pass, with the answer known."""
    row, eos = line.rows[0], run.tokenizer.eos
    source = source_of([row], run.source_tokenizer.eos, run.device)
    target_BT = torch.tensor([[*tokens, eos]], device=run.device)
    weights_TS = run.model.attention(target_BT, source)[0]
    pieces = run.source_pieces(line.text, row)
    return Looked(
        [*pieces, run.source_tokenizer.piece(run.source_tokenizer.eos)],
        [run.tokenizer.piece(token) for token in [*tokens, eos]],
        weights_TS.cpu().tolist(),
    )


def _copy_unknown(text: str, tokens: list[int], looked: Looked, tokenizer: Tokenizer) -> str:
    """The text with each unknown word replaced by the source word that was most attended to when it was written."""
    assert tokenizer.unk is not None
    words = len(looked.source) - 1  # the end of the line is no word
    copies = iter(
        looked.source[max(range(words), key=weights.__getitem__)]
        for token, weights in zip(tokens, looked.weights, strict=False)
        if token == tokenizer.unk
    )
    return re.sub(re.escape(tokenizer.piece(tokenizer.unk)), lambda match: next(copies, match[0]), text)


def warn_cut(number: int, tokens: int, most: int) -> None:
    """A line is longer than the model can read; say so, whatever happens next."""
    warnings.warn(
        f"line {number} has {tokens} tokens, but the model reads {most}: the rest of it is left out of the translation",
        stacklevel=2,
    )
