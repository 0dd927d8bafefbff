"""Forced words, glossaries, protected strings and split paragraphs in `translate`."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
import chainrule.inference.search as chainrule_search
from builders import letter_pairs, write_pairs
from chainrule.errors import ConfigError, DataError
from chainrule.inference.phrases import read_glossary
from chainrule.text.protected import protected_strings
from commands import chainrule

SHAPE = {"embedding": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "feedforward": 16, "context": 64}
WORDS = ["the cat sat .", "a dog ran (far)", "the dog sat , far", "a cat ran 5 .", "7 cats ran", "a dog sat ."] * 6
PROTECTED = [
    "the cat 5 sat 7 .",
    "a dog <b>ran</b> to https://a.example/x?y=1 .",
    "{name} sat , mail a.b@c.de 5 5",
    "a cat",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator of letters, one of words, and one of subwords."""
    folder = tmp_path_factory.mktemp("phrases")
    settings: dict[str, Any] = {"model": {**SHAPE, "dropout": 0.0}, "training": {"lr": 0.02, "validations": 1}}
    common: dict[str, Any] = {"model": "seq2seq-transformer", "settings": settings}
    letters = write_pairs(folder, letter_pairs(200), "letters")
    words = write_pairs(folder, [(line, line) for line in WORDS], "words")
    cr.train(*letters, tokenizer="char", steps=60, out=folder / "char", **common)
    cr.train(*words, tokenizer="word", steps=30, out=folder / "word", **common)
    cr.train(*words, tokenizer="bpe", vocab_size=300, steps=30, out=folder / "bpe", **common)
    return folder


@pytest.fixture(scope="module", params=["char", "word", "bpe"])
def run(place: Path, request: pytest.FixtureRequest) -> Any:
    return cr.load(place / request.param)


@pytest.mark.parametrize("beams", [1, 4])
def test_every_translation_contains_the_forced_words(run: Any, beams: int) -> None:
    words = ["dcb", "aa"] if "char" in run.name else ["dog", "a cat"]
    lines = ["ab", "", "dcba"] if "char" in run.name else ["the cat", "", "a dog ran"]
    found = list(run.translate_lines(lines, force=words, num_beams=beams, num_return_sequences=beams))
    assert [one.text for one in found[1]] == [""]
    for best in (found[0], found[2]):
        assert best
        assert all(word in one.text for one in best for word in words)
        assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)


def test_a_phrase_that_is_written_anyway_changes_nothing(place: Path) -> None:
    run: Any = cr.load(place / "char")
    wide: dict[str, Any] = {"num_beams": 60, "max_new_tokens": 3}  # nothing is pruned
    plain = run.translate("abcd", **wide)
    assert run.translate("abcd", force=[plain[:2]], **wide) == plain


def test_a_glossary_applies_to_the_lines_with_its_entries(place: Path, tmp_path: Path) -> None:
    run: Any = cr.load(place / "word")
    file = tmp_path / "glossary.tsv"
    file.write_text("cat\tdog\n\nthe dog\tcat far\nran\tsat\n", encoding="utf-8")
    lines = ["a cat sat", "the dog sat", "cats sat", "a dog"]
    plain = run.translate(lines)
    for glossary in (file, str(file), {"cat": "dog", "the dog": "cat far"}, read_glossary(file)):
        found = run.translate(lines, glossary=glossary)
        assert "dog" in found[0].split()
        assert "cat far" in found[1]
        assert found[2:] == plain[2:]
    text = "\n".join(lines) + "\n"
    done = chainrule("translate", place / "word", "--glossary", file, stdin=text)
    assert done.out.splitlines() == list(found)
    forced = chainrule("translate", place / "word", "--force", "dog", "--force", "cat far", stdin="a cat\n")
    assert "dog" in forced.out
    assert "cat far" in forced.out


@pytest.mark.parametrize("beams", [1, 4])
def test_protected_strings_occur_as_often_as_in_the_source(run: Any, beams: int) -> None:
    for number, text in enumerate(run.translate(PROTECTED, keep=True, num_beams=beams)):
        source, found = Counter(protected_strings(PROTECTED[number])), Counter(protected_strings(text))
        assert {string: found[string] for string in source} == source
    two = next(iter(run.translate_lines(PROTECTED[:1], keep=True, num_beams=4, num_return_sequences=2)))
    assert len(two) == 2
    assert all(Counter(protected_strings(one.text))["7"] == 1 for one in two)


def test_phrases_of_characters_are_whole_words(place: Path) -> None:
    pairs = write_pairs(place, [(f"{a} {b} 1 2", f"{b} {a}") for a in "abcd" for b in "abcd"] * 4, "spaced")
    run: Any = cr.train(*pairs, model="seq2seq-rnn", tokenizer="char", steps=3, out=place / "spaced")
    for text in ("ab", "c"):
        for best in run.translate_lines(["a b", "d c"], force=[text], num_beams=3, num_return_sequences=3):
            assert best
            assert all(f" {text} " in f" {one.text} " for one in best)
    for best in run.translate_lines(["a b 12 .", "d 1 12"], keep=True, num_beams=3, num_return_sequences=3):
        assert all(re.search(r"\b12\b", one.text) for one in best)


def test_a_line_that_contains_its_phrases_anyway_is_not_searched_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Any = cr.load(place / "word")
    lines = ["the cat sat", "a dog ran", "the dog sat"]
    limit = {"max_new_tokens": 9}
    plain = run.translate(lines, **limit)
    searched: list[int] = []
    search = chainrule_search.constrained_beam_search

    def observe(stepper: Any, state: Any, prompt_BT: Any, phrases: Any, **options: Any) -> Any:
        searched.append(len(phrases))
        return search(stepper, state, prompt_BT, phrases, **options)

    monkeypatch.setattr(chainrule_search, "constrained_beam_search", observe)
    present = {line: text.split()[0] for line, text in zip(lines, plain, strict=True)}
    assert run.translate(lines, glossary=present, **limit) == plain
    assert searched == []
    absent = next(word for word in ("far", "cat", "dog", "ran") if word not in plain[1].split())
    found = run.translate(lines, glossary={lines[1]: absent}, **limit)
    assert absent in found[1].split()
    assert [found[0], found[2]] == [plain[0], plain[2]]
    assert searched == [1]


def test_without_protected_strings_keep_changes_nothing(run: Any) -> None:
    lines = ["a cat", "ab", "the dog sat"]
    assert run.translate(lines, keep=True) == run.translate(lines)


def test_paragraphs_are_translated_by_sentences(place: Path) -> None:
    run: Any = cr.load(place / "word")
    paragraphs = ["the cat sat . A dog ran ! the dog sat", "", "a cat"]
    found = run.translate(paragraphs, split=True)
    assert found[0] == " ".join(run.translate(["the cat sat .", "A dog ran ! the dog sat"]))
    assert list(found[1:]) == ["", run.translate("a cat")]
    one, *_ = run.translate_lines(["the cat sat . A dog ran ."], split=True)
    parts = [best[0] for best in run.translate_lines(["the cat sat .", "A dog ran ."])]
    assert one[0].log_prob == pytest.approx(sum(part.log_prob for part in parts))
    done = chainrule("translate", place / "word", "--split", "--keep", stdin="\n".join(paragraphs) + "\n")
    assert done.out.splitlines() == list(found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"force": ["zebra"]}, "the phrase 'zebra' cannot be forced: the tokens of this run write it as '<unk>'"),
        ({"force": [" "]}, "a forced phrase is empty; give at least one word"),
        ({"force": ["a cat"], "max_new_tokens": 1}, "the forced phrases have 2 tokens, but a text may have 1"),
        ({"keep": True, "draft": "lookup", "num_beams": 1}, "--draft takes no keep, which needs a beam"),
        ({"split": True, "num_return_sequences": 2}, "--split translates sentences one by one"),
    ],
)
def test_refused_options(place: Path, options: dict[str, Any], message: str) -> None:
    run: Any = cr.load(place / "word")
    with pytest.raises(ConfigError) as refused:
        run.translate("a cat", **options)
    assert message in str(refused.value)


def test_a_malformed_glossary_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "glossary.tsv"
    file.write_text("cat\tKatze\ndog Hund\n", encoding="utf-8")
    with pytest.raises(DataError) as refused:
        read_glossary(file)
    assert str(refused.value) == (
        "line 2 of glossary.tsv is 'dog Hund'; expected a source phrase, a tab and a target phrase"
    )
