"""Entropy coders with one interface, so that the same code measures, writes and reads.

    coder.code(weights_V, symbol)            one symbol; a decoder ignores the given symbol and returns the one read
    coder.code_rows(weights_NV, symbols_N)   many symbols at once

Weights are probabilities up to a factor. A code has 24 bits of precision: every symbol has a probability of at least
2**-24, so that its code is finite; `CostCoder` uses the same probabilities as the range coder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chainrule.base.arrays import Array
from chainrule.errors import DataError

FLOOR = 2.0**-24


class Coder(ABC):
    """Codes symbols 0..V-1 under given weights."""

    def code(self, weights_V: Array, symbol: int | None = None) -> int:
        """Code one symbol; return the symbol, given or read."""
        symbols_N = None if symbol is None else np.array([symbol], np.int32)
        return int(self.code_rows(weights_V[None], symbols_N)[0])

    def code_uniform(self, size: int, symbol: int | None = None) -> int:
        """Code one of `size` equally likely symbols."""
        return self.code(np.ones(size), symbol)

    @abstractmethod
    def code_rows(self, weights_NV: Array, symbols_N: Array | None = None) -> NDArray[np.int32]:
        """Code symbol n under row n, in order; return the symbols, given or read."""


class CostCoder(Coder):
    """Counts the bits that a range coder would write."""

    def __init__(self) -> None:
        self.bits = 0.0

    def code_rows(self, weights_NV: Array, symbols_N: Array | None = None) -> NDArray[np.int32]:
        if symbols_N is None:
            raise ValueError("a cost coder needs the symbols to count")
        weights_NV = np.asarray(weights_NV, np.float64)
        taken_N = weights_NV[np.arange(len(symbols_N)), symbols_N] / weights_NV.sum(-1)
        share_N = FLOOR + taken_N * (1.0 - FLOOR * weights_NV.shape[-1])
        self.bits -= float(np.log2(share_N).sum())
        return symbols_N.astype(np.int32)


class RangeEncoder(Coder):
    """Writes a range code (Martin 1979); `finish` returns the bytes."""

    def __init__(self) -> None:
        import constriction

        self._encoder = constriction.stream.queue.RangeEncoder()
        self._family = constriction.stream.model.Categorical(perfect=False)

    def code_rows(self, weights_NV: Array, symbols_N: Array | None = None) -> NDArray[np.int32]:
        if symbols_N is None:
            raise ValueError("an encoder needs the symbols to write")
        symbols = np.ascontiguousarray(symbols_N, np.int32)
        if len(symbols) and weights_NV.shape[-1] > 1:  # a symbol without an alternative needs no bits
            self._encoder.encode(symbols, self._family, _safe(weights_NV))
        return symbols

    def finish(self) -> bytes:
        """The code so far, in whole words of four bytes."""
        return bytes(self._encoder.get_compressed().astype("<u4").tobytes())


class RangeDecoder(Coder):
    """Reads the code of a `RangeEncoder`, given the same weights in the same order."""

    def __init__(self, data: bytes) -> None:
        if len(data) % 4:
            raise DataError(f"got {len(data)} coded bytes: expected a multiple of 4; the file is truncated.")
        self._data = data

    @cached_property
    def _parts(self) -> tuple[Any, Any]:
        import constriction

        words = np.frombuffer(self._data, "<u4").astype(np.uint32)
        return constriction.stream.queue.RangeDecoder(words), constriction.stream.model.Categorical(perfect=False)

    def code_rows(self, weights_NV: Array, symbols_N: Array | None = None) -> NDArray[np.int32]:
        rows, size = weights_NV.shape
        if not rows or size == 1:
            return np.zeros(rows, np.int32)
        decoder, family = self._parts
        try:
            symbols: NDArray[np.int32] = decoder.decode(family, _safe(weights_NV))
        except AssertionError as error:  # raised by the library for bytes that no encoder writes
            raise DataError(
                "the coded bytes are damaged: expected what the encoder wrote; copy the file again."
            ) from error
        return symbols


def _safe(weights_NV: Array) -> Array:
    """Contiguous floats of a width that the library accepts; done alike by encoder and decoder, so equal numbers."""
    return np.ascontiguousarray(weights_NV, np.float32 if weights_NV.dtype == np.float32 else np.float64)
