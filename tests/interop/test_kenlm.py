"""The interface of KenLM against KenLM itself, and inside pyctcdecode."""

from __future__ import annotations

import copy
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
SENTENCES = ["the cat sat on a mat", "a zzq ran", "", "dog dog dog the", "the dog ran to the cat sat on"]


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
                assert model.score(sentence, **named) == pytest.approx(theirs.score(sentence, **named), abs=1e-4)
                found, expected = (list(one.full_scores(sentence, **named)) for one in (model, theirs))
                assert [one[1:] for one in found] == [one[1:] for one in expected]
                assert [one[0] for one in found] == pytest.approx([one[0] for one in expected], abs=1e-4)
        assert model.perplexity(sentence) == pytest.approx(theirs.perplexity(sentence), rel=1e-3)


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
