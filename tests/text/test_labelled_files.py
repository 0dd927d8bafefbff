"""Labelled files: their content, and the message for each kind of error."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from chainrule.errors import DataError
from chainrule.text.formats.labels import Example, Fields, LabelledFiles, Labels
from chainrule.text.formats.tags import TaggedFiles
from chainrule.text.readers import lines_in
from chainrule.text.samples.labels import (
    SPLITS,
    TOPICS,
    tagged_sentences,
    topic_texts,
    write_tagged_phrases,
    write_topics,
)


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def names_of(labels: Labels) -> list[list[str]]:
    """The labels of each text, by a loop."""
    begin, found = 0, []
    for end in labels.ends_P.tolist():
        found.append([labels.names[number] for number in labels.ids_N[begin:end].tolist()])
        begin = end
    return found


# Texts


def test_tab_separated_lines(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "b\tfirst text\r\n\na\tsecond\nb\t")
    files = LabelledFiles([path])
    assert list(lines_in(files.texts)) == ["first text", "second", ""]
    assert files.pairs is None
    labels = files.labels()
    assert labels.names == ("a", "b")
    assert names_of(labels) == [["b"], ["a"], ["b"]]
    assert not labels.multiple


def test_a_header_names_the_columns_in_any_order(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "Text_Pair\tid\tlabel\ttext\nq2\t7\tyes\tq1\n")
    (example,) = LabelledFiles([path]).examples()
    assert example == Example(f"{path}, line 2", ("yes",), "q1", "q2")


def test_pairs_and_compressed_files(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(b"1\twho ?\tthe cat\n0\twhere ?\tnow\n"))
    files = LabelledFiles([path])
    assert files.pairs is not None
    assert list(lines_in(files.texts)) == ["who ?", "where ?"]
    assert list(lines_in(files.pairs)) == ["the cat", "now"]


def test_json_lines_with_fields_of_other_names(tmp_path: Path) -> None:
    records = [{"q": "one\ntwo", "a": "x", "y": 1}, {"q": "three", "a": "z", "y": 0}]
    path = written(tmp_path, "a.jsonl", "\n".join(map(json.dumps, records)))
    files = LabelledFiles([path], fields=Fields("q", "y", "a"))
    assert list(lines_in(files.texts)) == ["one two", "three"]
    assert names_of(files.labels()) == [["1"], ["0"]]
    assert files.paired


def test_lists_give_any_number_of_labels(tmp_path: Path) -> None:
    records = [{"text": "a", "label": ["y", "x", "y"]}, {"text": "b", "label": []}, {"text": "c", "label": "x"}]
    labels = LabelledFiles([written(tmp_path, "a.jsonl", "\n".join(map(json.dumps, records)))]).labels()
    assert labels.multiple
    assert names_of(labels) == [["y", "x"], [], ["x"]]


def test_a_bar_separates_labels_only_with_multi_label(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "x|y\ta\n\tb\n y \tc\n")
    assert names_of(LabelledFiles([path], multi_label=True).labels()) == [["x", "y"], [], ["y"]]
    assert names_of(LabelledFiles([path], max_examples=1).labels()) == [["x|y"]]


def test_known_labels_keep_their_ids(tmp_path: Path) -> None:
    labels = LabelledFiles([written(tmp_path, "a.tsv", "b\tt\n")]).labels(["c", "b", "a"])
    assert labels.names == ("c", "b", "a")
    assert labels.ids_N.tolist() == [1]


BAD = [
    (
        "a.tsv",
        "x\ta\nno tab\n",
        "{path}, line 2: no tab in it; expected label, tab, text; repair the line or leave it out.",
    ),
    (
        "a.tsv",
        "x\ta\n \tb\n",
        "{path}, line 2: the label is empty; expected a word; name it or leave the line out.",
    ),
    (
        "a.tsv",
        "x\ta\nx\tb\tc\n",
        "{path}, line 2: 3 columns, but the first line has 2; expected as many on each; repair the line or leave "
        "it out.",
    ),
    (
        "a.tsv",
        "x\ta\tb\nx\tb\n",
        "{path}, line 2: 2 columns, but the first line has 3; expected as many on each; repair the line or leave "
        "it out.",
    ),
    ("a.tsv", "\n", "{path} is empty: expected label, tab, text; give a file with at least one."),
    ("a.tsv", "label\ttext\n", "{path} is empty: expected label, tab, text; give a file with at least one."),
    (
        "a.jsonl",
        "{",
        "{path}, line 1: not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)); "
        "expected one object per line; repair the line.",
    ),
    ("a.jsonl", "[1]", "{path}, line 1: got list; expected a JSON object with text and label."),
    (
        "a.jsonl",
        '{"text": "a", "id": 1}',
        "{path}, line 1: no label in the field 'label' (found text, id); name the right one with --set "
        "data.label_field=NAME.",
    ),
    (
        "a.jsonl",
        '{"label": "a"}',
        "{path}, line 1: no text in the field 'text' (found label); name the right one with --field NAME.",
    ),
    (
        "a.jsonl",
        '{"text": 3, "label": "a"}',
        "{path}, line 1: 'text' is int; expected text; name the right one with --field NAME.",
    ),
    (
        "a.jsonl",
        '{"text": "t", "label": ["a", ""]}',
        "{path}, line 1: the label is empty; expected a word; name it or leave the line out.",
    ),
    (
        "a.jsonl",
        '{"text": "\\ud800", "label": "a"}',
        "{path}, line 1: character 0 is half of a surrogate pair; expected whole Unicode characters; repair the record "
        "or leave it out.",
    ),
]


@pytest.mark.parametrize(("name", "text", "sentence"), BAD)
def test_errors_in_labelled_texts(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(DataError) as caught:
        LabelledFiles([path]).labels()
    assert str(caught.value) == sentence.replace("{path}", str(path))


def test_a_label_unseen_in_training(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "a\tt\nq\tu\n")
    with pytest.raises(DataError) as caught:
        LabelledFiles([path]).labels([*"abcdefghijkl"])
    assert str(caught.value) == (
        f"{path}, line 2: the label 'q' does not occur in the training data (found there: a, b, c, d, e, f, g, h, i, j "
        "and 2 more); leave it out, or train with texts that have it."
    )


def test_pairs_mixed_with_single_texts(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", '{"text":"a","label":"x","text_pair":"b"}\n{"text":"a","label":"x"}')
    with pytest.raises(DataError) as caught:
        list(lines_in(LabelledFiles([path]).texts))
    assert str(caught.value) == (
        f"{path}, line 2: the texts before it have a second text, this one has none; give pairs or single texts, not "
        "both."
    )


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes(b"a\tt\na\t\xff\n")
    with pytest.raises(DataError) as caught:
        LabelledFiles([path]).labels()
    assert str(caught.value) == (
        f"{path}, line 2: byte 2 is 0xff; expected UTF-8 text; convert the file (iconv -f latin1 -t utf-8)."
    )


# Sentences

COLUMNS = "-DOCSTART- -X- O\n\nAda NNP B-PER\nwrote\tVBD\tO\n\n\nit PRP O\n"


def test_columns(tmp_path: Path) -> None:
    files = TaggedFiles([written(tmp_path, "a.conll", COLUMNS)])
    assert [(one.words, one.tags) for one in files.sentences()] == [(["Ada", "wrote"], ["B-PER", "O"]), (["it"], ["O"])]
    assert list(lines_in(files.words(spaced=True))) == ["Ada", " wrote", "it"]
    assert list(lines_in(files.words(spaced=False))) == ["Ada", "wrote", "it"]
    labels = files.labels()
    assert names_of(labels) == [["B-PER", "O"], ["O"]]


def test_json_sentences(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", '{"tokens": ["a", "b"], "ner": [0, 3]}')
    files = TaggedFiles([path], fields=Fields("tokens", "ner"))
    assert names_of(files.labels()) == [["0", "3"]]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (
            "a.conll",
            "a O\nb\n",
            "{path}, line 2: the word 'b' has no tag; expected word and tag, a space or a tab between them; repair the "
            "line.",
        ),
        (
            "a.conll",
            "\n-DOCSTART- O\n",
            "{path} is empty: expected a word and its tag on each line; give a file with at least one.",
        ),
        (
            "a.jsonl",
            '{"text": ["a", "b"], "label": ["O"]}',
            "{path}, line 1: 2 words and 1 tags; expected a tag for each word; repair it.",
        ),
        (
            "a.jsonl",
            '{"text": "a b", "label": ["O"]}',
            "{path}, line 1: 'text' is str; expected a list with one entry per word.",
        ),
    ],
)
def test_errors_in_tagged_sentences(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    path = written(tmp_path, name, text)
    with pytest.raises(DataError) as caught:
        TaggedFiles([path]).labels()
    assert str(caught.value) == sentence.replace("{path}", str(path))


# Built-in data


def test_topics_have_many_texts_and_disjoint_splits(tmp_path: Path) -> None:
    splits = {split: topic_texts(split) for split in SPLITS}
    assert sum(map(len, splits.values())) >= 1500
    assert all({topic for topic, _ in texts} == set(TOPICS) for texts in splits.values())
    texts = [text for split in splits.values() for _, text in split]
    assert len(texts) == len(set(texts))  # no text twice, neither in a split nor in two
    modules = [name for topic in TOPICS.values() for split in topic for name in split.split()]
    assert len(modules) == len(set(modules))
    paths = write_topics(tmp_path)
    labels = LabelledFiles([paths["test"]]).labels()
    assert [name for (name,) in names_of(labels)] == [topic for topic, _ in splits["test"]]


def test_tagged_phrases_have_valid_tags(tmp_path: Path) -> None:
    for words, tags in tagged_sentences(300):
        assert len(words) == len(tags)
        for before, tag in zip(["O", *tags], tags, strict=False):
            assert not tag.startswith("I-") or before[2:] == tag[2:]  # an inside tag follows one of its kind
        dated = {word for word, tag in zip(words, tags, strict=True) if tag.endswith("PRICE")}
        assert not dated & {"January", "morning"}
    paths = write_tagged_phrases(tmp_path, {"train": 20, "valid": 5, "test": 5})
    read = [(one.words, one.tags) for split in paths.values() for one in TaggedFiles([split]).sentences()]
    assert read == list(tagged_sentences(30))
