"""The interface of KenLM against KenLM itself, and inside pyctcdecode."""

from __future__ import annotations

import copy
import gzip
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chainrule as cr
import chainrule.kenlm as ours
from chainrule.errors import ConfigError

kenlm = pytest.importorskip("kenlm", reason="the extra bench installs it")
TEXT = "the cat sat on the mat\na dog sat on the cat\nthe dog ran to a mat\n" * 5
SENTENCES = [
    "the cat sat on a mat",
    "a zzq ran",
    "",
    "dog dog dog the",
    "the dog ran to the cat sat on",
    "the <s> dog ran",
    "the </s> dog ran </s>",
    "<s>",
    "<unk> the cat",
    " the\tcat\nsat\r on\x0b\x0cthe  ",
    "the\x1ccat the\u00a0cat the\u3000cat",
    "the cat sat " * 900,
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kenlm")
    (folder / "text.txt").write_text(TEXT)
    cr.train(folder / "text.txt", model="ngram", tokenizer="word", order=3, out=folder / "run")
    cr.export(folder / "run", folder / "model.arpa")
    return folder


@pytest.mark.parametrize("name", ["run", "model.arpa"])
def test_scores_are_those_of_kenlm(place: Path, name: str) -> None:
    theirs, model = kenlm.Model(str(place / "model.arpa")), ours.Model(str(place / name))
    assert model.order == theirs.order == 3
    assert all((word in model) == (word in theirs) for word in ("cat", "zzq", "<s>", "</s>"))
    for sentence in SENTENCES:
        for bos in (True, False):
            for eos in (True, False):
                named = {"bos": bos, "eos": eos}
                expected_total = pytest.approx(theirs.score(sentence, **named), rel=1e-5, abs=1e-4)
                assert model.score(sentence, **named) == expected_total
                found, expected = (list(one.full_scores(sentence, **named)) for one in (model, theirs))
                assert [one[1:] for one in found] == [one[1:] for one in expected]
                assert [one[0] for one in found] == pytest.approx([one[0] for one in expected], abs=1e-4)
        assert model.perplexity(sentence) == pytest.approx(theirs.perplexity(sentence), rel=1e-3)


@pytest.mark.parametrize("options", [{"quantize": True}, {"order": 1}, {"smoothing": "stupid-backoff"}])
def test_every_kind_of_table_is_scored(place: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    cr.train(place / "text.txt", model="ngram", tokenizer="word", out=tmp_path / "run", **{"order": 3, **options})
    model, run = ours.Model(tmp_path / "run"), cr.load(tmp_path / "run")
    for sentence in SENTENCES[:5]:
        expected = run.score(sentence)
        assert model.score(sentence) == pytest.approx(expected.log_prob / np.log(10), rel=1e-5)
        words = [one[0] for one in model.full_scores(sentence)]
        assert words == pytest.approx([one / np.log(10) for one in expected.log_probs], rel=1e-5)


def test_lists_have_the_scores_of_their_sentences(place: Path) -> None:
    model = ours.Model(place / "run")
    for bos, eos in ((True, True), (True, False), (False, True), (False, False)):
        expected = [model.score(sentence, bos, eos) for sentence in SENTENCES]
        assert model.score_lines(SENTENCES, bos, eos) == pytest.approx(expected, rel=1e-6)
    assert model.score_lines([]) == []
    assert model.score_lines(one.encode() for one in SENTENCES) == model.score_lines(SENTENCES)


def test_bytes_are_sentences_too(place: Path) -> None:
    theirs, model = kenlm.Model(str(place / "model.arpa")), ours.Model(place / "model.arpa")
    assert model.score(b"the cat sat") == pytest.approx(theirs.score(b"the cat sat"), abs=1e-4)
    assert model.score(b"the \xff cat") == pytest.approx(theirs.score(b"the \xff cat"), abs=1e-4)


def test_compressed_files_are_read(place: Path) -> None:
    packed = place / "model.arpa.gz"
    packed.write_bytes(gzip.compress((place / "model.arpa").read_bytes()))
    assert ours.Model(packed).score(SENTENCES[0]) == ours.Model(place / "model.arpa").score(SENTENCES[0])


def test_options_have_the_names_of_kenlm() -> None:
    for name in ("LoadMethod", "ARPALoadComplain"):
        theirs = {key: value for key, value in vars(getattr(kenlm, name)).items() if key.isupper()}
        assert {key: value for key, value in vars(getattr(ours, name)).items() if key.isupper()} == theirs
    theirs, config = kenlm.Config(), ours.Config()
    for name in ("load_method", "show_progress", "arpa_complain"):
        assert getattr(config, name) == getattr(theirs, name)


def stepwise(module: Any, model: Any, sentence: str, begin: bool) -> list[tuple[float, int, bool]]:
    """The states of KenLM's own example."""
    state, after, scores = module.State(), module.State(), []
    (model.BeginSentenceWrite if begin else model.NullContextWrite)(state)
    for word in [*sentence.split(), "</s>"]:
        one = model.BaseFullScore(state, word, after)
        assert model.BaseScore(state, word, after) == pytest.approx(one.log_prob)
        scores.append((one.log_prob, one.ngram_length, one.oov))
        state, after = after, module.State()
    return scores


def test_states_are_those_of_kenlm(place: Path) -> None:
    theirs, model = kenlm.Model(str(place / "model.arpa")), ours.Model(place / "model.arpa")
    for sentence in SENTENCES:
        for begin in (True, False):
            found, expected = stepwise(ours, model, sentence, begin), stepwise(kenlm, theirs, sentence, begin)
            assert [one[1:] for one in found] == [one[1:] for one in expected]
            assert [one[0] for one in found] == pytest.approx([one[0] for one in expected], abs=1e-4)


def test_states_compare_and_copy(place: Path) -> None:
    model, first, second = ours.LanguageModel(str(place / "run"), ours.Config()), ours.State(), ours.State()
    model.BeginSentenceWrite(first)
    model.BeginSentenceWrite(second)
    assert first == second == copy.copy(first)
    assert hash(first) == hash(second)
    model.NullContextWrite(second)
    assert first != second
    assert first > second
    assert second <= first
    assert len({first, second, copy.deepcopy(first)}) == 2


def test_states_are_equal_and_ordered_where_those_of_kenlm_are(place: Path) -> None:
    """By the number of words of context first; contexts that nothing continues count as in KenLM."""
    theirs, model = kenlm.Model(str(place / "model.arpa")), ours.Model(place / "model.arpa")
    rows: list[list[Any]] = []
    for module, one in ((kenlm, theirs), (ours, model)):
        states = []
        for prefix in ("", "the", "the cat", "zzq", "a mat", "to a mat", "dog dog", "the dog", "zzq the dog"):
            state = module.State()
            one.NullContextWrite(state)
            for word in prefix.split():
                after = module.State()
                one.BaseScore(state, word, after)
                state = after
            states.append(state)
        rows.append(states)
    for first, second in zip(*rows, strict=True):
        for other, another in zip(*rows, strict=True):
            assert (first == other) == (second == another)


def example(module: Any, path: Path) -> list[str]:
    """What a program that uses KenLM's module prints: totals, words, states."""
    model = module.LanguageModel(str(path))
    sentence = "the dog ran on the zzq mat ."
    words, lines = ["<s>", *sentence.split(), "</s>"], [f"{model.order}-gram model", sentence]
    lines.append(f"{model.score(sentence):.3f}")
    for place, (prob, length, oov) in enumerate(model.full_scores(sentence)):
        lines.append(f"{prob:.3f} {length}: {' '.join(words[place + 2 - length : place + 2])}")
        lines += [f'"{words[place + 1]}" is unknown'] * oov
    lines += [f'"{word}" is unknown' for word in words if word not in model]
    state, after, total = module.State(), module.State(), 0.0
    model.BeginSentenceWrite(state)
    for word in words[1:]:
        total += model.BaseScore(state, word, after)
        state, after = after, state
    assert abs(total - model.score(sentence)) < 1e-3
    model.NullContextWrite(state)
    full = model.BaseFullScore(state, "cat", after)
    return [
        *lines,
        f"{total:.3f}",
        f"{full.log_prob:.3f} {full.ngram_length} {full.oov}",
        f"{model.perplexity(sentence):.2f}",
    ]


def test_a_program_prints_the_same_with_either_module(place: Path) -> None:
    assert example(ours, place / "model.arpa") == example(kenlm, place / "model.arpa")


def test_another_run_is_refused(place: Path) -> None:
    cr.train(place / "text.txt", model="ngram", tokenizer="char", order=2, out=place / "chars")
    with pytest.raises(ConfigError, match="is not an n-gram model of words"):
        ours.Model(place / "chars")


def test_pyctcdecode_gives_the_same_text(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = pytest.importorskip("pyctcdecode", reason="pip install --no-deps pyctcdecode pygtrie")
    letters = ["", " ", *sorted(set(TEXT) - {" ", "\n"})]
    logits = np.log(np.random.default_rng(1).dirichlet(np.full(len(letters), 0.3), 40)).astype(np.float32)
    texts = []
    for module in (kenlm, ours):
        monkeypatch.setattr(decoder.decoder, "kenlm", module)
        monkeypatch.setattr(sys.modules["pyctcdecode.language_model"], "kenlm", module)
        built = decoder.build_ctcdecoder(letters, str(place / "model.arpa"), sorted(set(TEXT.split())))
        texts.append(built.decode(logits))
    assert texts[0] == texts[1] != ""
