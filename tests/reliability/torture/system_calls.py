"""Fault injection below Python: a child process stops at each system call that changes a file below a folder.

The kernel asks a supervisor before each of them (seccomp, user notification), so compiled libraries and threads are
covered too. The supervisor lets the call happen, lets it fail, or kills the child. Linux on x86-64 only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import select
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from torture.processes import HANG, Child

Answer = Callable[[int, str], int | None]
"""The number and the name of a call -> 0: it happens, an error number: it fails, None: the child is killed."""

ACCESS = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CALLS: dict[int, tuple[str, tuple[str, ...]]] = {
    257: ("open", ("folder", "path")),
    1: ("write", ("file",)),
    18: ("write", ("file",)),
    20: ("write", ("file",)),
    326: ("write", ("", "", "file")),  # copy_file_range
    40: ("write", ("file",)),  # sendfile
    74: ("fsync", ("file",)),
    75: ("fsync", ("file",)),
    77: ("truncate", ("file",)),
    285: ("allocate", ("file",)),
    82: ("rename", ("path",)),
    264: ("rename", ("folder", "path")),
    316: ("rename", ("folder", "path")),
    83: ("mkdir", ("path",)),
    258: ("mkdir", ("folder", "path")),
    84: ("rmdir", ("path",)),
    87: ("unlink", ("path",)),
    263: ("unlink", ("folder", "path")),
    86: ("link", ("", "path")),
    265: ("link", ("", "", "folder", "path")),
    88: ("link", ("", "path")),
    266: ("link", ("", "folder", "path")),
    90: ("chmod", ("path",)),
    91: ("chmod", ("file",)),
}
"""By number: the name, and what the arguments mean that say where the call writes."""

NOTIFICATION, RESPONSE = struct.Struct("<QIIiIQ6Q"), struct.Struct("<QqiI")
RECEIVE, SEND, CONTINUE = 0xC0502100, 0xC0182101, 1
AT_FDCWD = 0xFFFFFF9C


def supported() -> bool:
    """Whether this machine can supervise system calls."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and _notifications()


def _notifications() -> bool:
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    return actions.exists() and "user_notif" in actions.read_text().split()


def supervise(work: Callable[[], object], root: Path, log: Path, answer: Answer) -> tuple[int | None, list[str]]:
    """Run `work` in a child -> its status (None: it hangs), and the names of its calls that write below `root`."""
    ours, theirs = socket.socketpair()

    def watched() -> None:
        ours.close()
        listener = _install_filter()
        socket.send_fds(theirs, [b"x"], [listener])
        os.close(listener)
        theirs.recv(1)  # until the supervisor is ready
        theirs.close()
        work()

    child = Child(watched, log)
    theirs.close()
    with ours:
        (listener,) = socket.recv_fds(ours, 1, 1)[1]
        ours.send(b"x")
        try:
            return _Supervisor(child, listener, root, answer).run()
        finally:
            os.close(listener)


class _Supervisor:
    def __init__(self, child: Child, listener: int, root: Path, answer: Answer) -> None:
        self.child, self.listener, self.answer = child, listener, answer
        self.root = os.path.realpath(root)
        self.seen: list[str] = []

    def run(self) -> tuple[int | None, list[str]]:
        """Answer until the child ends or hangs."""
        end = monotonic() + HANG
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        while (left := end - monotonic()) > 0:
            events = poll.poll(1000 * left)
            if events and events[0][1] & select.POLLIN:
                if not self._next():
                    return self.child.kill(), self.seen
            elif events:  # every process with the filter has ended
                return self.child.wait(), self.seen
        self.child.kill()
        return None, self.seen

    def _next(self) -> bool:
        """Answer one call; False: the child shall die."""
        request = bytearray(NOTIFICATION.size)
        try:
            fcntl.ioctl(self.listener, RECEIVE, request)
        except FileNotFoundError:  # the thread that asked has ended
            return True
        identity, process, _, number, _, _, *arguments = NOTIFICATION.unpack(request)
        name, meanings = CALLS[number]
        error: int | None = 0
        if _is_below(_place(process, meanings, arguments), self.root):
            self.seen.append(name)
            error = self.answer(len(self.seen), name)
            if error is None:
                return False
        response = RESPONSE.pack(identity, 0, -error, 0 if error else CONTINUE)
        with contextlib.suppress(FileNotFoundError):
            fcntl.ioctl(self.listener, SEND, response)
        return True


def _is_below(place: str, root: str) -> bool:
    return place == root or place.startswith(root + "/")


def _place(process: int, meanings: tuple[str, ...], arguments: list[int]) -> str:
    """The path that a call changes."""
    folder, name = "", ""
    with contextlib.suppress(OSError):
        for meaning, value in zip(meanings, arguments, strict=False):
            if meaning == "file":
                return os.readlink(f"/proc/{process}/fd/{value & 0xFFFFFFFF}")
            if meaning == "folder" and value & 0xFFFFFFFF != AT_FDCWD:
                folder = os.readlink(f"/proc/{process}/fd/{value & 0xFFFFFFFF}")
            if meaning == "path":
                name = _text(process, value)
        folder = folder or os.readlink(f"/proc/{process}/cwd")
    return os.path.normpath(os.path.join(folder, name))


def _text(process: int, address: int) -> str:
    """A text of C in the memory of a process."""
    with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        room = 4096 - address % 4096
        found = memory.read(room)
        if b"\0" not in found:
            found += memory.read(4096)
    return os.fsdecode(found.partition(b"\0")[0])


# The filter: a small program that the kernel runs before each system call of the child


def _install_filter() -> int:
    """Ask before the calls of CALLS from now on -> the file on which the kernel asks."""
    instructions = _program()
    code = b"".join(struct.pack("<HBBI", *one) for one in instructions)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("<HxxxxxxQ", len(instructions), ctypes.addressof(buffer))
    holder = ctypes.create_string_buffer(program)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    listener: int = libc.syscall(317, 1, 8, holder)  # seccomp, SET_MODE_FILTER, FLAG_NEW_LISTENER
    if listener < 0:
        raise OSError(ctypes.get_errno(), "system calls cannot be supervised here")
    return listener


def _program() -> list[tuple[int, int, int, int]]:
    """BPF: (code, jump if true, jump if false, value)."""
    load, equal, any_bit, end = 0x20, 0x15, 0x45, 0x06
    numbers = [number for number in CALLS if number != 257]
    program = [(load, 0, 0, 0)]  # the number of the call
    program += [(equal, len(numbers) - place + 3, 0, number) for place, number in enumerate(numbers)]
    program += [
        (equal, 0, 2, 257),
        (load, 0, 0, 16 + 8 * 2),  # the flags of openat
        (any_bit, 1, 0, ACCESS),
        (end, 0, 0, 0x7FFF0000),  # allow
        (end, 0, 0, 0x7FC00000),  # ask
    ]
    return program
