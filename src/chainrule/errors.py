"""The exceptions of the package.

    ChainruleError
    ├── DataError        the data is missing, empty, not UTF-8, or not in the expected format
    ├── TokenizerError   the tokeniser cannot be trained or read, or does not belong to the run
    ├── ConfigError      a name, option or combination of options is unknown or not supported
    ├── RunError         the run folder is missing, damaged, or of another kind
    └── DiskError        a file cannot be written: the disk is full or read-only

A message is one or two sentences: what was given, what was expected, what to do. The command line prints it on one line
and exits with code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ChainruleError(Exception):
    """Base class of all exceptions that this package raises."""


class DataError(ChainruleError):
    """The data is missing, empty, not UTF-8, or not in the expected format."""


class TokenizerError(ChainruleError):
    """The tokeniser cannot be trained or read, or does not belong to the run."""


class ConfigError(ChainruleError):
    """A name, option or combination of options is unknown or not supported."""


class RunError(ChainruleError):
    """A run folder is missing, damaged, or of another kind."""


class DiskError(ChainruleError):
    """A file cannot be written: the disk is full or read-only."""


def unknown_name(what: str, got: str, known: Iterable[str]) -> ConfigError:
    """The error for an unknown name; it suggests the nearest known one and lists all."""
    names = sorted(known)
    close = difflib.get_close_matches(got, names, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'?" if close else "choose one of these."
    return ConfigError(f"unknown {what} '{got}': {hint} Known: {', '.join(names)}")
