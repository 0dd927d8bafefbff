"""What can go wrong, as one tree.

    ChainruleError
    ├── DataError        the text: missing, empty, not UTF-8, not what the tokeniser expects
    ├── TokenizerError   the tokeniser: cannot be trained, read, or does not belong to the run
    ├── ConfigError      a name, option or combination that does not exist or does not fit
    ├── RunError         the run folder: missing, truncated, of another kind
    └── DiskError        the disk: full, read-only

Every message is one sentence or two for the person at the keyboard: what was got, what was expected, what to do next.
The command line prints it as one line and exits with 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ChainruleError(Exception):
    """The root of everything this package raises on purpose."""


class DataError(ChainruleError):
    """The text cannot be used as it is."""


class TokenizerError(ChainruleError):
    """The tokeniser cannot be trained, read, or used here."""


class ConfigError(ChainruleError):
    """An option, name or combination is wrong."""


class RunError(ChainruleError):
    """A run folder is missing, damaged or of another kind."""


class DiskError(ChainruleError):
    """The disk refused a write."""


def unknown_name(what: str, got: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that is not registered, with the nearest one that is."""
    names = sorted(known)
    close = difflib.get_close_matches(got, names, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'?" if close else "choose one of these."
    return ConfigError(f"unknown {what} '{got}': {hint} Known: {', '.join(names)}")
