"""Seeded changes of files that respect their structure often enough to get past the first check."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable
from typing import Any

NUMBERS = (
    "0", "-1", "1", "2", "255", "65536", "2147483648", "-2147483649", "18446744073709551616", "99999999999999999999999",
    "1e308", "1e999", "-1e999", "nan", "inf", "-inf", "NaN", "Infinity", "0.0", "-0", "1e-320", "0x10", "1_000", "٣",
    "9" * 5000,
)  # fmt: skip
ODD = (
    "", " ", "\0", "\ufeff", "\u2028", "\u0085", "\u00a0", "\u2581", "\ud800", "\udcff", "\U0010ffff", "e\u0301",
    "\u0301" * 50,
    "<unk>", "<s>", "</s>", "[MASK]", "\r", "\t", "\n", "\x1b[31m", "'", '"', "\\", "{}", "../../x", "/dev/zero",
    "%s%n",
    "\u202e", "\U0001f469\u200d\U0001f467", "x" * 5000,
)  # fmt: skip
BYTES = (b"\xff\xfe", b"\xef\xbb\xbf", b"\0", b"\xc0\x80", b"\xed\xa0\x80", b"\r\n", b"\n", b"\t", b'"', b"\x1f\x8b")
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf"), "", "x", "\ud800", [],
    {}, [[]],
    [None], {"x": 1}, "../x", 0.5, -0.5, [1, 2], "3",
)  # fmt: skip

Mutator = Callable[[bytes, random.Random], bytes]


def mutate(data: bytes, draw: random.Random, kind: str) -> bytes:
    """Change a file of this kind in one to three places."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        data = draw.choice(KINDS[kind])(data, draw)
    return data


def _place(data: bytes, draw: random.Random) -> int:
    return draw.randint(0, max(len(data) - 1, 0))


def flip_bit(data: bytes, draw: random.Random) -> bytes:
    if not data:
        return b"\1"
    changed = bytearray(data)
    changed[_place(data, draw)] ^= 1 << draw.randint(0, 7)
    return bytes(changed)


def set_byte(data: bytes, draw: random.Random) -> bytes:
    place = _place(data, draw)
    return data[:place] + bytes([draw.choice((0, 1, 9, 10, 34, 127, 128, 255))]) + data[place + 1 :]


def truncate(data: bytes, draw: random.Random) -> bytes:
    return data[: _place(data, draw)]


def remove_span(data: bytes, draw: random.Random) -> bytes:
    place = _place(data, draw)
    return data[:place] + data[place + draw.choice((1, 2, 8, 64)) :]


def repeat_span(data: bytes, draw: random.Random) -> bytes:
    place = _place(data, draw)
    span = data[place : place + draw.choice((1, 8, 64))]
    return data[:place] + span * draw.choice((2, 3, 50)) + data[place:]


def insert_bytes(data: bytes, draw: random.Random) -> bytes:
    place = _place(data, draw)
    return data[:place] + draw.choice(BYTES) + data[place:]


def insert_text(data: bytes, draw: random.Random) -> bytes:
    place = _place(data, draw)
    return data[:place] + draw.choice(ODD).encode(errors="surrogatepass") + data[place:]


def change_lines(data: bytes, draw: random.Random) -> bytes:
    """Remove, repeat, swap or empty lines."""
    lines = data.split(b"\n")
    first, second = draw.randrange(len(lines)), draw.randrange(len(lines))
    how = draw.randrange(5)
    if how == 0:
        del lines[first]
    elif how == 1:
        lines.insert(second, lines[first])
    elif how == 2:
        lines[first], lines[second] = lines[second], lines[first]
    elif how == 3:
        lines[first] = b""
    else:
        lines[first] += draw.choice((b" ", b"\t", b"\tx", b",x", b" 1", b"\r")) + lines[second]
    return b"\n".join(lines)


def change_number(data: bytes, draw: random.Random) -> bytes:
    """Replace one number."""
    found = [one.span() for one in re.finditer(rb"-?\d+(\.\d+)?([eE][-+]?\d+)?", data)][:5000]
    if not found:
        return insert_text(data, draw)
    begin, end = draw.choice(found)
    return data[:begin] + draw.choice(NUMBERS).encode() + data[end:]


def change_word(data: bytes, draw: random.Random) -> bytes:
    """Replace a word by another of the file, or by an odd text."""
    found = [one.span() for one in re.finditer(rb"[A-Za-z_]+", data)][:5000]
    if not found:
        return insert_text(data, draw)
    (begin, end), (other, after) = draw.choice(found), draw.choice(found)
    new = data[other:after] if draw.random() < 0.5 else draw.choice(ODD).encode(errors="surrogatepass")
    return data[:begin] + new + data[end:]


def change_json(data: bytes, draw: random.Random) -> bytes:
    """Change a value, remove or rename a key, or nest deeply; a file of JSON lines is changed in one line."""
    lines = [data] if data[:1] in b"{[" and b"\n{" not in data else data.split(b"\n")
    number = draw.randrange(len(lines))
    try:
        values = json.loads(lines[number])
    except (ValueError, RecursionError):
        return flip_bit(data, draw)
    if draw.random() < 0.05:
        lines[number] = b"[" * 100_000 if draw.random() < 0.5 else b'{"x":' * 3000 + b"1" + b"}" * 3000
    else:
        values = _change_value(values, draw)
        lines[number] = json.dumps(values, ensure_ascii=draw.random() < 0.5).encode(errors="surrogatepass")
    return b"\n".join(lines)


def _change_value(values: Any, draw: random.Random, depth: int = 0) -> Any:
    """Go down to a random place and change it."""
    if isinstance(values, dict) and values and draw.random() < 0.9:
        key = draw.choice(list(values))
        how = draw.random()
        if how < 0.15:
            return {name: value for name, value in values.items() if name != key}
        if how < 0.25:
            return {(draw.choice(ODD) if name == key else name): value for name, value in values.items()}
        return {**values, key: _change_value(values[key], draw, depth + 1)}
    if isinstance(values, list) and values and draw.random() < 0.9:
        place = draw.randrange(len(values))
        how = draw.random()
        if how < 0.2:
            return values[:place] + values[place + 1 :]
        if how < 0.4:
            return [*values, values[place]]
        return [*values[:place], _change_value(values[place], draw, depth + 1), *values[place + 1 :]]
    return draw.choice(VALUES)


def change_tensors(data: bytes, draw: random.Random) -> bytes:
    """Change the header of a safetensors file, with a fitting or a wrong length, or its values."""
    if len(data) < 10:
        return flip_bit(data, draw)
    length = struct.unpack("<Q", data[:8])[0]
    header, body = data[8 : 8 + length], data[8 + length :]
    how = draw.random()
    if how < 0.2:
        wrong = draw.choice((0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1))
        return struct.pack("<Q", wrong % 2**64) + header + body
    if how < 0.7:
        header = draw.choice((change_json, change_number, change_word))(header, draw)
        header += b" " * (-len(header) % 8)
        return struct.pack("<Q", len(header)) + header + body
    odd = draw.choice((float("nan"), float("inf"), 1e38))
    place = 4 * draw.randrange(max(len(body) // 4, 1))
    return data[: 8 + length] + body[:place] + struct.pack("<f", odd) + body[place + 4 :]


BINARY: tuple[Mutator, ...] = (flip_bit, flip_bit, set_byte, truncate, remove_span, repeat_span, insert_bytes)
LINES: tuple[Mutator, ...] = (
    change_lines,
    change_lines,
    change_number,
    change_word,
    insert_text,
    insert_bytes,
    *BINARY,
)
KINDS: dict[str, tuple[Mutator, ...]] = {
    "binary": BINARY,
    "lines": LINES,
    "json": (*(change_json,) * 6, change_number, change_word, *LINES),
    "tensors": (*(change_tensors,) * 4, *BINARY),
}
