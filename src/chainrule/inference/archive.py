"""The format of compressed files. All numbers are little-endian; checksums are CRC-32.

    offset  bytes  content
    0       4      "CHRL"
    4       2      version of the format: 2
    6       8      fingerprint of the model, as given by the caller
    14      8      number of bytes of the text
    22      8      number of tokens of the text
    30      4      checksum of the text
    34      4      checksum of the bytes 0 to 33
    38             what decompressing needs, a section: a JSON object (not in version 1)
                   the residue, a section: the part of the text that the tokens do not determine
                   the tokens, in blocks, each with
            4          checksum of the tokens of the block, as 32-bit numbers in the order of coding
                       a section

    A section is
    0       8      number of bytes of its content
    8       4      checksum of its content
    12             the content; residue and tokens are range codes in words of four bytes

Nothing follows the last block. The checksums of header and sections detect a damaged file. The checksum of a block's
tokens detects a model whose probabilities differ from those with which the text was compressed.
"""

from __future__ import annotations

import json
import platform
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from chainrule.errors import RunError

MAGIC = b"CHRL"
VERSION, VERSION_WITHOUT_NEEDS = 2, 1
FINGERPRINT_BYTES = 8
MAX_SIZE = 1 << 48
"""The most bytes and tokens that a header may state."""
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


@dataclass(frozen=True)
class Needs:
    """What a computer must have to compute the probabilities of the archive. Threads do not matter."""

    portable: bool = False  # computed reproducibly: any CPU will do
    cpu: str = ""  # the vector instructions that torch used; empty: any, or not known
    torch: str = ""
    chainrule: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)  # options of the model that no weight depends on

    @classmethod
    def here(cls, *, portable: bool, settings: Mapping[str, Any] | None = None) -> Needs:
        """The needs of an archive that is written on this computer."""
        options = dict(settings or {})
        if portable:
            return cls(portable=True, settings=options)
        return cls(False, _capability(), metadata.version("torch"), metadata.version("chainrule"), options)

    def differences(self) -> list[str]:
        """What this computer has instead, for example "torch 2.12.0 (here 2.13.0)"."""
        if self.portable:
            return []
        here = asdict(Needs.here(portable=False))
        found = {name: getattr(self, name) for name in ("cpu", "torch", "chainrule") if getattr(self, name)}
        return [f"{name} {value} (here {here[name]})" for name, value in found.items() if value != here[name]]


def _capability() -> str:
    """The CPU and its vector instructions, for example "x86_64 AVX2"."""
    import torch

    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def write_header(file: IO[bytes], header: Header, needs: Needs) -> None:
    """Write the first 38 bytes and the needs."""
    data = _HEADER.pack(MAGIC, VERSION, header.fingerprint, header.bytes, header.tokens, header.checksum)
    file.write(data + _CHECKSUM.pack(zlib.crc32(data)))
    stated = {name: value for name, value in asdict(needs).items() if value}
    write_section(file, json.dumps(stated, separators=(",", ":")).encode())


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

    def header(self) -> tuple[Header, Needs]:
        """Read and check the first 38 bytes and the needs."""
        start = self._file.read(len(MAGIC))
        if start != MAGIC:
            raise RunError(
                f"'{self._path}' does not begin with CHRL: expected a file written by `chainrule compress`; give one."
            )
        data = start + self._take(_HEADER.size - len(start))
        _, version, fingerprint, size, tokens, checksum = _HEADER.unpack(data)
        if version not in (VERSION, VERSION_WITHOUT_NEEDS):
            raise RunError(
                f"'{self._path}' has format version {version}: expected 1 to {VERSION}; use the release that wrote it."
            )
        if self.checksum() != zlib.crc32(data) or max(size, tokens) > MAX_SIZE:
            raise self._damaged(0)
        needs = Needs() if version == VERSION_WITHOUT_NEEDS else self._needs()
        return Header(fingerprint, size, tokens, checksum), needs

    def _needs(self) -> Needs:
        place = self._file.tell()
        try:
            return Needs(**json.loads(self.section()))
        except (ValueError, TypeError):  # not JSON, or not these fields
            raise self._damaged(place) from None

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
