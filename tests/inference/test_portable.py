"""Portable archives are the same bytes on every kind of CPU, for every kind of model. Other CPUs are simulated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import chainrule as cr
from chainrule.base.over_arrays import TensorArrays
from chainrule.base.reproducible.mode import reproducible
from chainrule.inference.archive import Needs, Reader
from chainrule.registry import MODELS, OUTPUTS

CPUS = {  # each has what the one before it has; the last, with all of it, is in the quick tests
    "no vectors in torch": {"ATEN_CPU_CAPABILITY": "default"},
    "compatible MKL": {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"},
    "SSE": {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"},
}
TEXT = "the cat sat on the mat and the dog ran\n" * 2
LANGUAGE_MODELS = [entry.name for entry in MODELS.entries() if entry.task == "lm" and entry.name != "mixture"]
CASES = [(name, {}) for name in LANGUAGE_MODELS]
CASES += [("lstm", {"output": {"name": entry.name}}) for entry in OUTPUTS.entries() if entry.name != "softmax"]
CASES += [("transformer", {"model": {"positions": kind}}) for kind in ("sinusoidal", "learned")]

OTHER_PROCESS = """
import sys
from pathlib import Path
import chainrule as cr

folder, out = Path(sys.argv[1]), Path(sys.argv[2])
text = folder / "text.txt"
for place in sorted((folder / "runs").iterdir()):
    run = cr.load(place)
    run.compress(text, out / place.name, portable=True)
    run.decompress(folder / "archives" / place.name, out / "text.txt")
    assert (out / "text.txt").read_bytes() == text.read_bytes(), place.name
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small runs of every kind, and their portable archives of one text."""
    folder = tmp_path_factory.mktemp("portable")
    text = folder / "text.txt"
    text.write_text(TEXT)
    runs = []
    for number, (name, settings) in enumerate(CASES):
        sizes = {} if name == "ngram" else {"model": {"embedding": 8, **settings.get("model", {})}}
        budget = {} if name == "ngram" else {"steps": 2}
        whole = {**settings, **sizes}
        run = cr.train(
            text, model=name, tokenizer="char", out=folder / "runs" / f"{number}-{name}", settings=whole, **budget
        )
        runs.append(run)
    pair = [run for run in runs if run.config.model.name in ("ngram", "gru")][:2]
    cr.mix(pair, valid=text, out=folder / "runs" / "mixture", caches=["unigram"])
    tempered = cr.mix(pair, valid=text, out=folder / "runs" / "tempered-mixture", temperature=True)
    assert tempered.model.config.temperature != 1
    for place in sorted((folder / "runs").iterdir()):
        (folder / "archives").mkdir(exist_ok=True)
        cr.load(place).compress(text, folder / "archives" / place.name, portable=True)
    return folder


@pytest.mark.parametrize("cpu", [*(pytest.param(name, marks=pytest.mark.slow) for name in list(CPUS)[:-1]), "SSE"])
def test_archives_are_the_same_bytes_on_every_cpu(cpu: str, folder: Path, tmp_path: Path) -> None:
    environment = {**os.environ, **CPUS[cpu], "CHAINRULE_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", OTHER_PROCESS, str(folder), str(tmp_path)]
    subprocess.run(command, env=environment, check=True)
    for archive in sorted((folder / "archives").iterdir()):
        assert (tmp_path / archive.name).read_bytes() == archive.read_bytes(), archive.name


@pytest.mark.slow
def test_archives_are_the_same_bytes_if_kernels_are_compiled_for_another_cpu(folder: Path, tmp_path: Path) -> None:
    """Kernels and numpy for the oldest 64-bit CPU; all kernels are compiled again."""
    generic = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    environment = {**os.environ, **CPUS["SSE"], **generic, "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3"}
    command = [sys.executable, "-c", OTHER_PROCESS, str(folder), str(tmp_path)]
    subprocess.run(command, env=environment, check=True)
    for archive in sorted((folder / "archives").iterdir()):
        assert (tmp_path / archive.name).read_bytes() == archive.read_bytes(), archive.name


def test_a_portable_archive_costs_no_more_bits(folder: Path, tmp_path: Path) -> None:
    for place in sorted((folder / "runs").iterdir()):
        plain = cr.load(place).compress(folder / "text.txt", tmp_path / "plain")
        portable = (folder / "archives" / place.name).stat().st_size
        assert portable <= plain.compressed_bytes, place.name  # its header is shorter


def test_archives_of_ngrams_are_always_portable(tmp_path: Path) -> None:
    """They state no CPU and no version of torch, and have the bits of reproducible tensors."""
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\na dog ran to the cat\n" * 5)
    run = cr.train(text, model="ngram", tokenizer="word", order=3, out=tmp_path / "run")
    run.compress(text, tmp_path / "plain")
    run.compress(text, tmp_path / "portable", portable=True)
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "portable").read_bytes()
    with (tmp_path / "plain").open("rb") as file:
        _, needs = Reader(file, tmp_path / "plain").header()
    assert needs == Needs(portable=True)
    native, tokens_B = run.model.arrays, np.array([run.tokenizer.eos, 2, 3])
    with reproducible(run.model):
        expected_BV, _ = TensorArrays(run.model).step_probs(run.model.start(3), tokens_B)
    assert np.array_equal(native.step_probs(native.start(3), tokens_B)[0], expected_BV)
