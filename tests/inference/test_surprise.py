"""The bits of a text, token by token: they add up to what `evaluate` charges, for every model and tokeniser."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import chainrule as cr
from builders import Case, case_id, one_output, small_model, some_vocabulary, text_cases
from chainrule.data.store import open_store
from chainrule.errors import ConfigError
from chainrule.evaluation import tracks
from chainrule.evaluation.text import evaluate
from chainrule.inference.alignment import align
from chainrule.inference.heat_map import cells
from chainrule.inference.subject import TextModel
from chainrule.inference.surprise import Surprise, surprise_texts
from chainrule.text import open_texts
from chainrule.text.tokenizers.char import CharTokenizer

TOKENIZER = CharTokenizer("abcdefghijk")  # with <unk> and <eos> the 13 tokens of the small models
TEXT = "abacab?dkab\n\nkab<a"  # "?" and "<" are unknown
SMALL_TEXT = "the cat sat on  the mat, 白日依山盡 ▁▂1 naïve\n\n (the dog) said: don't! <unk>\tyes <eos> \r\n\u00a0end"


def measured(subject: TextModel, text: str, folder: Path) -> float:
    """The bits that `evaluate` charges for a file."""
    (folder / "text.txt").write_bytes(text.encode(errors="surrogateescape"))
    store = open_store(open_texts([folder / "text.txt"]), subject.tokenizer)
    found = evaluate(subject.model, store, subject.tokenizer)
    return found.bits_per_byte * found.bytes


def surprise(subject: TextModel, text: str, top: int = 3) -> Surprise:
    return next(surprise_texts(subject, [text], top))


@pytest.mark.parametrize("case", one_output(text_cases()), ids=case_id)
def test_bits_add_up_to_those_of_evaluate(case: Case, tmp_path: Path) -> None:
    name, output, options = case
    subject = TextModel(small_model(name, output, some_vocabulary(eos=TOKENIZER.eos), **options), TOKENIZER, name)
    found = surprise(subject, TEXT)
    assert found.bits == pytest.approx(measured(subject, TEXT, tmp_path), rel=1e-4)
    assert found.bits_per_byte * found.bytes == pytest.approx(found.bits)
    assert [found.text[one.begin : one.end] for one in found.tokens] == list(TEXT)
    unknown = [one for one in found.tokens if one.oov]
    assert [one.token for one in unknown] == ["?", "<"]
    assert all(one.spelling_bits > 0 for one in unknown)


def test_long_texts_are_read_in_the_tracks_of_evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracks, "TOKENS_PER_TRACK", 50)
    model = small_model("lstm", "softmax", some_vocabulary(eos=TOKENIZER.eos))
    subject, text = TextModel(model, TOKENIZER, "lstm"), "abcde\nfghijk\n" * 13
    assert tracks.track_count(len(text)) == 3
    assert surprise(subject, text).bits == pytest.approx(measured(subject, text, tmp_path), rel=1e-5)


def test_every_tokeniser_adds_up(tmp_path: Path) -> None:
    from chainrule.text import text_of, train_tokenizer

    for kind in ("word", "char", "byte", "bpe", "jieba", "sentencepiece-char"):
        tokenizer = train_tokenizer(kind, text_of("the cat sat on the mat\na dog (the dog) said: don't\n"))
        vocabulary = some_vocabulary(tokenizer.vocab_size, tokenizer.eos)
        subject = TextModel(small_model("ngram", "softmax", vocabulary), tokenizer, kind)
        found = surprise(subject, SMALL_TEXT)
        assert found.bits == pytest.approx(measured(subject, SMALL_TEXT, tmp_path), rel=1e-6), kind
        assert "".join(cell.text for cell in cells(found)) == SMALL_TEXT, kind
        tokens = [one for cell in cells(found) for one in cell.tokens]
        assert tokens == found.tokens, kind


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[cr.Run]:
    folder = tmp_path_factory.mktemp("runs")
    return [
        cr.train("sample:english", model="ngram", tokenizer=kind, out=folder / kind) for kind in ("word", "char", "bpe")
    ]


def test_aligned_words_add_up(runs: list[cr.Run]) -> None:
    text = "The quick brown fox\njumps (over) it."
    surprises = [run.surprise(text) for run in runs]
    found = align(surprises)
    assert found.bits == pytest.approx([one.bits for one in surprises])
    assert "".join(word.text for word in found.words) == text
    assert [word.text for word in found.words] == ["The", " quick", " brown", " fox", "\n", "jumps", " (over)", " it."]
    frame = found.to_pandas()
    assert list(frame.columns) == ["word", "begin", "end", *found.runs]
    assert frame[found.runs[0]].sum() + found.formatting_bits[0] == pytest.approx(surprises[0].bits)
    assert json.loads(json.dumps(found.to_dict()))["bits"] == pytest.approx(found.bits)


def test_ideographs_are_aligned_one_by_one() -> None:
    model = small_model("ngram", "softmax", some_vocabulary(eos=TOKENIZER.eos))
    found = align([surprise(TextModel(model, TOKENIZER, "a"), "白日 ab。x")])
    assert [word.text for word in found.words] == ["白", "日", " ab", "。", "x"]


def test_records_of_a_surprise(runs: list[cr.Run]) -> None:
    first, second = runs[0].surprise(["The cat", 'A <b>dog</b> & "x"'], top=2)
    record = json.loads(json.dumps(first.to_dict()))
    assert record["bits"] == pytest.approx(sum(one["bits"] for one in record["tokens"]) + record["formatting_bits"])
    assert set(record["tokens"][0]) >= {"token", "begin", "end", "bits", "probability", "rank", "entropy", "best"}
    assert len(record["tokens"][0]["best"]) == 2
    assert first.to_pandas()["bits"].sum() == pytest.approx(first.bits - first.formatting_bits)
    page = second._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
    assert math.isnan(runs[0].surprise("").bits_per_byte)


def test_wrong_texts_are_refused(runs: list[cr.Run]) -> None:
    with pytest.raises(ConfigError, match="align got 2 different texts"):
        align(runs[0].surprise(["a", "b"]))
    with pytest.raises(ConfigError, match="top is -1"):
        runs[0].surprise("a", top=-1)
