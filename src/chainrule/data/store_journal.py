"""Pieces of a token store that is being written, so that a first pass over a large text that is killed resumes.

    cache/.<key>.pieces/N   the ids of the blocks 64 N to 64 N + 63 as in tokens.bin, and the CRC-32 of these bytes

The ids of a piece depend on the text and the tokeniser alone, which the key names, so several processes may write and
read the same pieces. They are deleted with the last one. A piece that is missing or damaged is encoded again.
"""

from __future__ import annotations

import contextlib
import shutil
import zlib
from pathlib import Path

from chainrule.base.files import write_atomically
from chainrule.errors import DiskError

PIECE_BLOCKS = 64
"""Blocks of half a MiB of text per piece."""

LARGE = 1 << 26
"""Bytes of a text from which its pieces are kept."""

PATTERN = ".*.pieces"


class Journal:
    """The pieces of one store."""

    def __init__(self, store: Path) -> None:
        self.folder = store.with_name(f".{store.name}.pieces")

    def read(self, number: int) -> bytes | None:
        """The bytes of a piece; None: it is missing or damaged."""
        try:
            content = (self.folder / str(number)).read_bytes()
        except OSError:
            return None
        data = content[:-4]
        return data if content[-4:] == _checksum(data) and data else None

    def write(self, number: int, data: bytes) -> None:
        """Keep a piece. Without it the store is complete too, so a full disk is no error here."""
        with contextlib.suppress(OSError, DiskError):
            self.folder.mkdir(exist_ok=True)
            write_atomically(self.folder / str(number), data + _checksum(data))

    def delete(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _checksum(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "little")
