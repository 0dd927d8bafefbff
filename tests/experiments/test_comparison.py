"""Comparisons: who takes part and with which options, where their runs live, and the mixture at the end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
from builders import pairs_text
from chainrule.checkpoint.folder import RunFolder
from chainrule.errors import ConfigError
from chainrule.experiments.compare import Contender, Row, compare, parse_contenders
from chainrule.registry import MODELS
from chainrule.training.fitting.fitting import TrainingListener

SMALL: dict[str, Any] = {"training": {"batch_size": 8, "length": 8, "device": "cpu", "validations": 1, "lr": 0.02}}
NETWORKS = ("lstm(embedding=8, hidden=8, layers=1)", "average(embedding=4)")
COUNTED = ("ngram(order=3)", "ngram(order=1)", "ngram(smoothing=stupid-backoff)")
MIXTURE = "mixture of the best two kinds"


@pytest.mark.parametrize(
    ("text", "contenders"),
    [
        ("lstm", [("lstm", "lstm", None, {})]),
        ("lstm,gru", [("lstm", "lstm", None, {}), ("gru", "gru", None, {})]),
        (
            " lstm , lstm:adaptive ,",
            [("lstm", "lstm", None, {}), ("lstm:adaptive", "lstm", "adaptive", {})],
        ),
        (
            "lstm, lstm:adaptive, ngram(order=3, smoothing=additive),transformer",
            [
                ("lstm", "lstm", None, {}),
                ("lstm:adaptive", "lstm", "adaptive", {}),
                ("ngram(order=3, smoothing=additive)", "ngram", None, {"order": 3, "smoothing": "additive"}),
                ("transformer", "transformer", None, {}),
            ],
        ),
        (
            "ngram(prune=[0,0,1],order=4)",
            [("ngram(prune=[0,0,1],order=4)", "ngram", None, {"prune": [0, 0, 1], "order": 4})],
        ),
        ("lstm:adaptive(hidden=8)", [("lstm:adaptive(hidden=8)", "lstm", "adaptive", {"hidden": 8})]),
        ("ngram()", [("ngram()", "ngram", None, {})]),
        ("ngram (quantize=true)", [("ngram (quantize=true)", "ngram", None, {"quantize": True})]),
    ],
    ids=str,
)
def test_contenders_are_read_off_one_option(text: str, contenders: list[tuple[Any, ...]]) -> None:
    assert parse_contenders(text) == [Contender(*parts) for parts in contenders]


@pytest.mark.parametrize(
    "text",
    ["", " ,", "ngram(order=3", "ngram)order=3(", "(order=3)", "ngram(order=3)lstm", "ngram((order=3))", "a,(b)"],
)
def test_what_is_no_list_of_models_has_its_sentence(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_contenders(text)
    assert str(caught.value) == (
        f"--models is '{text}'; expected model names separated by commas, such as lstm,gru:adaptive,ngram(order=3)"
    )


def test_what_is_no_option_has_its_sentence() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_contenders("lstm,ngram(order=3, additive)")
    assert str(caught.value) == (
        "'ngram(order=3, additive)' has 'additive' in parentheses; expected key=value, as in ngram(order=3)"
    )


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("lstm", "lstm"),
        ("lstm:adaptive", "lstm-adaptive"),
        ("ngram(order=3, smoothing=additive)", "ngram-order=3-smoothing=additive"),
        ("ngram(prune=[0,0,1])", "ngram-prune=-0-0-1"),
        ("modified Kneser-Ney 5-gram", "modified-Kneser-Ney-5-gram"),
        ("../x", "..-x"),
    ],
)
def test_a_contender_has_a_folder_of_its_own(name: str, folder: str) -> None:
    assert Contender(name, "any").folder == folder


# A comparison


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparison")
    for name, lines in (("text", 200), ("valid", 60), ("test", 60)):
        (folder / f"{name}.txt").write_text(pairs_text(lines, seed=lines + len(name)))
    return folder


def run(place: Path, models: Any, out: Path, steps: int = 30, **options: Any) -> list[Row]:
    return compare(
        place / "text.txt",
        models=models,
        valid=place / "valid.txt",
        tokenizer="char",
        steps=steps,
        settings=SMALL,
        out=out,
        **options,
    )


def test_the_mixture_takes_the_best_of_each_kind_and_is_no_worse(place: Path, tmp_path: Path) -> None:
    seen: list[Row] = []
    rows = run(place, [*COUNTED, *NETWORKS], tmp_path, mix=True, done=seen.append)
    assert [row.model for row in seen][-1] == MIXTURE
    assert len(rows) == len(seen) == 6
    bits = {row.model: row.bits_per_byte for row in rows}
    assert bits[MIXTURE] <= min(bits[name] for name in (*COUNTED[:2], *NETWORKS)) + 1e-4
    best = min(NETWORKS, key=bits.__getitem__).partition("(")[0]
    mixture = next(row.run for row in rows if row.model == MIXTURE)
    assert Path(mixture).name.startswith(f"mixture-of-ngram-order=3-and-{best}-")
    assert list(cr.load(mixture).result["weights"]) == ["0:ngram", f"1:{best}"]

    notes: list[str] = []
    again = run(place, [*COUNTED, *NETWORKS], tmp_path, mix=True, listener=TrainingListener(note=notes.append))
    assert {row.model: row.bits_per_byte for row in again} == pytest.approx(bits, nan_ok=True)
    assert sum("is already finished" in note for note in notes) == 6


def test_networks_that_are_trained_on_are_mixed_anew(place: Path, tmp_path: Path) -> None:
    models = "ngram(order=2),lstm(embedding=8, hidden=8, layers=1)"
    first, second = (run(place, models, tmp_path, steps=steps, mix=True) for steps in (10, 60))
    runs = [next(row.run for row in rows if row.model == MIXTURE) for rows in (first, second)]
    assert runs[0] != runs[1]
    for rows in (first, second):
        bits = {row.model: row.bits_per_byte for row in rows}
        assert bits[MIXTURE] <= min(bits.values()) + 1e-4


def test_the_test_text_chooses_nothing(place: Path, tmp_path: Path) -> None:
    """A trigram that the test text is impossible for is still the best on the validation text."""
    strange = tmp_path / "strange.txt"
    strange.write_text("hgfedcba\n" * 20)
    models = ["ngram(order=3,smoothing=mle)", "ngram(order=1)", NETWORKS[1]]
    rows = run(place, models, tmp_path / "runs", test=strange, mix=True)
    assert rows[-1].model == "ngram(order=3,smoothing=mle)"  # which finds that text impossible
    assert any("mixture-of-ngram-order=3-smoothing=mle-and-" in row.run for row in rows)
    for row in rows:
        kept = RunFolder(Path(row.run)).read_figures("test.json")
        assert kept is not None
        bits = row.bits_per_byte if math.isfinite(row.bits_per_byte) else None
        assert (kept["data"], kept["bits_per_byte"]) == (["strange.txt"], bits)


@pytest.mark.parametrize("models", ["ngram(order=2)", "average(embedding=4)"])
def test_one_kind_alone_is_not_mixed(place: Path, tmp_path: Path, models: str) -> None:
    rows = run(place, models, tmp_path, mix=True)
    assert [row.model for row in rows] == [models]


@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        ("ngram:adaptive", "ngram is counted and has no output; leave --output out"),
        ("ngam", f"unknown model 'ngam': did you mean 'ngram'? Known: {', '.join(MODELS.names())}"),
        (
            "mixture",
            "a mixture combines trained runs; use: chainrule mix RUN RUN --valid TEXT --out RUN",
        ),
    ],
)
def test_who_cannot_take_part_has_a_sentence(place: Path, tmp_path: Path, models: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(place, models, tmp_path)
    assert str(caught.value) == sentence


def test_only_what_has_bits_per_byte_is_compared() -> None:
    with pytest.raises(ConfigError) as caught:
        compare("text.txt", models="lstm,bert")
    assert str(caught.value) == (
        "bert gives a text no probability, so it has no bits per byte to compare; leave it out"
    )
