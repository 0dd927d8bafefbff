"""The public face in Python."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import chainrule as cr
from builders import pairs_text, small_options
from chainrule.errors import ConfigError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> cr.Run:
    folder = tmp_path_factory.mktemp("api")
    (folder / "text.txt").write_text(pairs_text(120))
    settings = {
        "model": small_options("transformer", context=16),
        "training": {"batch_size": 8, "lr": 0.02, "device": "cpu"},
    }
    return cr.train(
        folder / "text.txt", model="transformer", tokenizer="char", steps=40, out=folder / "run", settings=settings
    )


def log_probs(run: cr.Run, text: str) -> torch.Tensor:
    """log p of each token of a text, T."""
    tokens_1T = torch.tensor([run.tokenizer.encode_block(text).tolist()])
    with torch.no_grad():
        found_T: torch.Tensor = run.model.log_probs(tokens_1T)[0].double()
    return found_T


def test_the_public_names_are_these() -> None:
    assert cr.__all__ == sorted(cr.__all__)
    for name in cr.__all__:
        assert getattr(cr, name).__doc__, name
    with pytest.raises(AttributeError) as caught:
        cr.trian  # noqa: B018
    assert str(caught.value) == "module 'chainrule' has no attribute 'trian'"


def test_a_loaded_run_is_the_trained_one(run: cr.Run, tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text(pairs_text(20, seed=4))
    loaded = cr.load(run.folder.path)
    assert loaded.evaluate(tmp_path / "test.txt") == run.evaluate(tmp_path / "test.txt")
    assert repr(loaded) == f"LanguageModelRun({str(run.folder.path)!r}, model='transformer')"
    assert loaded.result["steps"] == 40


def test_evaluation_is_the_sum_over_the_scorer(run: cr.Run, tmp_path: Path) -> None:
    text = pairs_text(15, seed=4)
    (tmp_path / "test.txt").write_text(text)
    measured = run.evaluate(tmp_path / "test.txt")
    nats = -float(log_probs(run, text).sum())
    assert measured.tokens == len(text)
    assert measured.cross_entropy == pytest.approx(nats / len(text), rel=1e-5)
    assert measured.perplexity == pytest.approx(math.exp(nats / len(text)), rel=1e-5)
    assert measured.bits_per_byte == pytest.approx(nats / math.log(2) / len(text), rel=1e-3)


def test_lines_score_alike_in_any_company_and_order(run: cr.Run) -> None:
    lines = ["abab", "", "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd", "efef", "abab"]
    together = list(run.score(lines))
    alone = [run.score(line) for line in lines]
    assert [one.tokens for one in together] == [len(line) + 1 for line in lines]
    assert [one.log_prob for one in together] == pytest.approx([one.log_prob for one in alone], abs=1e-4)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}, {"top_k": 4, "seed": 5}], ids=str)
@pytest.mark.parametrize("prompt", ["", "ab", "abab\ncd", "ab\n"])
def test_streaming_gives_what_generating_gives(run: cr.Run, prompt: str, options: dict[str, float]) -> None:
    pieces = list(run.stream(prompt, max_new_tokens=25, **options))  # type: ignore[arg-type]
    whole = run.generate(prompt, max_new_tokens=25, **options)[0]  # type: ignore[arg-type]
    assert "".join(pieces).rstrip("\n") == whole.text.rstrip("\n")
    assert whole.text.startswith(prompt.rstrip("\n"))
    assert whole.tokens == 25


def test_a_beam_finds_what_is_at_least_as_probable_as_greedy(run: cr.Run) -> None:
    greedy = run.generate("ab", max_new_tokens=6, num_beams=1)[0].text
    best = run.generate("ab", max_new_tokens=6, num_beams=5, length_penalty=0.0)[0]
    assert best.log_prob is not None
    assert best.log_prob >= float(log_probs(run, greedy)[2:].sum()) - 1e-4


def test_training_and_validation_take_the_first_lines_where_asked(tmp_path: Path) -> None:
    text, valid = tmp_path / "text.txt", tmp_path / "valid.txt"
    text.write_text("ab\n" * 30 + "xy\n" * 30)
    valid.write_text("ab\n" * 5 + "xy\n" * 5)
    settings = {"data": {"lines": 30, "valid_lines": 5}}
    options = {"model": "ngram", "order": 2, "tokenizer": "char", "settings": settings}
    run = cr.train(text, valid=valid, out=tmp_path / "run", **options)
    assert run.result["tokens"] == 90
    assert run.tokenizer.to_id("x") is None
    assert run.evaluate_held_out().tokens == 15
    with pytest.raises(ConfigError) as caught:
        cr.train(text, out=tmp_path / "other", **options)
    assert str(caught.value) == "data.valid_lines needs a validation text; give one with --valid"
