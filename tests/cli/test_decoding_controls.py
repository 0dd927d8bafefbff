"""Controls of decoding in `generate` and `translate`, on the command line and in Python."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
from builders import letter_pairs, write_pairs
from chainrule.errors import ConfigError
from commands import chainrule

SHAPE = {"embedding": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "feedforward": 16, "context": 24}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An n-gram of words with many unknown ones, an almost untrained LSTM, and a translator of letters."""
    folder = tmp_path_factory.mktemp("controls")
    text = folder / "text.txt"
    text.write_text("the cat sat\nthe dog sat\nrare sat\nodd sat\nthe cat ran\n" * 8 + "once twice\n", encoding="utf-8")
    cr.train(
        text, model="ngram", order=2, tokenizer="word", out=folder / "ngram", settings={"tokenizer": {"min_count": 10}}
    )
    cr.train(text, model="lstm", tokenizer="char", steps=2, out=folder / "lstm", hidden=8)
    pairs = write_pairs(folder, letter_pairs(200), "train")
    settings: dict[str, Any] = {"model": {**SHAPE, "dropout": 0.0}, "training": {"lr": 0.02, "validations": 1}}
    cr.train(*pairs, model="seq2seq-transformer", tokenizer="char", steps=60, out=folder / "letters", settings=settings)
    return folder


def test_no_unknown_token_is_generated_without_torch_or_with_it(place: Path) -> None:
    run: Any = cr.load(place / "ngram")
    options: dict[str, Any] = {"num_return_sequences": 30, "temperature": 1.5, "seed": 3, "stop_at_eos": False}
    assert any("<unk>" in made.text for made in run.generate("the", max_new_tokens=20, **options))
    assert not any("<unk>" in made.text for made in run.generate("the", max_new_tokens=20, no_unk=True, **options))
    drafted = run.generate("the", max_new_tokens=20, no_unk=True, draft="lookup", stop_at_eos=False)[0]
    assert drafted.text == run.generate("the", max_new_tokens=20, no_unk=True, stop_at_eos=False)[0].text


@pytest.mark.parametrize("name", ["ngram", "lstm"])
@pytest.mark.parametrize("search", [{}, {"num_beams": 3}, {"temperature": 1.0, "seed": 2}])
def test_no_ngram_is_generated_twice(place: Path, name: str, search: dict[str, Any]) -> None:
    run: Any = cr.load(place / name)
    made = run.generate("t", max_new_tokens=25, no_repeat_ngram_size=2, stop_at_eos=False, **search)[0]
    tokens = run.tokenizer.encode_block(made.text).tolist()
    pairs = list(itertools.pairwise(tokens))
    if name == "lstm":  # the n-gram has too few pairs of words: where none is left, the model's own scores stand
        assert len(set(pairs)) == len(pairs)
    assert made.text != run.generate("t", max_new_tokens=25, stop_at_eos=False, **search)[0].text
    if not search:
        pieces = run.stream("t", max_new_tokens=25, no_repeat_ngram_size=2, stop_at_eos=False)
        assert "".join(pieces) == made.text


def test_a_text_does_not_end_too_early(place: Path) -> None:
    run: Any = cr.load(place / "ngram")
    (short,) = run.generate("the", max_new_tokens=30)
    (long,) = run.generate("the", max_new_tokens=30, min_new_tokens=9)
    assert short.tokens < 9 < long.tokens


def test_a_repetition_penalty_changes_what_is_repeated(place: Path) -> None:
    command = ("generate", place / "lstm", "--prompt", "the cat", "--max-new-tokens", 20)
    plain, penalised = chainrule(*command), chainrule(*command, "--repetition-penalty", 3)
    assert plain.code == penalised.code == 0
    assert len(set(penalised.out)) > len(set(plain.out))


def test_several_prompts(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("the cat\nthe dog\n\n", encoding="utf-8")
    command = ("generate", place / "lstm", "--max-new-tokens", 12, "--prompts")
    run: Any = cr.load(place / "lstm")
    expected = run.generate(["the cat", "the dog", ""], max_new_tokens=12)
    assert [texts[0].text for texts in expected] == [
        run.generate(prompt, max_new_tokens=12)[0].text for prompt in ("the cat", "the dog", "")
    ]
    done = chainrule(*command, file)
    assert done.out.splitlines() == [texts[0].text.removesuffix("\n").replace("\n", "\\n") for texts in expected]
    assert "3 prompts" in done.err
    records = [
        json.loads(line) for line in chainrule(*command, "-", "--json", stdin="the cat\nthe dog\n").out.splitlines()
    ]
    assert [(one["id"], one["prompt"], one["texts"]) for one in records] == [
        (number, prompt, [texts[0].text])
        for number, (prompt, texts) in enumerate(zip(("the cat", "the dog"), expected, strict=False))
    ]
    refused = chainrule(*command, file, "--prompt", "a")
    assert refused.code == 2
    assert "--prompts is given besides --prompt or --prompt-file; leave one of them out" in refused.err


def test_lengths_of_translations(place: Path) -> None:
    run: Any = cr.load(place / "letters")
    for line in ("abcd", "ddbca"):
        assert len(run.translate(line, max_length_ratio=0.5)) <= len(line) // 2
        assert len(run.translate(line, min_length=9)) >= 9
        assert len(run.translate(line, min_length=9, prefix="ab")) >= 9
        assert len(run.translate(line, min_new_tokens=9, prefix="ab")) >= 11
        text = run.translate(line, no_repeat_ngram_size=1, min_new_tokens=3)
        assert len(set(text)) == len(text) >= 3
        assert run.translate(line, num_beams=1, draft="lookup", min_length=9) == run.translate(
            line, num_beams=1, min_length=9
        )
    done = chainrule("translate", place / "letters", "--min-length", 9, "--max-length-ratio", 3, stdin="abcd\n")
    assert 9 <= len(done.out.strip()) <= 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_new_tokens": 9, "max_new_tokens": 3}, "min_new_tokens is 9, but max_new_tokens is 3"),
        ({"min_length": 9, "max_new_tokens": 3}, "min_length is 9, but max_new_tokens is 3"),
        ({"min_length": -1}, "min_length is -1; expected at least 0 (0: any length)"),
        ({"max_length_ratio": 0.0}, "max_length_ratio is 0.0; expected a number above 0"),
        ({"repetition_penalty": -1.0}, "repetition_penalty is -1.0; expected a number above 0 (1: no penalty)"),
    ],
)
def test_refused_options_of_translate(place: Path, options: dict[str, Any], message: str) -> None:
    run: Any = cr.load(place / "letters")
    with pytest.raises(ConfigError) as refused:
        run.translate("abc", **options)
    assert message in str(refused.value)


def test_refused_options_of_generate(place: Path) -> None:
    run: Any = cr.load(place / "lstm")
    with pytest.raises(ConfigError, match="min_new_tokens is 9, but max_new_tokens is 3; expected at most as many"):
        run.generate("a", min_new_tokens=9, max_new_tokens=3)
    with pytest.raises(ConfigError, match="mode nar takes no no_unk; leave it out, or use mode ar"):
        run.generate("a", mode="nar", no_unk=True)
