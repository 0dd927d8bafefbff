"""Every recipe is a configuration that trains: here for three steps on a small stand-in for its text."""

from __future__ import annotations

import importlib.util
import json
import math
from itertools import pairwise
from pathlib import Path

import pytest

from chainrule.api import load, train
from chainrule.config import merge, parse, parse_settings, read_toml
from chainrule.experiments.speed_quality import measure_tradeoffs, read_recipe
from chainrule.registry import MODELS
from chainrule.runs.translator import TranslatorRun
from chainrule.tasks.task import task_of
from chainrule.text.samples.phrases import write_phrase_pairs
from chainrule.training.request import make_config

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.toml"))
WORDS = ("the", "cat", "sat", "on", "a", "mat", "<unk>", "and", "dog", "ran")

every_recipe = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)


def stand_in(path: Path, lines: int) -> Path:
    """Lines of words without a rule that a few steps could learn."""
    text = "\n".join(" ".join(WORDS[(line * place + line) % 10] for place in range(1, 9)) for line in range(lines))
    path.write_text(text + "\n", encoding="utf-8")
    return path


def test_the_recipes_of_the_benchmarks_exist():
    assert {path.stem for path in RECIPES} >= {
        "ptb-lstm-small",
        "ptb-best-1h",
        "ptb-mixture",
        "shakespeare-10min",
        "shakespeare-quick",
        "multi30k-transformer",
        "multi30k-attention",
        "multi30k-rnn",
        "multi30k-fat",
    }


@every_recipe
def test_a_recipe_is_described_and_keeps_every_value_it_sets(path):
    config = make_config(path, {}, {})
    assert config.recipe is not None
    assert config.recipe.about
    assert config.recipe.expected
    resolved = config.model_dump(mode="json")
    for section, values in read_toml(path).items():
        assert {name: resolved[section][name] for name in values} == values


@every_recipe
def test_a_recipe_sets_a_budget(path):
    values = read_toml(path)
    trained = [part for part in values["model"].get("parts", [values]) if part["model"]["name"] != "ngram"]
    assert trained
    for part in trained:
        assert {"minutes", "steps", "epochs"} & set(part["training"])


@every_recipe
def test_a_recipe_does_not_validate_on_its_test_text(path):
    commands = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# chainrule")]
    for command in commands:
        words = command.split()
        given = [word for option, word in pairwise(words) if option == "--valid"]
        assert not any("test" in word for word in given), command


MIXTURES = [path for path in RECIPES if "parts" in read_toml(path)["model"]]
TRANSLATORS = [path for path in RECIPES if path not in MIXTURES and task_of(make_config(path, {}, {})).rewarded]
FEW = ["training.steps=3", "training.threads=1", "training.validations=1"]


@pytest.mark.parametrize("path", MIXTURES, ids=lambda path: path.stem)
def test_a_recipe_for_a_mixture_trains_its_parts_and_mixes_them(path, tmp_path, monkeypatch):
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    text, recipe = stand_in(tmp_path / "text.txt", 200), read_toml(path)["model"]
    few = parse_settings(FEW)
    run = train(text, config=path, out=tmp_path / "run", settings=few)
    assert run.config.model.options["parts"] == len(recipe["parts"])
    assert [cache["kind"] for cache in run.config.model.options["caches"]] == recipe["caches"]
    parts = sorted((tmp_path / "run-parts").iterdir())
    assert run.evaluate_held_out().cross_entropy <= min(load(part).evaluate_held_out().cross_entropy for part in parts)
    again = train(text, config=path, out=tmp_path / "run", settings=few)
    assert again.fingerprint == run.fingerprint


@pytest.mark.parametrize(
    "path", [path for path in RECIPES if path not in (*MIXTURES, *TRANSLATORS)], ids=lambda path: path.stem
)
def test_a_recipe_trains(path, tmp_path, monkeypatch):
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    text = stand_in(tmp_path / "text.txt", 200)
    run = train(text, config=path, out=tmp_path / "run", settings=parse_settings(FEW))
    check_shape(run, path)
    losses = logged(run, "valid_loss")
    held_out = run.evaluate_held_out()
    measured = getattr(held_out, "cross_entropy", None) or held_out.masked_cross_entropy
    assert min(losses) < math.log(run.tokenizer.vocab_size) * 2
    assert measured == pytest.approx(min(losses), abs=0.2)  # the trainer's own, in shorter tracks


def check_shape(run, path):
    """The run has taken its few steps with the model that the recipe describes."""
    shape = read_toml(path)["model"]
    assert run.result["steps"] == 3
    assert {name: value for name, value in run.config.model.options.items() if name in shape} == {
        name: value for name, value in shape.items() if name != "name"
    }


def logged(run, name):
    """A figure of the metrics wherever it was logged."""
    lines = (run.folder.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record[name] for record in map(json.loads, lines) if name in record]


@pytest.mark.parametrize("path", TRANSLATORS, ids=lambda path: path.stem)
def test_a_recipe_for_a_translator_trains_on_pairs(path, tmp_path, monkeypatch):
    package = read_toml(path)["model"].get("pretrained", "chainrule").replace("-", "_")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    files = write_phrase_pairs(tmp_path, "en", "de", {"train": 600, "valid": 4})
    few = [*FEW, "training.max_tokens=128", "tokenizer.vocab_size=400"]
    run = train(*files["train"], valid=files["valid"], config=path, out=tmp_path / "run", settings=parse_settings(few))
    assert isinstance(run, TranslatorRun)
    check_shape(run, path)
    pretrained = "pretrained" in read_toml(path)["model"]
    assert (run.source_tokenizer is run.tokenizer) is not pretrained  # one vocabulary, unless the encoder has its own
    measured = run.evaluate_held_out(num_beams=1)
    assert logged(run, "valid_loss") == [pytest.approx(measured.cross_entropy, rel=1e-4)]
    assert measured.cross_entropy < math.log(run.tokenizer.vocab_size) * 2


def test_the_translator_recipes_differ_only_in_their_model():
    recipes = {path.stem: read_toml(path) for path in TRANSLATORS}
    attention, plain = recipes["multi30k-attention"], recipes["multi30k-rnn"]
    assert attention["model"]["name"] == "seq2seq-attention"
    assert plain["model"]["name"] == "seq2seq-rnn"
    for section in ("tokenizer", "output", "training"):
        assert attention[section] == plain[section]
    shared = attention["model"].keys() & plain["model"].keys() - {"name"}
    assert {"embedding", "hidden", "dropout"} <= shared
    assert all(attention["model"][name] == plain["model"][name] for name in shared)


COMPARISONS = sorted((Path(__file__).parent.parent / "recipes" / "compare").glob("*.toml"))


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.stem)
def test_a_recipe_for_a_comparison_names_existing_models_and_modes(path):
    shared, entries = read_recipe(path)
    assert shared["recipe"]["about"]
    assert shared["recipe"]["expected"]
    for entry in entries:
        config = make_config(None, {}, merge(shared, entry.settings))
        model = MODELS.get(config.model.name).make
        options = parse(model.Config, config.model.options, "model")
        for way in entry.ways:
            parse(model.Config, {**options.model_dump(), **way.set}, "model")
            assert all((model.Config.model_fields[name].json_schema_extra or {}).get("live") for name in way.set)


def test_a_recipe_for_a_comparison_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("chainrule.experiments.speed_quality.ROUNDS", 1)
    files = write_phrase_pairs(tmp_path, "en", "de", {"train": 300, "valid": 10, "test": 2})
    points = measure_tradeoffs(
        *files["train"],
        recipe=next(path for path in COMPARISONS if path.stem == "multi30k"),
        valid=files["valid"],
        test=files["test"],
        only=["attention", "hybrid, distilled"],
        out=tmp_path / "out",
        settings=parse_settings([*FEW, "tokenizer.vocab_size=350"]),
    )
    by_name = {(point.name, point.way): point for point in points}
    assert by_name["hybrid, distilled", "draft"].quality.passes >= 1
    greedy, drafted = by_name["hybrid, distilled", ""].quality, by_name["hybrid, distilled", "draft"].quality
    assert (greedy.bleu, greedy.bits_per_byte) == (drafted.bleu, drafted.bits_per_byte)
