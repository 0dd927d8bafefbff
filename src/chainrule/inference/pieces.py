"""Text that grows token by token after a prompt: its pieces, and the token that ends it."""

from __future__ import annotations

from collections.abc import Sequence

from chainrule.text.tokenizers import Tokenizer

CONTEXT = 8
"""Tokens that decide how the next one is written: whether a space precedes it, and which character its bytes end."""


class TextPieces:
    """The text of tokens that come one by one, in pieces of whole characters."""

    def __init__(self, tokenizer: Tokenizer, line: Sequence[int] = ()) -> None:
        """`line` has the tokens of the unfinished line that the text continues."""
        self._tokenizer, self._line = tokenizer, list(line)
        self._shown = tokenizer.decode(self._line)

    def feed(self, token: int) -> str:
        """Append a token -> the text that is now complete; empty while a character is unfinished."""
        self._line.append(token)
        text, piece = self._tokenizer.decode(self._line), ""
        if text.startswith(self._shown) and not text.endswith("\ufffd") and text != self._shown:
            piece, self._shown = text[len(self._shown) :], text
            if len(self._line) >= 2 * CONTEXT:  # a long line is not decoded again for each token
                self._line = self._line[-CONTEXT:]
                self._shown = self._tokenizer.decode(self._line)
        if token == self._tokenizer.eos:
            self._line, self._shown = [], ""
        return piece

    def feed_all(self, tokens: Sequence[int]) -> str:
        """Append several tokens -> the text that is now complete, each line decoded once."""
        ends = [place for place, token in enumerate(tokens, 1) if token == self._tokenizer.eos]
        pieces = []
        for begin, end in zip([0, *ends], [*ends, len(tokens)], strict=True):
            if begin < end:
                self._line += tokens[begin : max(begin, end - CONTEXT)]
                pieces += [self.feed(token) for token in tokens[max(begin, end - CONTEXT) : end]]
        return "".join(pieces)


def last_line(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[int]:
    """The tokens after the last eos."""
    last = next((index for index in range(len(tokens) - 1, -1, -1) if tokens[index] == tokenizer.eos), -1)
    return list(tokens[last + 1 :])


def end_token(tokenizer: Tokenizer, stop_at_eos: bool | None) -> int | None:
    """The token that ends a generated text; None: no token does.

    Lines of words are sentences, so generation ends with one; elsewhere a newline is a character like others. An `eos`
    that is not the newline ends the whole text.
    """
    if stop_at_eos is None:
        stop_at_eos = tokenizer.word_tokens or not tokenizer.ends_lines
    return tokenizer.eos if stop_at_eos else None
