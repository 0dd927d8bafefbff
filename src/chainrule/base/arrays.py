"""Named arrays in one file in safetensors format, written in pieces and memory-mapped for reading.

8 bytes     the length of the header, little-endian
header      JSON: {"name": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}, …, "__metadata__": {…}}, spaces
data        the arrays one after the other, the widest numbers first, so that all are aligned
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from chainrule.base.files import file_atomically
from chainrule.errors import RunError

Array = np.ndarray[Any, Any]

DTYPES = {
    "F64": "<f8",
    "I64": "<i8",
    "U64": "<u8",
    "F32": "<f4",
    "I32": "<i4",
    "U32": "<u4",
    "U16": "<u2",
    "I8": "|i1",
    "U8": "|u1",
}
NAMES = {np.dtype(code): name for name, code in DTYPES.items()}
PIECE = 1 << 20


def write_arrays(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Write arrays, which may be memory-mapped, without holding a copy."""
    ordered = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, array in ordered:
        header[name] = {
            "dtype": NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with file_atomically(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in ordered:
            flat = array.reshape(-1)
            for begin in range(0, len(flat), PIECE):
                file.write(np.ascontiguousarray(flat[begin : begin + PIECE]).data)


def open_arrays(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the arrays of a file, memory-mapped read-only, and its metadata."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length) if length <= size - 8 else b"")
        metadata = header.pop("__metadata__", {})
        if max((about["data_offsets"][1] for about in header.values()), default=0) != size - 8 - length:
            raise ValueError("the length of the data differs from the header")
        arrays = {name: _map(path, 8 + length, about) for name, about in header.items()}
    except FileNotFoundError:
        raise RunError(f"{path.parent} has no model yet; rerun the command that creates it") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunError(f"{path} is damaged; restore it, or delete it and rerun the same train command") from None
    return arrays, metadata


def _map(path: Path, start: int, about: dict[str, Any]) -> Array:
    dtype, shape = np.dtype(DTYPES[about["dtype"]]), tuple(about["shape"])
    begin, end = about["data_offsets"]
    if begin < 0 or end - begin != dtype.itemsize * int(np.prod(shape)):
        raise ValueError("the length of an array differs from its shape")
    if begin == end:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", start + begin, shape)
