"""Shared options: each model gets those that have an effect on it."""

from __future__ import annotations

import pytest

from chainrule.errors import ConfigError
from chainrule.experiments.shared_options import options_for
from chainrule.training.request import make_config

SHARED = {"tokenizer": {"kind": "char"}, "training": {"minutes": 1, "batch_size": 8, "threads": 2}}


def test_a_network_gets_all_options() -> None:
    assert options_for("lstm", SHARED) == SHARED
    assert options_for("ngram", {"seed": 3}) == {"seed": 3}


def test_an_n_gram_model_gets_no_options_of_gradient_steps() -> None:
    training = options_for("ngram", SHARED)["training"]
    assert training == {"threads": 2}  # nor a budget: it is counted in one pass
    assert SHARED["training"]["batch_size"] == 8  # unchanged


@pytest.mark.parametrize("model", ["lstm", "ngram"])
def test_a_misspelt_option_stays_an_error(model: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown option 'training\.batch_sise'"):
        make_config(None, {"model": {"name": model}}, options_for(model, {"training": {"batch_sise": 8}}))
