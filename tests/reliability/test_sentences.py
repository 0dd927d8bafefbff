"""No traceback: whatever a user gives, and whatever the system refuses, ends with one line and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chainrule import load, pack, train
from chainrule.base.cache import default_cache, temporary_cache
from chainrule.cli.failures import describe, report_bug
from chainrule.errors import ChainruleError, ConfigError, DataError, DiskError, RunError, TokenizerError
from chainrule.inference.archive import Header, Needs, Reader, write_header
from chainrule.inference.rescore import read_candidates
from chainrule.interop.formats import import_run
from chainrule.interop.word2vec import read_vectors, write_vectors
from chainrule.text.readers import open_texts
from chainrule.text.tokenizers import load_tokenizer, train_tokenizer
from commands import chainrule

TINY = ["--tokenizer", "char", "--steps", "1", "--set", "model.hidden=4", "--set", "model.embedding=4"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sentences")
    (folder / "text.txt").write_text("ab ba abba baab\n" * 30)
    (folder / "folder").mkdir()
    train(folder / "text.txt", model="ngram", tokenizer="char", order=2, out=folder / "ngram")
    return folder


def one_line(*arguments: object, code: int = 2) -> str:
    done = chainrule(*arguments)
    assert (done.code, done.out) == (code, ""), done.err
    assert "Traceback" not in done.err
    last = done.err.splitlines()[-1]
    assert last.startswith("chainrule: ")
    return last.removeprefix("chainrule: ")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("model=3", "model = 3: expected a section; set one of its options, for example --set model.hidden=200"),
        ("data=Infinity", "data = inf: expected a section; set one of its options, for example --set model.hidden=200"),
        ("model.name=NaN", "model.name = nan: expected a name"),
        ("init=NaN", "init = nan: expected the path of a run"),
        (f"model.hidden={'[' * 3000}", f"--set got {'[' * 80}…, which is nested too deeply; give a plain value"),
        (
            "training.accumulate=100000000000000000000000000",
            "training.accumulate is an integer of 87 bits: expected at",
        ),
        ("training.accumulate=1000000000", "training.accumulate = 1000000000: input should be less than or equal to"),
        ("model.hidden=100000000000000000000000000", "model.hidden is an integer of 87 bits: expected at most"),
        ("model.layers=1000000000", "model.layers = 1000000000: input should be less than or equal to 1024"),
        (f"training.steps={'9' * 5000}", f"training.steps = '{'9' * 79}…: "),
        ("seed=-1", "seed = -1: input should be greater than or equal to 0"),
    ],
)
def test_options_that_no_training_has(settings: str, expected: str, place: Path) -> None:
    from chainrule.config import parse_settings
    from chainrule.training.fit import check_options
    from chainrule.training.fitting.fitting import fitting_of
    from chainrule.training.request import make_config

    def given() -> None:
        config = make_config(None, {}, parse_settings([settings]))
        from chainrule.tasks.task import task_of

        check_options(config, task_of(config), fitting_of(config.model.name))

    with pytest.raises(ConfigError) as caught:
        given()
    assert str(caught.value).startswith(expected)


def test_commands_that_cannot_work_print_one_line(place: Path) -> None:
    text = place / "text.txt"
    train_ = ("train", text, *TINY, "--out")
    assert "is a file" in one_line(*train_, text)
    assert "is below" in one_line(*train_, text / "below")
    assert "belongs to the system" in one_line(*train_, "/proc/run")
    assert "230 bytes" in one_line(*train_, place / ("x" * 300))
    assert "cannot be read (Is a directory)" in one_line(*train_, place / "new", "--config", place / "folder")
    assert "is a folder" in one_line("compress", place / "ngram", text, "--out", place / "folder")
    assert "not enough memory" in one_line(*train_, place / "new", "--set", "model.hidden=1000000000000")
    assert not (place / "new").exists()


def test_bytes_that_are_not_utf_8(place: Path) -> None:
    assert one_line("generate", place / "ngram", "--prompt", "a\udcff") == (
        "character 2 of the text stands for a byte that is not UTF-8; convert the text first: iconv -f latin1 -t utf-8"
    )


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_lone_surrogates_are_a_sentence_for_every_tokeniser(kind: str, place: Path) -> None:
    tokenizer = train_tokenizer(kind, open_texts([place / "text.txt"]), vocab_size=265 if kind == "bpe" else None)
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_lines([text])):
        with pytest.raises(DataError) as caught:
            encode("ab\ud800")
        assert str(caught.value).startswith("character 3 of the text stands for a byte that is not UTF-8")


def test_a_full_output_is_one_line(place: Path) -> None:
    command = [sys.executable, "-m", "chainrule.cli.main", "models"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "chainrule: cannot read or write the output (No space left on device); free some space and rerun the command\n"
    )


def test_closed_streams_are_no_error() -> None:
    command = f"{sys.executable} -m chainrule.cli.main models <&- 2>&-"
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    assert "lstm" in done.stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(5, "Input/output error"), 1),
        (PermissionError(13, "Permission denied", "x"), 1),
        (MemoryError(), 2),
        (RecursionError(), 2),
        (OverflowError("int too large"), 2),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), 2),
        (DataError("x"), 2),
    ],
)
def test_foreseeable_errors_have_a_sentence(error: Exception, code: int) -> None:
    described = describe(error)
    assert described is not None
    assert described[1] == code
    assert "\n" not in described[0]


def test_anything_else_is_a_bug_with_a_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    error = KeyError("surprise")
    assert describe(error) is None
    message = report_bug(error)
    (report,) = tmp_path.iterdir()
    assert message == f"this is a bug (KeyError: 'surprise'); please send {report} to the authors"
    assert "KeyError: 'surprise'" in report.read_text()


# Files


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x", "/dev/zero", ".", "tokenizer.json", 3, "", "tokenizer." + "x" * 300]
)
def test_a_tokeniser_names_only_files_beside_it(name: Any, place: Path, tmp_path: Path) -> None:
    state = json.loads((place / "ngram" / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**state, "files": [name]}))
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(tmp_path)
    assert f"(the file name {str(name)[:80]!r})" in str(caught.value)


@pytest.mark.parametrize("pieces", [["a", 3], ["a", None], ["a", ""], "ab", ["ab"], 3])
def test_a_tokeniser_with_pieces_that_are_no_characters(pieces: Any, place: Path, tmp_path: Path) -> None:
    state = json.loads((place / "ngram" / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**state, "pieces": pieces}))
    with pytest.raises(TokenizerError):
        load_tokenizer(tmp_path)


def test_deep_json_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        list(read_candidates(['{"x":' * 100_000]))
    (tmp_path / "tokenizer.json").write_text("[" * 100_000)
    with pytest.raises(TokenizerError):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/dev/zero", "a/b.safetensors", "x.txt"])
def test_an_index_of_weights_names_only_files_beside_it(name: str, tmp_path: Path) -> None:
    from chainrule.interop.huggingface.folders import HuggingFaceFolder

    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(ConfigError) as caught:
        HuggingFaceFolder(tmp_path).weight_files()
    assert f"lists the file {name!r}: expected the name of a file of weights" in str(caught.value)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("binary", [False, True])
def test_vectors_that_are_not_finite_are_refused(wrong: float, binary: bool, tmp_path: Path) -> None:
    vectors_VD = np.ones((3, 4), np.float32)
    vectors_VD[1, 2] = wrong
    write_vectors(tmp_path / "v.bin", ["a", "b", "c"], vectors_VD, binary=binary)
    with pytest.raises(DataError) as caught:
        import_run(tmp_path / "v.bin", tmp_path / "run")
    assert str(caught.value).endswith("the vector of 'b' has numbers that are not finite; create the file again")
    assert not (tmp_path / "run").exists()


def test_a_header_of_vectors_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("26 4000000000\na 1 2\n")
    with pytest.raises(DataError) as caught:
        read_vectors(tmp_path / "v.txt")
    assert str(caught.value).endswith("has a header with vectors of width 4000000000; expected at most 65536")


@pytest.mark.parametrize("tokens", [1 << 50, (1 << 64) - 1])
def test_a_header_of_an_archive_is_not_believed(tokens: int, tmp_path: Path) -> None:
    path = tmp_path / "x.cr"
    with path.open("wb") as file:
        write_header(file, Header(b"12345678", 5, tokens, 0), Needs())
    with path.open("rb") as file, pytest.raises(ChainruleError) as caught:
        Reader(file, path).header()
    assert "is damaged" in str(caught.value)


# Surroundings


def test_no_home_and_no_place_for_temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CHAINRULE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert default_cache() is None
    monkeypatch.setattr("tempfile.mkdtemp", lambda **_: (_ for _ in ()).throw(FileNotFoundError(2, "none")))
    with pytest.raises(DiskError) as caught:
        temporary_cache(None)
    assert str(caught.value) == (
        "neither the cache ~/.cache nor a temporary folder can be written; set CHAINRULE_CACHE to a folder with write "
        "permission"
    )


def test_info_checks_a_run(place: Path) -> None:
    done = chainrule("info", place / "ngram", "--check", "--json")
    assert json.loads(done.out)["checked"] == "tokenizer, configuration, weights"
    damaged = place / "damaged"
    train(place / "text.txt", model="ngram", tokenizer="char", order=2, out=damaged)
    before = os.stat(damaged / "model.safetensors")
    data = bytearray((damaged / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (damaged / "model.safetensors").write_bytes(data)
    os.utime(damaged / "model.safetensors", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "is damaged or of another run" in one_line("info", damaged, "--check")
    with pytest.raises(ChainruleError):
        load(damaged).model  # noqa: B018


def test_undecodable_bytes_to_classify_are_a_sentence(place: Path) -> None:
    (place / "labels.tsv").write_text("x\tab\ny\tba\n" * 30)
    run = train(
        place / "labels.tsv", model="classifier", tokenizer="char", steps=1, out=place / "classifier", embedding=4
    )
    with pytest.raises(DataError) as caught:
        run.classify(["ab", "a\udcff"])
    assert "stands for a byte that is not UTF-8" in str(caught.value)


@pytest.mark.parametrize("value", [["gpt2"], "gpt2"])
def test_impossible_values_of_a_folder_are_a_sentence(value: Any, tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text(json.dumps({"model_type": value, "n_embd": [[]]}))
    (tmp_path / "hf" / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    with pytest.raises(ConfigError):
        import_run(tmp_path / "hf", tmp_path / "run")


def test_a_tokeniser_with_half_a_character_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("ab ba cab\n" * 9)
    train_tokenizer("word", open_texts([tmp_path / "text.txt"])).save(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text().replace('"cab"', '"\\ud800"'))
    with pytest.raises(TokenizerError, match=r"is not JSON .*surrogates not allowed"):
        load_tokenizer(tmp_path)
    file.write_bytes(file.read_bytes().replace(b"\\ud800", b"\xed\xa0\x80"))
    with pytest.raises(TokenizerError, match=r"is not JSON .*codec can't decode"):
        load_tokenizer(tmp_path)


def test_a_packed_run_whose_entries_begin_elsewhere_is_refused(place: Path) -> None:
    run, packed = place / "packed-run", place / "packed.crn"
    train(place / "text.txt", model="ngram", tokenizer="char", out=run, progress=False)
    pack(run, packed)
    data = packed.read_bytes()
    where = data.rindex(b"PK\5\6") + 16  # the place of the directory, in the last record of the file
    packed.write_bytes(data[:where] + b"\xff\xff\xff\x7f" + data[where + 4 :])
    with pytest.raises(RunError, match=r"packed.crn is damaged \(.*\); copy it again"):
        load(packed)


def test_no_memory_for_a_library_is_no_bug() -> None:
    found = describe(ImportError("libx.so.4: failed to map segment from shared object"))
    assert found == ("there is not enough memory for a model or data of this size; choose smaller sizes", 2)
    assert describe(ImportError("No module named 'x'")) is None
