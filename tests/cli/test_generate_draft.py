"""`generate --draft`: the same text, and the statistics of the drafts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
from builders import letter_pairs, pairs_text, small_options, write_pairs
from chainrule.decoding import DraftStatistics
from chainrule.errors import ConfigError
from commands import chainrule


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained network, two n-gram models and a translator; one n-gram model has other tokens."""
    folder = tmp_path_factory.mktemp("drafts")
    (folder / "text.txt").write_text(pairs_text(120))
    settings: dict[str, Any] = {
        "model": small_options("transformer", context=16),
        "training": {"batch_size": 8, "lr": 0.02, "device": "cpu"},
    }
    text = folder / "text.txt"
    cr.train(text, model="transformer", tokenizer="char", steps=60, out=folder / "network", settings=settings)
    cr.train(text, model="ngram", tokenizer="char", order=3, out=folder / "counts")
    cr.train(text, model="ngram", tokenizer="byte", order=3, out=folder / "bytes")
    tiny = {"model": small_options("seq2seq-rnn"), "training": {"device": "cpu"}}
    cr.train(
        *write_pairs(folder, letter_pairs(40)), model="seq2seq-rnn", steps=2, out=folder / "translator", settings=tiny
    )
    return folder


@pytest.mark.parametrize("draft", ["counts", "lookup", "network"])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}, {"top_k": 4, "seed": 5}], ids=str)
def test_drafts_do_not_change_the_text(place: Path, draft: str, options: dict[str, Any]) -> None:
    run = cr.load(place / "network")
    given = draft if draft == "lookup" else place / draft
    for prompt in ("", "abab\ncd"):
        (plain,) = run.generate(prompt, max_new_tokens=60, **options)
        (found,) = run.generate(prompt, max_new_tokens=60, **options, draft=given, draft_tokens=5)
        assert (found.text, found.tokens) == (plain.text, plain.tokens)
        assert plain.drafted is None
        assert found.drafted is not None
        assert found.drafted.passes + found.drafted.accepted == 60
        statistics = DraftStatistics()
        streamed = "".join(run.stream(prompt, max_new_tokens=60, **options, draft=given, drafted=statistics))
        assert streamed.rstrip("\n") == plain.text.rstrip("\n")
        assert statistics.emitted == 60
    if draft == "network" and not options:  # a model that drafts for itself is nearly always right
        assert found.drafted.acceptance > 0.9


@pytest.mark.parametrize("draft", ["counts", "lookup", "network"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.0, "seed": 3},
        {"temperature": 0.0, "seed": 3},
        {"temperature": 0.7, "top_k": 4, "top_p": 0.9, "min_p": 0.05, "seed": 5},
        {"temperature": 1.2, "seed": 7, "repetition_penalty": 1.4, "no_repeat_ngram_size": 4},
        {"repetition_penalty": 1.1, "stop": "ba", "min_new_tokens": 3, "stop_at_eos": True},
    ],
    ids=str,
)
def test_drafts_do_not_change_the_text_of_a_model_without_torch(
    place: Path, draft: str, options: dict[str, Any]
) -> None:
    """It draws with NumPy, and its drafts are accepted as its own text is chosen."""
    run = cr.load(place / "counts")
    given = draft if draft == "lookup" else place / draft
    for prompt in ("", "abab\ncd"):
        (plain,) = run.generate(prompt, max_new_tokens=80, **options)
        (found,) = run.generate(prompt, max_new_tokens=80, **options, draft=given)
        assert (found.text, found.tokens, found.end) == (plain.text, plain.tokens, plain.end)
        streamed = "".join(run.stream(prompt, max_new_tokens=80, **options, draft=given))
        assert streamed == "".join(run.stream(prompt, max_new_tokens=80, **options))


def test_a_loaded_run_may_draft(place: Path) -> None:
    run, counts = cr.load(place / "network"), cr.load(place / "counts")
    assert run.generate("ab", max_new_tokens=20, draft=counts)[0].text == run.generate("ab", max_new_tokens=20)[0].text


def test_the_command_reports_the_statistics_of_the_drafts(place: Path) -> None:
    command = ["generate", place / "network", "--prompt", "ab", "--max-new-tokens", 40]
    plain = chainrule(*command)
    drafted = chainrule(*command, "--draft", place / "counts", "--draft-tokens", 4)
    assert drafted.out == plain.out
    assert plain.err == ""
    assert re.fullmatch(
        r"40 tokens in \d+ passes, \d+% of \d+ drafted tokens accepted, [\d,]+ tokens/s, about [\d.]+ times as fast as "
        r"without \(a plain step takes [\d.]+ ms\)\n",
        drafted.err,
    )
    printed = json.loads(chainrule(*command, "--draft", "lookup", "--json").out)
    assert set(printed) == {"texts", "tokens_per_second", "draft"}
    assert set(printed["draft"]) == {"passes", "proposed", "accepted", "acceptance", "speed_up"}
    assert printed["texts"] == [plain.out.removesuffix("\n")]
    assert printed["draft"]["passes"] + printed["draft"]["accepted"] == 40
    assert printed["draft"]["acceptance"] == round(printed["draft"]["accepted"] / printed["draft"]["proposed"], 4)


def test_messages_of_unsupported_combinations(place: Path) -> None:
    run = cr.load(place / "network")
    network, other, translator = (place / name for name in ("network", "bytes", "translator"))
    with pytest.raises(ConfigError) as caught:
        run.generate(draft=other)
    assert str(caught.value) == (
        f"{other} (ngram) has other tokens than {network} (transformer), so it cannot draft for it; train it with the "
        "tokeniser of that run (--tokenizer FOLDER), or use lookup"
    )
    with pytest.raises(ConfigError) as caught:
        list(run.stream(draft=translator))
    assert str(caught.value).startswith(
        f"{translator} (seq2seq-rnn) has no generate; generate works with at, average, "
    )
    for options in ({"num_beams": 4}, {"num_return_sequences": 3, "temperature": 1.0}):
        with pytest.raises(ConfigError) as caught:
            run.generate(draft="lookup", **options)  # type: ignore[arg-type]
        name, count = next(iter(options.items()))
        assert str(caught.value) == (
            f"a draft is for one text without a beam, but {name} is {count}; leave one of them out"
        )
    refused = chainrule("generate", network, "--draft", "lookup", "--draft-tokens", 0)
    assert refused.code == 2
    assert refused.err.strip().endswith("draft_tokens is 0; expected at least 1: leave the draft out to have none")
