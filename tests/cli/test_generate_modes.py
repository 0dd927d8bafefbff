"""`generate --mode`: the modes of a hybrid language model, from Python and from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
from chainrule.decoding import DraftStatistics
from chainrule.errors import ConfigError
from commands import chainrule

SIZES: dict[str, Any] = {"embedding": 16, "hidden": 16, "block": 8, "context": 16, "gamma": 0.2}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hybrid after a few steps, and a model with one mode."""
    folder = tmp_path_factory.mktemp("modes")
    text = folder / "text.txt"
    text.write_text("abcabd abcabd\n" * 80, encoding="utf-8")
    few: dict[str, Any] = {"tokenizer": "char", "steps": 60, "settings": {"training": {"threads": 1}}}
    cr.train(text, model="hybrid-lm", out=folder / "hybrid", **few, **SIZES)
    cr.train(text, model="lstm", out=folder / "lstm", **{**few, "steps": 2}, hidden=8)
    return folder


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "seed": 1}])
def test_mode_draft_gives_the_text_of_ar(place: Path, options: dict[str, Any]) -> None:
    run: Any = cr.load(place / "hybrid")
    for prompt in ("", "abcab"):
        (plain,) = run.generate(prompt, max_new_tokens=60, **options)
        (found,) = run.generate(prompt, max_new_tokens=60, mode="draft", **options)
        assert found.text == plain.text
        assert found.drafted.passes + found.drafted.accepted == 60
        streamed = run.stream(prompt, max_new_tokens=60, mode="draft", **options)
        assert "".join(streamed) == plain.text


def test_mode_nar_takes_one_pass_per_block(place: Path) -> None:
    run: Any = cr.load(place / "hybrid")
    (found,) = run.generate("abcab", max_new_tokens=20, mode="nar")
    assert found.tokens == 20
    assert (found.drafted.passes, found.drafted.emitted) == (3, 20)
    statistics = DraftStatistics()
    assert "".join(run.stream("abcab", max_new_tokens=20, mode="nar", drafted=statistics)) == found.text
    assert statistics.passes == 3
    sampled = run.generate("abcab", max_new_tokens=20, mode="nar", temperature=1.0, seed=4, num_return_sequences=3)
    assert len({text.text for text in sampled}) > 1
    (stopped,) = run.generate("abcab", max_new_tokens=20, mode="nar", stop=found.text[7])
    assert stopped.text == found.text[: found.text.index(found.text[7], 5)]


def test_the_command_reports_passes(place: Path) -> None:
    command = ("generate", place / "hybrid", "--prompt", "abcab", "--max-new-tokens", 24)
    plain = chainrule(*command)
    drafted = chainrule(*command, "--mode", "draft")
    assert drafted.out == plain.out
    assert "drafted tokens accepted" in drafted.err
    parallel = chainrule(*command, "--mode", "nar")
    assert re.search(r"24 tokens in 3 passes, [\d,]+ tokens/s, about [\d.]+ times as fast as --mode ar", parallel.err)
    short = chainrule("generate", place / "hybrid", "--prompt", "abcab", "--max-new-tokens", 1, "--mode", "nar")
    assert short.err.startswith("1 token in 1 pass, ")
    printed = json.loads(chainrule(*command, "--mode", "nar", "--json").out)
    assert printed["texts"] == [parallel.out.removesuffix("\n")]
    assert (printed["mode"], printed["passes"], printed["tokens_per_pass"]) == ("nar", 3, 8.0)
    printed = json.loads(chainrule(*command, "--mode", "draft", "--json").out)
    assert printed["mode"] == "draft"
    assert printed["passes"] == printed["draft"]["passes"]
    assert printed["tokens_per_pass"] == round(24 / printed["passes"], 3)


def test_a_mode_that_cannot_be_met_raises_an_error(place: Path) -> None:
    lstm = place / "lstm"
    refused = chainrule("generate", lstm, "--mode", "nar")
    assert refused.code == 2
    assert f"mode is nar, but {lstm} (lstm) has the mode ar only; train a hybrid-lm for ar, nar and draft" in " ".join(
        refused.err.split()
    )
    run: Any = cr.load(place / "hybrid")
    with pytest.raises(ConfigError, match=r"mode nar has no beam, but num_beams is 3; leave one of them out"):
        run.generate(mode="nar", num_beams=3)
    with pytest.raises(ConfigError, match=r"mode nar takes no draft of another model; leave draft out, or use mode ar"):
        list(run.stream(mode="nar", draft="lookup"))
    with pytest.raises(ConfigError, match=r"a draft is for one text without a beam, but num_return_sequences is 2"):
        run.generate(mode="draft", num_return_sequences=2, temperature=1.0)
