"""Few-shot choices: log p of alternatives after a prompt, against whole lines, single steps, and by hand."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import chainrule as cr
from builders import letter_pairs, small_options, write_pairs
from chainrule.errors import ConfigError, DataError
from chainrule.inference import few_shot as choices
from chainrule.inference.few_shot import (
    Choice,
    Question,
    Tally,
    best_of,
    choose,
    read_choices,
    read_questions,
    shared_length,
)
from chainrule.runs.base import MissingVerbError

SOUNDS = {"cat": "meow", "dog": "woof", "cow": "moo", "duck": "quack"}
LINES = [f"{animal} says {sound}" for animal, sound in SOUNDS.items()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Language models that have learned by heart what animals say, and a translator."""
    folder = tmp_path_factory.mktemp("choices")
    text = folder / "text.txt"
    text.write_text("\n".join(LINES * 60) + "\n")
    shapes: dict[str, dict[str, Any]] = {
        "lstm": small_options("lstm", embedding=16, hidden=32),
        "transformer": small_options("transformer", embedding=16, context=24),
        "gru": small_options("gru", embedding=16, hidden=32),
    }
    for name, kind in (("lstm", "word"), ("transformer", "char"), ("gru", "bpe")):
        settings = {"model": shapes[name], "training": {"batch_size": 8, "length": 24, "lr": 0.02, "device": "cpu"}}
        size = 290 if kind == "bpe" else None
        steps = 40 if name == "transformer" else 90
        cr.train(text, model=name, tokenizer=kind, vocab_size=size, steps=steps, out=folder / name, settings=settings)
    cr.train(text, model="ngram", tokenizer="word", order=3, out=folder / "ngram")
    tiny = {"model": small_options("seq2seq-rnn"), "training": {"device": "cpu"}}
    cr.train(
        *write_pairs(folder, letter_pairs(40)), model="seq2seq-rnn", steps=2, out=folder / "translator", settings=tiny
    )
    return folder


RUNS = ["lstm", "transformer", "gru", "ngram"]
SAID = [f" {sound}" for sound in SOUNDS.values()]


@pytest.mark.parametrize("name", ["lstm", "gru", "ngram"])
def test_memorised_continuations_are_chosen(place: Path, name: str) -> None:
    run = cr.load(place / name)
    for animal, sound in SOUNDS.items():
        found = run.choose(f"{animal} says", SAID)
        assert [one.text for one in found] == SAID
        assert found[best_of(found)].text == f" {sound}"


@pytest.mark.parametrize("name", ["lstm", "transformer", "ngram"])
def test_an_alternative_is_the_difference_of_two_lines(place: Path, name: str) -> None:
    """Where no token crosses the end of the prompt; some prompts are longer than the window."""
    run = cr.load(place / name)
    for prompt in ("cow says", "", "duck says moo and dog says woof and cat says"):
        for one in run.choose(prompt, [*SAID, " moo and dog"]):
            (before,), (whole,) = (run.score([text], oov="spell") for text in (prompt, prompt + one.text))
            expected = sum(whole.log_probs[:-1]) - sum(before.log_probs[:-1])  # without the ends of the lines
            assert one.log_prob == pytest.approx(expected, abs=2e-4)
            assert one.tokens == whole.tokens - before.tokens


@pytest.mark.parametrize("name", RUNS)
def test_an_alternative_is_a_sum_of_steps(place: Path, name: str) -> None:
    """Also where a token reaches over the end of the prompt: then it is scored, with every alternative."""
    run = cr.load(place / name)
    for prompt, given in (("cat sa", ["ys meow", "ys woof"]), ("dog says\ncow says", [" moo\nduck", " woof"])):
        found = run.choose(prompt, given)
        whole = [run.tokenizer.encode_block(prompt + one).tolist() for one in given]
        alone = run.tokenizer.encode_block(prompt).tolist()
        shared = 0
        while all(shared < len(row) and row[shared] == alone[shared] for row in whole) and shared < len(alone) - 1:
            shared += 1
        shared += all(row[shared : shared + 1] == alone[shared : shared + 1] for row in whole)
        for one, row in zip(found, whole, strict=True):
            state, total = run.model.start(1), 0.0
            for number, (read, token) in enumerate(itertools.pairwise([run.tokenizer.eos, *row])):
                with torch.inference_mode():
                    log_probs_1V, state = run.model.step(state, torch.tensor([read]))
                total += float(log_probs_1V[0, token]) if number >= shared else 0.0
            assert one.log_prob == pytest.approx(total, abs=2e-4)
            assert one.tokens == len(row) - shared


def test_a_token_over_the_end_of_the_prompt_is_found(place: Path) -> None:
    """The pieces of this run do make it happen."""
    run = cr.load(place / "gru")
    prompt, choice = "cat sa", "ys meow"
    alone, whole = (run.tokenizer.encode_block(text).tolist() for text in (prompt, prompt + choice))
    assert whole[: len(alone)] != alone
    assert run.choose(prompt, [choice])[0].tokens == len(whole) - shared_length([alone, whole])


@pytest.mark.parametrize("name", ["transformer", "ngram"])
def test_questions_scored_together_equal_questions_scored_alone(
    place: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = cr.load(place / name)
    examples = "cat says meow\ndog says woof\n"
    asked = [
        Question(f"{examples}{animal} says", tuple(SAID[: 2 + n % 3])) for n, animal in enumerate([*SOUNDS, "cat"])
    ]
    asked.append(Question("", ("cat", "dog says", "x")))
    alone = [next(choose(run.subject, [question])) for question in asked]
    for most, group in ((choices.MAX_PROBABILITIES, 128), (50, 128), (1, 2)):
        monkeypatch.setattr(choices, "MAX_PROBABILITIES", most)
        monkeypatch.setattr(choices, "QUESTIONS", group)
        for together, one in zip(choose(run.subject, iter(asked)), alone, strict=True):
            assert [choice.text for choice in together] == [choice.text for choice in one]
            assert [choice.log_prob for choice in together] == pytest.approx([c.log_prob for c in one], abs=2e-5)


def test_examples_are_read_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all prompts begin with, and a prompt for all of its alternatives."""
    run, read = cr.load(place / "transformer"), []
    prefill = type(run.model).prefill

    def counted(self: Any, state: Any, tokens_BT: torch.Tensor) -> Any:
        read.append(tuple(tokens_BT.shape))
        return prefill(self, state, tokens_BT)

    monkeypatch.setattr(type(run.model), "prefill", counted)
    examples = "cat says meow\n" * 3
    list(choose(run.subject, [Question(f"{examples}{animal} says", tuple(SAID)) for animal in ("dog", "cow", "cat")]))
    assert read == [(1, 1 + len(examples)), (3, len("dog says"))]


# Comparing


def test_three_ways_to_compare() -> None:
    given = [Choice("é" * 4, -4.0, 2), Choice("abcd", -3.0, 1), Choice("ab", -2.9, 1), Choice("a", -2.9, 1)]
    assert [best_of(given, way) for way in ("none", "token", "byte")] == [2, 0, 0]
    assert given[0].to_dict() == {
        "text": "éééé",
        "log_prob": -4.0,
        "tokens": 2,
        "per_token": -2.0,
        "per_byte": -0.5,
    }
    with pytest.raises(ConfigError, match=r"^normalise is 'word'; expected one of none, token, byte$"):
        best_of(given, "word")  # type: ignore[arg-type]


def test_accuracy_is_counted_where_answers_are_known() -> None:
    tally, given = Tally(), [Choice("ab", -4.0, 4), Choice("c", -3.0, 1)]
    for answer in (0, 0, 1, None):
        tally.add(Question("", ("ab", "c"), answer), given)
    assert tally.to_dict("token") == {
        "accuracy": pytest.approx(2 / 3),
        "correct": 2,
        "questions": 3,
        "normalise": "token",
        "accuracies": {"none": pytest.approx(1 / 3), "token": pytest.approx(2 / 3), "byte": pytest.approx(2 / 3)},
    }


# Files and refusals


def test_questions_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(
        '{"prompt": "a", "choices": ["x", "y"], "answer": "y"}\n\n{"prompt": "b", "answer": 0}\n{"prompt": "c"}'
    )
    assert list(read_questions(path, ["z"], "examples ")) == [
        Question("examples a", ("x", "y"), 1),
        Question("examples b", ("z",), 0),
        Question("examples c", ("z",)),
    ]
    (tmp_path / "choices.txt").write_text(" yes\n no\n\n")
    assert read_choices([str(tmp_path / "choices.txt")]) == [" yes", " no"]
    assert read_choices(["yes", "no"]) == ["yes", "no"]
    assert read_choices(["yes"]) == ["yes"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "is not JSON (Expecting property name enclosed in double quotes: line 1 column 2 (char 1)); expected one "
         "object per line; correct it"),
        ('{"text": "a"}', 'has no prompt; expected {"prompt": "…", "choices": ["…", "…"], "answer": 0}'),
        ('{"prompt": "a"}', "has no list of choices; add it, or give the choices of all lines with --choices"),
    ],
)  # fmt: skip
def test_lines_that_are_no_questions(line: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"prompt": "a", "choices": ["x"]}) + "\n" + line + "\n")
    with pytest.raises(DataError) as caught:
        list(read_questions(path))
    assert str(caught.value) == f"{path}: line 2 {sentence}"


def test_answers_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    for answer, shown in ((2, "2"), ("z", "'z'"), (True, "True")):
        path.write_text(json.dumps({"prompt": "a", "choices": ["x", "y"], "answer": answer}) + "\n")
        with pytest.raises(DataError) as caught:
            list(read_questions(path))
        assert str(caught.value) == (
            f"{path}: line 1: the answer is {shown}; expected the index of a choice, 0 to 1, or its text"
        )


def test_refusals(place: Path) -> None:
    with pytest.raises(MissingVerbError) as caught:
        cr.load(place / "translator").choose("a", ["b"])
    assert str(caught.value) == (
        f"{place / 'translator'} (seq2seq-rnn) has no choose; this run has translate, score, tune, distill, eval, "
        "info, neighbours"
    )
    run = cr.load(place / "lstm")
    with pytest.raises(DataError) as empty:
        run.choose("cat says", [" meow", "  "])
    assert str(empty.value) == (
        "the alternative '  ' adds no token to the prompt; give one with text that the tokeniser keeps"
    )
    with pytest.raises(DataError) as none:
        run.choose("cat says", [])
    assert str(none.value) == "the prompt 'cat says' has no alternatives; give at least one with --choices"
