"""Distillation: a teacher writes its translations as pairs, and a stopped one resumes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
from builders import letter_pairs, small_options, write_pairs
from chainrule.errors import ConfigError, DataError
from chainrule.experiments.distill import _key, distill
from chainrule.runs.translator import TranslatorRun
from chainrule.text.readers import open_texts


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distillation")
    write_pairs(folder, letter_pairs(60), "train")
    write_pairs(folder, letter_pairs(30, seed=5), "test")
    return folder


@pytest.fixture(scope="module")
def run(place: Path) -> TranslatorRun:
    """The teacher."""
    settings = {"model": small_options("seq2seq-transformer"), "training": {"lr": 0.02, "device": "cpu"}}
    made = cr.train(
        *(place / "train.src", place / "train.tgt"),
        model="seq2seq-transformer",
        tokenizer="char",
        steps=30,
        out=place / "run",
        settings=settings,
    )
    assert isinstance(made, TranslatorRun)
    return made


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl"])
def test_a_teacher_writes_its_translations_as_pairs(
    suffix: str, run: TranslatorRun, place: Path, tmp_path: Path
) -> None:
    out, progress = tmp_path / "new" / f"pairs{suffix}", []
    data = [place / "test.src", place / "test.tgt"]
    count = distill(run, data, out, num_beams=2, progress=lambda done, whole: progress.append((done, whole)))
    sources = data[0].read_text().splitlines()
    outputs = run.outputs_of(data, num_beams=2)
    rows = out.read_text().splitlines()
    if suffix == ".tsv":
        assert rows == [f"{source}\t{output}" for source, output in zip(sources, outputs, strict=True)]
    else:
        pairs = zip(sources, outputs, strict=True)
        assert [json.loads(row) for row in rows] == [{"source": source, "target": output} for source, output in pairs]
    assert count == 30
    assert progress == [(done, 30) for done in range(1, 31)]
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    again = distill(run, [data[0]], tmp_path / f"alone{suffix}", num_beams=2)  # a single text
    assert again == 30
    assert (tmp_path / f"alone{suffix}").read_text() == out.read_text()
    with pytest.raises(ConfigError) as error:
        distill(run, data, out)
    assert str(error.value) == f"{out} already exists; delete it, or choose another --out"


def test_a_distillation_resumes_after_the_last_whole_line(
    run: TranslatorRun, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, data = tmp_path / "pairs.tsv", [place / "test.src"]
    distill(run, data, out, num_beams=2)
    whole = out.read_text()
    kept = "".join(line + "\n" for line in whole.splitlines()[:17])
    partial = tmp_path / f"pairs.tsv.{_key(run, open_texts(data), {'num_beams': 2})}.partial"
    partial.write_text(kept + "half of a li")
    (tmp_path / "pairs.tsv.00000000.partial").write_text("of other work\n")
    out.unlink()
    translated: list[str] = []
    spied = TranslatorRun.translate_lines

    def spy(self: TranslatorRun, lines: Iterator[str], **search: Any) -> Any:
        def recorded() -> Iterator[str]:
            for line in lines:
                translated.append(line)
                yield line

        return spied(self, recorded(), **search)

    monkeypatch.setattr(TranslatorRun, "translate_lines", spy)
    assert distill(run, data, out, num_beams=2) == 30
    assert out.read_text() == whole
    assert translated == data[0].read_text().splitlines()[17:]
    assert not partial.exists()
    assert (tmp_path / "pairs.tsv.00000000.partial").read_text() == "of other work\n"


def test_pairs_are_written_to_files_that_hold_pairs(run: TranslatorRun, place: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        distill(run, [place / "test.src"], tmp_path / "pairs.txt")
    assert str(error.value) == f"--out is {tmp_path / 'pairs.txt'}; expected the name of a .tsv or .jsonl file"


def test_an_empty_source_file_is_refused(run: TranslatorRun, tmp_path: Path) -> None:
    empty = tmp_path / "empty.src"
    empty.write_text("")
    with pytest.raises(DataError) as error:
        distill(run, [empty], tmp_path / "pairs.tsv")
    assert str(error.value) == f"{empty} is empty: expected text; give a file with at least one line."
    assert not list(tmp_path.glob("pairs.tsv*"))


def test_reverse_pairs_have_the_translation_as_the_source(run: TranslatorRun, place: Path, tmp_path: Path) -> None:
    plain, reverse = tmp_path / "plain.tsv", tmp_path / "reverse.tsv"
    for out in (plain, reverse):
        assert distill(run, [place / "test.src"], out, reverse=out is reverse, num_beams=1) == 30
    rows = [row.split("\t") for row in plain.read_text().splitlines()]
    assert [row.split("\t") for row in reverse.read_text().splitlines()] == [row[::-1] for row in rows]
    texts = open_texts([place / "test.src"])
    assert _key(run, texts, {}) != _key(run, texts, {}, True)  # a stopped one does not resume the other
