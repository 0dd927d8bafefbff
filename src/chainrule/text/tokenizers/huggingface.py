"""Tokenisers of Hugging Face folders: any `tokenizer.json`, by the tokenizers library.

`HuggingFaceTokenizer` takes a text line by line as all others do: its end token is the newline, and what it loses of a
line counts as residue. `TextTokenizer` is for byte-level tokenisers that have a token for the newline, such as that of
GPT-2: a text becomes exactly the tokens that the tokenizers library gives for it, newlines among them, nothing is lost,
and the end token stands before a text alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from chainrule.errors import ConfigError, TokenizerError
from chainrule.registry import TOKENIZERS
from chainrule.text.readers import Texts
from chainrule.text.tokenizers.base import Ids, Remainder, Tokenizer

BLOB = "tokenizer.hf.json"
END_TOKENS = ("</s>", "<|endoftext|>", "[SEP]", "<eos>")
NEWLINE = "Ċ"
"""The newline as byte-level tokenisers write it."""

LONGEST_HELD = 1 << 24
"""Characters without such a place to cut at, after which a text is cut anywhere."""


@TOKENIZERS.register("huggingface", about="any Hugging Face tokenizer.json file")
class HuggingFaceTokenizer(Tokenizer):
    """Its own end token is eos; where it has none, `<eos>` is added."""

    kind = "huggingface"
    remainder: ClassVar[Remainder] = "lines"
    exact = False
    form: ClassVar[str] = "lines"

    def __init__(self, content: bytes, *, end: str | None = None, size: int | None = None) -> None:
        """`end` names the end token if it is none of the usual ones; `size` is that of a model with ids to spare."""
        import tokenizers

        self.content, self._named_end, self._size = content, end, size
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_buffer(content)
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
        return unk

    @classmethod
    def from_file(cls, path: Path) -> Self:
        return cls(path.read_bytes())

    @classmethod
    def train(cls, texts: Texts, *, vocab_size: int | None, min_count: int, **options: Any) -> Self:
        raise ConfigError("the huggingface tokeniser comes from a file: give the path of a tokenizer.json.")

    def encode(self, line: str) -> list[int]:
        return self._without_eos(self._tokenizer.encode(line, add_special_tokens=False))

    def encode_lines(self, lines: Sequence[str]) -> Sequence[Sequence[int]]:
        encodings = self._tokenizer.encode_batch_fast(list(lines), add_special_tokens=False)
        return [self._without_eos(encoding) for encoding in encodings]

    def _without_eos(self, encoding: Any) -> list[int]:
        """The end token written out in a line is no end of a line: it is left out, and so left to the residue."""
        ids: list[int] = encoding.ids
        return [token for token in ids if token != self.eos] if self.eos in ids else ids

    def decode(self, ids: Iterable[int]) -> str:
        return "\n".join(self._tokenizer.decode(line, skip_special_tokens=False) for line in self.lines_of(ids))

    def piece(self, token: int) -> str:
        shown: str | None = self._tokenizer.id_to_token(token)
        return f"<{token}>" if shown is None else shown

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
        kind = TextTokenizer if state.get("form") == "text" else HuggingFaceTokenizer
        return kind(blobs[BLOB], end=state.get("end"), size=state.get("size"))


class TextTokenizer(HuggingFaceTokenizer):
    """A byte-level tokeniser that takes a text whole: `keeps_newlines` says of which tokenizer.json one can be made."""

    remainder: ClassVar[Remainder] = "nothing"
    exact = True
    form: ClassVar[str] = "text"
    ends_lines = False

    def encode(self, line: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(line, add_special_tokens=False).ids
        return ids

    def encode_lines(self, lines: Sequence[str]) -> Sequence[Sequence[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(lines), add_special_tokens=False)]

    def encode_block(self, block: str) -> Ids:
        return np.array(self.encode(block), np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        return self.decode_bytes(ids).decode(errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return b"".join(self._spelled[int(token)] for token in ids)

    @cached_property
    def _spelled(self) -> list[bytes]:
        """The bytes that each token stands for; ids that nothing has stand for none."""
        spelled, signs = [b""] * self.vocab_size, byte_signs()
        for piece, token in self._tokenizer.get_vocab(with_added_tokens=False).items():
            spelled[token] = bytes(signs[sign] for sign in piece if sign in signs)
        for token, added in self._tokenizer.get_added_tokens_decoder().items():
            spelled[token] = added.content.encode()
        return spelled

    def lines_of(self, ids: Iterable[int]) -> Iterator[list[int]]:
        """The ids between the newlines that have a token for themselves."""
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
        """The text cut before newlines that follow no white space, where no token reaches across."""
        held = ""
        for block in texts.strings():
            held += block
            cut = _seam(held)
            if not cut and len(held) > LONGEST_HELD:
                cut = len(held)
            if cut:
                yield held[:cut]
                held = held[cut:]
        if held:
            yield held


def keeps_newlines(content: bytes) -> bool:
    """Whether a tokenizer.json spells every text in bytes, newlines too, and gives it back as it was."""
    from tokenizers.pre_tokenizers import ByteLevel

    try:
        told = json.loads(content)
        pre, vocab = told["pre_tokenizer"] or {}, told["model"]["vocab"]
    except (ValueError, KeyError, TypeError):
        return False
    plain = told.get("normalizer") is None and not told["model"].get("byte_fallback")
    cut_as_usual = pre.get("type") == "ByteLevel" and not pre.get("add_prefix_space") and pre.get("use_regex", True)
    stripping = any(added.get("lstrip") or added.get("rstrip") for added in told.get("added_tokens", ()))
    return plain and cut_as_usual and not stripping and all(sign in vocab for sign in ByteLevel.alphabet())


def byte_signs() -> dict[str, int]:
    """The sign that byte-level tokenisers write for each byte -> the byte: itself if it can be seen, else a later one.

    Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
    """
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + number): byte for number, byte in enumerate(hidden)}


def _seam(text: str) -> int:
    """The last newline that follows no white space; 0 if there is none."""
    at = text.rfind("\n")
    while at > 0 and text[at - 1].isspace():
        at = text.rfind("\n", 0, at)
    return max(0, at)
