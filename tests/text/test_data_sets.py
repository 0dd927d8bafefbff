"""Hugging Face data sets as text, pairs, labelled and tagged texts: saved folders, folders of files, streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chainrule.errors import DataError
from chainrule.text.data_sets import field_names, field_of
from chainrule.text.formats.labels import Fields, LabelledFiles
from chainrule.text.formats.pairs import Pairs, hold_pairs, open_pairs
from chainrule.text.formats.tags import TaggedFiles
from chainrule.text.readers import Texts, open_texts

datasets = pytest.importorskip("datasets")

TRANSLATION = ("translation.en", "translation.de")
RECORDS = [
    {"translation": {"en": "a house", "de": "ein Haus"}},
    {"translation": {"en": "two\nlines", "de": "zwei Zeilen"}},
]
PREFIXES = ["hf", "hf-stream"]


def content(texts: Texts) -> str:
    return b"".join(block.data for block in texts.blocks()).decode()


def lines_of(pairs: Pairs) -> tuple[str, str]:
    return content(pairs.source), content(pairs.target)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Pairs, classes and tags, each saved to disk with a split train."""
    names = datasets.ClassLabel(names=["bad", "good"])
    tags = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "tags": datasets.List(names)})
    classes = datasets.Features({"text": datasets.Value("string"), "label": names, "id": datasets.Value("int64")})
    tables: dict[str, Any] = {
        "pairs": datasets.Dataset.from_list(RECORDS),
        "classes": datasets.Dataset.from_dict({"text": ["fine", "poor"], "label": [1, 0], "id": [7, 8]}, classes),
        "tags": datasets.Dataset.from_dict({"tokens": [["so", "fine"], ["no"]], "tags": [[0, 1], [0]]}, tags),
    }
    for name, table in tables.items():
        datasets.DatasetDict({"train": table}).save_to_disk(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("prefix", PREFIXES)
def test_pairs_of_nested_fields(saved: Path, prefix: str) -> None:
    spec = f"{prefix}:{saved}/pairs:train"
    assert hold_pairs(spec)
    expected = ("a house\ntwo lines\n", "ein Haus\nzwei Zeilen\n")
    pairs = open_pairs([spec], fields=TRANSLATION)
    assert lines_of(pairs) == lines_of(pairs) == expected
    assert lines_of(open_pairs([spec, spec], fields=TRANSLATION[::-1])) == (2 * expected[1], 2 * expected[0])


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_folder_of_files_is_a_data_set(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    datasets.Dataset.from_list(RECORDS[:1]).to_parquet(tmp_path / "parquet" / "test.parquet")
    assert lines_of(open_pairs([f"{prefix}:{tmp_path}/lines:train"], fields=TRANSLATION))[0] == "a house\ntwo lines\n"
    assert lines_of(open_pairs([f"{prefix}:{tmp_path}/parquet:test"], fields=TRANSLATION))[1] == "ein Haus\n"


@pytest.mark.parametrize("prefix", PREFIXES)
def test_labels_are_the_names_of_the_classes(saved: Path, prefix: str) -> None:
    files = LabelledFiles([f"{prefix}:{saved}/classes:train"])
    assert [(example.labels, example.text, example.pair) for example in files.examples()] == [
        (("good",), "fine", None),
        (("bad",), "poor", None),
    ]
    assert files.labels().names == ("bad", "good")
    assert content(files.texts) == "fine\npoor\n"


@pytest.mark.parametrize("prefix", PREFIXES)
def test_tags_are_the_names_of_the_classes(saved: Path, prefix: str) -> None:
    files = TaggedFiles([f"{prefix}:{saved}/tags:train"], fields=Fields("tokens", "tags"))
    assert [(sentence.words, sentence.tags) for sentence in files.sentences()] == [
        (["so", "fine"], ["bad", "good"]),
        (["no"], ["bad"]),
    ]


def test_a_class_without_a_number_is_refused(tmp_path: Path) -> None:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["a", "b"])})
    datasets.Dataset.from_dict({"text": ["x"], "label": [-1]}, features).save_to_disk(tmp_path / "hidden")
    with pytest.raises(DataError) as caught:
        list(LabelledFiles([f"hf:{tmp_path}/hidden:test"]).examples())
    assert str(caught.value) == (
        f"hf:{tmp_path}/hidden:test, line 1: no label in the field 'label' (found text, label); name the right one "
        "with --set data.label_field=NAME."
    )


def test_nested_fields_of_plain_text(saved: Path) -> None:
    assert content(open_texts([f"hf:{saved}/pairs:train"], field="translation.de")) == "ein Haus\nzwei Zeilen\n"


def test_a_missing_column_is_named_with_its_option(saved: Path) -> None:
    with pytest.raises(DataError) as caught:
        lines_of(open_pairs([f"hf:{saved}/pairs:train"]))
    assert str(caught.value) == (
        f"hf:{saved}/pairs:train: no field 'source' (found translation); name the right one with "
        "--set data.source_field=NAME."
    )
    with pytest.raises(DataError) as caught:
        lines_of(open_pairs([f"hf:{saved}/pairs:train"], fields=("translation.en", "translation.fr")))
    assert str(caught.value) == (
        f"hf:{saved}/pairs:train, line 1: no text in the field 'translation.fr' (found translation.en, "
        "translation.de); name the right one with --set data.target_field=NAME."
    )


def test_nested_fields_of_json_lines(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    assert lines_of(open_pairs([tmp_path / "pairs.jsonl"], fields=TRANSLATION))[1] == "ein Haus\nzwei Zeilen\n"
    (tmp_path / "labels.jsonl").write_text('{"review": {"body": "fine"}, "meta": {"stars": 5}}\n')
    files = LabelledFiles([tmp_path / "labels.jsonl"], fields=Fields("review.body", "meta.stars"))
    assert [(example.text, example.labels) for example in files.examples()] == [("fine", ("5",))]


def test_a_field_with_a_dot_in_its_own_name_comes_first() -> None:
    record = {"a.b": 1, "a": {"b": 2, "c": {"d": 3}}}
    assert [field_of(record, name) for name in ("a.b", "a.c.d", "a.x", "x.y", "a.b.c")] == [1, 3, None, None, None]
    assert field_names(record) == "a.b, a.b, a.c"
    assert field_names({}) == "none"
