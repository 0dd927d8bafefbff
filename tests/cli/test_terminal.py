"""The command line on a terminal, and with a reader that stops early."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import chainrule as cr
from builders import pairs_text
from commands import Command, Result

SMALL = ["model.embedding=8", "model.hidden=8", "model.layers=1", "training.batch_size=4", "training.length=16"]
SMALL += ["training.log_steps=5"]  # the display changes every so many steps
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colours and movements of the cursor


class Terminal:
    """A pseudo-terminal and everything that is written to it."""

    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self.path = os.ttyname(self.slave)
        self.written = b""
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.master, 4096)
            except OSError:  # how Linux reports that no process has the terminal open any more
                return
            if not data:
                return
            self.written += data

    def text(self) -> str:
        """What was written, without control sequences, after the last process has closed the terminal."""
        os.close(self.slave)
        self.reader.join()
        os.close(self.master)
        return CONTROL.sub("", self.written.decode())


def on_terminal(*arguments: object) -> tuple[Result, str]:
    """Run a command whose standard error is a terminal -> its result, and the text on the terminal."""
    terminal = Terminal()
    try:
        done = Command(*arguments, terminal=terminal.path, TERM="xterm-256color", COLUMNS="160").wait()
    finally:
        shown = terminal.text()
    return done, shown


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("terminal")
    (folder / "text.txt").write_text(pairs_text(200))
    cr.train(folder / "text.txt", model="ngram", order=2, tokenizer="char", out=folder / "ngram")
    return folder


def test_training_shows_a_live_line_and_prints_only_the_result(folder: Path, tmp_path: Path) -> None:
    options = [option for setting in SMALL for option in ("--set", setting)]
    command = ["train", folder / "text.txt", "--model", "rnn", "--tokenizer", "char", "--minutes", 0.03, *options]
    done, shown = on_terminal(*command, "--out", tmp_path / "run", "--json")
    assert done.code == 0, shown
    assert json.loads(done.out)["run"] == str(tmp_path / "run")
    assert "tokeniser: char" in shown
    line = (
        r"training [━╸╺]+ +\d+% step [\d,]+, loss \d+\.\d{3}(, best \d+\.\d{3})?, [\d.]+k? tokens/s, [\d-]+:[\d-]+ left"
    )
    assert re.search(line, shown), shown


def test_evaluation_shows_its_progress_and_prints_only_the_result(folder: Path) -> None:
    done, shown = on_terminal("eval", folder / "ngram", folder / "text.txt", "--json")
    assert done.code == 0, shown
    assert json.loads(done.out)["tokens"] == len((folder / "text.txt").read_text())
    assert re.search(r"evaluating [━╸╺]+ +\d+% [\d.]+[kM]? tokens/s, 0:00 left", shown), shown


# Processes of a real shell: how they end depends on the shutdown of the interpreter


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start `python -m chainrule.cli.main ARGUMENTS…` with pipes as its standard streams."""
    command = [sys.executable, "-m", "chainrule.cli.main", *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdin=-1,
        stdout=-1,
        stderr=-1,
        text=True,
        encoding="utf-8",
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
    )


def test_a_reader_that_stops_early_is_no_error(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a line of text\n" * 20_000)  # more output than a pipe can hold
    with start("tokenize", "word", text) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "a line of text\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0


def test_an_interrupt_is_one_line(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a line of text\n" * 20_000)
    with start("tokenize", "word", text) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is running now, and waits until more is read
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, "chainrule: interrupted\n")
