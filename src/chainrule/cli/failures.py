"""What ends a command: every foreseeable error is one line with an exit code, anything else a report of a bug.

2    a mistake in what was given, or not enough memory for it
1    a file or a stream cannot be read or written
70   a bug: the report is in a file that the message names
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
import traceback
from typing import Any

from chainrule.errors import ChainruleError

BUG = 70
"""Exit code of a bug, EX_SOFTWARE of sysexits.h."""

MEMORY = ("allocate memory", "out of memory", "not enough memory", "Storage size calculation overflowed", "overflow")
"""Parts of the messages with which torch reports that a size is too large."""

UNMAPPED = "failed to map segment"
"""Part of the message of a library that there is no memory to load."""


def describe(error: BaseException) -> tuple[str, int] | None:
    """The message and the exit code of a foreseeable error; None for a bug."""
    if isinstance(error, ChainruleError):
        return str(error), 2
    if isinstance(error, UnicodeError):
        return "the text contains bytes that are not UTF-8; convert it first: iconv -f latin1 -t utf-8", 2
    if isinstance(error, OSError):
        return _describe_system_error(error), 1
    if isinstance(error, RecursionError):
        return "the data or an option is nested too deeply; give one with fewer levels", 2
    torch_memory = isinstance(error, RuntimeError) and any(part in str(error) for part in MEMORY)
    unmapped = isinstance(error, ImportError) and UNMAPPED in str(error)
    if isinstance(error, MemoryError | OverflowError) or torch_memory or unmapped:
        return "there is not enough memory for a model or data of this size; choose smaller sizes", 2
    return None


def _describe_system_error(error: OSError) -> str:
    name = error.filename if error.filename is not None else "the output"
    reason = error.strerror or str(error) or type(error).__name__
    advice = {
        errno.ENOSPC: "free some space and rerun the command",
        errno.EDQUOT: "free some space and rerun the command",
        errno.EMFILE: "raise the limit of open files with ulimit -n",
        errno.ENOENT: "check the name",
        errno.EISDIR: "give a file",
        errno.ENOTDIR: "check the name",
    }.get(error.errno or 0, "check the name and the permissions")
    return f"cannot read or write {_printable(name)} ({reason}); {advice}"


def _printable(name: Any) -> str:
    return os.fsencode(name).decode(errors="replace") if isinstance(name, str | bytes) else str(name)


def report_bug(error: BaseException) -> str:
    """Write what is needed to find a bug to a file -> the message that names the file."""
    text = "".join(traceback.format_exception(error))
    content = f"chainrule {' '.join(sys.argv[1:])}\nPython {sys.version}\n\n{text}"
    place = None
    for folder in (tempfile.gettempdir(), os.getcwd()):
        with contextlib.suppress(OSError):
            number, place = tempfile.mkstemp(prefix="chainrule-bug-", suffix=".txt", dir=folder)
            with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(content)
            break
    report = f"please send {place} to the authors" if place else "no report could be written"
    short = str(error).partition("\n")[0][:200]
    return f"this is a bug ({type(error).__name__}: {short}); {report}"


def open_missing_streams() -> None:
    """Give a process that was started without standard streams empty ones, so that no file takes their numbers."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def print_failure(message: str) -> None:
    """Print one line on standard error, and drop what standard output cannot take."""
    with contextlib.suppress(OSError):
        line = " ".join(message.split("\n"))
        print(f"chainrule: {line}".encode(errors="backslashreplace").decode(), file=sys.stderr, flush=True)
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
