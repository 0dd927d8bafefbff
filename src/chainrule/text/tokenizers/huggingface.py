"""Any Hugging Face `tokenizer.json`, by the tokenizers library. What it loses of a line counts as residue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from chainrule.errors import ConfigError, TokenizerError
from chainrule.registry import TOKENIZERS
from chainrule.text.readers import Texts
from chainrule.text.tokenizers.base import Remainder, Tokenizer

BLOB = "tokenizer.hf.json"
END_TOKENS = ("</s>", "<|endoftext|>", "[SEP]", "<eos>")


@TOKENIZERS.register("huggingface", about="any Hugging Face tokenizer.json file")
class HuggingFaceTokenizer(Tokenizer):
    """Its own end token is eos; where it has none, `<eos>` is added."""

    kind = "huggingface"
    remainder: ClassVar[Remainder] = "lines"
    exact = False

    def __init__(self, content: bytes) -> None:
        import tokenizers

        self._content = content
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
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def _end(self) -> int:
        known = [token for token in END_TOKENS if self._tokenizer.token_to_id(token) is not None]
        if not known:
            self._tokenizer.add_special_tokens([END_TOKENS[-1]])
        end: int = self._tokenizer.token_to_id(known[0] if known else END_TOKENS[-1])
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
        return {}

    def blobs(self) -> dict[str, bytes]:
        return {BLOB: self._content}

    @classmethod
    def from_state(cls, state: dict[str, Any], blobs: dict[str, bytes]) -> Self:
        return cls(blobs[BLOB])
