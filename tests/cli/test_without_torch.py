"""The verbs of n-gram models never import torch, nor scipy and yaml, which numba would import; small ones not numba."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import chainrule as cr

GUARD = """
import sys
from importlib.abc import MetaPathFinder

class Forbid(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in FORBIDDEN or name == "scipy.linalg":
            raise AssertionError(f"{name} is imported")

sys.meta_path.insert(0, Forbid())
"""
FORBID = f"""FORBIDDEN = ("torch", "yaml"){GUARD}
from chainrule.cli.main import main
from chainrule.cli.quick_start import skip_optional_imports
skip_optional_imports()
main()
"""
TEXT = "the cat sat on the mat\na dog sat on the cat\nthe dog ran\n" * 6


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("without-torch")
    (folder / "text.txt").write_text(TEXT)
    (folder / "test.txt").write_text("the cat ran\na bird sat\n")
    run = cr.train(folder / "text.txt", model="ngram", tokenizer="word", order=3, out=folder / "counted")
    cr.export(run.folder.path, folder / "model.arpa")
    cr.import_model(folder / "model.arpa", folder / "imported")
    return folder


def call(place: Path, *arguments: str, script: str = FORBID) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120, check=False)


VERBS = {
    "score": ("score", "RUN", "test.txt"),
    "score tokens": ("score", "RUN", "test.txt", "--tokens", "--oov", "spell"),
    "score top": ("score", "RUN", "test.txt", "--tokens", "--top", "3"),
    "choices": ("score", "RUN", "test.txt", "--choices", " sat", "--choices", " ran on"),
    "eval": ("eval", "RUN", "test.txt"),
    "greedy": ("generate", "RUN", "--prompt", "the", "--max-new-tokens", "5"),
    "beam": ("generate", "RUN", "--num-beams", "3", "--num-return-sequences", "2", "--json"),
    "sample": ("generate", "RUN", "--temperature", "0.9", "--top-k", "5", "--top-p", "0.9", "--min-p", "0.01"),
    "why": ("score", "RUN", "test.txt", "--why", "1"),
    "info": ("info", "RUN"),
    "export": ("export", "RUN", "RUN.arpa"),
}


@pytest.mark.parametrize("run", ["counted", "imported"])
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_imports_torch_nor_numba_for_little_text(place: Path, verb: str, run: str) -> None:
    script = FORBID if verb == "export" else FORBID.replace('"torch", ', '"torch", "numba", ')
    done = call(place, *(part.replace("RUN", run) for part in VERBS[verb]), script=script)
    assert done.returncode == 0, done.stderr
    assert done.stdout


PYTHON = """
import chainrule as cr
run = cr.load("counted")
few = run.score(["the cat ran", "a bird sat"])
assert run.score("the cat ran") == few[0]
assert run.evaluate(["the cat ran"]).tokens == 4
assert run.generate("the", max_new_tokens=3, seed=1) and run.next_token("the") and run.inspect(["the cat"])
sys.meta_path.pop(0)
many = run.score(["the cat ran", "a bird sat"] * 2000)
assert "numba" in sys.modules and "torch" not in sys.modules
assert [one.log_prob for one in many[:2]] == [one.log_prob for one in few]
"""


def test_python_imports_neither_for_little_text_and_the_kernels_for_more(place: Path) -> None:
    done = call(place, script=f'FORBIDDEN = ("torch", "numba"){GUARD}{PYTHON}')
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("run", ["counted", "imported"])
def test_compression_does_not(place: Path, run: str) -> None:
    for verb, file, out in (("compress", "test.txt", f"{run}.crz"), ("decompress", f"{run}.crz", f"{run}.txt")):
        done = call(place, verb, run, file, "--out", out)
        assert done.returncode == 0, done.stderr
    assert (place / f"{run}.txt").read_bytes() == (place / "test.txt").read_bytes()


def test_import_does_not(place: Path) -> None:
    done = call(place, "import", "model.arpa", "--out", "again")
    assert done.returncode == 0, done.stderr


def test_the_guard_sees_torch(place: Path) -> None:
    done = call(place, "generate", "counted", "--draft", "lookup", "--max-new-tokens", "3")
    assert "torch is imported" in done.stderr


def test_numba_finds_blas_where_a_kernel_needs_it() -> None:
    script = """
import sys
import numpy as np
from chainrule.cli.quick_start import skip_optional_imports
skip_optional_imports()
from numba import njit
assert njit(lambda a: a.sum() + np.convolve(a, a)[1])(np.ones(3)) == 5
assert "scipy.linalg" not in sys.modules
assert njit(lambda a: a @ a)(np.ones((2, 2)))[0, 0] == 2
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_numba_reads_its_settings_where_there_are_some(tmp_path: Path) -> None:
    script = """
from chainrule.cli.quick_start import skip_optional_imports
skip_optional_imports()
import numba
print(numba.config.BOUNDSCHECK)
"""
    (tmp_path / ".numba_config.yaml").write_text("boundscheck: 1\n")
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "1", done.stderr
