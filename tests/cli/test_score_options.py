"""chainrule score --base, the hint at rescore, and names of pictures"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, cast

import pytest

import chainrule as cr
from builders import pairs_text
from chainrule.errors import ConfigError
from chainrule.kenlm import Model
from chainrule.runs.language_model import LanguageModelRun
from chainrule.runs.translator import TranslatorRun
from commands import chainrule

LINES = ["the cat sat", "", "a zzq on the mat"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    (folder / "text.txt").write_text("the cat sat on the mat\na dog ran to the cat\n" * 5, encoding="utf-8")
    (folder / "lines.txt").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    small: dict[str, Any] = {"model": {"embedding": 8, "hidden": 8}, "training": {"device": "cpu"}}
    cr.train(folder / "text.txt", model="ngram", tokenizer="word", order=3, out=folder / "ngram")
    cr.train(folder / "text.txt", model="lstm", tokenizer="word", steps=3, settings=small, out=folder / "lstm")
    pairs = [line.split() for line in pairs_text(60).splitlines()]
    (folder / "pairs.tsv").write_text("".join(f"{line[0]}\t{line[-1]}\n" for line in pairs), encoding="utf-8")
    cr.train(
        folder / "pairs.tsv", model="seq2seq-rnn", tokenizer="char", steps=3, settings=small, out=folder / "translator"
    )
    return folder


def floats(text: str) -> list[float]:
    return [float(word) for word in text.split()]


@pytest.mark.parametrize("name", ["ngram", "lstm"])
@pytest.mark.parametrize(("base", "number"), [("2", 2.0), ("10", 10.0), ("e", math.e)])
def test_log_probabilities_of_another_base(place: Path, name: str, base: str, number: float) -> None:
    nats = [
        json.loads(line) for line in chainrule("score", place / name, place / "lines.txt", "--json").out.splitlines()
    ]
    lines = chainrule("score", place / name, place / "lines.txt", "--base", base)
    assert lines.code == 0
    expected = [one["log_prob"] / math.log(number) for one in nats]
    assert floats(lines.out) == pytest.approx(expected, abs=6e-5)
    tokens = chainrule("score", place / name, place / "lines.txt", "--base", base, "--tokens", "--json").out
    for one, line in zip(expected, tokens.splitlines(), strict=True):
        record = json.loads(line)
        assert record["log_prob"] == pytest.approx(sum(record["log_probs"])) == pytest.approx(one)
    run = cast(LanguageModelRun, cr.load(place / name))
    assert [one.log_prob for one in run.score(LINES, base=number)] == pytest.approx(expected)
    assert [one for block, _ in run.score_text(place / "lines.txt", base=number) for one in block] == pytest.approx(
        expected
    )


def test_base_10_is_what_kenlm_prints(place: Path, tmp_path: Path) -> None:
    cr.export(place / "ngram", tmp_path / "model.arpa")
    model = Model(str(tmp_path / "model.arpa"))
    found = floats(chainrule("score", place / "ngram", place / "lines.txt", "--base", "10").out)
    assert found == pytest.approx([model.score(line) for line in LINES], abs=1e-4)


def test_a_translation_has_another_base_too(place: Path) -> None:
    nats = floats(chainrule("score", place / "translator", place / "pairs.tsv").out)
    bits = floats(chainrule("score", place / "translator", place / "pairs.tsv", "--base", "2").out)
    assert bits == pytest.approx([one / math.log(2) for one in nats], abs=2e-4)
    run = cast(TranslatorRun, cr.load(place / "translator"))
    assert [one.log_prob for one in run.score_pairs(place / "pairs.tsv", base=2)] == pytest.approx(bits, abs=6e-5)


def test_details_and_choices_in_json_have_the_base(place: Path) -> None:
    (line,) = chainrule(
        "score", place / "ngram", "--tokens", "--top", 1, "--base", "2", "--json", stdin="the\n"
    ).out.splitlines()
    found = json.loads(line)
    for one in found["details"]:
        assert one["log_prob"] == pytest.approx(-one["bits"])
    assert found["log_prob"] == pytest.approx(sum(found["log_probs"]))
    asked = ("score", place / "ngram", "--choices", " cat", "--choices", " dog", "--json")
    nats, log10 = (json.loads(chainrule(*asked, *more, stdin="the\n").out) for more in ((), ("--base", "10")))
    for one, other in zip(nats["choices"], log10["choices"], strict=True):
        for name in ("log_prob", "per_token", "per_byte"):
            assert other[name] == pytest.approx(one[name] / math.log(10))
        assert other["tokens"] == one["tokens"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--why", 0), "--base 10 has no effect with --why, which prints no log-probability; leave --base out"),
        (("--tokens", "--top", 2), "--base 10 has no effect with --top, which prints no log-probability; add --json"),
        (("--choices", " a"), "--base 10 has no effect with choices, which prints no log-probability; add --json"),
    ],
)
def test_a_base_without_effect_is_refused(place: Path, options: tuple[object, ...], message: str) -> None:
    result = chainrule("score", place / "ngram", "--base", "10", *options, stdin="the cat\n")
    assert result.code == 2
    assert message in result.err


@pytest.mark.parametrize("base", [1.0, 0.5, -2.0, math.inf, math.nan])
def test_a_wrong_base_is_an_error(place: Path, base: float) -> None:
    with pytest.raises(ConfigError, match=rf"^base is {base}; expected a number above 1, for example 2, 10 or math.e$"):
        cast(LanguageModelRun, cr.load(place / "ngram")).score("the", base=base)


@pytest.mark.parametrize(
    "line", ["0 ||| the cat ||| -3.5", "0 ||| the ||| LM= -3 ||| -7", "1 ||| a ||| f ||| -2 ||| 0-0"]
)
def test_n_best_lists_are_scored_with_a_hint_at_rescore(place: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "nbest.txt").write_text(f"{line}\n", encoding="utf-8")
    for result in (
        chainrule("score", place / "ngram", tmp_path / "nbest.txt"),
        chainrule("score", place / "ngram", stdin=f"{line}\n"),
    ):
        assert result.code == 0
        assert len(floats(result.out)) == 1
        assert "To rank such lists: chainrule rescore" in result.err


@pytest.mark.parametrize("line", ["the cat", "a ||| b", "a ||| b ||| c", ""])
def test_other_lines_have_no_hint(place: Path, line: str) -> None:
    assert "rescore" not in chainrule("score", place / "ngram", stdin=f"{line}\n").err


@pytest.mark.parametrize(
    "given",
    [
        ("score", "lstm", "lines.txt", "--attention", "a.png"),
        ("translate", "translator", "lines.txt", "--attention", "a.SVG"),
        ("translate", "translator", "lines.txt", "--trace", "a.html"),
    ],
)
def test_weights_are_not_written_to_a_file_named_like_a_picture(
    place: Path, tmp_path: Path, given: tuple[str, ...]
) -> None:
    verb, run, lines, option, name = given
    result = chainrule(verb, place / run, place / lines, option, tmp_path / name)
    assert result.code == 2
    assert f"{name} would be no picture: the option writes JSON; name a .json file" in result.err
    assert not list(tmp_path.iterdir())
