"""The declared contract: every registered model has every attribute of `types.Model`, with the declared type."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from pydantic import BaseModel
from torch import Tensor, nn

from builders import small_model, small_translator, some_tokens
from chainrule.checkpoint.build import load_weights, weights_of
from chainrule.layers.encoders.build import make_encoder
from chainrule.registry import FITTINGS, MODELS, OBJECTIVES, RUNS, TASKS
from chainrule.types import Model, Preferences, Source, SteppingModel

every_model = pytest.mark.parametrize("name", MODELS.names())
NAMES = {"np": np, "Tensor": Tensor, "nn": nn, "Iterator": Iterator}  # imported for type checkers only


def small(name: str) -> Any:
    """A small model as it is registered: a translator without a fixed source."""
    return small_translator(name) if MODELS.get(name).task == "translation" else small_model(name)


def declared(kind: type) -> dict[str, Any]:
    """The attributes that a class declares, and the types of its properties."""
    properties = {name: value for name, value in vars(kind).items() if isinstance(value, property)}
    names = {**vars(sys.modules[kind.__module__]), **NAMES}
    types_of = {name: get_type_hints(value.fget, globalns=names) for name, value in properties.items()}
    hints = get_type_hints(kind, globalns=names)
    return {**hints, **{name: hint["return"] for name, hint in types_of.items()}}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has a declared type; of a protocol, whether it has all of its members."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is ClassVar:
        return fits(value, inner[0])
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    if origin in (tuple, list):
        return isinstance(value, origin) and all(fits(one, inner[0]) for one in value)
    if origin is type:
        return isinstance(value, type)
    if getattr(hint, "_is_protocol", False):
        members = {name for name in vars(hint) if not name.startswith("_")} | set(hint.__annotations__)
        return value is not None and all(hasattr(value, name) for name in members)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


@every_model
def test_a_model_has_every_declared_attribute_with_its_type(name: str) -> None:
    model = small(name)
    assert isinstance(model, Model)
    kinds = [SteppingModel, Model] if isinstance(model, SteppingModel) else [Model]
    for attribute, hint in {attribute: hint for kind in kinds for attribute, hint in declared(kind).items()}.items():
        assert fits(getattr(model, attribute), hint), f"{name}.{attribute} is not {hint}"


def test_the_check_refuses_other_types() -> None:
    hints = declared(Model)
    assert {"config", "vocab_size", "window", "prefers", "parameter_count", "word_table", "line_scorer"} <= set(hints)
    assert fits(3, hints["window"])
    assert fits(None, hints["window"])
    assert not fits("3", hints["window"])
    assert not fits(True, hints["vocab_size"])
    assert not fits(["ar"], hints["modes"])
    assert not fits((1,), hints["modes"])
    assert not fits(object(), hints["line_scorer"])
    assert fits(Preferences(), hints["prefers"])


@every_model
def test_a_model_names_a_task_a_run_a_way_of_fitting_and_an_objective_that_exist(name: str) -> None:
    entry = MODELS.get(name)
    assert entry.task in TASKS.names()
    assert entry.task in RUNS.names()
    assert entry.fitting in FITTINGS.names()
    assert entry.objective is None or entry.objective in OBJECTIVES.names()
    assert entry.family
    if entry.counterpart is not None:
        assert MODELS.get(entry.counterpart).counterpart == name
        assert MODELS.get(entry.counterpart).task != entry.task


@every_model
def test_the_options_of_a_model_are_documented_and_frozen(name: str) -> None:
    options = MODELS.get(name).make.Config
    assert issubclass(options, BaseModel)
    assert options.model_config.get("frozen")
    assert options.model_config.get("extra") == "forbid"
    assert [field for field, info in options.model_fields.items() if not info.description] == []


@every_model
def test_the_vocabulary_is_that_of_the_model(name: str) -> None:
    model = small(name)
    assert model.vocab_size == 13
    assert MODELS.get(name).make is type(model)
    assert isinstance(model.config, MODELS.get(name).make.Config)


NETWORKS = [entry.name for entry in MODELS.entries() if entry.fitting == "gradients"]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_parameters_of_a_network_are_counted_once_each(name: str) -> None:
    model = small(name)
    assert model.parameter_count == sum(parameter.numel() for parameter in set(model.parameters()))
    assert not model.stores_arrays
    assert not model.has_parts


# As an encoder of other models


@every_model
def test_an_encoder_has_the_shape_and_the_weights_that_it_states(name: str) -> None:
    make, model = MODELS.get(name).make, small(name)
    if not make.encodes:
        with pytest.raises(TypeError, match="is not an encoder"):
            make.encoder_shape(model.config, model.vocab_size, 0)
        return
    shape = make.encoder_shape(model.config, model.vocab_size, 0)
    encoder = make_encoder(shape)
    assert encoder.shape == shape
    tensors = weights_of(model)
    if make.stores_arrays:
        tensors = {"ids": torch.from_numpy(model.ids_V), "vectors": torch.from_numpy(model.vectors_VD)}
    weights = make.encoder_weights(model.config, tensors, model.vocab_size)
    assert {key: value.shape for key, value in weights.items()} == {
        key: value.shape for key, value in encoder.state_dict().items()
    }
    load_weights(encoder, weights)


# Tables of words


def features(name: str, model: Any, tokens_BT: Tensor) -> Tensor:
    """Features that a model computes from tokens, before its output layer."""
    source = Source(tokens_BT, torch.ones_like(tokens_BT, dtype=torch.bool))
    with torch.no_grad():
        if MODELS.get(name).task == "translation":
            found_BTD: Tensor = model.read(model.start(source), tokens_BT)[0]
        elif model.text_encoder is not None:
            found_BTD = model.text_encoder.encode_text(source)
        else:
            found_BTD = model.reader(source)
    return found_BTD


@every_model
def test_the_word_table_is_where_tokens_are_looked_up(name: str) -> None:
    model = small(name)
    if (table := model.word_table) is None:
        assert name in ("mixture", "ngram", "word2vec")
        return
    assert table.num_embeddings >= model.vocab_size
    tokens_BT = some_tokens(2, 5, size=6) + 2
    before_BTD = features(name, model, tokens_BT)
    with torch.no_grad():
        table.weight[tokens_BT[0, 0]] += torch.randn_like(table.weight[0])  # norms would remove a constant
    assert not torch.allclose(features(name, model, tokens_BT), before_BTD)


@every_model
def test_word_vectors_are_rows_of_known_tokens(name: str) -> None:
    model = small(name)
    if model.word_vectors is None:
        assert name != "word2vec"
        return
    ids_V, vectors_VD = model.word_vectors
    assert len(ids_V) == len(vectors_VD) == len(set(ids_V.tolist()))
    assert vectors_VD.dtype == np.float32
    assert 0 <= ids_V.min() <= ids_V.max() < model.vocab_size


@every_model
def test_the_source_table_is_separate_only_where_asked(name: str) -> None:
    assert small(name).source_table is None
    if "shared" in MODELS.get(name).make.Config.model_fields:
        for options in ({"shared": False}, {"separate": True}):
            if name == "t5" and "separate" in options:
                continue  # it has one vocabulary
            own = small_translator(name, **options).source_table
            assert own is not None
            assert own.num_embeddings == (15 if "separate" in options else 13)


# Features


@every_model
def test_features_have_the_stated_width(name: str) -> None:
    model = small(name)
    if model.feature_width is None:
        assert MODELS.get(name).task != "lm" or name in ("mixture", "ngram")
        return
    tokens_BT = some_tokens(2, 9)
    with torch.no_grad():
        hidden_BTD, state = model.predictors(tokens_BT, model.start(2))
        log_probs_N = model.output.log_prob(hidden_BTD.flatten(0, 1), tokens_BT.flatten())
        again_BTD, _ = model.predictors(tokens_BT[:, :1], state)
    assert hidden_BTD.shape == (2, 9, model.feature_width)
    assert again_BTD.shape == (2, 1, model.feature_width)
    torch.testing.assert_close(log_probs_N.view(2, 9), model.log_probs(tokens_BT).detach())
