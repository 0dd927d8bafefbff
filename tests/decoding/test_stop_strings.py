"""Stop strings: a text ends before the first of them, also where it comes in pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
from builders import small_options
from chainrule.decoding.stop_strings import StopStrings
from chainrule.errors import ConfigError


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Language models of characters and of words, trained enough to repeat what they read."""
    folder = tmp_path_factory.mktemp("stops")
    text = folder / "text.txt"
    text.write_text("cat says meow\ndog says woof\ncow says moo\nduck says quack\n" * 60)
    shapes = {
        "transformer": ("char", small_options("transformer", embedding=16, context=24)),
        "lstm": ("word", small_options("lstm", embedding=16, hidden=32)),
    }
    for name, (kind, shape) in shapes.items():
        settings = {"model": shape, "training": {"batch_size": 8, "length": 24, "lr": 0.02, "device": "cpu"}}
        cr.train(text, model=name, tokenizer=kind, steps=40, out=folder / name, settings=settings)
    return folder


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0, "seed": 1}, {"num_beams": 3}, {"draft": "lookup"}], ids=str
)
@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_a_text_ends_before_the_stop(place: Path, name: str, options: dict[str, Any]) -> None:
    run, prompt = cr.load(place / name), "dog says woof\ncow says"
    (whole,) = run.generate(prompt, max_new_tokens=40, stop_at_eos=False, **options)
    for stop in ("\n", ["says", "moo"], "never", "ow says", "\ncat"):
        (text,) = run.generate(prompt, max_new_tokens=40, stop_at_eos=False, stop=stop, **options)
        ends = [whole.text.find(one, len(prompt)) for one in ([stop] if isinstance(stop, str) else stop)]
        end = min((end for end in ends if end >= 0), default=None)
        assert text.text == whole.text[:end]
        if end is not None and "num_beams" not in options and name == "transformer":
            assert text.tokens < whole.tokens  # it did not go on in secret
        if "num_beams" not in options:
            pieces = run.stream(prompt, max_new_tokens=40, stop_at_eos=False, stop=stop, **options)
            assert "".join(pieces).rstrip("\n") == text.text.rstrip("\n")


def test_each_of_several_texts_ends_before_its_own_stop(place: Path) -> None:
    run = cr.load(place / "transformer")
    options: dict[str, Any] = {"max_new_tokens": 30, "temperature": 2.0, "seed": 3, "num_return_sequences": 5}
    whole = run.generate("cow", **options)
    for long, short in zip(whole, run.generate("cow", **options, stop=["o", "\n"]), strict=True):
        ends = [end for stop in "o\n" if (end := long.text.find(stop, 3)) >= 0]
        assert short.text == long.text[: min(ends, default=None)]


def test_pieces_wait_only_while_they_may_be_a_stop() -> None:
    stops = StopStrings(["abc", "\n\n"])
    assert list(stops.cut_pieces(iter(["x", "a", "b", "d", "a", "bc", "z"]))) == ["x", "abd"]
    assert list(stops.cut_pieces(iter(["1\n", "2\n", "\n3"]))) == ["1", "\n2"]
    assert list(stops.cut_pieces(iter(["ab"]))) == ["ab"]
    assert list(stops.cut_pieces(iter(["", "abc"]))) == []
    with pytest.raises(ConfigError, match=r"^stop contains an empty string; give at least one character"):
        StopStrings([""])
