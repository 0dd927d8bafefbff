"""The beam as a tree, the choices at each position, translating anew after a choice, and the passes of each mode."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
from builders import letter_pairs, write_pairs
from chainrule.errors import ConfigError, DataError
from chainrule.runs.translator import TranslatorRun

SMALL: dict[str, Any] = {"embedding": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "feedforward": 32}
SHAPES: dict[str, dict[str, Any]] = {
    "seq2seq-transformer": {**SMALL, "context": 24, "dropout": 0.0},
    "hybrid": {"embedding": 16, "hidden": 16},
}
TRAINING: dict[str, Any] = {"max_tokens": 128, "optimizer": "adamw", "lr": 0.02, "validations": 1}


def train(folder: Path, model: str, steps: int) -> TranslatorRun:
    paths = write_pairs(folder, letter_pairs(200, longest=5), model)
    settings = {"model": SHAPES[model], "training": TRAINING}
    run = cr.train(*paths, model=model, tokenizer="char", steps=steps, out=folder / f"run-{model}", settings=settings)
    assert isinstance(run, TranslatorRun)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TranslatorRun:
    return train(tmp_path_factory.mktemp("choices"), "seq2seq-transformer", 60)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> TranslatorRun:
    return train(tmp_path_factory.mktemp("choices"), "hybrid", 30)


def test_the_tree_contains_all_translations_and_changes_none(run: TranslatorRun) -> None:
    plain = list(run.translate_lines(["abc", "", "dcba"], num_return_sequences=3))
    found = list(run.translate_lines(["abc", "", "dcba"], num_return_sequences=3, trace=True))
    assert [[one.text for one in best] for best in found] == [[one.text for one in best] for best in plain]
    assert plain[0][0].trace is None
    assert found[1][0].trace is None
    for best in (found[0], found[2]):
        tree = best[0].trace
        assert tree is not None
        ends = {node.rank: place for place, node in enumerate(tree.nodes) if node.rank}
        for rank, one in enumerate(best, start=1):
            path = tree.path(ends[rank])
            assert [node.token for node in path if node.piece != "<eos>"] == one.target
            assert path[-1].log_prob == pytest.approx(one.log_prob, abs=1e-5)
            assert path[-1].score == pytest.approx(one.score, abs=1e-5)
        assert tree.best == ends[1]
        assert json.loads(json.dumps(tree.to_dict()))["nodes"][0]["piece"] == tree.nodes[0].piece


def test_the_tree_of_a_given_prefix(run: TranslatorRun) -> None:
    (best,) = next(run.translate_lines("abc", prefix="DA", trace=True))
    assert best.trace is not None
    assert best.trace.prefix == ["D", "A"]
    assert best.text.startswith("DA")


def test_choices_are_the_steps_of_the_model(run: TranslatorRun) -> None:
    """One pass over the translation gives what steps one by one give, and adds up to the forced score."""
    source, target = "abcd", "DCA"
    found = run.choices(source, target, top=3)
    assert [one.piece for one in found] == ["D", "C", "A", "<eos>"]
    (scored,) = run.score_pairs([(source, target)])
    assert [one.log_prob for one in found] == pytest.approx(scored.log_probs, abs=1e-5)
    for place, one in enumerate(found):
        prefix = run.tokenizer.encode(target[:place])
        (step,) = next(run.translate_lines(source, prefix=prefix, num_beams=1, max_new_tokens=1))
        assert one.choices[0].log_prob == pytest.approx(step.log_prob, abs=1e-5)
        assert one.choices[0].log_prob >= one.choices[1].log_prob >= one.choices[2].log_prob
        everything = run.choices(source, target, top=10_000)[place]
        assert math.fsum(math.exp(choice.log_prob) for choice in everything.choices) == pytest.approx(1, abs=1e-5)
        assert everything.choices[one.rank - 1].log_prob == pytest.approx(one.log_prob)


def test_the_rest_is_translated_anew_after_a_choice(run: TranslatorRun) -> None:
    """Score of the forced prefix plus that of the rest is the score of the whole."""
    source = "abcd"
    (best,) = next(run.translate_lines(source))
    place = 1
    known = (best.target[place], run.tokenizer.eos)
    other = next(choice for choice in run.choices(source, best.target)[place].choices if choice.token not in known)
    prefix = [*best.target[:place], other.token]
    (anew,) = next(run.translate_lines(source, prefix=prefix))
    assert anew.target[: place + 1] == prefix
    whole = run.choices(source, anew.target)
    rest = whole[place + 1 :][: anew.tokens]  # without `eos` if the limit came before it
    assert sum(one.log_prob for one in rest) == pytest.approx(anew.log_prob, abs=1e-4)
    assert anew.text == run.translate(source, prefix=run.tokenizer.decode(prefix))


def test_passes_of_each_mode(run: TranslatorRun, hybrid: TranslatorRun) -> None:
    (greedy,) = next(run.translate_lines("abcd", num_beams=1))
    assert greedy.passes == greedy.tokens
    (drafted,) = next(run.translate_lines("abcd", num_beams=1, draft=run))
    assert drafted.passes is not None
    assert drafted.drafted is not None
    assert drafted.passes == drafted.drafted.passes <= greedy.passes
    for options, passes in (({}, 1), ({"refine": 2}, 3), ({"lengths": 3}, 2)):
        (parallel,) = next(hybrid.translate_lines("abcd", mode="nar", num_beams=1, **options))
        assert parallel.passes == passes
    (checked,) = next(hybrid.translate_lines("abcd", mode="draft", num_beams=1))
    assert checked.drafted is not None
    assert checked.passes == 1 + checked.drafted.passes
    (forced,) = next(run.translate_lines("abcd", force="D"))
    assert forced.passes is None


def test_mistakes(run: TranslatorRun) -> None:
    with pytest.raises(ConfigError, match=r"^--trace shows a plain beam search; leave --mode, --draft, --force,"):
        run.translate("ab", trace=True, force="D")
    with pytest.raises(ConfigError, match=r"^--split translates sentences one by one; leave n-best, attention, trace"):
        run.translate("ab", trace=True, split=True)
    eos = run.tokenizer.eos
    with pytest.raises(ConfigError, match=rf"^the prefix has the token {eos}; expected ids from 0 to \d+, without"):
        run.translate("ab", prefix=[eos])
    with pytest.raises(ConfigError, match=r"^the prefix has the token 999; expected ids"):
        run.choices("ab", [999])
    with pytest.raises(ConfigError, match=r"^top is 0; expected at least 1$"):
        run.choices("ab", "A", top=0)
    with pytest.raises(DataError, match=r"^the translation has 31 tokens with its end, but .* writes at most 24"):
        run.choices("ab", "A" * 30)
