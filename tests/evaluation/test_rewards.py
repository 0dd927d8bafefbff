"""Rewards against the sentence scores of sacreBLEU and rouge_score."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.metrics import is_chinese
from chainrule.evaluation.rewards import REWARDS, make_reward
from chainrule.evaluation.rouge import WordTokenizer

BLEU_13A, BLEU_ZH, CHRF_2 = BLEU(effective_order=True), BLEU(effective_order=True, tokenize="zh"), CHRF()
ROUGE_L = RougeScorer(["rougeL"], tokenizer=WordTokenizer())
MADE = {name: make_reward(name) for name in REWARDS}

WESTERN = st.lists(st.sampled_from(["a", "A", "the", "Größe", "für", "3,5", "end.", "&amp;", "x-y", "!"])).map(" ".join)
CHINESE = st.lists(st.sampled_from(["我", "你", "他", "喜欢", "猫", "。", "，", " ", "GPT", "3.5"])).map("".join)
SENTENCE = st.one_of(WESTERN, CHINESE, st.text(max_size=20), st.just(""))


def official(name: str, output: str, reference: str) -> float:
    """The score by sacreBLEU or rouge_score, 0 to 1."""
    if name == "bleu":
        return float((BLEU_ZH if is_chinese(reference) else BLEU_13A).sentence_score(output, [reference]).score) / 100
    if name == "chrf":
        return float(CHRF_2.sentence_score(output, [reference]).score) / 100
    return float(ROUGE_L.score(reference, output)["rougeL"].fmeasure)


@pytest.mark.parametrize("name", REWARDS)
@given(st.lists(st.one_of(st.tuples(SENTENCE, SENTENCE), SENTENCE.map(lambda text: (text, text))), max_size=6))
@settings(max_examples=80, deadline=None)
def test_rewards_equal_the_libraries(name: str, pairs: list[tuple[str, str]]) -> None:
    outputs, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    rewards_N = MADE[name](outputs, references)
    expected_N = np.array([official(name, *pair) for pair in pairs])
    assert rewards_N.shape == (len(pairs),)
    np.testing.assert_allclose(rewards_N, expected_N, rtol=0, atol=1e-9)
    assert ((rewards_N >= 0) & (rewards_N <= 1)).all()


@pytest.mark.parametrize("name", REWARDS)
def test_batch_mates_change_nothing(name: str) -> None:
    """Neither do the languages of the others, nor earlier calls."""
    outputs = ["the cat sat on a mat", "我喜欢猫。", "", "the cat sat on a mat", "Ein Hund läuft über die Straße."]
    references = ["the cat is on the mat", "我喜欢狗。", "nothing", "我喜欢狗。", "Ein Hund rennt über eine Straße."]
    together = make_reward(name)(outputs, references)
    alone = [make_reward(name)([output], [own])[0] for output, own in zip(outputs, references, strict=True)]
    assert together.tolist() == alone
    assert together[2] == 0 < together[1] < 1


def test_errors() -> None:
    with pytest.raises(ConfigError) as caught:
        make_reward("blue")
    assert str(caught.value) == "unknown reward 'blue': did you mean 'bleu'? Known: bleu, chrf, rouge"
    with pytest.raises(DataError) as mismatch:
        make_reward("bleu")(["a", "b"], ["a"])
    assert str(mismatch.value) == (
        "there are 2 outputs and 1 references: expected one reference for each output; "
        "repeat it where a source has several outputs."
    )
