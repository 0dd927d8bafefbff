"""Sentences of Western and Chinese paragraphs, and strings that a translation keeps."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.text.protected import keeps, protected_strings, repair
from chainrule.text.sentences import join_sentences, split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("", []),
        ("   ", []),
        ("No end", ["No end"]),
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("He said “Stop!” Then he left.", ["He said “Stop!”", "Then he left."]),
        ("Dr. Smith met J. S. Bach. They talked.", ["Dr. Smith met J. S. Bach.", "They talked."]),
        ("It costs 3.50 euros. Cheap!", ["It costs 3.50 euros.", "Cheap!"]),
        ("Am 3. Oktober ist frei. Das gilt z.B. Für alle.", ["Am 3. Oktober ist frei.", "Das gilt z.B. Für alle."]),
        ("Founded in 1999. It grew.", ["Founded in 1999.", "It grew."]),
        ("Wait ... what? Yes... No.", ["Wait ... what?", "Yes...", "No."]),
        ("See example.com for more. End.", ["See example.com for more.", "End."]),
        ("你好。今天天气很好！你呢？我很好", ["你好。", "今天天气很好！", "你呢？", "我很好"]),
        ("他说：“走吧。”然后走了。", ["他说：“走吧。”", "然后走了。"]),
        ("等等……好的。", ["等等……", "好的。"]),
        ("Ein Satz. ¿Otro? (Third one.) End.", ["Ein Satz.", "¿Otro?", "(Third one.)", "End."]),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


@given(st.text(st.sampled_from("aB. !?。！…” 1\n")))
def test_nothing_is_lost_but_white_space(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() != "" for sentence in sentences)


def test_joining() -> None:
    assert join_sentences(["One.", "", "Two!"]) == "One. Two!"
    assert join_sentences(["你好。", "再见！", "ok"]) == "你好。再见！ok"
    assert join_sentences([]) == ""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see https://a.b/c?d=1, or (www.x.org).", ["https://a.b/c?d=1", "www.x.org"]),
        ("mail me.too@mail.example.com.", ["me.too@mail.example.com"]),
        ('<a href="x">12</a> <unk>', ['<a href="x">', "12", "</a>"]),
        ("{name} has {{n}} of 1,234.5 at 12:30.", ["{name}", "{{n}}", "1,234.5", "12:30"]),
        ("1 < 2 and 3 > 2", ["1", "2", "3", "2"]),
        ("nothing", []),
    ],
)
def test_protected_strings(text: str, found: list[str]) -> None:
    assert protected_strings(text) == found


@given(st.lists(st.sampled_from(["5", "15", "{x}", "<b>", "a@b.de", "wort", "http://q.de/5"])), st.data())
def test_repaired_texts_keep_what_they_should(words: list[str], data: st.DataObject) -> None:
    source = data.draw(st.lists(st.sampled_from(["5", "15", "{x}", "<b>", "a@b.de", "http://q.de/5"])))
    wanted, text = Counter(source), " ".join(words)
    repaired = repair(text, wanted)
    assert keeps(repaired, wanted)
    if keeps(text, wanted):
        assert repaired == text
    assert [word for word in repaired.split() if word == "wort"] == [word for word in words if word == "wort"]
