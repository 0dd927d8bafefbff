"""`tune` finds the best value of every live option, saves it, and every verb uses it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import chainrule as cr
from builders import letter_pairs, pairs_text, write_pairs
from chainrule.base.minimize import best_of, golden_section
from chainrule.errors import ConfigError
from chainrule.experiments.tune import tune
from chainrule.models.options import LiveOption, live_options
from chainrule.registry import MODELS
from commands import chainrule

SHAPE = {"embedding": 16, "hidden": 16, "dropout": 0.0}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, pairs, and a small trained run of each kind that has something to tune."""
    folder = tmp_path_factory.mktemp("tuning")
    (folder / "train.txt").write_text(pairs_text(200))
    (folder / "valid.txt").write_text(pairs_text(60, seed=1))
    write_pairs(folder, letter_pairs(200), "train")
    write_pairs(folder, letter_pairs(20, seed=1), "valid")
    small: dict[str, Any] = {"device": "cpu", "settings": {"model": SHAPE}}
    cr.train(folder / "train.txt", model="hybrid-lm", tokenizer="char", steps=40, out=folder / "lm", **small)
    cr.train(folder / "train.txt", model="ngram", tokenizer="char", out=folder / "ngram")
    pairs = (folder / "train.src", folder / "train.tgt")
    fat = {"model": {"embedding": 16, "encoder_layers": 1, "heads": 2}}
    cr.train(*pairs, model="fat", tokenizer="char", steps=20, out=folder / "fat", device="cpu", settings=fat)
    return folder


def copy(place: Path, name: str, tmp_path: Path) -> Path:
    shutil.copytree(place / name, tmp_path / name)
    return tmp_path / name


@pytest.mark.parametrize("minimum", [0.0, 0.137, 0.5, 1.0])
def test_golden_section_finds_a_minimum(minimum: float) -> None:
    tried = golden_section(lambda x: (x - minimum) ** 2, 0.0, 1.0, evaluations=20)
    assert len(tried) <= 21
    assert best_of(tried, 0.5) == pytest.approx(minimum, abs=2e-3)
    assert best_of([(1, 2.0), (2, 2.0)], 2) == 2  # nothing is gained by a change


def test_gamma_is_the_best_of_a_fine_grid(place: Path, tmp_path: Path) -> None:
    folder = copy(place, "lm", tmp_path)
    done = tune(folder, valid=place / "valid.txt", options=["model.gamma"])
    run = cr.load(folder, device="cpu")
    losses = {}
    for step in range(101):
        run.adjust(gamma=step / 100)
        losses[step / 100] = run.evaluate(place / "valid.txt").cross_entropy
    gamma = done.options["model.gamma"]
    assert gamma["before"] == 0.1
    assert gamma["after"] == pytest.approx(min(losses, key=losses.__getitem__), abs=0.02)
    assert done.metrics["loss"]["before"] == pytest.approx(losses[0.1])
    assert done.metrics["loss"]["after"] <= min(losses.values()) + 1e-4


def test_the_result_is_saved_and_used_without_options(place: Path, tmp_path: Path) -> None:
    folder = copy(place, "lm", tmp_path)
    before = cr.load(folder).evaluate(place / "valid.txt").cross_entropy
    dry = tune(folder, valid=place / "valid.txt", dry_run=True, limit=500)
    assert not dry.saved
    assert not (folder / "tuning.json").exists()
    assert cr.load(folder).evaluate(place / "valid.txt").cross_entropy == before
    done = chainrule("tune", folder, "--valid", place / "valid.txt", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    (record,) = json.loads((folder / "tuning.json").read_text())
    assert record["options"] == found["options"]
    assert record["valid"] == [str(place / "valid.txt")]
    run = cr.load(folder)
    assert run.config.model.options["gamma"] == found["options"]["model.gamma"]["after"]
    assert run.evaluate(place / "valid.txt").cross_entropy == pytest.approx(found["metrics"]["loss"]["after"])
    assert found["metrics"]["loss"]["after"] < before
    assert len(found["tried"]) + 2 == found["evaluations"]
    assert set(found["options"]) == {"model.gamma", "model.allocation_threshold"}


def test_a_run_that_is_given_is_restored_after_a_dry_run(place: Path, tmp_path: Path) -> None:
    run = cr.load(copy(place, "lm", tmp_path))
    run.adjust(gamma=0.3)
    tune(run, valid=place / "valid.txt", limit=300, dry_run=True)
    assert run.model.config.gamma == 0.3


def test_translators_tune_their_search_by_bleu(place: Path, tmp_path: Path) -> None:
    folder = copy(place, "fat", tmp_path)
    valid = [place / "valid.src", place / "valid.tgt"]
    done = tune(folder, valid=valid, limit=10)
    assert set(done.metrics) == {"loss", "bleu"}
    assert done.metrics["bleu"]["after"] >= done.metrics["bleu"]["before"]
    run: Any = cr.load(folder)
    search = run.search_options({})
    assert search.num_beams == done.options["decoding.num_beams"]["after"] == run.config.decoding.num_beams
    assert search.length_penalty == done.options["decoding.length_penalty"]["after"]
    assert run.search_options({"num_beams": 3}).num_beams == 3
    assert run.search_options({"num_beams": 1, "mode": "nar"}).length_penalty == 1.0
    skipping = [one for one in done.tried if "model.skip" in one]
    assert len(skipping) == 6  # never, and always with each of the five thresholds
    tuned = chainrule("eval", folder, *valid, "--json", "--verbose")
    assert tuned.code == 0, tuned.err
    expected = run.evaluate(valid, num_beams=search.num_beams, length_penalty=search.length_penalty).to_dict()
    assert json.loads(tuned.out)["bleu"] == expected["bleu"]


def test_the_weights_of_a_mixture_are_fitted_again(place: Path, tmp_path: Path) -> None:
    runs = [place / "lm", place / "ngram"]
    mixed = cr.mix(runs, valid=place / "valid.txt", out=tmp_path / "mixed", device="cpu")
    fingerprint = mixed.fingerprint
    mixed.model.weights.fill_(0.5)
    tune(mixed, valid=place / "train.txt", dry_run=True)
    assert mixed.model.weights.tolist() == [[0.5, 0.5]]
    done = tune(mixed, valid=place / "train.txt")
    again = cr.load(tmp_path / "mixed")
    assert again.model.weights.tolist() == done.options["weights.mixture"]["after"]
    assert done.options["weights.mixture"]["before"] == [[0.5, 0.5]]
    direct = cr.mix(runs, valid=place / "train.txt", out=tmp_path / "direct", device="cpu")
    assert again.model.weights.tolist()[0] == pytest.approx(direct.model.weights.tolist()[0], abs=1e-4)
    assert again.fingerprint != fingerprint
    assert done.metrics["loss"]["after"] < done.metrics["loss"]["before"]


def test_the_temperature_of_a_mixture_is_fitted_and_saved(place: Path, tmp_path: Path) -> None:
    runs, valid = [place / "lm", place / "ngram"], place / "valid.txt"
    mixed = cr.mix(runs, valid=valid, out=tmp_path / "mixed", device="cpu", caches=["unigram"])
    assert mixed.model.config.temperature == 1
    before = mixed.evaluate(valid).cross_entropy
    done = chainrule("tune", tmp_path / "mixed", "--valid", valid, "--option", "model.temperature", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    fitted = found["options"]["model.temperature"]["after"]
    assert set(found["options"]) == {"model.temperature"}
    assert fitted != 1
    assert found["metrics"]["loss"]["before"] == pytest.approx(before, rel=1e-6)
    again = cr.load(tmp_path / "mixed")
    assert again.model.config.temperature == again.config.model.options["temperature"] == fitted
    assert again.evaluate(valid).cross_entropy == pytest.approx(found["metrics"]["loss"]["after"])
    assert found["metrics"]["loss"]["after"] < before
    losses = []
    for near in (0.97, 1.03):
        again.adjust(temperature=fitted * near)
        losses.append(again.evaluate(valid).cross_entropy)
    assert found["metrics"]["loss"]["after"] < min(losses)
    options: dict[str, Any] = {"caches": ["unigram"], "temperature": True, "device": "cpu"}
    direct = cr.mix(runs, valid=valid, out=tmp_path / "direct", **options)
    assert direct.model.config.temperature == pytest.approx(fitted, abs=1e-3)
    packed, out = tmp_path / "packed", tmp_path / "out.txt"
    for portable in (False, True):
        direct.compress(valid, packed, portable=portable)
        cr.load(tmp_path / "direct").decompress(packed, out)
        assert out.read_bytes() == valid.read_bytes()


def test_weights_that_are_worse_at_the_temperature_of_a_mixture_are_not_taken(place: Path, tmp_path: Path) -> None:
    """EM knows no temperature; what it finds is measured with the one of the run."""
    runs, valid = [place / "lm", place / "ngram"], place / "valid.txt"
    mixed = cr.mix(runs, valid=valid, out=tmp_path / "mixed", device="cpu")
    mixed.adjust(temperature=0.3)
    losses = {}
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        mixed.model.weights.copy_(torch.tensor([[share, 1 - share]]))
        losses[share] = mixed.evaluate(valid).cross_entropy
    best = min(losses, key=losses.__getitem__)
    mixed.model.weights.copy_(torch.tensor([[best, 1 - best]]))
    done = tune(mixed, valid=valid, options=["weights.mixture"])
    assert done.metrics["loss"]["before"] == pytest.approx(losses[best])
    assert done.metrics["loss"]["after"] <= done.metrics["loss"]["before"]
    assert done.options["weights.mixture"]["after"] == mixed.model.weights.tolist()
    assert mixed.evaluate(valid).cross_entropy == pytest.approx(done.metrics["loss"]["after"])
    assert mixed.model.config.temperature == 0.3


def test_what_cannot_be_tuned_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no options to tune: all of its options are fixed by its training"):
        tune(place / "ngram", valid=place / "valid.txt")
    with pytest.raises(ConfigError, match=r"unknown option to tune 'model\.gama': did you mean 'model\.gamma'"):
        tune(place / "lm", options=["model.gama"])
    with pytest.raises(ConfigError, match="is not measured by bleu; leave --by out"):
        tune(place / "lm", valid=place / "valid.txt", by="bleu", limit=100)
    refused = chainrule("train", place / "train.txt", "--set", "decoding.length_penalty=0", "--out", tmp_path / "x")
    assert refused.code == 2
    assert "decoding.length_penalty sets the length penalty of translations and has no effect on lstm" in refused.err


def test_every_search_that_is_declared_is_valid() -> None:
    declared = 0
    for entry in MODELS.entries():
        config = entry.make.Config
        for option in live_options(config):
            declared += 1
            for value in [*option.choices, *([option.low, option.high] if option.low is not None else [])]:
                assert getattr(config.model_validate({option.name: value}), option.name) == value
            assert set(option.where or {}) <= set(config.model_fields) | {"nar"}
    assert declared >= 7
    assert not LiveOption("x", where={"mixing": ["fixed"]}).applies({"mixing": "learned"})


# --set on compress, decompress and generate


def test_an_archive_records_its_settings(place: Path, tmp_path: Path) -> None:
    folder, text = copy(place, "lm", tmp_path), place / "valid.txt"
    packed, out = tmp_path / "packed", tmp_path / "out.txt"
    sizes = {}
    for gamma in (0.0, 0.9):
        done = chainrule("compress", folder, text, "--out", packed, "--set", f"model.gamma={gamma}", "--json")
        sizes[gamma] = json.loads(done.out)["compressed_bytes"]
    assert sizes[0.0] != sizes[0.9]
    assert chainrule("decompress", folder, packed, "--out", out).code == 0
    assert out.read_bytes() == text.read_bytes()
    wrong = chainrule("decompress", folder, packed, "--out", out, "--set", "model.gamma=0.5")
    assert wrong.code == 2
    assert f"{packed} was compressed with model.gamma = 0.9, not 0.5; leave --set out" in wrong.err
    right = chainrule("decompress", folder, packed, "--out", out, "--set", "model.gamma=0.9")
    assert right.code == 0
    tune(folder, valid=text, limit=500)  # another γ in config.toml does not matter either
    run: Any = cr.load(folder)
    run.decompress(packed, out)
    assert out.read_bytes() == text.read_bytes()
    assert run.model.config.gamma == run.config.model.options["gamma"]


def test_generate_uses_settings(place: Path) -> None:
    def log_prob(*options: str) -> float:
        found = chainrule(
            "generate", place / "lm", "--prompt", "a", "--max-new-tokens", 5, "--num-beams", 2, "--json", *options
        )
        assert found.code == 0, found.err
        return float(json.loads(found.out)["log_probs"][0])

    assert not math.isclose(log_prob("--set", "model.gamma=0"), log_prob("--set", "model.gamma=1"))
