"""Attention weights of language models: against the formula, the features they lead to, and transformers' GPT-2."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chainrule as cr
from builders import Case, case_id, one_output, small_model, some_tokens, text_cases
from chainrule.errors import ConfigError, DataError
from commands import chainrule
from hf_folders import byte_level, perturbed, saved

TOKENS_BT = some_tokens(2, 6)


def attends(case: Case) -> bool:
    name, _, options = case
    return name in ("transformer", "conv-attention") or options.get("weights") == "attention"


@pytest.mark.parametrize("case", one_output(text_cases()), ids=case_id)
@torch.no_grad()
def test_weights_are_causal_distributions(case: Case) -> None:
    name, output, options = case
    model = small_model(name, output, **options)
    layers = model.attention_weights(TOKENS_BT)
    if not attends(case):
        assert layers is None
        return
    assert layers
    for weights_BHTT in layers:
        assert weights_BHTT.shape == (2, 1 if name == "average" else model.config.heads, 6, 6)
        torch.testing.assert_close(weights_BHTT.sum(-1), torch.ones(weights_BHTT.shape[:3]))
        assert (weights_BHTT.triu(1) == 0).all()
        assert (weights_BHTT.tril() > 0).any()
    changed_BT = TOKENS_BT.clone()
    changed_BT[:, -1] = (changed_BT[:, -1] + 1) % 13
    for before, after in zip(layers, model.attention_weights(changed_BT), strict=True):
        torch.testing.assert_close(before[:, :, :-1], after[:, :, :-1])


@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_a_transformer_against_the_formula(positions: str, norm: str) -> None:
    model = small_model("transformer", positions=positions, norm=norm, layers=2)
    stack, heads = model.features, model.config.heads
    stream_BTD = stack.add_positions(model.embedding(TOKENS_BT), 0)
    for block, weights_BHTT in zip(stack.blocks, model.attention_weights(TOKENS_BT), strict=True):
        inputs_BTD = block.norm_attention(stream_BTD) if norm == "pre" else stream_BTD
        query_BTD, key_BTD, _ = block.project_in(inputs_BTD).chunk(3, -1)
        width = query_BTD.shape[-1] // heads
        for b in range(2):
            for head in range(heads):
                part = slice(head * width, (head + 1) * width)
                for t in range(6):
                    scores = [
                        math.exp(float(query_BTD[b, t, part] @ key_BTD[b, s, part]) / math.sqrt(width))
                        for s in range(t + 1)
                    ]
                    expected = [score / sum(scores) for score in scores] + [0.0] * (5 - t)
                    assert weights_BHTT[b, head, t].tolist() == pytest.approx(expected, abs=1e-5)
        stream_BTD = block(stream_BTD.flatten(0, 1), 2)[0].view(stream_BTD.shape)


@pytest.mark.parametrize("positions", ["rotary", "learned"])
@torch.no_grad()
def test_the_weights_are_those_that_mix_the_values(positions: str) -> None:
    """Rotary positions too: weights times values is what the attention of the block computes."""
    model = small_model("transformer", positions=positions, layers=2)
    stack, heads = model.features, model.config.heads
    stream_ND = stack.add_positions(model.embedding(TOKENS_BT), 0).flatten(0, 1)
    for block, weights_BHTT in zip(stack.blocks, model.attention_weights(TOKENS_BT), strict=True):
        inputs_ND = block.norm_attention(stream_ND)
        value_BTHE = block.project_in(inputs_ND).chunk(3, -1)[2].view(2, 6, heads, -1)
        mixed_BTHE = torch.einsum("bhts,bshe->bthe", weights_BHTT, value_BTHE)
        expected_ND, _ = block._attend(inputs_ND, 2, None, None, True)
        torch.testing.assert_close(block.project_out(mixed_BTHE.flatten(2).flatten(0, 1)), expected_ND)
        stream_ND, _ = block(stream_ND, 2)


@torch.no_grad()
def test_convolutions_with_attention() -> None:
    """The features follow from the weights and the layers around them."""
    model = small_model("conv-attention")
    layer = model.features
    embedded_BTD = model.embedding(TOKENS_BT)
    (weights_BHTT,) = model.attention_weights(TOKENS_BT)
    hidden_BTD = embedded_BTD
    for convolution, reach in zip(layer.convolutions, layer.reaches, strict=True):
        hidden_BTD, _ = convolution(hidden_BTD, hidden_BTD.new_zeros(2, reach, layer.width))
    value_BTHE = layer.attention.project_in(layer.norm(hidden_BTD)).chunk(3, -1)[2].view(2, 6, layer.heads, -1)
    mixed_BTD = torch.einsum("bhts,bshe->bthe", weights_BHTT, value_BTHE).flatten(2)
    hidden_BTD = hidden_BTD + layer.attention.project_out(mixed_BTD)
    torch.testing.assert_close(hidden_BTD + layer.connected(hidden_BTD), layer(embedded_BTD, None)[0])


@torch.no_grad()
def test_an_average_with_attention() -> None:
    model = small_model("average", weights="attention")
    (weights_B1TT,) = model.attention_weights(TOKENS_BT)
    embedded_BTD = model.embedding(TOKENS_BT)
    torch.testing.assert_close(weights_B1TT[:, 0] @ embedded_BTD, model.features(embedded_BTD, None)[0])


@torch.no_grad()
def test_an_imported_gpt2_attends_as_in_transformers(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    small = {"vocab_size": 400, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
    config = GPT2Config(**small, bos_token_id=399, eos_token_id=399, attn_implementation="eager")
    theirs = perturbed(GPT2LMHeadModel(config))
    run = cr.import_model(saved(theirs, byte_level(), tmp_path / "folder"), tmp_path / "run")
    text = "the cat sat on the mat"
    found = run.attention(text)
    tokens = [399, *run.tokenizer.encode(text)]
    expected = theirs(torch.tensor([tokens]), output_attentions=True).attentions
    assert found.tokens == [run.tokenizer.piece(token) for token in tokens]
    assert found.weights.shape == (3, 4, len(tokens), len(tokens))
    np.testing.assert_allclose(found.weights, torch.cat(expected).numpy(), atol=2e-6)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attention")
    (folder / "text.txt").write_text("the cat sat on a mat\na dog ran to the cat\n" * 20)
    (folder / "lines.txt").write_text("the zzq cat\n\n")
    shape = {"embedding": 8, "heads": 2, "layers": 3, "context": 6}
    options: dict[str, Any] = {"tokenizer": "word", "steps": 2, "settings": {"model": shape}}
    cr.train(folder / "text.txt", model="transformer", out=folder / "run", **options)
    cr.train(folder / "text.txt", model="ngram", tokenizer="word", out=folder / "ngram")
    return folder


def test_python(place: Path) -> None:
    run: Any = cr.load(place / "run")
    found = run.attention("the zzq cat")
    assert found.tokens == ["<eos>", "the", "zzq", "cat"]
    assert found.weights.shape == (3, 2, 4, 4)
    assert [one.tokens for one in run.attention(["the", "a cat"])] == [["<eos>", "the"], ["<eos>", "a", "cat"]]
    assert next(run.attention(iter(["the"]))).tokens == ["<eos>", "the"]
    with pytest.raises(
        DataError, match=r"^the text has 7 tokens with its <eos>, but .* reads at most 6 at once; give a"
    ):
        run.attention("a a a a a a")
    with pytest.raises(ConfigError, match=r"ngram\) has no self-attention to show; train a transformer or"):
        cr.load(place / "ngram").attention("the cat")


def test_the_command(place: Path, tmp_path: Path) -> None:
    plain = chainrule("score", place / "run", place / "lines.txt")
    shown = chainrule("score", place / "run", place / "lines.txt", "--attention", tmp_path / "new" / "weights.json")
    assert shown.code == 0, shown.err
    assert shown.out == plain.out
    assert "attention of 2 lines" in shown.err
    first, second = json.loads((tmp_path / "new" / "weights.json").read_text())
    assert (first["tokens"], first["layers"], first["heads"]) == (["<eos>", "the", "zzq", "cat"], 3, 2)
    assert second == {"tokens": ["<eos>"], "layers": 3, "heads": 2, "weights": [[[[1.0]]] * 2] * 3}
    weights = np.array(first["weights"])
    assert weights.shape == (3, 2, 4, 4)
    assert weights.sum(-1) == pytest.approx(np.ones((3, 2, 4)), abs=4e-4)
    assert all(len(str(value)) <= 6 for value in weights.flatten().tolist())
    refused = chainrule("score", place / "ngram", place / "lines.txt", "--attention", tmp_path / "other.json")
    assert refused.code == 2
    assert "has no self-attention to show" in refused.err
    assert not (tmp_path / "other.json").exists()
    refused = chainrule("score", place / "run", place / "lines.txt", "--attention", tmp_path)
    assert "is a folder: expected the name of a file to write" in refused.err
