"""Subwords by sentencepiece: byte-pair encoding (Sennrich et al. 2016) and the unigram model (Kudo 2018).

Models trained here lose nothing: text is not normalised, no space is added or removed, and characters outside the
vocabulary are encoded as bytes. Sentencepiece writes a space as U+2581, so a literal U+2581 is escaped before encoding
and restored after decoding.
"""

from __future__ import annotations

import io
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from chainrule.errors import ConfigError, TokenizerError
from chainrule.registry import TOKENIZERS
from chainrule.text.readers import Texts, not_unicode
from chainrule.text.tokenizers.base import ResidueKind, Tokenizer
from chainrule.text.tokenizers.spans import Span, spans_by_bytes, spans_by_search
from chainrule.text.tokenizers.vocabulary import refuse_min_count, refuse_options

BLOB = "tokenizer.model"
THREADS = 2
FEW = 8
"""Lines that are encoded one by one: starting threads of sentencepiece takes longer."""

SPACE, ESCAPE = "▁", "▂"
ESCAPES = {SPACE: ESCAPE + "1", ESCAPE: ESCAPE + "2"}
UNESCAPES = {escaped: plain for plain, escaped in ESCAPES.items()}

SAMPLES = {
    "bpe": 50 << 20,
    "unigram": 10 << 20,
    "char": 50 << 20,
}  # bytes of text to train on at most: takes about a minute
LINE = 4096  # characters; longer lines are cut, for training only
SPECIAL = 2  # <unk>, </s>
RESERVED = 256 + SPECIAL  # with the tokens of the bytes
CONTROL = re.compile("[\n\t▅]")  # characters that sentencepiece reserves
CHUNK = re.compile(" *[^ ]+| +$")  # a word with the spaces before it
MEMO_ENTRIES, MEMO_LENGTH = 1 << 18, 32


@TOKENIZERS.register("sentencepiece", summary="any sentencepiece .model file")
class SentencePieceTokenizer(Tokenizer):
    """Any sentencepiece model. Its normalisation is unknown, so what decoding loses counts as residue."""

    kind = "sentencepiece"
    residue_kind: ClassVar[ResidueKind] = "lines"
    joins_spaces = True
    exact = False

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        self._model = model
        try:
            self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise TokenizerError(
                f"not a sentencepiece model ({error}): expected a .model file; train it again."
            ) from error
        self.vocab_size = self._processor.vocab_size()
        self.eos = self._processor.eos_id()
        self.unk = self._processor.unk_id()
        if self.eos < 0:
            raise TokenizerError(
                "the sentencepiece model has no </s>: expected one to end lines; train it with eos_id."
            )

    @classmethod
    def from_file(cls, path: Path) -> Self:
        return cls(path.read_bytes())

    @classmethod
    def train(cls, texts: Texts, *, vocab_size: int | None, min_count: int, **options: Any) -> Self:
        raise ConfigError("the sentencepiece tokeniser comes from a file: give a .model, or use bpe or unigram.")

    def encode(self, line: str) -> list[int]:
        try:
            ids: list[int] = self._processor.encode(line)
        except (TypeError, RuntimeError):  # the library names neither the text nor the place
            raise not_unicode(line) from None
        return ids

    def encode_lines(self, lines: Sequence[str]) -> Sequence[Sequence[int]]:
        if len(lines) <= FEW:
            return [SentencePieceTokenizer.encode(self, line) for line in lines]
        try:
            ids: list[list[int]] = self._processor.encode(list(lines), num_threads=THREADS)
        except (TypeError, RuntimeError):  # the library names neither the text nor the place
            raise not_unicode("\n".join(lines)) from None
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        return "\n".join(self._processor.decode(line) for line in self.lines_of(ids))

    def piece(self, token: int) -> str:
        shown: str = self._processor.id_to_piece(token)
        return shown

    def written_pieces(self, line: str) -> list[str]:
        pieces: list[str] = self._processor.encode(line, out_type=str)
        return pieces

    def line_spans(self, line: str) -> list[Span]:
        return spans_by_search(line, [piece.replace(SPACE, " ") for piece in self.written_pieces(line)])

    def to_id(self, piece: str) -> int | None:
        token: int = self._processor.piece_to_id(piece)
        return token if self.piece(token) == piece else None

    def types(self) -> Iterator[bytes]:
        for token in range(self.vocab_size):
            if not (self._processor.is_control(token) or self._processor.is_unknown(token)):
                yield self.piece(token).replace(SPACE, " ").encode()

    def state(self) -> dict[str, Any]:
        return {}

    def blobs(self) -> dict[str, bytes]:
        return {BLOB: self._model}

    @classmethod
    def from_state(cls, state: dict[str, Any], blobs: dict[str, bytes]) -> Self:
        return cls(blobs[BLOB])


class TrainedTokenizer(SentencePieceTokenizer):
    """A sentencepiece model trained so that it loses nothing."""

    residue_kind: ClassVar[ResidueKind] = "nothing"
    exact = True
    algorithm: ClassVar[str]

    @classmethod
    def train(cls, texts: Texts, *, vocab_size: int | None, min_count: int, **options: Any) -> Self:
        refuse_options(cls.kind, options)
        refuse_min_count(cls.kind, min_count)
        size = default_vocab_size(texts.size) if vocab_size is None else vocab_size
        if size <= RESERVED:
            raise ConfigError(
                f"got a vocab_size of {size}: expected {RESERVED + 1} or more, as 256 bytes and two special tokens "
                "come first; use --tokenizer byte for fewer."
            )
        tokenizer = cls(_train(texts, cls.algorithm, size))
        if vocab_size is not None and tokenizer.vocab_size < vocab_size:
            warnings.warn(
                f"{texts.name} gives {tokenizer.vocab_size} {cls.kind} tokens, fewer than the {vocab_size} asked for",
                stacklevel=2,
            )
        return tokenizer

    def __init__(self, model: bytes) -> None:
        super().__init__(model)
        self._memo: dict[str, Sequence[int]] = {}

    def encode(self, line: str) -> list[int]:
        return super().encode(_escape(line))

    def written_pieces(self, line: str) -> list[str]:
        return super().written_pieces(_escape(line))

    def line_spans(self, line: str) -> list[Span]:
        escaped = _escape(line)
        sizes = [self._size(token) for token in super().encode(escaped)]
        spans = spans_by_bytes(escaped, sizes)
        if escaped == line:
            return spans
        places = [place for place, plain in enumerate(line) for _ in ESCAPES.get(plain, plain)] + [len(line)]
        return [(places[begin], places[end - 1] + 1 if end > begin else places[begin]) for begin, end in spans]

    def _size(self, token: int) -> int:
        """The bytes of the text that a token stands for."""
        return 1 if self._processor.is_byte(token) else len(self.piece(token).replace(SPACE, " ").encode())

    def encode_lines(self, lines: Sequence[str]) -> Sequence[Sequence[int]]:
        """As `encode`. No piece spans the end of a word and the space after it, so each word is encoded only once."""
        chunks = [CHUNK.findall(_escape(line)) for line in lines]
        new = list(set(chain.from_iterable(chunks)).difference(self._memo))
        self._memo.update(zip(new, super().encode_lines(new), strict=True))
        ids = [list(chain.from_iterable(map(self._memo.__getitem__, line))) for line in chunks]
        if len(self._memo) > MEMO_ENTRIES:
            self._memo.clear()
        elif any(len(chunk) > MEMO_LENGTH for chunk in new):
            self._memo = {chunk: found for chunk, found in self._memo.items() if len(chunk) <= MEMO_LENGTH}
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        text = super().decode(ids)
        return re.sub(f"{ESCAPE}[12]", lambda found: UNESCAPES[found[0]], text) if ESCAPE in text else text


@TOKENIZERS.register("bpe", summary="subwords, by byte-pair encoding")
class BpeTokenizer(TrainedTokenizer):
    kind = "bpe"
    algorithm = "bpe"


@TOKENIZERS.register("unigram", summary="subwords, by the unigram model")
class UnigramTokenizer(TrainedTokenizer):
    kind = "unigram"
    algorithm = "unigram"


@TOKENIZERS.register("sentencepiece-char", summary="characters, by sentencepiece, runs of spaces folded to one")
class FoldedCharTokenizer(SentencePieceTokenizer):
    """Characters of a line without outer spaces and with runs of spaces folded to one; the rest counts as residue."""

    kind = "sentencepiece-char"
    joins_spaces = False

    @classmethod
    def train(cls, texts: Texts, *, vocab_size: int | None, min_count: int, **options: Any) -> Self:
        refuse_options(cls.kind, options)
        refuse_min_count(cls.kind, min_count)
        most = len(_character_counts(texts)) + SPECIAL if vocab_size is None else vocab_size
        return cls(_train(texts, "char", most, fold=True))


def default_vocab_size(size: int) -> int:
    """A vocabulary size for a text: 512 up to 100 kB, doubled for each factor of four, at most 16384."""
    doublings = np.log2(max(size, 100_000) / 100_000) / 2
    return min(512 << int(doublings), 16384)


def _escape(text: str) -> str:
    if SPACE not in text and ESCAPE not in text:
        return text
    return re.sub(f"[{SPACE}{ESCAPE}]", lambda found: ESCAPES[found[0]], text)


def _train(texts: Texts, algorithm: str, vocab_size: int, *, fold: bool = False) -> bytes:
    """The file of a sentencepiece model fitted to a text; `fold`: the model folds runs of spaces to one."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_sentences(texts, SAMPLES[algorithm], CONTROL if fold else _excluded(texts, vocab_size)),
        model_writer=model,
        model_type=algorithm,
        vocab_size=vocab_size,
        hard_vocab_limit=False,  # a small text may give fewer tokens
        character_coverage=1.0,
        byte_fallback=algorithm != "char",
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=fold,
        allow_whitespace_only_pieces=True,
        max_sentence_length=8 * LINE,
        unk_id=0,
        eos_id=1,
        bos_id=-1,
        pad_id=-1,
        num_threads=THREADS,
        minloglevel=2,
    )
    return model.getvalue()


def _sentences(texts: Texts, max_bytes: int, excluded: re.Pattern[str]) -> Iterator[str]:
    """Parts of lines spread evenly over the text, long ones cut; at least one, since sentencepiece needs one."""
    step, number, found = ceil(texts.size / max_bytes), 0, False
    cut: dict[str, None] = {}
    for block in texts.strings():
        for line in excluded.split(_escape(block)):
            number += 1
            if not line or number % step:
                continue
            found = True
            if len(line) <= LINE:
                yield line
            else:
                cut.update(dict.fromkeys(line[start : start + LINE] for start in range(0, len(line), LINE)))
    # Each part of a long line is given once: a character repeated a million times would cost the unigram trainer hours.
    yield from cut if found else [" "]


def _excluded(texts: Texts, vocab_size: int) -> re.Pattern[str]:
    """The characters to train without, which are encoded as bytes.

    If all characters would fill more than half of the vocabulary, the most frequent are kept, up to half of it and up
    to 99.95% of the text. Sentencepiece reserves tabs and U+2585.
    """
    counts = _character_counts(texts)
    room = max((vocab_size - RESERVED) // 2, 1)
    if len(counts) <= room:
        return CONTROL
    codes = sorted(counts, key=lambda code: (-counts[code], code))
    shares_N = np.cumsum([counts[code] for code in codes]) / sum(counts.values())
    kept = codes[: min(room, int(np.searchsorted(shares_N, 0.9995)) + 1)]
    return re.compile(f"[^{''.join(re.escape(chr(code)) for code in kept)}]")


def _character_counts(texts: Texts) -> dict[int, int]:
    """Occurrences of each code point that sentencepiece can train with."""
    totals = np.zeros(sys.maxunicode + 1, np.int64)
    for block in texts.strings():
        counts = np.bincount(np.frombuffer(_escape(block).encode("utf-32-le"), np.uint32))
        totals[: len(counts)] += counts
    totals[[ord(reserved) for reserved in "\n\t▅"]] = 0
    return {code: int(totals[code]) for code in np.flatnonzero(totals).tolist()}
