"""`chainrule compare`: learning curves; with a recipe the table and the chart of quality against time."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from builders import pairs_text
from commands import chainrule

RECIPE = """
[tokenizer]
kind = "char"

[[contenders]]
name = "bigram"
model = { name = "ngram", order = 2 }

[[contenders]]
name = "trigram"
model = { name = "ngram", order = 3 }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.txt").write_text(pairs_text(60))
    (tmp_path / "test.txt").write_text(pairs_text(10, seed=5))
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path


def test_a_recipe_is_drawn_and_printed(folder: Path) -> None:
    plot = folder / "charts" / "quality.svg"
    command = ["compare", folder / "train.txt", "--config", folder / "recipe.toml", "--test", folder / "test.txt"]
    command += ["--valid", folder / "test.txt", "--out", folder / "runs", "--plot", plot]
    done = chainrule(*command)
    assert done.code == 0, done.err
    header, _, *rows = done.out.splitlines()
    assert header.startswith("| model | ")
    assert [row.split(" | ")[0] for row in rows] == ["| bigram", "| trigram"]
    drawn = ElementTree.parse(plot).getroot()
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    text = " ".join("".join(node.itertext()) for node in drawn.iter())
    assert "bigram" in text
    assert "trigram" in text
    again = chainrule(*command, "--only", "trigram", "--json")
    assert [point["name"] for point in json.loads(again.out)] == ["trigram"]


def test_models_have_their_learning_curves_drawn(folder: Path) -> None:
    plot = folder / "curves.svg"
    command = ["compare", folder / "train.txt", "--models", "ngram(order=2),gru(hidden=8)", "--tokenizer", "char"]
    command += ["--steps", "4", "--set", "training.validations=2", "--valid", folder / "test.txt"]
    done = chainrule(*command, "--out", folder / "runs", "--plot", plot, "--json")
    assert done.code == 0, done.err
    logged = [
        json.loads(line) for line in (folder / "runs" / "gru-hidden=8" / "metrics.jsonl").read_text().splitlines()
    ]
    losses = [line["valid_loss"] / math.log(2) for line in logged if "valid_loss" in line]
    counted = next(row for row in json.loads(done.out) if row["model"] == "ngram(order=2)")
    described = [node.get("aria-label", "") for node in ElementTree.parse(plot).iter()]
    found = [re.match(r"optimiser steps: (\d+);.*\): ([\d.]+); series: (.*)", one) for one in described]
    points = sorted({(one[3], int(one[1]), float(one[2])) for one in found if one})  # the lines and the dots on them
    curve = [y for name, _, y in points if name.startswith("gru")]
    assert curve == [pytest.approx(loss, rel=0.01) for loss in losses]
    assert len(curve) > 1
    level = [y for name, _, y in points if name.startswith("ngram")]
    assert level == [pytest.approx(math.log2(counted["perplexity"]), rel=0.01)] * 2  # from the first step to the last


def test_only_is_refused_without_a_recipe(folder: Path) -> None:
    done = chainrule("compare", folder / "train.txt", "--models", "ngram", "--only", "ngram", "--out", folder / "runs")
    assert (done.code, done.err) == (
        2,
        "chainrule: --only selects contenders of a recipe; shorten the list of --models instead\n",
    )
    assert not (folder / "runs").exists()


def test_without_models_and_without_a_recipe_there_is_nothing_to_compare(folder: Path) -> None:
    done = chainrule("compare", folder / "train.txt", "--out", folder / "runs")
    assert (done.code, done.err) == (
        2,
        "chainrule: nothing to compare: give --models lstm,ngram, or a recipe with contenders as --config\n",
    )


@pytest.mark.parametrize("option", [["--mix"], ["--tokenizer", "word"], ["--seed", "3"], ["--markdown"]])
def test_options_without_effect_on_a_recipe_are_refused(option: list[str], folder: Path) -> None:
    done = chainrule("compare", folder / "train.txt", "--config", folder / "recipe.toml", *option)
    assert done.code == 2
    assert f"{option[0]} has no effect on a recipe of contenders" in done.err
