"""The declared tables of every model, against the names of their parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from builders import CASES, Case, case_id, small_config, some_vocabulary
from chainrule.base.parameters import HasTables, table_parameters
from chainrule.checkpoint.build import build_model
from chainrule.registry import ENCODERS, MODELS

ENCODER_SIZES = {"embedding": 8, "layers": 2, "heads": 2, "positions": 12, "labels": ["x", "y"]}
BERT_SIZES = {"width": 8, "layers": 2, "heads": 2, "positions": 12}
MORE_CASES: list[Case] = [
    *(("bert", "softmax", {**BERT_SIZES, "kind": kind, "types": 2}) for kind in ("bert", "roberta", "distilbert")),
    *(("classifier", "softmax", {**ENCODER_SIZES, "encoder": encoder}) for encoder in ENCODERS.names()),
    *(("classifier", "softmax", {**ENCODER_SIZES, "pairs": True, "pooling": pooling}) for pooling in ("mean", "max")),
    *(("tagger", "softmax", {**ENCODER_SIZES, "encoder": encoder, "crf": True}) for encoder in ENCODERS.names()),
]
FITTED_CASES = [case for case in [*CASES, *MORE_CASES] if MODELS.get(case[0]).fitting == "gradients"]
SHAPES: list[dict[str, Any]] = [
    {"kind": "bert", "vocab_size": 20, "width": 8, "layers": 1, "heads": 2, "inner": 8, "positions": 12},
    {"kind": "elmo", "vocab_size": 20, "embedding": 4, "hidden": 5, "characters": {"spelling": 6}},
    {"kind": "transformer", "vocab_size": 20, "width": 8, "heads": 2, "positions": "learned"},
]


def tables_by_name(model: nn.Module) -> set[str]:
    """Tables by the names of parameters: embeddings, the output layer, and attributes that are called tables."""
    prefixes = ("embedding.", "source_embedding.", "output.")
    return {name for name, _ in model.named_parameters() if name.startswith(prefixes) or "table" in name}


def check(model: nn.Module) -> None:
    tables = table_parameters(model)
    assert {name for name, parameter in model.named_parameters() if id(parameter) in tables} == tables_by_name(model)


@pytest.mark.parametrize("case", FITTED_CASES, ids=case_id)
def test_declared_tables_equal_those_by_name(case: Case) -> None:
    model, output, options = case
    vocabulary = some_vocabulary()
    if options.get("separate"):
        vocabulary = replace(vocabulary, source=some_vocabulary(15))
    check(build_model(small_config(model, output, **options), vocabulary))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape["kind"])
@pytest.mark.parametrize("model", ["classifier", "tagger", "seq2seq-attention", "hybrid"])
def test_declared_tables_of_a_pretrained_encoder_equal_those_by_name(model: str, shape: dict[str, Any]) -> None:
    options: dict[str, Any] = {"pretrained": "somewhere", "pretrained_shape": shape, "tuned": True}
    if model in ("classifier", "tagger"):
        options["labels"] = ["x", "y"]
    check(build_model(small_config(model, **options), some_vocabulary()))


def test_every_parameter_below_is_a_table_where_a_module_declares_it() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 3)

    class OnlyTables(HasTables, Inner):
        only_tables = True

    class OneTable(HasTables, Inner):
        tables = ("rows", "absent")

        def __init__(self) -> None:
            super().__init__()
            self.rows, self.absent = nn.Parameter(self.linear.weight.detach().clone()), None

    plain, only, one = Inner(), OnlyTables(), OneTable()
    whole = nn.ModuleList([plain, only, one, nn.Embedding(4, 2)])
    tables = table_parameters(whole)
    names = {name for name, parameter in whole.named_parameters() if id(parameter) in tables}
    assert names == {"1.linear.weight", "1.linear.bias", "2.rows", "3.weight"}
