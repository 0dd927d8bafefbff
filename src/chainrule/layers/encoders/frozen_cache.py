"""The states of texts that were read before: an encoder that stays as it is says the same of a text every time.

Each text is read by itself, so what is remembered does not depend on the company it was first met in, and a training
that is taken up again finds the same to the last bit.
Legend: B batch, S tokens of a text, D width of the states.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from chainrule.types import Source

ROOM = 1 << 30
"""Bytes of states that are kept at most; texts that are met when it is full are read each time."""


class RememberedStates:
    """States by text, kept as long as there is room."""

    def __init__(self, read: Callable[[Source], Tensor], room: int = ROOM) -> None:
        """`read` makes states BSD of a source."""
        self.read, self.room = read, room
        self.kept: dict[bytes, Tensor] = {}

    def __call__(self, source: Source) -> Tensor:
        """The states of each text of a source, BSD, zeros for padding."""
        lengths = source.mask_BS.sum(1).tolist()
        return pad_sequence(
            [self._row(tokens_S[:length]) for tokens_S, length in zip(source.tokens_BS, lengths, strict=True)],
            batch_first=True,
        )

    def _row(self, tokens_S: Tensor) -> Tensor:
        key = tokens_S.numpy().tobytes()
        if (states_SD := self.kept.get(key)) is None:
            tokens_1S = tokens_S[None]
            states_SD = self.read(Source(tokens_1S, tokens_1S.new_ones(tokens_1S.shape).bool()))[0].detach()
            taken = states_SD.numel() * states_SD.element_size()
            if taken <= self.room:
                self.room -= taken
                self.kept[key] = states_SD
        return states_SD
