"""A run as one file: the same results from file and folder for every kind of run, the same bytes, and safe reading."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
from chainrule.checkpoint.packed import MANIFEST
from chainrule.cli.main import main
from chainrule.errors import RunError

TEXT = "the cat sat on the mat\na dog ran to the cat\nthe dog sat\n" * 12
LABELS = "good\tthe cat sat\nbad\ta dog ran\n" * 20
TAGS = "the D\ncat N\nsat V\n\na D\ndog N\nran V\n\n" * 15
PAIRS = "the cat\tdie katze\na dog\tein hund\n" * 20
SMALL: dict[str, dict[str, Any]] = {
    "transformer": {"embedding": 8, "layers": 1, "heads": 2, "context": 16},
    "seq2seq-transformer": {"embedding": 8, "encoder_layers": 1, "decoder_layers": 1, "heads": 2},
    "classifier": {"embedding": 8},
    "tagger": {},
    "word2vec": {"vector_size": 8, "min_count": 1},
    "bert": {"width": 8, "layers": 1, "heads": 2, "positions": 16},
    "ngram": {"order": 3},
}
DATA = {"seq2seq-transformer": "pairs.tsv", "classifier": "labels.tsv", "tagger": "tags.txt"}
VERBS: dict[str, list[tuple[str, ...]]] = {  # what each kind of run is asked; FILE is the data of the model
    "ngram": [("info",), ("eval", "FILE"), ("score", "text.txt"), ("generate", "--seed", "1", "--max-new-tokens", "5")],
    "transformer": [
        ("info",),
        ("eval", "FILE"),
        ("generate", "--seed", "1", "--max-new-tokens", "5"),
        ("embed", "text.txt"),
    ],
    "seq2seq-transformer": [("info",), ("eval", "FILE"), ("translate", "text.txt", "--max-new-tokens", "5")],
    "classifier": [("info",), ("eval", "FILE"), ("classify", "text.txt")],
    "tagger": [("info",), ("eval", "FILE"), ("tag", "text.txt")],
    "word2vec": [("info",), ("embed", "text.txt"), ("neighbours", "cat")],
    "bert": [("info",), ("eval", "FILE"), ("fill", "the [MASK] sat")],
    "mixture": [("info",), ("eval", "FILE"), ("score", "text.txt")],
}
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def chainrule(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["chainrule", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data of every kind and an n-gram."""
    folder = tmp_path_factory.mktemp("pack")
    contents = {"text.txt": TEXT, "labels.tsv": LABELS, "tags.txt": TAGS, "pairs.tsv": PAIRS}
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8")
    trained("ngram", folder)
    return folder


def trained(model: str, place: Path) -> Path:
    """The run of a small model."""
    out = place / model
    if model == "mixture":
        parts = [trained("ngram", place), trained("transformer", place)]
        cr.mix(parts, valid=place / "text.txt", out=out)
        return out
    more: dict[str, Any] = {} if model in ("ngram", "word2vec") else {"steps": 2}
    more |= {"epochs": 1} if model == "word2vec" else {}
    settings = {"model": SMALL[model]}
    cr.train(place / DATA.get(model, "text.txt"), model=model, tokenizer="word", out=out, settings=settings, **more)
    return out


@pytest.mark.parametrize("model", VERBS)
def test_every_verb_reads_a_packed_run(model: str, place: Path, tmp_path: Path, chainrule: Call) -> None:
    run, file = trained(model, place), tmp_path / "model.crn"
    code, out, _ = chainrule("pack", run, file, "--json")
    assert (code, json.loads(out)) == (0, {"path": str(file), "bytes": file.stat().st_size})
    names = zipfile.ZipFile(file).namelist()
    assert names[0] == MANIFEST
    assert not [name for name in names if "training" in name]
    assert ("parts/1/model.safetensors" in names) == (model == "mixture")

    def results(path: Path, verb: str, *arguments: str) -> str:
        known = {"FILE": DATA.get(model, "text.txt")}
        given = [known.get(argument, argument) for argument in arguments]
        found = chainrule(verb, path, *[place / name if (place / name).is_file() else name for name in given], "--json")
        assert found[0] == 0, found[2]
        rates = ("tokens_per_second", "seconds", "lines_per_second")
        shown = [json.loads(line) for line in found[1].splitlines()]
        kept = [{k: v for k, v in one.items() if k not in rates} if isinstance(one, dict) else one for one in shown]
        return json.dumps(kept).replace(str(path), "RUN")

    for verb, *arguments in VERBS[model]:
        assert results(file, verb, *arguments) == results(run, verb, *arguments), verb
    back = cr.unpack(file, tmp_path / "back")
    cr.pack(back, tmp_path / "again.crn")
    assert (tmp_path / "again.crn").read_bytes() == file.read_bytes()


@pytest.fixture
def packed(place: Path, tmp_path: Path) -> Path:
    """The packed n-gram."""
    return cr.pack(place / "ngram", tmp_path / "model.crn").path


def test_a_packed_run_is_unpacked_once_and_restored_if_the_cache_is_damaged(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    first = cr.load(packed)
    assert first.folder.path.parent == tmp_path / "cache" / "packs"
    assert repr(first) == f"LanguageModelRun('{packed}', model='ngram')"
    before = first.folder.model_path.stat().st_mtime_ns
    assert cr.load(packed).folder.model_path.stat().st_mtime_ns == before
    expected = first.score("the cat").log_prob
    (first.folder.path / "config.toml").unlink()
    assert cr.load(packed).score("the cat").log_prob == expected
    assert [entry.name for entry in (tmp_path / "cache" / "packs").iterdir()] == [first.folder.path.name]


def test_a_packed_run_is_not_changed(packed: Path, place: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        cr.load(packed).folder.change_config(cr.load(packed).config)
    assert str(caught.value) == (
        f"{packed} is a packed run, which is never changed; unpack it with chainrule unpack first"
    )
    assert cr.export(packed, tmp_path / "x.arpa").ngrams == cr.export(place / "ngram", tmp_path / "y.arpa").ngrams
    small = {"model": SMALL["transformer"]}
    cr.train(place / "text.txt", model="transformer", tokenizer="word", steps=1, out=tmp_path / "one", settings=small)
    start = cr.pack(tmp_path / "one", tmp_path / "one.crn").path
    assert cr.train(place / "text.txt", init=start, steps=1, out=tmp_path / "two").result["steps"] == 1


def test_a_packed_run_is_served_under_the_name_of_its_file(packed: Path) -> None:
    from chainrule.server.library import find_runs

    assert {name: entry.model for name, entry in find_runs([packed]).items()} == {"model": "ngram"}


def changed(packed: Path, change: Callable[[dict[str, bytes]], None], **options: Any) -> str:
    """The error of a packed run after a change of its entries."""
    with zipfile.ZipFile(packed) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    with zipfile.ZipFile(packed, "w", **options) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return error(packed)


def error(packed: Path) -> str:
    with pytest.raises(RunError) as caught:
        cr.load(packed)
    return str(caught.value)


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../../escape.txt", "the entry '../../escape.txt' is no file of a run"),
        ("/tmp/escape.txt", "the entry '/tmp/escape.txt' is no file of a run"),
        ("parts/0/../../model.safetensors", "the entry 'parts/0/../../model.safetensors' is no file of a run"),
        ("tuning.json", "its entries are not those of pack.json"),
    ],
)
def test_other_entries_are_refused(name: str, reason: str, packed: Path, fresh_cache: Path) -> None:
    found = changed(packed, lambda entries: entries.update({name: b"x"}))
    assert found == f"{packed} is damaged ({reason}); copy it again, or pack the run again"
    assert not list(fresh_cache.glob("packs/*"))


def test_compressed_entries_and_changed_files_are_refused(packed: Path, fresh_cache: Path) -> None:
    whole = packed.read_bytes()
    found = changed(packed, lambda entries: None, compression=zipfile.ZIP_DEFLATED)
    assert "is compressed or encrypted" in found

    packed.write_bytes(whole)
    found = changed(packed, lambda entries: entries.update({"signature": entries["signature"].swapcase()}))
    assert found == f"{packed} is damaged (signature differs from its checksum); copy it again, or pack the run again"

    packed.write_bytes(whole)
    manifest = {"format": "chainrule run", "version": 2, "files": {}}
    found = changed(packed, lambda entries: entries.update({MANIFEST: json.dumps(manifest).encode()}))
    assert found == f"{packed} has version 2 of the format, but this release reads 1; update chainrule"

    packed.write_bytes(whole)
    assert "is damaged (pack.json cannot be read)" in changed(packed, lambda entries: entries.update({MANIFEST: b"[1"}))
    assert not list(fresh_cache.glob("packs/*"))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(share: float, packed: Path, fresh_cache: Path) -> None:
    content = packed.read_bytes()
    packed.write_bytes(content[: int(len(content) * share)])
    assert error(packed).startswith(f"{packed} is damaged (")
    assert not list(fresh_cache.glob("packs/*"))


def test_a_flipped_byte_is_refused(packed: Path, fresh_cache: Path) -> None:
    content = bytearray(packed.read_bytes())
    content[len(content) // 2] ^= 1
    packed.write_bytes(content)
    assert error(packed).startswith(f"{packed} is damaged (")


def test_other_files_are_refused(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "other.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", "a")
    message = f"{file} is not a packed run: it does not begin with pack.json; give a file of chainrule pack"
    assert error(file) == message
    text = place / "text.txt"
    assert error(text) == f"{text} is a file: expected the folder of a run, or a file of chainrule pack"
    with pytest.raises(RunError) as caught:
        cr.unpack(text, tmp_path / "run")
    assert str(caught.value) == f"{text} is not a packed run; give a file of chainrule pack"


def test_a_run_without_a_model_is_not_packed(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "ngram", tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(RunError) as caught:
        cr.pack(tmp_path / "run", tmp_path / "model.crn")
    assert str(caught.value) == (
        f"{tmp_path / 'run'} has no model yet; rerun the same train command to finish its training"
    )
    assert not (tmp_path / "model.crn").exists()
