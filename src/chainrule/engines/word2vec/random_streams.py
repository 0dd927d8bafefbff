"""Random numbers for the kernels: splitmix64 (Steele et al. 2014), where draw n is a hash of the stream's start and n.

Each thread has three streams: which words are kept, how far contexts reach, and which words are negative. Separate
streams allow the kernels to draw negative words ahead of their use.
"""

from __future__ import annotations

import numpy as np
from numba import njit

FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}
inlined = njit(forceinline=True, fastmath=FAST_MATH)

INCREMENT, FIRST_FACTOR, SECOND_FACTOR = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
LOW_HALF = np.uint64(0xFFFFFFFF)
KEEP_STREAM, REACH_STREAM, NEGATIVE_STREAM = 0, 1, 2


@inlined
def hash_bits(number):  # type: ignore[no-untyped-def]
    number = (number ^ (number >> np.uint64(30))) * FIRST_FACTOR
    number = (number ^ (number >> np.uint64(27))) * SECOND_FACTOR
    return number ^ (number >> np.uint64(31))


@inlined
def start_streams(seed):  # type: ignore[no-untyped-def]
    """The states of the three streams, uint64."""
    streams = np.empty(3, np.uint64)
    for stream in range(3):
        streams[stream] = hash_bits(seed + np.uint64(stream + 1) * INCREMENT)
    return streams


@inlined
def draw(streams, stream):  # type: ignore[no-untyped-def]
    """The next 64 bits of a stream."""
    streams[stream] += INCREMENT
    return hash_bits(streams[stream])


@inlined
def draw_below(bits, count):  # type: ignore[no-untyped-def]
    """A number from 0 to count - 1 from the upper half of a draw."""
    return ((bits >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)


@inlined
def draw_negative(streams, aliases_V):  # type: ignore[no-untyped-def]
    """A negative word from an alias table: an entry, then its own word or its alias."""
    bits = draw(streams, NEGATIVE_STREAM)
    place = draw_below(bits, len(aliases_V))
    entry = aliases_V[place]
    return np.int64(place) if (bits & LOW_HALF) < (entry >> np.uint64(32)) else np.int64(entry & LOW_HALF)
