"""Word vectors from spellings, against a naive loop over windows of bytes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from chainrule.errors import ConfigError
from chainrule.layers.encoders.char_convolution import BEGIN, END, PAD, CharacterShape, CharConvolution, Highway, spell

WORDS = ("a", "the", "naïve", "一二", "extraordinarily", "")
SHAPE = CharacterShape(spelling=9, byte_width=3, kernels=(1, 2, 4), filters=2, highway=1)


def convolution() -> CharConvolution:
    torch.manual_seed(0)
    made = CharConvolution(SHAPE, len(WORDS), 5, WORDS).double().eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name != "byte_table.weight":
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return made


def by_loop(made: CharConvolution, symbols: list[int]) -> Tensor:
    """The vector of one spelling, one window and one filter at a time."""
    length = len([symbol for symbol in symbols if symbol != PAD])
    found = []
    for kernel, layer in zip(SHAPE.kernels, made.convolutions, strict=True):
        starts = range(max(1, length - kernel + 1))  # a short word is padded to one window
        for weight, bias in zip(layer.weight, layer.bias, strict=True):  # type: ignore[arg-type]
            answers = []
            for start in starts:
                total = bias
                for place in range(kernel):
                    symbol = symbols[start + place]
                    total = total + (weight[:, place] @ made.byte_table.weight[symbol] if symbol != PAD else 0)
                answers.append(total)
            found.append(max(answers).clamp_min(0))
    features = torch.stack(found)
    for highway in made.highways:
        gate = torch.sigmoid(highway.gate.weight @ features + highway.gate.bias)  # type: ignore[union-attr, operator]
        changed = (highway.change.weight @ features + highway.change.bias).relu()  # type: ignore[union-attr, operator]
        features = gate * changed + (1 - gate) * features
    return made.project.weight @ features + made.project.bias


def test_a_word_is_spelled_in_bytes_between_its_ends() -> None:
    assert spell("ab", 6) == [BEGIN, ord("a") + 1, ord("b") + 1, END, PAD, PAD]
    assert spell("一", 6) == [BEGIN, *(byte + 1 for byte in "一".encode()), END, PAD]
    assert spell("abcdef", 4) == [BEGIN, ord("a") + 1, ord("b") + 1, END]
    assert spell("", 3) == [BEGIN, END, PAD]


def test_every_word_equals_a_loop() -> None:
    made = convolution()
    for token, word in enumerate(WORDS):
        expected = by_loop(made, spell(word, SHAPE.spelling))
        torch.testing.assert_close(made(torch.tensor([token]))[0], expected)


def test_tokens_of_any_shape_may_repeat() -> None:
    made = convolution()
    tokens_BT = torch.tensor([[3, 0, 3], [1, 1, 4]])
    vectors_BTD = made(tokens_BT)
    for row in range(2):
        for place in range(3):
            torch.testing.assert_close(vectors_BTD[row, place], made(tokens_BT[row, place : place + 1])[0])


def test_longer_spellings_change_nothing() -> None:
    made = convolution()
    wider = CharConvolution(SHAPE.model_copy(update={"spelling": 20}), len(WORDS), 5, WORDS).double().eval()
    weights = {name: tensor for name, tensor in made.state_dict().items() if name != "spellings_VL"}
    wider.load_state_dict(weights, strict=False)
    short = torch.tensor([0, 1, 2, 3, 5])  # the other word is truncated in one table only
    torch.testing.assert_close(wider(short), made(short))
    assert not torch.allclose(wider(torch.tensor([4])), made(torch.tensor([4])))


def test_a_highway_carries_or_changes() -> None:
    highway, inputs_NF = Highway(3), torch.tensor([[1.0, -2.0, 3.0]])
    with torch.no_grad():
        highway.gate.weight.zero_()
        highway.gate.bias.fill_(-40.0)
        assert torch.equal(highway(inputs_NF), inputs_NF)
        highway.gate.bias.fill_(40.0)
        torch.testing.assert_close(highway(inputs_NF), highway.change(inputs_NF).relu())


def test_spellings_are_part_of_the_weights() -> None:
    made = convolution()
    blank = CharConvolution(SHAPE, len(WORDS), 5, None).double()
    assert blank.is_blank
    blank.load_state_dict(made.state_dict())
    assert not blank.is_blank
    tokens = torch.arange(len(WORDS))
    assert torch.equal(blank(tokens), made(tokens))


def test_filters_longer_than_a_spelling_are_rejected() -> None:
    with pytest.raises(ConfigError) as caught:
        CharacterShape(spelling=4, kernels=(2, 5))
    assert str(caught.value) == (
        "the filters see 2, 5 bytes, but a spelling has 1 to 4; choose kernels in this range, or longer spellings"
    )
