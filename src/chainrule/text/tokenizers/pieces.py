"""The tokenisers of T5 and Marian from sentencepiece files: sentencepiece splits, a vocabulary assigns the ids.

T5 (`spiece.model`) uses the ids of sentencepiece, followed by its sentinels `<extra_id_99>` … `<extra_id_0>`. Marian
(`source.spm`, `target.spm`) looks pieces up in `vocab.json`, and a line may begin with a token for the target language,
like `>>fr<<`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Self

from chainrule.errors import ConfigError, TokenizerError
from chainrule.text.readers import Texts, not_unicode
from chainrule.text.tokenizers.base import ResidueKind, Tokenizer
from chainrule.text.tokenizers.spans import Span, spans_by_search

MODEL, VOCABULARY = "tokenizer.spm", "tokenizer.vocab.json"
END, UNKNOWN, SPACE = "</s>", "<unk>", "▁"
SENTINEL = re.compile(r"(<extra_id_\d+>)")
LANGUAGE = re.compile(r">>[^<]*<<")


class PiecesTokenizer(Tokenizer):
    """Pieces of sentencepiece, ids of a vocabulary. What decoding loses of a line counts as residue."""

    kind = "huggingface"
    residue_kind: ClassVar[ResidueKind] = "lines"
    joins_spaces = True
    exact = False
    form: ClassVar[str] = "pieces"

    def __init__(self, model: bytes, vocabulary: dict[str, int], *, size: int | None = None) -> None:
        """`size` is the vocabulary size of a model with unused ids."""
        import sentencepiece

        self.model, self.vocabulary, self._size = model, vocabulary, size
        try:
            self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise TokenizerError(
                f"not a sentencepiece model ({error}): expected the file that came with the model; restore it."
            ) from error
        for piece in (END, UNKNOWN):
            if piece not in vocabulary:
                raise TokenizerError(f"the vocabulary has no {piece}: expected one; restore the file.")
        self.eos, self.unk = vocabulary[END], vocabulary[UNKNOWN]
        self._unknown = vocabulary[UNKNOWN]
        self._pieces = {token: piece for piece, token in vocabulary.items()}
        self.vocab_size = max(max(self._pieces) + 1, size or 0)

    @classmethod
    def of_t5(cls, model: bytes, *, size: int, sentinels: int = 100) -> Self:
        """The ids of sentencepiece, followed by the sentinels in descending order."""
        import sentencepiece

        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise TokenizerError(
                f"not a sentencepiece model ({error}): expected the file that came with the model; restore it."
            ) from error
        count = processor.vocab_size()
        vocabulary = {processor.id_to_piece(token): token for token in range(count)}
        vocabulary |= {f"<extra_id_{number}>": count + sentinels - 1 - number for number in range(sentinels)}
        return cls(model, vocabulary, size=size)

    @classmethod
    def train(cls, texts: Texts, *, vocab_size: int | None, min_count: int, **options: Any) -> Self:
        raise ConfigError("this tokeniser comes with pretrained weights: chainrule import FOLDER --out RUN.")

    def encode(self, line: str) -> list[int]:
        ids: list[int] = []
        if (code := LANGUAGE.match(line)) and code[0] in self.vocabulary:
            ids, line = [self.vocabulary[code[0]]], line[code.end() :]
        for number, part in enumerate(SENTINEL.split(line) if "<extra_id_" in line else [line]):
            if number % 2 and part in self.vocabulary:
                ids.append(self.vocabulary[part])
            else:
                ids += self._encode(part)
        return ids

    def _encode(self, text: str) -> list[int]:
        try:
            pieces: list[str] = self._processor.encode(text, out_type=str)
        except (TypeError, RuntimeError):  # the library names neither the text nor the place
            raise not_unicode(text) from None
        ids = [self.vocabulary.get(piece, self._unknown) for piece in pieces]
        return [token for token in ids if token != self.eos]

    def decode(self, ids: Iterable[int]) -> str:
        return "\n".join(self._decode(line) for line in self.lines_of(ids))

    def _decode(self, ids: list[int]) -> str:
        text: str = self._processor.decode_pieces([self.piece(token) for token in ids])
        return text.replace(SPACE, " ").strip(" ")

    def piece(self, token: int) -> str:
        return self._pieces.get(token, f"<{token}>")

    def line_spans(self, line: str) -> list[Span]:
        return spans_by_search(line, [piece.replace(SPACE, " ") for piece in self.written_pieces(line)])

    def to_id(self, piece: str) -> int | None:
        return self.vocabulary.get(piece)

    def types(self) -> Iterator[bytes]:
        for token in sorted(self._pieces):
            if token not in (self.eos, self.unk):
                yield self._pieces[token].replace(SPACE, " ").encode()

    def state(self) -> dict[str, Any]:
        return {"form": self.form, **({} if self._size is None else {"size": self._size})}

    def blobs(self) -> dict[str, bytes]:
        return {MODEL: self.model, VOCABULARY: json.dumps(self.vocabulary, ensure_ascii=False).encode()}

    @classmethod
    def from_state(cls, state: dict[str, Any], blobs: dict[str, bytes]) -> Self:
        return cls(blobs[MODEL], json.loads(blobs[VOCABULARY]), size=state.get("size"))
