"""Hugging Face tokenisers: any `tokenizer.json`, by the tokenizers library.

`HuggingFaceTokenizer` encodes a text line by line, like all other kinds: its end token is the newline, and what it
loses of a line counts as residue. `ByteLevelTokenizer` is for byte-level tokenisers with a token for the newline, like
that of GPT-2: a text has exactly the tokens that the tokenizers library gives for it, newlines included, nothing is
lost, and the end token only comes before a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from chainrule.errors import ConfigError, TokenizerError
from chainrule.registry import TOKENIZERS
from chainrule.text.readers import Texts, not_unicode
from chainrule.text.tokenizers.base import Ids, ResidueKind, Tokenizer
from chainrule.text.tokenizers.spans import Span, spans_by_bytes

BLOB = "tokenizer.hf.json"
END_TOKENS = ("</s>", "<|endoftext|>", "[SEP]", "<eos>")
NEWLINE = "Ċ"
"""The newline in the alphabet of byte-level tokenisers."""

PREFIXED = re.compile(rb'"continuing_subword_prefix"\s*:\s*"')
"""In a tokenizer.json whose tokens inside words have a prefix."""

WHOLE_WORDS = ("WordPiece", "WordLevel")
"""Models that cannot write every word without a token for unknown ones."""

MAX_HELD = 1 << 24
"""Characters without a safe place to cut, after which a text is cut anywhere."""


@TOKENIZERS.register("huggingface", summary="any Hugging Face tokenizer.json file")
class HuggingFaceTokenizer(Tokenizer):
    """The end token of the file is eos; a file without one gets `<eos>`."""

    kind = "huggingface"
    residue_kind: ClassVar[ResidueKind] = "lines"
    joins_spaces = True
    exact = False
    form: ClassVar[str] = "lines"

    def __init__(self, content: bytes, *, end: str | None = None, size: int | None = None) -> None:
        """`end` names an unusual end token; `size` is the vocabulary size of a model with unused ids."""
        self.content, self._named_end, self._size = content, end, size
        try:
            self._tokenizer: Any = parse_tokenizer(content)
        except ValueError as error:
            raise TokenizerError(
                f"not a Hugging Face tokeniser ({error}): expected the content of a tokenizer.json; save it again."
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.eos = self._end()
        self.unk = self._unknown()
        known = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self.vocab_size = known if size is None else max(known, size)

    def _end(self) -> int:
        names = END_TOKENS if self._named_end is None else (self._named_end,)
        known = [token for token in names if self._tokenizer.token_to_id(token) is not None]
        if not known:
            self._tokenizer.add_special_tokens([names[-1]])
        end: int = self._tokenizer.token_to_id(known[0] if known else names[-1])
        return end

    def _unknown(self) -> int | None:
        name = getattr(self._tokenizer.model, "unk_token", None)
        unk: int | None = self._tokenizer.token_to_id(name) if name else getattr(self._tokenizer.model, "unk_id", None)
        own = self._tokenizer.get_vocab(with_added_tokens=False)
        if name and name not in own and type(self._tokenizer.model).__name__ in WHOLE_WORDS:
            raise TokenizerError(
                f"the tokeniser has no token {name}, which its unknown words need: expected it in the vocabulary of "
                "the tokenizer.json; save it again."
            )
        return unk

    @classmethod
    def from_file(cls, path: Path) -> Self:
        return cls(path.read_bytes())

    @classmethod
    def train(cls, texts: Texts, *, vocab_size: int | None, min_count: int, **options: Any) -> Self:
        raise ConfigError("the huggingface tokeniser comes from a file: give the path of a tokenizer.json.")

    def encode(self, line: str) -> list[int]:
        try:
            return self._without_eos(self._tokenizer.encode(line, add_special_tokens=False))
        except TypeError:
            raise not_unicode(line) from None
        except BaseException as error:
            raise _unusable(error) from None

    def encode_lines(self, lines: Sequence[str]) -> Sequence[Sequence[int]]:
        try:
            encodings = self._tokenizer.encode_batch_fast(list(lines), add_special_tokens=False)
        except BaseException as error:
            raise _unusable(error) from None
        return [self._without_eos(encoding) for encoding in encodings]

    def _without_eos(self, encoding: Any) -> list[int]:
        """The ids without the end token: spelled out in a line it does not end the line, and belongs to the residue."""
        ids: list[int] = encoding.ids
        return [token for token in ids if token != self.eos] if self.eos in ids else ids

    def decode(self, ids: Iterable[int]) -> str:
        return "\n".join(self._tokenizer.decode(line, skip_special_tokens=False) for line in self.lines_of(ids))

    def piece(self, token: int) -> str:
        shown: str | None = self._tokenizer.id_to_token(token)
        return f"<{token}>" if shown is None else shown

    def written_pieces(self, line: str) -> list[str]:
        encoding = self._tokenizer.encode(line, add_special_tokens=False)
        both = zip(encoding.ids, encoding.offsets, strict=True)
        kept = [(token, begin, end) for token, (begin, end) in both if token != self.eos or not self.ends_lines]
        return [line[begin:end] if token == self.unk else self.piece(token) for token, begin, end in kept]

    def line_spans(self, line: str) -> list[Span]:
        encoding = self._tokenizer.encode(line, add_special_tokens=False)
        both = zip(encoding.ids, encoding.offsets, strict=True)
        return [(begin, end) for token, (begin, end) in both if token != self.eos]

    def to_id(self, piece: str) -> int | None:
        token: int | None = self._tokenizer.token_to_id(piece)
        return token

    def types(self) -> Iterator[bytes]:
        for token in sorted(self._tokenizer.get_vocab(with_added_tokens=False).values()):
            yield self._tokenizer.decode([token]).encode()

    def state(self) -> dict[str, Any]:
        given = {"form": self.form if self.form != "lines" else None, "end": self._named_end, "size": self._size}
        return {name: value for name, value in given.items() if value is not None}

    def blobs(self) -> dict[str, bytes]:
        return {BLOB: self.content}

    @classmethod
    def from_state(cls, state: dict[str, Any], blobs: dict[str, bytes]) -> Any:
        if state.get("form") == "pieces":
            from chainrule.text.tokenizers.pieces import PiecesTokenizer

            return PiecesTokenizer.from_state(state, blobs)
        kind = ByteLevelTokenizer if state.get("form") == "text" else HuggingFaceTokenizer
        return kind(blobs[BLOB], end=state.get("end"), size=state.get("size"))


class ByteLevelTokenizer(HuggingFaceTokenizer):
    """A byte-level tokeniser that encodes a text with its newlines; `keeps_newlines` checks a tokenizer.json for it."""

    residue_kind: ClassVar[ResidueKind] = "nothing"
    exact = True
    form: ClassVar[str] = "text"
    ends_lines = False

    def encode(self, line: str) -> list[int]:
        try:
            ids: list[int] = self._tokenizer.encode(line, add_special_tokens=False).ids
        except TypeError:
            raise not_unicode(line) from None
        return ids

    def encode_lines(self, lines: Sequence[str]) -> Sequence[Sequence[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(lines), add_special_tokens=False)]

    def encode_block(self, block: str) -> Ids:
        return np.array(self.encode(block), np.int32)

    def text_pieces(self, text: str) -> list[str]:
        return self.written_pieces(text)

    def spans(self, text: str) -> list[Span]:
        return spans_by_bytes(text, [len(self._spelled[token]) for token in self.encode(text)])

    def decode(self, ids: Iterable[int]) -> str:
        return self.decode_bytes(ids).decode(errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return b"".join(self._spelled[int(token)] for token in ids)

    @cached_property
    def _spelled(self) -> list[bytes]:
        """The bytes of each token; an unused id has none."""
        spelled, byte_of = [b""] * self.vocab_size, byte_alphabet()
        for piece, token in self._tokenizer.get_vocab(with_added_tokens=False).items():
            spelled[token] = bytes(byte_of[letter] for letter in piece if letter in byte_of)
        for token, added in self._tokenizer.get_added_tokens_decoder().items():
            spelled[token] = added.content.encode()
        return spelled

    def lines_of(self, ids: Iterable[int]) -> Iterator[list[int]]:
        """The ids between the tokens that are a newline alone."""
        newline = self.to_id(NEWLINE)
        line: list[int] = []
        for token in ids:
            if token == newline:
                yield line
                line = []
            else:
                line.append(int(token))
        yield line

    def blocks(self, texts: Texts) -> Iterator[str]:
        """The text, cut before newlines that follow no white space: no token spans such a place."""
        held = ""
        for block in texts.strings():
            held += block
            cut = _safe_cut(held)
            if not cut and len(held) > MAX_HELD:
                cut = len(held)
            if cut:
                yield held[:cut]
                held = held[cut:]
        if held:
            yield held


def keeps_newlines(content: bytes) -> bool:
    """Whether a tokenizer.json encodes every text in bytes, newlines included, and decodes it exactly."""
    from tokenizers.pre_tokenizers import ByteLevel

    try:
        fields = json.loads(content)
        pre, vocab = fields["pre_tokenizer"] or {}, fields["model"]["vocab"]
    except (ValueError, KeyError, TypeError):
        return False
    plain = fields.get("normalizer") is None and not fields["model"].get("byte_fallback")
    usual_split = pre.get("type") == "ByteLevel" and not pre.get("add_prefix_space") and pre.get("use_regex", True)
    stripping = any(added.get("lstrip") or added.get("rstrip") for added in fields.get("added_tokens", ()))
    return plain and usual_split and not stripping and all(letter in vocab for letter in ByteLevel.alphabet())


def byte_alphabet() -> dict[str, int]:
    """The character of byte-level tokenisers for each byte -> the byte; printable bytes are their own characters.

    Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + number): byte for number, byte in enumerate(others)}


def _safe_cut(text: str) -> int:
    """The last newline that follows no white space; 0 if there is none."""
    at = text.rfind("\n")
    while at > 0 and text[at - 1].isspace():
        at = text.rfind("\n", 0, at)
    return max(0, at)


def parse_tokenizer(content: bytes) -> Any:
    """A tokenizer.json as an object of the tokenizers library; ValueError if it is none."""
    import tokenizers

    if PREFIXED.search(content):
        _check_merges(json.loads(content))
    return tokenizers.Tokenizer.from_buffer(content)


def _check_merges(values: Any) -> None:
    """Refuse merges whose second part lacks the prefix that the file states: the library would end the process."""
    model = values.get("model") if isinstance(values, dict) else None
    given = model if isinstance(model, dict) else {}
    merges, prefix = given.get("merges"), given.get("continuing_subword_prefix")
    if not isinstance(merges, list) or not isinstance(prefix, str):
        return
    for merge in merges:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if isinstance(parts, list) and len(parts) == 2 and not str(parts[1]).startswith(prefix):
            raise ValueError(f"the merge {merge} lacks the prefix {prefix!r} of its second part")


def _unusable(error: BaseException) -> BaseException:
    """A message for what the tokenizers library, in Rust, raises as a plain Exception; other errors stay themselves."""
    if type(error) is not Exception:
        return error
    return TokenizerError(f"the tokenizer.json cannot tokenise this text ({error}); save it again.")
