"""The format of compressed files. All numbers are little-endian; checksums are CRC-32.

    offset  bytes  content
    0       4      "CHRL"
    4       2      version of the format: 1
    6       8      fingerprint of the model, as given by the caller
    14      8      number of bytes of the text
    22      8      number of tokens of the text
    30      4      checksum of the text
    34      4      checksum of the bytes 0 to 33
    38             the residue, a section: the part of the text that the tokens do not determine
                   the tokens, in blocks, each with
            4          checksum of the tokens of the block, as 32-bit numbers in the order of coding
                       a section

    A section is
    0       8      number of bytes of its content
    8       4      checksum of its content
    12             the content: a range code in words of four bytes

Nothing follows the last block. The checksums of header and sections detect a damaged file. The checksum of a block's
tokens detects a model whose probabilities differ from those with which the text was compressed.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from chainrule.errors import RunError

MAGIC = b"CHRL"
VERSION = 1
FINGERPRINT_BYTES = 8
_HEADER = struct.Struct("<4sH8sQQI")
_SECTION = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True)
class Header:
    """The header of a compressed file."""

    fingerprint: bytes
    bytes: int
    tokens: int
    checksum: int


def write_header(file: IO[bytes], header: Header) -> None:
    """Write the first 38 bytes."""
    data = _HEADER.pack(MAGIC, VERSION, header.fingerprint, header.bytes, header.tokens, header.checksum)
    file.write(data + _CHECKSUM.pack(zlib.crc32(data)))


def write_section(file: IO[bytes], content: bytes) -> None:
    """Write some bytes with their length and checksum."""
    file.write(_SECTION.pack(len(content), zlib.crc32(content)) + content)


def write_checksum(file: IO[bytes], checksum: int) -> None:
    """Write a checksum."""
    file.write(_CHECKSUM.pack(checksum))


class Reader:
    """Reads a compressed file from its beginning to its end; a damaged file raises RunError."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path = file, path

    def header(self) -> Header:
        """Read and check the first 38 bytes."""
        start = self._file.read(len(MAGIC))
        if start != MAGIC:
            raise RunError(
                f"'{self._path}' does not begin with CHRL: expected a file written by `chainrule compress`; give one."
            )
        data = start + self._take(_HEADER.size - len(start))
        _, version, fingerprint, size, tokens, checksum = _HEADER.unpack(data)
        if version != VERSION:
            raise RunError(
                f"'{self._path}' has format version {version}: expected {VERSION}; use the release that wrote it."
            )
        if self.checksum() != zlib.crc32(data):
            raise self._damaged(0)
        return Header(fingerprint, size, tokens, checksum)

    def checksum(self) -> int:
        """Read a checksum."""
        value: int = _CHECKSUM.unpack(self._take(_CHECKSUM.size))[0]
        return value

    def section(self) -> bytes:
        """Read and check the content of the next section."""
        place = self._file.tell()
        size, checksum = _SECTION.unpack(self._take(_SECTION.size))
        content = self._take(size)
        if zlib.crc32(content) != checksum:
            raise self._damaged(place)
        return content

    def end(self) -> None:
        """Check that nothing follows."""
        place = self._file.tell()
        if self._file.read(1):
            raise self._damaged(place)

    def _take(self, size: int) -> bytes:
        place = self._file.tell()
        left = self._path.stat().st_size - place  # checked first: a damaged size must not allocate memory
        if size > left:
            raise RunError(
                f"'{self._path}' ends too early: expected {size} bytes from byte {place} on, got {left}; copy it again."
            )
        return self._file.read(size)

    def _damaged(self, place: int) -> RunError:
        return RunError(f"'{self._path}' is damaged at byte {place} or after; copy it again.")
