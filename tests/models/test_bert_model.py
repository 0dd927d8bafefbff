"""bert against the models of transformers with the same weights, and the laws of masked language models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from builders import some_tokens, some_vocabulary, stir
from chainrule.checkpoint.build import build_model, load_model, save_model, weights_of
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig
from chainrule.errors import ConfigError
from chainrule.models.bert import Bert
from chainrule.text import text_of, train_tokenizer
from chainrule.types import Batch, Source, Vocabulary

SHAPE: dict[str, Any] = {"width": 8, "layers": 2, "heads": 2, "inner": 12, "positions": 16}


def bert_config(output: str = "softmax", **options: Any) -> RunConfig:
    values = {"model": {"name": "bert", **SHAPE, **options}, "output": {"name": output}}
    return RunConfig.model_validate(values)


def bert(vocabulary: Vocabulary | None = None, **options: Any) -> Bert:
    """A small one in which every weight matters."""
    torch.manual_seed(0)
    model = build_model(bert_config(**options), vocabulary or some_vocabulary())
    assert isinstance(model, Bert)
    stir(model)
    return model.eval()


def everything(tokens_BS: Tensor) -> Tensor:
    return torch.ones_like(tokens_BS, dtype=torch.bool)


# Against transformers

FORMS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bert": (transformers.BertConfig, transformers.BertForMaskedLM, {"types": 2}),
    "roberta": (transformers.RobertaConfig, transformers.RobertaForMaskedLM, {"types": 1, "pad": 1}),
    "distilbert": (transformers.DistilBertConfig, transformers.DistilBertForMaskedLM, {"types": 0}),
}
HEADS = {
    "bert": ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
    "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
}


def theirs(kind: str) -> Any:
    """Their model in the same shape, every weight of which matters."""
    torch.manual_seed(1)
    config, make, _ = FORMS[kind]
    if kind == "distilbert":
        shape = {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12}
    else:
        shape = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
        shape |= {"type_vocab_size": FORMS[kind][2]["types"], "pad_token_id": FORMS[kind][2].get("pad", 0)}
    model = make(config(vocab_size=13, max_position_embeddings=16, layer_norm_eps=1e-12, **shape)).eval()
    stir(model)
    return model


def copied(kind: str, model: Any) -> Bert:
    """Ours with their weights, layer by layer."""
    ours = bert(kind=kind, mask=4, **FORMS[kind][2])
    state, dense_norm_bias = model.state_dict(), HEADS[kind]
    tables = {"word_table": "word_embeddings", "position_table": "position_embeddings", "norm": "LayerNorm"}
    if FORMS[kind][2]["types"]:
        tables["type_table"] = "token_type_embeddings"
    pairs = {f"encoder.{mine}": [f"{kind}.embeddings.{its}"] for mine, its in tables.items()}
    distil = kind == "distilbert"
    parts = {
        "project_in": ["attention.q_lin", "attention.k_lin", "attention.v_lin"]
        if distil
        else ["attention.self.query", "attention.self.key", "attention.self.value"],
        "project_out": ["attention.out_lin" if distil else "attention.output.dense"],
        "norm_attention": ["sa_layer_norm" if distil else "attention.output.LayerNorm"],
        "widen": ["ffn.lin1" if distil else "intermediate.dense"],
        "narrow": ["ffn.lin2" if distil else "output.dense"],
        "norm_feedforward": ["output_layer_norm" if distil else "output.LayerNorm"],
    }
    for layer in range(2):
        place = f"{kind}.{'transformer' if distil else 'encoder'}.layer.{layer}"
        for mine, its in parts.items():
            pairs[f"encoder.blocks.{layer}.{mine}"] = [f"{place}.{name}" for name in its]
    pairs |= {"transform": [dense_norm_bias[0]], "transform_norm": [dense_norm_bias[1]]}
    weights = {"output.bias_V": state[dense_norm_bias[2]]}
    for mine, its in pairs.items():
        for part in ("weight", "bias"):
            if f"{its[0]}.{part}" in state:
                weights[f"{mine}.{part}"] = torch.cat([state[f"{name}.{part}"] for name in its])
    missing = ours.load_state_dict(weights, strict=False).missing_keys
    assert missing == ["unigram_counts", "output.weight_VD"]  # the second of which is the table of words
    return ours


@pytest.mark.parametrize("kind", FORMS)
@torch.no_grad()
def test_logits_and_layers_equal_those_of_transformers(kind: str) -> None:
    model = theirs(kind)
    ours = copied(kind, model)
    tokens_BS = some_tokens(3, 9, seed=5).clamp(min=2)  # 1 would be roberta's padding
    mask_BS = torch.arange(9) < torch.tensor([9, 5, 7])[:, None]
    tokens_BS[~mask_BS] = FORMS[kind][2].get("pad", 0)
    expected = model(tokens_BS, attention_mask=mask_BS.long(), output_hidden_states=True)
    torch.testing.assert_close(ours.logits(tokens_BS, mask_BS)[mask_BS], expected.logits[mask_BS], atol=1e-4, rtol=1e-4)
    for mine_BSD, its_BSD in zip(ours.layers(tokens_BS, mask_BS), expected.hidden_states, strict=True):
        torch.testing.assert_close(mine_BSD[mask_BS], its_BSD[mask_BS], atol=1e-4, rtol=1e-4)


# Laws


@torch.no_grad()
def test_probabilities_sum_to_one_without_the_mask() -> None:
    model, tokens_BS = bert(), some_tokens(2, 7)
    logits_BSV = model.logits(tokens_BS, everything(tokens_BS))
    hidden_ND = model(Batch(tokens_BS, tokens_BS)).hidden_BTD[0]
    log_probs_NV = model.output.log_probs(hidden_ND)
    assert log_probs_NV.shape == (14, 13)
    torch.testing.assert_close(log_probs_NV.exp().sum(1), torch.ones(14))
    torch.testing.assert_close(logits_BSV.log_softmax(2).flatten(0, 1), log_probs_NV)


@torch.no_grad()
def test_only_selected_positions_go_through_the_head() -> None:
    model, tokens_BS = bert(), some_tokens(2, 7)
    weights_BS = (some_tokens(2, 7, seed=3) < 5).float()
    chosen_1ND = model(Batch(tokens_BS, tokens_BS, weights_BS)).hidden_BTD
    whole_BSD = model.head(model.encoder(tokens_BS, everything(tokens_BS)))
    torch.testing.assert_close(chosen_1ND[0], whole_BSD[weights_BS > 0])


@torch.no_grad()
@pytest.mark.parametrize("first", [None, 3])
def test_padding_and_batch_mates_change_nothing(first: int | None) -> None:
    model, tokens_BS = bert(first=first), some_tokens(3, 9)
    mask_BS = torch.arange(9) < torch.tensor([9, 5, 1])[:, None]
    together = model.encode_text(Source(tokens_BS, mask_BS)), model.logits(tokens_BS, mask_BS)
    for row, length in enumerate((9, 5, 1)):
        alone_1S = tokens_BS[row : row + 1, :length]
        parts = model.encode_text(Source(alone_1S, everything(alone_1S))), model.logits(alone_1S, everything(alone_1S))
        for whole, part in zip(together, parts, strict=True):
            torch.testing.assert_close(whole[row, :length], part[0], atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_the_first_token_is_prepended_to_every_text() -> None:
    model, tokens_BS = bert(first=3), some_tokens(2, 6)
    mask_BS = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    inputs_BS, input_mask_BS = model.prepend_first(tokens_BS, mask_BS)
    assert torch.equal(inputs_BS, torch.cat([torch.full((2, 1), 3), tokens_BS], 1))
    assert torch.equal(input_mask_BS, torch.cat([torch.ones(2, 1, dtype=torch.bool), mask_BS], 1))
    states_BSD = model.encode_text(Source(inputs_BS, input_mask_BS))
    torch.testing.assert_close(states_BSD, model.layers(inputs_BS, input_mask_BS)[-1])
    assert bert().prepend_first(tokens_BS, mask_BS)[0] is tokens_BS
    assert (model.window, bert().window) == (15, 16)


@torch.no_grad()
def test_it_reads_in_both_directions() -> None:
    model, tokens_1S = bert(), some_tokens(1, 8)
    for place in (0, 7):
        other_1S = tokens_1S.clone()
        other_1S[0, place] = (other_1S[0, place] + 1) % 13
        states = [model.encode_text(Source(row_1S, everything(row_1S)))[0, 4] for row_1S in (tokens_1S, other_1S)]
        assert float((states[0] - states[1]).abs().max()) > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"mask": 2, "types": 2, "first": 3}, {"kind": "roberta", "pad": 1}])
def test_a_loaded_model_gives_identical_numbers(options: dict[str, Any], tmp_path: Path) -> None:
    text = text_of("abcdefgh\n")
    tokenizer = train_tokenizer("char", text)
    vocabulary = Vocabulary(tokenizer.vocab_size, tokenizer.eos, np.arange(tokenizer.vocab_size))
    model, folder = bert(vocabulary, **options), RunFolder(tmp_path / "run")
    folder.write_config(bert_config(**options))
    tokenizer.save(folder.path)
    save_model(folder, model)
    assert "output.weight_VD" not in folder.read_weights()  # it is the table of words
    loaded: Any = load_model(folder, tokenizer)
    tokens_BS = some_tokens(2, 6) % tokenizer.vocab_size
    for one, other in zip(
        model.layers(tokens_BS, everything(tokens_BS)), loaded.layers(tokens_BS, tokens_BS >= 0), strict=True
    ):
        assert torch.equal(one, other)
    assert torch.equal(model.logits(tokens_BS, tokens_BS >= 0), loaded.logits(tokens_BS, tokens_BS >= 0))
    with torch.no_grad():
        loaded.encoder.word_table.weight += 1.0
    assert torch.equal(loaded.output.weight_VD, loaded.encoder.word_table.weight)
    rows = tokenizer.vocab_size + ("mask" not in options)
    assert folder.read_weights()["encoder.word_table.weight"].shape == (rows, 8)
    assert folder.read_weights()["output.bias_V"].shape == (tokenizer.vocab_size,)


def test_the_same_seed_makes_the_same_model() -> None:
    one, same = (weights_of(bert()) for _ in range(2))
    torch.manual_seed(9)
    other = weights_of(build_model(bert_config(), some_vocabulary()))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one if one[name].dim() == 2)


# Errors


def test_another_output_layer_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        build_model(bert_config("adaptive"), some_vocabulary())
    assert str(caught.value) == (
        "bert predicts with a softmax over its word embeddings, so it cannot use the output layer 'adaptive'; leave "
        "--output out"
    )


def test_a_mask_that_is_not_a_token_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        bert(mask=13)
    assert str(caught.value) == (
        "model.mask is 13, but the tokeniser has the tokens 0 to 12; give one of those, or leave it out"
    )
