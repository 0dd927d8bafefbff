"""Quality against speed: the contenders of a recipe in all their decoding modes, in one table and one picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import chainrule as cr
from chainrule.errors import ConfigError
from chainrule.experiments.speed_quality import (
    DecodingMode,
    Point,
    Quality,
    RecipeContender,
    measure_tradeoffs,
    read_recipe,
)
from chainrule.reports import speed_quality as tradeoff
from chainrule.text.samples.phrases import write_phrase_pairs

RECIPE = """
[training]
steps = 4
validations = 1

[tokenizer]
kind = "char"

[[contenders]]
name = "teacher"
model = { name = "seq2seq-attention", embedding = 8, hidden = 8 }
ways = [{}, { num_beams = 2 }]

[[contenders]]
name = "student"
teacher = "teacher"
model = { name = "seq2seq-rnn", embedding = 8, hidden = 8, layers = 1 }
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    folder = tmp_path_factory.mktemp("phrases")
    return write_phrase_pairs(folder, "en", "digits", {"train": 40, "valid": 8, "test": 8})


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def test_contenders_are_trained_once_and_measured_in_all_their_ways(files, recipe, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    options = {"recipe": recipe, "valid": files["valid"], "test": files["test"], "out": tmp_path / "out"}
    points = measure_tradeoffs(*files["train"], **options)
    assert [(point.name, point.way) for point in points] == [("teacher", ""), ("teacher", "beam 2"), ("student", "")]
    assert all(set(point.milliseconds) == {1, 32} and min(point.milliseconds.values()) > 0 for point in points)
    teacher = cr.load(tmp_path / "out" / "teacher")
    greedy = teacher.evaluate(files["test"], num_beams=1)
    assert points[0].quality == Quality(greedy.bits_per_byte, greedy.bleu, greedy.bleu_lowercase)
    lines = (tmp_path / "out" / "by-teacher.tsv").read_text(encoding="utf-8").splitlines()
    sources = files["train"][0].read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[0] for line in lines] == sources
    assert cr.load(tmp_path / "out" / "student").config.data.train == (str(tmp_path / "out" / "by-teacher.tsv"),)
    monkeypatch.setattr("chainrule.experiments.speed_quality._measure", None)  # nothing is measured again …
    again = measure_tradeoffs(*files["train"], only=["teacher"], **options)  # … or trained, and one can be selected
    assert [point.quality for point in again] == [point.quality for point in points[:2]]


def test_what_the_command_sets_wins_over_the_recipe_and_its_contenders(files, recipe, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    recipe.write_text(RECIPE.replace("ways =", "training = { steps = 5, lr = 0.5 }\nways ="), encoding="utf-8")
    options = {"recipe": recipe, "valid": files["valid"], "test": files["test"], "only": ["teacher"]}
    for settings, steps in (({}, 5), ({"training": {"steps": 2}}, 2)):
        measure_tradeoffs(*files["train"], out=tmp_path / str(steps), settings=settings, **options)
        training = cr.load(tmp_path / str(steps) / "teacher").config.training
        assert (training.steps, training.lr) == (steps, 0.5)


def test_mistakes_in_a_recipe_are_errors(tmp_path) -> None:
    def error(text: str) -> str:
        path = tmp_path / "r.toml"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            read_recipe(path)
        return str(caught.value).replace(str(path), "r.toml")

    one = '[[contenders]]\nname = "a"\nmodel = { name = "fat" }\n'
    assert error(one + 'teacher = "b"\n') == "r.toml: 'a' needs 'b', which is not a contender; add it"
    late = one + 'teacher = "b"\n' + one.replace('"a"', '"b"')
    assert error(late) == "r.toml: 'b' teaches 'a'; list the teacher first"
    assert error(one + one) == "r.toml: two contenders have the same name; give each its own"
    assert "contenders.0.way" in error(one + "way = 3\n")


def test_a_way_tells_what_is_special_about_it() -> None:
    assert DecodingMode().description == ""
    assert (
        DecodingMode(set={"gamma": 0.25}, mode="nar", lengths=3, refine=2).description
        == "gamma 0.25, nar, 3 lengths, 2 refinements"
    )
    assert DecodingMode(draft="ngram").description == "draft by ngram"
    assert RecipeContender(name="fat 4+1, wide", model={}).folder == "fat-4+1-wide"


def points_of(*figures: tuple[str, str, float, float, float]) -> list[Point]:
    return [
        Point(name, way, 1000, 60.0, Quality(1.5, bleu - 1, bleu, None), {1: one, 32: many})
        for name, way, bleu, one, many in figures
    ]


def test_the_table_and_the_picture_have_every_point() -> None:
    points = points_of(("a <b>", "", 30.0, 10.0, 2.0), ("a <b>", "nar", 25.0, 2.0, 1.0), ("c", "", 40.0, 100.0, 50.0))
    first, *rest = tradeoff.markdown(points).splitlines()
    assert first == (
        "| model | way | parameters | BLEU | BLEU lower-cased | bits/byte | passes | ms/line, batch 1 | "
        "ms/line, batch 32 |"
    )
    assert rest[2] == "| a <b> | nar | 1,000 | 24.00 | 25.00 | 1.500 |  | 2.00 | 1.00 |"
    drawn = ElementTree.fromstring(tradeoff.picture(points))
    described = [node.get("aria-label", "") for node in drawn.iter()]
    assert sum(one.startswith("milliseconds per line: ") and "model: " in one for one in described) == 6
    assert tradeoff.picture(points) == tradeoff.picture(points)
    json.dumps([point.to_dict() for point in points])
