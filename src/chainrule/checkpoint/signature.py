"""The file `signature` of a run: data, tokenisers, seed, versions and checksums, one `name: value` per line."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

from chainrule.base.files import write_atomically
from chainrule.errors import RunError

CHECKSUMS = ("weights", "weights_before", "configuration", "configuration_before")
"""Lines that are written together with the files they describe."""

IDENTITY = ("data", "valid", "tokenizer", "source_tokenizer")
"""Lines with the fingerprints of tokenisers, and of data in their tokens."""

BEFORE = "_before"
"""Ends the name of the line with the previous value while a file is replaced."""


class Signature:
    """Reads and writes the lines of one signature."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "signature"

    def read(self) -> dict[str, str]:
        """The lines by name."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
            return dict(line.split(": ", 1) for line in lines)
        except FileNotFoundError:
            raise RunError(f"{self.path.parent} has no signature: its training never began; train it again") from None
        except ValueError:  # not UTF-8, or a line without a name
            raise RunError(
                f"{self.path} is damaged; restore the file, or delete it to load the run unchecked"
            ) from None

    def lines(self) -> dict[str, str]:
        """The lines by name; none if there is no file."""
        return self.read() if self.path.exists() else {}

    def begin(self, given: dict[str, str]) -> None:
        """Write data, tokeniser and seed as given, and the versions of the libraries.

        Another tokeniser than before is written next, so a kill in between leaves the old one, which is named too.
        """
        versions = {name: metadata.version(name) for name in ("chainrule", "torch", "numpy")}
        before = self.lines()
        kept = {name: value for name, value in before.items() if name in CHECKSUMS}
        for name in IDENTITY:
            if earlier := before.get(name) if before.get(name) != given.get(name) else before.get(name + BEFORE):
                kept[name + BEFORE] = earlier
        self._write({**given, **versions, "python": platform.python_version(), **kept})

    def forget_tokenizers(self) -> None:
        """Note that the tokenisers of the signature are written."""
        lines = self.lines()
        kept = {name: value for name, value in lines.items() if name.removesuffix(BEFORE) not in IDENTITY}
        kept |= {name: lines[name] for name in IDENTITY if name in lines}
        if len(kept) < len(lines):
            self._write({name: kept[name] for name in lines if name in kept})

    def record(self, checksums: dict[str, str]) -> None:
        """Set checksums."""
        before = self.lines()
        if any(before.get(name) != value for name, value in checksums.items()):
            self._write({**before, **checksums})

    def _write(self, lines: dict[str, str]) -> None:
        write_atomically(self.path, "".join(f"{key}: {value}\n" for key, value in lines.items()))
