"""N-gram models from the command line: trained in a separate process, used in this one."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
from chainrule.cli.main import _repeat, main
from chainrule.text.samples.texts import english_text
from commands import Result
from commands import chainrule as in_a_process

Call = Callable[..., Result]
LAST = "an unheardof word\n\nno end"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ngram-cli")
    lines = english_text().splitlines(keepends=True)
    (folder / "text.txt").write_text("".join(lines[:800]))
    (folder / "test.txt").write_text("".join(lines[800:840]) + LAST)
    return folder


@pytest.fixture
def chainrule(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run `chainrule ARGUMENTS…` in this process."""

    def call(*arguments: object, stdin: str = "") -> Result:
        monkeypatch.setattr(sys, "argv", ["chainrule", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Result(int(ended.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def run(place: Path) -> cr.Run:
    """A run made by `chainrule train`; its output is saved beside it."""
    command = ["train", place / "text.txt", "--model", "ngram", "--tokenizer", "word", "--order", 4]
    command += ["--prune", "0", "0", "1", "--quantize", "--memory", "100K", "--out", place / "run", "--json"]
    done = in_a_process(*command)
    assert done.code == 0, done.err
    (place / "train.json").write_text(done.out)
    (place / "train.err").write_text(done.err)
    return cr.load(place / "run")


@pytest.fixture(scope="module")
def scores(place: Path) -> cr.Run:
    return cr.train(
        place / "text.txt", model="ngram", tokenizer="word", smoothing="stupid-backoff", out=place / "scores"
    )


# Training


def test_train_uses_the_options_and_prints_the_result(run: cr.Run, place: Path) -> None:
    result = json.loads((place / "train.json").read_text())
    options = run.config.model.options
    assert [options[name] for name in ("order", "prune", "quantize")] == [4, [0, 0, 1], True]
    assert set(result) == {
        "run",
        "steps",
        "seconds",
        "parameters",
        "tokens_per_second",
        "peak_memory",
        "valid",
        "stopped",
        "validation",
    }
    assert (result["run"], result["steps"]) == (str(place / "run"), 0)
    assert result["valid"] == run.evaluate_held_out().to_dict()
    notes = (place / "train.err").read_text().splitlines()
    assert notes[0] == "tokeniser: word, split at white space"
    assert notes[1].startswith("validation: ")
    assert notes[2].endswith(" are measured with the counts of the rest, then all of the text is counted")
    same = cr.train(
        place / "text.txt",
        model="ngram",
        tokenizer="word",
        order=4,
        prune=(0, 0, 1),
        quantize=True,
        out=place / "in-python",
    )
    files = [(folder / "model.safetensors").read_bytes() for folder in (run.folder.path, same.folder.path)]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("given", "spread"),
    [
        ("train a --prune 0 0 1 --out b", "train a --prune 0 --prune 0 --prune 1 --out b"),
        ("train --prune 0 1 a", "train --prune 0 --prune 1 a"),
        ("train --prune 0 --prune 1 2", "train --prune 0 --prune 1 --prune 2"),
        ("train a --order 3 5 --prune", "train a --order 3 5 --prune"),
        ("score 1 2", "score 1 2"),
    ],
)
def test_several_numbers_may_follow_one_option(given: str, spread: str) -> None:
    assert _repeat(given.split(), "--prune") == spread.split()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ["--smoothing", "modified-kneserney"],
            "unknown smoothing 'modified-kneserney': did you mean 'modified-kneser-ney'? Known: absolute, additive, "
            "jelinek-mercer, katz, kneser-ney, mle, modified-kneser-ney, stupid-backoff, witten-bell",
        ),
        (
            ["--prune", "0", "2", "1"],
            "prune is 0 2 1; expected at most 5 numbers (the order), none smaller than the one before it, for example "
            "0 0 1",
        ),
        (["--memory", "much"], "training.memory is 'much'; expected a number of bytes, for example 1G, 500M or 65536"),
    ],
    ids=str,
)
def test_a_mistake_is_one_line(place: Path, options: list[str], sentence: str, chainrule: Call) -> None:
    done = chainrule("train", place / "text.txt", "--model", "ngram", *options, "--out", place / "mistake")
    assert (done.code, done.out, done.err) == (2, "", f"chainrule: {sentence}\n")
    assert not (place / "mistake").exists()


def test_a_budget_is_ignored_and_a_finished_run_is_kept(place: Path, chainrule: Call) -> None:
    command = ["train", place / "text.txt", "--model", "ngram", "--order", 2, "--minutes", 1, "--out", place / "again"]
    first, second = (chainrule(*command) for _ in range(2))
    assert (first.code, second.code) == (0, 0)
    assert "ignoring --minutes: n-grams are counted in one pass" in first.err.splitlines()
    assert second.err.splitlines()[0] == f"{place / 'again'} is already finished; choose another --out"
    assert first.out == second.out


# Scoring


def test_score_prints_one_object_per_line(run: cr.Run, place: Path, chainrule: Call) -> None:
    done = chainrule("score", run.folder.path, place / "test.txt", "--json")
    assert (done.code, done.err) == (0, "")
    found = [json.loads(line) for line in done.out.splitlines()]
    scored = list(run.score((place / "test.txt").read_text().split("\n")))
    assert [set(one) for one in found] == [{"log_prob", "tokens"}] * len(scored)
    assert [one["tokens"] for one in found] == [one.tokens for one in scored]
    assert [one["log_prob"] for one in found] == pytest.approx([one.log_prob for one in scored], rel=1e-5)

    plain = chainrule("score", run.folder.path, stdin=(place / "test.txt").read_text())
    assert [float(line) for line in plain.out.splitlines()] == pytest.approx(
        [one["log_prob"] for one in found], abs=1e-4
    )


def strict(text: str) -> Any:
    """Parse standard JSON, which has no Infinity and no NaN."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_infinity_becomes_null_in_json(tmp_path: Path, chainrule: Call) -> None:
    (tmp_path / "abc.txt").write_text("a b c a b\nc b a\n" * 9)
    (tmp_path / "odd.txt").write_text("a a a zzz\n")
    models = "ngram(smoothing=mle,order=2),ngram(smoothing=stupid-backoff,order=2)"
    command = ["compare", tmp_path / "abc.txt", "--models", models, "--tokenizer", "word"]
    compared = chainrule(*command, "--test", tmp_path / "odd.txt", "--out", tmp_path / "runs", "--json")
    assert [row["bits_per_byte"] for row in strict(compared.out)] == [None, None]
    run = tmp_path / "runs" / "ngram-smoothing=mle-order=2"
    line = strict(chainrule("score", run, tmp_path / "odd.txt", "--json").out)
    assert line == {"log_prob": None, "tokens": 5}
    by_token = strict(chainrule("score", run, tmp_path / "odd.txt", "--json", "--tokens").out)
    assert by_token["log_prob"] is None
    assert by_token["log_probs"][3] is None
    measured = strict(chainrule("eval", run, tmp_path / "odd.txt", "--json").out)
    assert (measured["perplexity"], measured["bits_per_byte"]) == (None, None)
    shown = chainrule("eval", run, tmp_path / "odd.txt").out.splitlines()  # plain output prints infinity
    assert [line.split()[-1] for line in shown if line.startswith(("perplexity", "bits per byte"))] == ["inf"] * 3


# Scores that are no probabilities


def test_scores_are_labelled(scores: cr.Run, place: Path, tmp_path: Path, chainrule: Call) -> None:
    measured = chainrule("eval", scores.folder.path, place / "test.txt")
    shown = dict(line.split("  ", 1) for line in measured.out.splitlines())
    assert [shown[name].strip() for name in shown if "perplexity" in name or "bits" in name] == ["none"] * 3
    assert measured.err == (
        "the model gives scores that are not probabilities: it has no perplexity and no bits per byte.\n"
    )
    refused = chainrule("compress", scores.folder.path, place / "test.txt", "--out", tmp_path / "small")
    assert (refused.code, refused.err) == (
        2,
        "chainrule: this model gives scores, which are not probabilities, so it cannot compress; use another model\n",
    )
    assert not (tmp_path / "small").exists()


# The rest


def test_generate_compress_and_info_work_with_ngrams(run: cr.Run, place: Path, tmp_path: Path, chainrule: Call) -> None:
    made = json.loads(
        chainrule("generate", run.folder.path, "--prompt", "The", "--temperature", 1, "--seed", 3, "--json").out
    )
    assert made["texts"] == [run.generate("The", temperature=1.0, seed=3)[0].text]
    small, back = tmp_path / "small", tmp_path / "back.txt"
    assert chainrule("compress", run.folder.path, place / "test.txt", "--out", small).code == 0
    assert chainrule("decompress", run.folder.path, small, "--out", back).code == 0
    assert back.read_bytes() == (place / "test.txt").read_bytes()
    info = json.loads(chainrule("info", run.folder.path, "--json").out)
    assert (info["model"], info["ngrams"]) == ("ngram", run.model.table.sizes)
