"""embed, neighbours, eval of vectors, score --choices and generate --prompt-file, from the command line."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import chainrule as cr
from builders import small_options
from chainrule.cli.main import app
from chainrule.errors import ChainruleError
from chainrule.interop.word2vec import import_vectors
from commands import Result
from commands import chainrule as in_a_process

ROWS = {"king": (2, 2, 0), "man": (2, 0, 0), "woman": (0, 0, 3), "queen": (0, 1, 1), "mat": (1, 0, 2)}
TEXT = "is a cat an animal? yes\nis a mat an animal? no\n"


def chainrule(*arguments: object, stdin: str = "") -> Result:
    """Run a command in this process, which is much faster than in a new one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warnings, "showwarning", warnings.showwarning)  # undone afterwards: commands set it
        done = CliRunner().invoke(app, [str(one) for one in arguments], input=stdin)
    if isinstance(done.exception, ChainruleError):
        return Result(2, done.stdout, f"chainrule: {done.exception}\n")
    return Result(done.exit_code, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Word vectors, and a language model that knows two answers."""
    folder = tmp_path_factory.mktemp("commands")
    rows = [f"{word} {' '.join(map(str, row))}\n" for word, row in ROWS.items()]
    (folder / "vectors.txt").write_text(f"{len(rows)} 3\n" + "".join(rows))
    import_vectors(folder / "vectors.txt", folder / "words")
    (folder / "text.txt").write_text(TEXT * 40)
    cr.train(folder / "text.txt", model="ngram", tokenizer="word", order=5, out=folder / "ngram")
    settings = {"model": small_options("lstm"), "training": {"device": "cpu"}}
    cr.train(folder / "text.txt", model="lstm", tokenizer="word", steps=2, out=folder / "lstm", settings=settings)
    return folder


def test_vectors_on_standard_output(place: Path) -> None:
    printed = in_a_process("embed", place / "words", "--json", stdin="king man\nqueen\n")
    assert [json.loads(line) for line in printed.out.splitlines()] == [
        {"text": "king man", "vector": [2.0, 1.0, 0.0]},
        {"text": "queen", "vector": [0.0, 1.0, 1.0]},
    ]
    plain = chainrule("embed", place / "words", "--what", "words", stdin="king\nmat\n")
    assert plain.out == "king\t2.0 2.0 0.0\nmat\t1.0 0.0 2.0\n"
    tokens = chainrule("embed", place / "words", "--what", "tokens", "--json", stdin="king xyz man\n")
    assert json.loads(tokens.out) == {
        "text": "king xyz man",
        "tokens": ["king", "man"],
        "vectors": [[2.0, 2.0, 0.0], [2.0, 0.0, 0.0]],
    }
    listed = chainrule("embed", place / "words", "--what", "tokens", stdin="king man\nmat\n")
    assert listed.out == "king\t2.0 2.0 0.0\nman\t2.0 0.0 0.0\n\nmat\t1.0 0.0 2.0\n\n"


def test_vectors_in_a_file(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "vectors.npy"
    printed = chainrule("embed", place / "lstm", place / "text.txt", "--out", out, "--normalise", "--json")
    assert json.loads(printed.out) == {"out": str(out), "rows": 80, "width": 8}
    expected = cr.load(place / "lstm").embed(TEXT.splitlines() * 40, normalise=True)
    np.testing.assert_allclose(np.load(out), expected, atol=1e-6)


def test_neighbours_of_a_text_are_lines_of_a_file(place: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("the mat\nking queen\n\nman\n")
    plain = chainrule("neighbours", place / "words", "king", "--texts", tmp_path / "lines.txt", "--top", 1)
    cosine, line, text = plain.out.rstrip("\n").split("\t")
    assert (line, text) == ("2", "king queen")
    printed = json.loads(
        chainrule("neighbours", place / "words", "king", "--texts", tmp_path / "lines.txt", "--json").out
    )
    assert printed["query"] == "king"
    assert printed["lines"][0] == {"text": "king queen", "cosine": pytest.approx(float(cosine), abs=1e-4), "line": 2}
    refused = chainrule("neighbours", place / "words", "king", "--pooling", "max")
    assert "--pooling and --field apply to the lines of --texts; leave them out" in refused.err
    missing = chainrule("neighbours", place / "words", "--texts", tmp_path / "lines.txt", "--analogy", "a", "b", "c")
    assert "neighbours --texts needs the text to search for; give it after the run" in missing.err


def test_neighbours(place: Path) -> None:
    plain = chainrule("neighbours", place / "words", "king", "--top", 2)
    assert plain.out == "man\t0.7071\nqueen\t0.5000\n"
    printed = json.loads(chainrule("neighbours", place / "words", "--analogy", "king", "man", "woman", "--json").out)
    assert printed["analogy"] == ["king", "man", "woman"]
    assert [one["word"] for one in printed["neighbours"]] == ["queen", "mat"]
    assert chainrule("neighbours", place / "words", "kin").err == (
        "chainrule: the run has no vector of the word 'kin'; did you mean 'king'?\n"
    )
    assert chainrule("neighbours", place / "words").err == (
        "chainrule: neighbours needs either a word or --analogy A B C; give one of them\n"
    )


def test_vectors_are_evaluated_with_and_without_a_text(place: Path, tmp_path: Path) -> None:
    pairs, questions = tmp_path / "pairs.tsv", tmp_path / "questions.txt"
    pairs.write_text("king\tman\t9\nking\twoman\t1\nwoman\tqueen\t8\nking\tdog\t1\n")
    questions.write_text(": family\nman king woman queen\nman king woman mat\nman king dog cat\n")
    printed = json.loads(
        chainrule("eval", place / "words", "--similarity", pairs, "--analogies", questions, "--json").out
    )
    assert set(printed) == {"similarity", "analogies"}
    assert (printed["similarity"]["pairs"], printed["similarity"]["oov"]) == (3, 0.25)
    assert printed["similarity"]["spearman"] == pytest.approx(0.866, abs=1e-3)
    assert printed["analogies"] == {
        "accuracy": 0.5,
        "correct": 1,
        "questions": 2,
        "skipped": 1,
        "sections": [{"section": "family", "accuracy": 0.5, "correct": 1, "questions": 2}],
    }
    plain = chainrule("eval", place / "words", "--analogies", questions)
    assert plain.out.splitlines() == [
        "analogies accuracy   0.5000",
        "analogies correct    1",
        "analogies questions  2",
        "analogies skipped    1",
        "  family  1 of 2",
    ]
    (tmp_path / "own.tsv").write_text("cat\tmat\t3\nis\tno\t1\n")
    both = json.loads(
        chainrule("eval", place / "lstm", place / "text.txt", "--similarity", tmp_path / "own.tsv", "--json").out
    )
    assert both["perplexity"] > 1
    assert both["similarity"]["pairs"] == 2  # every model with an embedding has word vectors
    assert chainrule("eval", place / "lstm").err == (
        "chainrule: eval needs a text; name one, or evaluate word vectors with --similarity or --analogies\n"
    )


def test_choices(place: Path, tmp_path: Path) -> None:
    lines = "is a cat an animal?\nis a mat an animal?\n"
    given = ("--choices", " yes", "--choices", " no")
    assert chainrule("score", place / "ngram", *given, stdin=lines).out == " yes\n no\n"
    (tmp_path / "choices.txt").write_text(" yes\n no\n")
    (tmp_path / "examples.txt").write_text(TEXT)
    printed = chainrule(
        "score", place / "ngram", "--choices", tmp_path / "choices.txt", "--prompt-file", tmp_path / "examples.txt",
        "--normalise", "byte", "--json", stdin=lines,
    )  # fmt: skip
    found = [json.loads(line) for line in printed.out.splitlines()]
    assert [(one["best"], one["index"]) for one in found] == [(" yes", 0), (" no", 1)]
    expected = cr.load(place / "ngram").choose(TEXT + "is a cat an animal?", [" yes", " no"])
    assert found[0]["choices"] == [one.to_dict() for one in expected]


def test_questions_with_answers(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    records = [
        {"prompt": "is a cat an animal?", "choices": [" yes", " no"], "answer": 0},
        {"prompt": "is a mat an animal?", "choices": [" yes", " no"], "answer": " yes"},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    plain = chainrule("score", place / "ngram", path)
    assert (plain.out, plain.err) == (" yes\n no\n", "1 of 2 correct: accuracy 0.5000\n")
    *_, last = chainrule("score", place / "ngram", path, "--json").out.splitlines()
    assert json.loads(last) == {
        "accuracy": 0.5,
        "correct": 1,
        "questions": 2,
        "normalise": "none",
        "accuracies": {"none": 0.5, "token": 0.5, "byte": 0.5},
    }


def test_a_prompt_of_examples_and_a_stop(place: Path, tmp_path: Path) -> None:
    examples = tmp_path / "examples.txt"
    examples.write_text(TEXT)
    asked = ("generate", place / "ngram", "--prompt-file", examples)
    whole = TEXT + "is a mat an animal?"
    shown = chainrule(*asked, "--prompt", "is a mat an animal?", "--no-stop-at-eos", "--stop", "\\n")
    assert shown.out == f"{whole} no\n"
    printed = chainrule(*asked, "--prompt", "is a mat an animal?", "--no-stop-at-eos", "--stop", "\\n", "--json")
    assert json.loads(printed.out)["texts"] == [f"{whole} no"]
    alone = chainrule(*asked, "--max-new-tokens", 1, "--json")
    assert json.loads(alone.out)["texts"][0].startswith(TEXT.removesuffix("\n"))
    assert not json.loads(alone.out)["texts"][0].startswith(TEXT + "\n")
