"""Arrays in a file: memory-mapped reading, exchange with the safetensors library, and damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from chainrule.base.arrays import DTYPES, PIECE, Array, open_arrays, write_arrays
from chainrule.errors import RunError


def one_of_each() -> dict[str, Array]:
    """Every dtype at its limits, in an order that would leave wide ones unaligned."""
    arrays: dict[str, Array] = {}
    for name, code in reversed(DTYPES.items()):
        dtype = np.dtype(code)
        limits = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
        arrays[name] = np.array([limits.min, 0, limits.max], dtype)
        arrays[f"no {name}"] = np.empty(0, dtype)
    return arrays | {"table": np.arange(6, dtype=np.float32).reshape(2, 3), "flat": np.zeros((4, 0), np.uint8)}


def assert_same(found: dict[str, Array], want: dict[str, Array]) -> None:
    assert set(found) == set(want)
    for name, array in want.items():
        assert found[name].dtype == array.dtype, name
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_every_dtype_is_restored(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a", one_of_each(), {"what": "Ärrays"})
    found, metadata = open_arrays(tmp_path / "a")
    assert_same(found, one_of_each())
    assert metadata == {"what": "Ärrays"}


def test_safetensors_reads_the_file(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a", one_of_each(), {"what": "Ärrays"})
    assert_same(load_file(tmp_path / "a"), one_of_each())
    with safe_open(tmp_path / "a", "np") as file:
        assert file.metadata() == {"what": "Ärrays"}


def test_files_of_safetensors_are_read(tmp_path: Path) -> None:
    save_file(one_of_each(), tmp_path / "a")
    found, metadata = open_arrays(tmp_path / "a")
    assert_same(found, one_of_each())
    assert metadata == {}


def test_arrays_are_memory_mapped(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a", one_of_each(), {})
    found, _ = open_arrays(tmp_path / "a")
    for name, array in found.items():
        assert isinstance(array, np.memmap) == (array.size > 0), name
        assert array.flags.aligned, name
    mapped = found["U16"]
    assert not mapped.flags.writeable
    with (tmp_path / "a").open("r+b") as file:  # a copy would not see this
        file.seek(mapped.offset)  # type: ignore[attr-defined]
        file.write(np.array([7], "<u2").tobytes())
    assert mapped.tolist() == [7, 0, 65535]


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.tuples(st.sampled_from([*DTYPES]), st.integers(0, 9)), max_size=9), name=st.text(max_size=9))
def test_any_set_of_arrays_is_aligned(tmp_path_factory: pytest.TempPathFactory, sizes: Any, name: str) -> None:
    arrays = {f"{name}{place}": np.arange(size).astype(DTYPES[kind]) for place, (kind, size) in enumerate(sizes)}
    path = tmp_path_factory.mktemp("arrays") / "a"
    write_arrays(path, arrays, {"name": name})
    found, _ = open_arrays(path)
    assert_same(found, arrays)
    for array in found.values():
        assert array.size == 0 or array.offset % array.itemsize == 0  # type: ignore[attr-defined]


def test_large_strided_and_mapped_arrays_are_written_piece_by_piece(tmp_path: Path) -> None:
    long = np.arange(PIECE + 5, dtype=np.uint8)
    write_arrays(tmp_path / "a", {"long": long, "odd": np.arange(20, dtype=np.int32)[1::2]}, {})
    found, _ = open_arrays(tmp_path / "a")
    write_arrays(tmp_path / "b", found, {})
    assert_same(open_arrays(tmp_path / "b")[0], {"long": long, "odd": np.arange(1, 20, 2, dtype=np.int32)})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# Damage


def with_header(header: Any, data: bytes = b"\0" * 8) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


FOREIGN = {
    "empty": b"",
    "less than a length": b"\1\0\0",
    "a length and nothing": (99).to_bytes(8, "little"),
    "text": b"the quick brown fox jumps over the lazy dog\n" * 3,
    "no JSON": with_header(b"{'a'}"),
    "no UTF-8": with_header(b'{"\xff": 1}'),
    "a list": with_header([1, 2]),
    "a number": with_header({"a": 1}),
    "no offsets": with_header({"a": {"dtype": "U8", "shape": [8]}}),
    "an unknown dtype": with_header({"a": {"dtype": "Q3", "shape": [8], "data_offsets": [0, 8]}}),
    "a shape that is not as long": with_header({"a": {"dtype": "U32", "shape": [3], "data_offsets": [0, 8]}}),
    "a negative place": with_header({"a": {"dtype": "U8", "shape": [99], "data_offsets": [-91, 8]}}),
    "data beyond the last": with_header({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(RunError) as caught:
        open_arrays(path)
    assert str(caught.value) == f"{path} is damaged; restore it, or delete it and rerun the same train command"


def test_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    write_arrays(tmp_path / "whole", {"a": np.arange(9, dtype=np.uint16), "b": np.arange(3.0)}, {"of": "mine"})
    whole, path = (tmp_path / "whole").read_bytes(), tmp_path / "cut"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(RunError, match=r"cut is damaged; restore it, or delete it and rerun"):
            open_arrays(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        open_arrays(tmp_path / "model.safetensors")
    assert str(caught.value) == f"{tmp_path} has no model yet; rerun the command that creates it"
