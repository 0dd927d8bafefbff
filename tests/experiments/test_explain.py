"""Explanations of models: complete, and true to their options."""

from __future__ import annotations

import re

import pytest

import chainrule as cr
from chainrule.errors import ChainruleError
from chainrule.registry import MODELS, OBJECTIVES, OUTPUTS

NAMES = MODELS.peek_names() + [entry.name for entry in MODELS.peek()]


@pytest.mark.parametrize("name", sorted(set(NAMES)))
def test_every_model_is_explained(name: str) -> None:
    explanation = cr.explain(name)
    assert explanation.suggestions
    assert all(option.description for option in explanation.options)
    assert re.search(r"(19|20)\d\d|=|:", explanation.text)  # a paper or a formula
    text = str(explanation)
    assert text.startswith(f"{name}: ")
    assert all(option.name in text for option in explanation.options)


@pytest.mark.parametrize("name", sorted(set(NAMES)))
def test_suggestions_name_options_that_exist(name: str) -> None:
    explanation = cr.explain(name)
    known = {option.name for option in explanation.options}
    for suggestion in explanation.suggestions:
        if not suggestion.startswith(("then:", "chainrule")):
            assert set(re.findall(r"model\.(\w+)", suggestion)) <= known, suggestion
        assert set(re.findall(r"--output (\w+)", suggestion)) <= set(OUTPUTS.names())
        assert set(re.findall(r"--objective ([\w-]+)", suggestion)) <= set(OBJECTIVES.names())
        for models in re.findall(r"--models (\S+)", suggestion):
            assert set(models.split(",")) <= set(MODELS.names())


def test_an_unknown_model_is_an_error() -> None:
    with pytest.raises(ChainruleError, match="lstm"):
        cr.explain("lsmt")
