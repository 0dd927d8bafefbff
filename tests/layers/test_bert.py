"""The encoder of BERT against the layers of torch, and the meaning of its shape."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chainrule.errors import ConfigError
from chainrule.layers.encoders.bert import BertEncoder, BertShape

SMALL: dict[str, Any] = {"vocab_size": 11, "width": 8, "layers": 2, "heads": 2, "inner": 12, "positions": 10}


def encoder_of(**options: Any) -> BertEncoder:
    """An encoder in which every weight matters."""
    torch.manual_seed(3)
    encoder = BertEncoder(BertShape(**{**SMALL, **options})).double().eval()
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.7)
    return encoder


def no_padding(tokens_BS: Tensor) -> Tensor:
    return torch.ones_like(tokens_BS, dtype=torch.bool)


def by_torch(encoder: BertEncoder, embedded_BSD: Tensor, mask_BS: Tensor) -> list[Tensor]:
    """The blocks as layers of torch.nn, with their weights."""
    states = [embedded_BSD]
    for block in encoder.blocks:
        shape = encoder.shape
        layer = nn.TransformerEncoderLayer(
            shape.width, shape.heads, shape.inner, 0.0, "gelu", shape.eps, batch_first=True, dtype=torch.float64
        )
        pairs = {
            "self_attn.in_proj_": block.project_in,
            "self_attn.out_proj.": block.project_out,
            "linear1.": block.widen,
            "linear2.": block.narrow,
            "norm1.": block.norm_attention,
            "norm2.": block.norm_feedforward,
        }
        parts = ("weight", "bias")
        layer.load_state_dict({f"{name}{part}": getattr(of, part) for name, of in pairs.items() for part in parts})
        states.append(layer(states[-1], src_key_padding_mask=~mask_BS))
    return states


@pytest.mark.parametrize(
    ("kind", "types", "offset"), [("bert", 2, 0), ("bert", 0, 0), ("roberta", 1, 4), ("distilbert", 0, 0)]
)
def test_every_layer_equals_that_of_torch(kind: str, types: int, offset: int) -> None:
    encoder = encoder_of(kind=kind, types=types, pad=3)
    tokens_BS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 3, 3]])
    mask_BS = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    summed_BSD = torch.stack([encoder.word_table.weight[row] for row in tokens_BS])
    for place in range(5):
        summed_BSD[:, place] += encoder.position_table.weight[place + offset]
    if types:
        assert encoder.type_table is not None
        summed_BSD += encoder.type_table.weight[0]
    centred_BSD = summed_BSD - summed_BSD.mean(2, keepdim=True)
    normed_BSD = centred_BSD / (centred_BSD.square().mean(2, keepdim=True) + encoder.shape.eps).sqrt()
    expected = by_torch(encoder, normed_BSD * encoder.norm.weight + encoder.norm.bias, mask_BS)
    layers = encoder.layers(tokens_BS, mask_BS)
    for ours_BSD, theirs_BSD in zip(layers, expected, strict=True):
        torch.testing.assert_close(ours_BSD[mask_BS], theirs_BSD[mask_BS])
    torch.testing.assert_close(encoder(tokens_BS, mask_BS), layers[-1])


def test_padding_and_batch_mates_change_nothing() -> None:
    encoder = encoder_of()
    tokens_BS = torch.tensor([[1, 2, 3, 9, 9, 9], [6, 7, 8, 4, 5, 1]])
    mask_BS = torch.tensor([[True] * 3 + [False] * 3, [True] * 6])
    alone_BSD = encoder(tokens_BS[:1, :3], no_padding(tokens_BS[:1, :3]))
    torch.testing.assert_close(encoder(tokens_BS, mask_BS)[:1, :3], alone_BSD)


def test_a_later_word_changes_an_earlier_state() -> None:
    encoder = encoder_of()
    tokens_BS = torch.tensor([[1, 2, 3], [1, 2, 4]])
    states_BSD = encoder(tokens_BS, no_padding(tokens_BS))
    assert ((states_BSD[0] - states_BSD[1]).abs().amax(1) > 1e-3).all()


def test_dropout_applies_only_in_training() -> None:
    encoder = encoder_of(dropout=0.5, attention_dropout=0.5)
    tokens_BS = torch.tensor([[1, 2, 3, 4]])
    still = [encoder(tokens_BS, no_padding(tokens_BS)) for _ in range(2)]
    encoder.train()
    moving = [encoder(tokens_BS, no_padding(tokens_BS)) for _ in range(2)]
    assert torch.equal(*still)
    assert not torch.equal(*moving)


@pytest.mark.parametrize(("kind", "most"), [("bert", 10), ("roberta", 8)])
def test_more_tokens_than_positions(kind: str, most: int) -> None:
    encoder = encoder_of(kind=kind, pad=1)
    tokens_BS = torch.ones(1, most, dtype=torch.int64)
    assert torch.isfinite(encoder(tokens_BS, no_padding(tokens_BS))).all()
    longer_BS = torch.ones(1, most + 1, dtype=torch.int64)
    with pytest.raises(ConfigError) as error:
        encoder(longer_BS, no_padding(longer_BS))
    assert str(error.value) == (
        f"got {most + 1} tokens, but the encoder reads at most {most}; shorten the text or use an encoder with more "
        "positions"
    )


def test_impossible_shapes_are_rejected() -> None:
    with pytest.raises(ConfigError) as error:
        BertShape(**{**SMALL, "heads": 3})
    assert str(error.value) == "the encoder is 8 wide and has 3 heads: the heads must divide the width evenly"
    with pytest.raises(ConfigError) as error:
        BertShape(**{**SMALL, "kind": "roberta", "positions": 2, "pad": 1})
    assert str(error.value) == "the encoder has 2 positions, which leaves none for a text: roberta starts at position 2"
