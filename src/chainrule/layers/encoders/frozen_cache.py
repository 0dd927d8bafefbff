"""A cache of the states of a frozen encoder, which are the same for a text every time it is read.

Each text is read separately, so its states do not depend on the batch it was first in, and a resumed training gets the
same states to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from chainrule.types import Source

CAPACITY = 1 << 30
"""Largest total size of the cached states in bytes; when it is reached, further texts are read every time."""


class FrozenStateCache:
    """States by text, as long as there is room."""

    def __init__(self, read: Callable[[Source, Tensor | None], Tensor], capacity: int = CAPACITY) -> None:
        """`read` computes the states BSD of a source, whose tokens may have types."""
        self.read, self.free = read, capacity
        self.states: dict[bytes, Tensor] = {}

    def __call__(self, source: Source, types_BS: Tensor | None = None) -> Tensor:
        """The states of each text of a source, BSD, zeros for padding."""
        lengths = source.mask_BS.sum(1).tolist()
        texts = [tokens_S[:length] for tokens_S, length in zip(source.tokens_BS, lengths, strict=True)]
        if types_BS is None:
            return pad_sequence([self._read_text(tokens_S, None) for tokens_S in texts], batch_first=True)
        types = [types_S[:length] for types_S, length in zip(types_BS, lengths, strict=True)]
        return pad_sequence(list(map(self._read_text, texts, types)), batch_first=True)

    def _read_text(self, tokens_S: Tensor, types_S: Tensor | None) -> Tensor:
        key = tokens_S.numpy().tobytes() + (b"" if types_S is None else types_S.numpy().tobytes())
        if (states_SD := self.states.get(key)) is None:
            tokens_1S = tokens_S[None]
            source = Source(tokens_1S, tokens_1S.new_ones(tokens_1S.shape).bool())
            states_SD = self.read(source, None if types_S is None else types_S[None])[0].detach()
            size = states_SD.numel() * states_SD.element_size()
            if size <= self.free:
                self.free -= size
                self.states[key] = states_SD
        return states_SD
