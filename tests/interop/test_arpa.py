"""ARPA files against KenLM: it reads our files, we read those of other tools, and the scores are the same."""

from __future__ import annotations

import gzip
import math
import os
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.engines.ngram.estimate import EstimationPlan, estimate
from chainrule.engines.ngram.table import NgramTable
from chainrule.errors import ConfigError, DataError
from chainrule.interop.arpa.numbers import MAX_LENGTH, put_number, take_number
from chainrule.interop.arpa.runs import ArpaModel, read_arpa, write_arpa
from chainrule.models.ngram import Ngram, NgramConfig

GOLDEN = Path(os.environ.get("CHAINRULE_SHARED", Path(__file__).resolve().parents[3] / "shared"))
LINES = [
    "the cat sat on the mat",
    "the dog sat on the log",
    "a cat saw the dog",
    "the dog saw a cat on the mat",
    "a bird sang in the tree",
    "the cat and the dog sat on the mat in the sun",
]
QUERIES = [
    *LINES,
    "",
    "the",
    "dog the cat",
    "the zebra sat",
    "zebra zebra",
    "a cat sat on zebra mat",
    "sat sat sat sat",
]

SMALL = """
\\data\\
ngram 1=6
ngram 2=5
ngram 3=2

\\1-grams:
-1.5\t<unk>\t0
-99\t<s>\t-0.3
-0.9\t</s>
-0.8\ta\t-0.25
-1.1\tb\t-0.5
-1.2\tc

\\2-grams:
-0.4\t<s> a\t-0.15
-0.6\ta b\t-0.2
-0.7\tb c
-0.35\tb </s>
-0.55\tc a\t-0.1

\\3-grams:
-0.2\t<s> a b
-0.15\ta b </s>

\\end\\
"""
SMALL_QUERIES = ["a b", "a b c", "a b c a b", "c c a", "", "b", "a z b", "z", "a a a b c", "b c a z"]


def table_of(
    lines: list[str], order: int, smoothing: str = "modified-kneser-ney", **options: Any
) -> tuple[NgramTable, list]:
    """The table of some lines of words, and its tokens."""
    pieces = ["<unk>", "<eos>", *dict.fromkeys(" ".join(lines).split())]
    ids = [token for line in lines for token in [*map(pieces.index, line.split()), 1]]
    tokens = np.array(ids, np.uint16)
    plan = EstimationPlan(order, smoothing, 1.0, options.pop("prune", ()), options.pop("across_lines", False), False)
    return estimate(plan, tokens, tokens, eos=1, vocab_size=len(pieces)), pieces


def score(table: NgramTable, pieces: list[str], line: str) -> float:
    """log10 p of a line and its end."""
    known = {piece: token for token, piece in enumerate(pieces)}
    ids = torch.tensor([[*(known.get(word, 0) for word in line.split()), 1]])
    config = NgramConfig(order=table.order, smoothing="imported", across_lines=False)
    model = Ngram(config, table, np.zeros(len(pieces), np.int64))
    return float(model.log_probs(ids).sum()) / math.log(10)


def pieces_of(arpa: ArpaModel) -> list[str]:
    return ["<unk>", "<eos>", *arpa.words]


def kenlm_model(path: Path) -> Any:
    kenlm = pytest.importorskip("kenlm")
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    return kenlm.Model(str(path), config)


def parsed(text: str) -> dict[tuple[str, ...], tuple[float, float]]:
    """An ARPA file by a simple parser: n-gram to probability and back-off weight."""
    found, order = {}, 0
    for line in text.splitlines():
        if head := re.fullmatch(r"\\(\d)-grams:", line):
            order = int(head[1])
        elif order and line and not line.startswith("\\"):
            fields = line.split()
            found[tuple(fields[1 : order + 1])] = (float(fields[0]), float((fields[order + 1 :] or ["0"])[0]))
    return found


# Numbers


@given(st.floats(-98, 20, width=32))
@settings(max_examples=300, deadline=None)
def test_a_written_number_is_read_back_exactly(number: float) -> None:
    out = np.zeros(MAX_LENGTH, np.uint8)
    used = put_number(out, 0, number)
    text = out[:used].tobytes().decode()
    wanted = number if abs(number) >= 1e-9 else 0.0
    assert np.float32(float(text)) == np.float32(wanted)
    assert np.float32(take_number(out, 0, used)) == np.float32(wanted)
    assert len(text.strip("-0.").replace(".", "")) <= 9


@pytest.mark.parametrize(
    "text",
    ["0", "-1.5", "+2", "-99", "-1.25e-05", "3E2", "-0.12345678901234567890123", "123456789012345678901", ".5"],
)
def test_numbers_are_parsed_like_in_python(text: str) -> None:
    data = np.frombuffer(text.encode(), np.uint8)
    assert take_number(data, 0, len(data)) == pytest.approx(float(text), rel=1e-15)


@pytest.mark.parametrize("text", ["", "-", "a", "1a", "1e", "1e+", "--1", "1.2.3", "nan", "inf", "1e99999", "-in"])
def test_an_invalid_number_is_nan(text: str) -> None:
    data = np.frombuffer(text.encode(), np.uint8)
    assert math.isnan(take_number(data, 0, len(data)))


@pytest.mark.parametrize("text", ["-inf", "-Inf", "-INFINITY"])
def test_minus_infinity_is_parsed(text: str) -> None:
    data = np.frombuffer(text.encode(), np.uint8)
    assert take_number(data, 0, len(data)) == -math.inf


# Export


@pytest.mark.parametrize("order", [2, 3, 5])  # KenLM does not support order 1
@pytest.mark.parametrize("smoothing", ["modified-kneser-ney", "witten-bell", "katz"])
def test_an_exported_file_has_the_same_scores_in_kenlm(order: int, smoothing: str, tmp_path: Path) -> None:
    table, pieces = table_of(LINES, order, smoothing)
    path = tmp_path / "x.arpa"
    write_arpa(table, pieces, path)
    model = kenlm_model(path)
    for line in QUERIES:
        assert score(table, pieces, line) == pytest.approx(model.score(line), abs=1e-5)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("prune", [(), (0, 0, 1)])
@pytest.mark.parametrize("name", ["x.arpa", "x.arpa.gz"])
def test_an_exported_file_is_read_back_as_the_same_table(
    order: int, prune: tuple[int, ...], name: str, tmp_path: Path
) -> None:
    table, pieces = table_of(LINES, order, prune=prune[:order])
    write_arpa(table, pieces, tmp_path / name)
    again = read_arpa(tmp_path / name)
    assert pieces_of(again) == pieces
    assert again.notes == []
    for one, other in zip(table.arrays, again.table.arrays, strict=True):
        if (
            one is not table.arrays.backoffs and one is not table.arrays.backoff_table
        ):  # without children they may differ
            np.testing.assert_array_equal(one, other)
    for line in QUERIES:
        assert score(again.table, pieces, line) == pytest.approx(score(table, pieces, line), abs=1e-6)


def test_the_layout_is_that_of_kenlm(tmp_path: Path) -> None:
    table, pieces = table_of(LINES, 2)
    write_arpa(table, pieces, tmp_path / "x.arpa")
    lines = (tmp_path / "x.arpa").read_text().splitlines()
    assert lines[:3] == ["\\data\\", f"ngram 1={len(pieces) + 1}", f"ngram 2={table.sizes[1]}"]
    assert lines[-2:] == ["", "\\end\\"]
    grams = parsed("\n".join(lines))
    assert grams[("<s>",)][0] == 0
    assert grams[("<s>",)][1] < 0
    assert grams[("</s>",)][1] == 0
    assert not any((gram[0] == "</s>" and len(gram) > 1) or "<s>" in gram[1:] for gram in grams)


def test_an_impossible_word_is_written_as_minus_99(tmp_path: Path) -> None:
    table, pieces = table_of(LINES, 2, "mle")
    write_arpa(table, pieces, tmp_path / "x.arpa")
    assert parsed((tmp_path / "x.arpa").read_text())[("<unk>",)][0] == -99


def test_white_space_and_special_words_in_pieces_are_escaped(tmp_path: Path) -> None:
    table, _ = table_of(["a b c d e f"], 2)
    pieces = ["[UNK]", "</s>", " ", "\t", "<s>", "<unk>", "x", "▁▁"]
    write_arpa(table, pieces, tmp_path / "x.arpa", unk=0)
    words = read_arpa(tmp_path / "x.arpa").words
    assert words == ["▁", "␉", "\\<s>", "\\<unk>", "x", "▁▁"]


def test_pieces_with_the_same_name_are_refused(tmp_path: Path) -> None:
    table, _ = table_of(["a b"], 2)
    with pytest.raises(ConfigError) as error:
        write_arpa(table, ["<unk>", "<eos>", " ", "▁"], tmp_path / "x.arpa")
    assert str(error.value) == (
        "the pieces ' ' and '▁' would have the same name '▁' in an ARPA file; use another tokeniser"
    )
    with pytest.raises(ConfigError) as error:
        write_arpa(table, ["<unk>", "<eos>", "", "b"], tmp_path / "x.arpa")
    assert str(error.value) == (
        "the tokeniser has an empty piece, which the ARPA format cannot represent; use another tokeniser"
    )
    assert list(tmp_path.iterdir()) == []


def test_models_that_arpa_cannot_represent_are_refused(tmp_path: Path) -> None:
    across, pieces = table_of(LINES, 2, across_lines=True)
    with pytest.raises(ConfigError) as error:
        write_arpa(across, pieces, tmp_path / "x.arpa")
    assert str(error.value) == (
        "this model uses context across line ends, which the ARPA format cannot represent; "
        "train it again with --set model.across_lines=false"
    )
    scores, pieces = table_of(LINES, 2, "stupid-backoff")
    with pytest.raises(ConfigError) as error:
        write_arpa(scores, pieces, tmp_path / "x.arpa")
    assert str(error.value) == (
        "this model gives scores that are not probabilities, which the ARPA format cannot represent; "
        "train it again with another smoothing"
    )


# Import of files of other tools


def reordered(text: str) -> str:
    """The file with the lines of every section in another order."""
    sections = text.split("\n\n")
    for number, section in enumerate(sections):
        head, *rows = section.strip().split("\n")
        if head.endswith("-grams:"):
            sections[number] = "\n".join([head, *random.Random(1).sample(rows, len(rows))])
    return "\n\n".join(sections)


def with_counts(text: str) -> str:
    """The file with correct counts in its head."""
    for order in (1, 2, 3):
        size = sum(len(gram) == order for gram in parsed(text))
        text = re.sub(rf"ngram {order}=\d+", f"ngram {order}={size}", text)
    return text


UNUSUAL = {
    "unchanged": SMALL,
    "lines in any order": reordered(SMALL),
    "carriage returns": SMALL.replace("\n", "\r\n"),
    "capital unknown": SMALL.replace("<unk>", "<UNK>"),
    "no unknown": with_counts(SMALL.replace("-1.5\t<unk>\t0\n", "")),
    "no weights at all": re.sub(r"(?m)^(-[\d.]+\t[^\t\n]+)\t-?[\d.]+$", r"\1", SMALL),
    "a suffix is missing": with_counts(SMALL.replace("-0.35\tb </s>\n", "")),
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_unusual_files_have_the_same_scores_as_in_kenlm(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.arpa"
    path.write_bytes(UNUSUAL[kind].encode())
    model, arpa = kenlm_model(path), read_arpa(path)
    for line in SMALL_QUERIES:
        assert score(arpa.table, pieces_of(arpa), line) == pytest.approx(model.score(line), abs=1e-5), line


def backed_off(grams: dict[tuple[str, ...], tuple[float, float]], line: str, order: int) -> float:
    """log10 p of a line by the definition of an ARPA file, word by word."""
    words = [word if (word,) in grams else "<unk>" for word in line.split()]
    context, total = ("<s>",), 0.0
    for word in [*words, "</s>"]:
        history = context[-(order - 1) :]
        while history and (*history, word) not in grams:
            total += grams.get(history, (0.0, 0.0))[1]
            history = history[1:]
        total += grams[(*history, word)][0]
        context = (*context, word)
    return total


GAPS = {
    "unchanged": SMALL,
    "a suffix is missing": with_counts(SMALL.replace("-0.35\tb </s>\n", "")),
    "a prefix is missing": with_counts(SMALL.replace("-0.6\ta b\t-0.2\n", "")),
    "both are missing": with_counts(SMALL.replace("-0.6\ta b\t-0.2\n", "").replace("-0.35\tb </s>\n", "")),
    "impossible": SMALL.replace("-1.2\tc", "-inf\tc"),
    "blank lines": SMALL.replace("\n-0.4", "\n\n\n-0.4").replace("\\end\\", "\n\n\\end\\"),
    "spaces instead of tabs": SMALL.replace("\t", "  "),
    "text before the data": "written by hand\n" + SMALL,
    "no trigrams": with_counts(re.sub(r"(?s)(\\3-grams:\n).*(\n\\end)", r"\1\2", SMALL)),
}


@pytest.mark.parametrize("kind", GAPS)
def test_files_that_kenlm_may_refuse_have_the_scores_of_the_definition(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.arpa"
    path.write_text(GAPS[kind])
    arpa, grams = read_arpa(path), parsed(GAPS[kind])
    for line in SMALL_QUERIES:
        expected = backed_off(grams, line, 3)
        assert score(arpa.table, pieces_of(arpa), line) == pytest.approx(expected, abs=1e-5), line


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_any_ngrams_may_be_pruned(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whichever n-grams are pruned, the others have the scores of the definition."""
    path = tmp_path_factory.mktemp("arpa") / "x.arpa"
    table, pieces = table_of(LINES[:4], 4)
    write_arpa(table, pieces, path)
    grams = parsed(path.read_text())
    kept = {gram: values for gram, values in grams.items() if len(gram) == 1 or data.draw(st.booleans())}
    path.write_text(as_text(kept, 4))
    arpa = read_arpa(path)
    for line in QUERIES:
        expected = backed_off(kept, line, 4)
        assert score(arpa.table, pieces_of(arpa), line) == pytest.approx(expected, abs=2e-5), line


def as_text(grams: dict[tuple[str, ...], tuple[float, float]], order: int) -> str:
    levels = [{gram: values for gram, values in grams.items() if len(gram) == k} for k in range(1, order + 1)]
    head = "".join(f"ngram {k}={len(level)}\n" for k, level in enumerate(levels, 1))
    body = "".join(
        f"\n\\{k}-grams:\n" + "".join(f"{p}\t{' '.join(gram)}\t{b}\n" for gram, (p, b) in level.items())
        for k, level in enumerate(levels, 1)
    )
    return f"\\data\\\n{head}{body}\n\\end\\\n"


def test_irregularities_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "x.arpa"
    text = SMALL.replace("-1.5\t<unk>\t0\n", "").replace("-0.6\ta b\t-0.2\n", "-0.6\ta <s>\n-0.6\t</s> a\n")
    path.write_text(with_counts(text).replace("-0.35\tb </s>", "0.001\tb </s>"))
    assert read_arpa(path).notes == [
        "the file has no <unk>; unknown words get log10 p = -100, as in KenLM",
        "2 n-grams have <s> after their first word or </s> before their last; dropped",
        "1 n-grams have a log-probability above 0; set to 0",
        "1 n-grams are missing that longer ones contain; added with their back-off probability",
    ]


def test_a_file_without_special_words_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.arpa"
    path.write_text("\\data\\\nngram 1=2\n\n\\1-grams:\n-0.3\ta\n-0.3\tb\n\n\\end\\\n")
    arpa = read_arpa(path)
    assert arpa.notes == [
        "the file has no <unk>; unknown words get log10 p = -100, as in KenLM",
        "the file has no </s>; the end of a line gets log10 p = -100",
        "the file has no <s>; the first word of a line is scored without context",
    ]
    assert score(arpa.table, pieces_of(arpa), "a b z") == pytest.approx(-200.6, abs=1e-4)


def test_compressed_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.arpa.gz").write_bytes(gzip.compress(SMALL.encode()))
    assert read_arpa(tmp_path / "x.arpa.gz").words == ["a", "b", "c"]


BROKEN = {
    "x.arpa is not an ARPA file: it has no line \\data\\; give a model in ARPA format": "once upon a time\n",
    "x.arpa is truncated: it ends before \\end\\; copy or create it again": SMALL.replace("\\end\\\n", ""),
    "x.arpa is truncated: it ends before \\2-grams:; copy or create it again": SMALL[: SMALL.index("\\2-grams")],
    "x.arpa: section \\2-grams: has 4 n-grams, but the head promises 5; create the file again": (
        SMALL.replace("-0.7\tb c\n", "")
    ),
    "x.arpa, line 18: 'a b' is a duplicate; remove one": SMALL.replace("-0.7\tb c", "-0.7\ta b"),
    "x.arpa, line 13: 'b' is a duplicate; remove one": SMALL.replace("-1.2\tc", "-1.2\tb"),
    "x.arpa, line 17: 'z' is not among the 1-grams; restore the file": SMALL.replace("\ta b\t", "\ta z\t"),
    "x.arpa, line 17: expected a log-probability first; restore the file": SMALL.replace("-0.6\ta b", "p\ta b"),
    "x.arpa, line 17: expected a log-probability, 2 words and optionally a back-off weight; restore the file": (
        SMALL.replace("-0.6\ta b\t", "-0.6\ta b c\t")
    ),
    "x.arpa, line 17: expected a back-off weight after 2 words; restore the file": SMALL.replace("b\t-0.2", "b\tc"),
    "x.arpa, line 4: expected the count of 2-grams but got 'ngram 3=2'; restore the file": SMALL.replace(
        "ngram 2=5\n", ""
    ),
    "x.arpa, line 15: expected \\2-grams: but got '\\4-grams:'; restore the file": SMALL.replace("\\2-", "\\4-"),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_file_has_its_message(message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.arpa").write_text(BROKEN[message])
    with pytest.raises(DataError) as error:
        read_arpa("x.arpa")
    assert str(error.value) == message


def test_a_word_that_is_not_utf8_is_located(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.arpa").write_bytes(SMALL.replace("\tc", "\té").encode("latin-1"))
    with pytest.raises(DataError) as error:
        read_arpa("x.arpa")
    assert str(error.value) == "x.arpa, line 13: the word is not UTF-8; convert the file, e.g. with iconv"


# Files written by KenLM


def golden(name: str) -> Path:
    path = GOLDEN / name
    if not path.exists():
        pytest.skip(f"no {name}; set CHAINRULE_SHARED to the folder with it")
    return path


def assert_alike(ours: dict[tuple[str, ...], tuple[float, float]], theirs: Path) -> None:
    """The n-grams are the same, and every probability and back-off weight is within 1e-5."""
    opener: Any = gzip.open if theirs.suffix == ".gz" else open
    with opener(theirs, "rt", encoding="utf-8") as file:
        expected = parsed(file.read())
    assert ours.keys() == expected.keys()
    keys = list(ours)
    np.testing.assert_allclose([ours[key] for key in keys], [expected[key] for key in keys], rtol=0, atol=1e-5)


@pytest.mark.parametrize("order", [2, 3])
def test_the_tiny_text_gives_kenlms_file(order: int, tmp_path: Path) -> None:
    lines = golden("reference/kenlm/tiny.txt").read_text().splitlines()
    table, pieces = table_of(lines, order)
    write_arpa(table, pieces, tmp_path / "x.arpa")
    assert_alike(parsed((tmp_path / "x.arpa").read_text()), golden(f"reference/kenlm/tiny.{order}.arpa"))


def test_penn_treebank_gives_kenlms_file(tmp_path: Path) -> None:
    text = golden("data/ptb/train.txt").read_text().replace("<unk>", "UNK")
    lines = text.splitlines()[:2000]
    pieces = ["<unk>", "<eos>", *dict.fromkeys(" ".join(lines).split())]
    known = {piece: token for token, piece in enumerate(pieces)}
    tokens = np.array([token for line in lines for token in [*map(known.__getitem__, line.split()), 1]], np.uint16)
    plan = EstimationPlan(4, "modified-kneser-ney", 1.0, (), False, False)
    table = estimate(plan, tokens, tokens, eos=1, vocab_size=len(pieces))
    write_arpa(table, pieces, tmp_path / "x.arpa")
    assert_alike(parsed((tmp_path / "x.arpa").read_text()), golden("reference/kenlm/ptb2000.4.arpa.gz"))
