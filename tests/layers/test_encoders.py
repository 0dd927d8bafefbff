"""The laws of all encoders, and each kind by a second route."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn
from torch.nn import functional as F

from builders import small_model, some_vocabulary
from chainrule.errors import ConfigError
from chainrule.layers.encoders.bag import BagEncoder, BagShape
from chainrule.layers.encoders.base import BaseShape
from chainrule.layers.encoders.bert import BertShape
from chainrule.layers.encoders.build import EncoderShape, make_encoder, shape_of
from chainrule.layers.encoders.char_convolution import CharacterShape
from chainrule.layers.encoders.conv_attention import ConvAttentionEncoder, ConvAttentionShape
from chainrule.layers.encoders.elmo import ElmoShape
from chainrule.layers.encoders.lstm import LstmEncoder, LstmShape
from chainrule.layers.encoders.pretrained import PretrainedFeatures
from chainrule.layers.encoders.transformer import TransformerEncoder, TransformerShape
from chainrule.layers.recurrent.bidirectional import Bidirectional
from chainrule.layers.recurrent.stack import RecurrentLayer
from chainrule.models.classifier import ClassifierConfig
from chainrule.registry import ENCODERS
from chainrule.types import Source

V = 13
VARIED: list[Any] = [
    *(shape_of(kind, V, width=8, layers=2, heads=2, dropout=0.2, positions=12) for kind in ENCODERS.names()),
    LstmShape(vocab_size=V, width=6, embedding=5, layers=1),
    ConvAttentionShape(vocab_size=V, width=6, kernel=2, convolutions=2, heads=3),
    ElmoShape(vocab_size=V, embedding=4, hidden=7, layers=1),
    ElmoShape(vocab_size=V, embedding=4, hidden=4, characters=CharacterShape(spelling=5, kernels=(1, 2), filters=3)),
    TransformerShape(vocab_size=V, width=8, heads=2, layers=1, context=12, positions="sinusoidal", norm="post"),
    TransformerShape(vocab_size=V, width=8, heads=2, layers=2, context=12, positions="learned", bias=True, first=0),
    BertShape(vocab_size=V, kind="roberta", width=8, layers=1, heads=2, inner=9, positions=12, pad=1),
]
BIDIRECTIONAL = [shape for shape in VARIED if shape.kind not in ("bag", "transformer")]
varied = pytest.mark.parametrize("shape", VARIED, ids=lambda shape: shape.kind)


def encoder_of(shape: EncoderShape, seed: int = 0) -> Any:
    """An encoder in which every weight matters."""
    torch.manual_seed(seed)
    encoder = make_encoder(shape).double().eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    if isinstance(shape, ElmoShape) and shape.characters:
        encoder.word_table.spellings_VL.copy_(torch.randint(1, 257, (V, shape.characters.spelling)))
    return encoder


def rows(seed: int = 1) -> tuple[Tensor, Tensor]:
    """Rows of 7, 4 and 1 tokens."""
    tokens_BS = torch.randint(0, V, (3, 7), generator=torch.Generator().manual_seed(seed))
    return tokens_BS, torch.arange(7) < torch.tensor([[7], [4], [1]])


# All kinds


@varied
def test_padding_and_batch_mates_change_nothing(shape: EncoderShape) -> None:
    encoder, (tokens_BS, mask_BS) = encoder_of(shape), rows()
    together = encoder.layers(tokens_BS, mask_BS)
    other_BS = torch.where(mask_BS, tokens_BS, (tokens_BS + 3) % V)
    for row, length in enumerate(mask_BS.sum(1).tolist()):
        tokens_1S = tokens_BS[row : row + 1, :length]
        alone = encoder.layers(tokens_1S, torch.ones_like(tokens_1S, dtype=torch.bool))
        for whole, changed, one in zip(together, encoder.layers(other_BS, mask_BS), alone, strict=True):
            torch.testing.assert_close(whole[row, :length], one[0])
            torch.testing.assert_close(changed[row, :length], one[0])


@varied
def test_states_without_a_graph_equal_those_with_one(shape: EncoderShape) -> None:
    torch.manual_seed(0)
    encoder, (tokens_BS, mask_BS) = make_encoder(shape).eval(), rows()
    with_graph = encoder(tokens_BS, mask_BS)
    assert with_graph.requires_grad
    with torch.inference_mode():
        without = encoder(tokens_BS, mask_BS)
    torch.testing.assert_close(without[mask_BS], with_graph.detach()[mask_BS])


@varied
def test_the_encoder_gives_the_last_layer_or_the_mean_of_an_elmo(shape: EncoderShape) -> None:
    encoder, (tokens_BS, mask_BS) = encoder_of(shape), rows()
    layers = encoder.layers(tokens_BS, mask_BS)
    expected = torch.stack(layers).mean(0) if shape.kind == "elmo" else layers[-1]
    torch.testing.assert_close(encoder(tokens_BS, mask_BS), expected)
    assert {layer.shape for layer in layers} == {(3, 7, shape.width)}


@varied
def test_a_shape_is_read_by_its_kind(shape: EncoderShape) -> None:
    values = shape.model_dump(mode="json", exclude_none=True)
    adapter: TypeAdapter[Any] = TypeAdapter(EncoderShape)
    assert adapter.validate_python(values) == shape
    assert type(adapter.validate_python(values)) is type(shape)
    assert adapter.dump_python(shape, mode="json", exclude_none=True) == values
    assert encoder_of(shape).shape == shape


@varied
def test_dropout_applies_only_in_training(shape: EncoderShape) -> None:
    if not shape.dropout:
        return
    encoder, (tokens_BS, mask_BS) = encoder_of(shape), rows()
    assert torch.equal(encoder(tokens_BS, mask_BS), encoder(tokens_BS, mask_BS))
    encoder.train()
    assert not torch.equal(encoder(tokens_BS, mask_BS), encoder(tokens_BS, mask_BS))


@pytest.mark.parametrize("shape", BIDIRECTIONAL, ids=lambda shape: shape.kind)
def test_every_state_depends_on_both_sides(shape: EncoderShape) -> None:
    encoder, (tokens_BS, mask_BS) = encoder_of(shape), rows()
    before = encoder(tokens_BS, mask_BS)[0]
    for changed, asked in ((6, 0), (0, 6), (5, 3)):
        other_BS = tokens_BS.clone()
        other_BS[0, changed] = (other_BS[0, changed] + 1) % V
        assert float((encoder(other_BS, mask_BS)[0, asked] - before[asked]).detach().abs().max()) > 1e-6


# Each kind


def test_a_bag_is_a_table() -> None:
    encoder, (tokens_BS, mask_BS) = encoder_of(shape_of("bag", V, width=5)), rows()
    assert isinstance(encoder, BagEncoder)
    for b, s in ((0, 0), (1, 3), (2, 0)):
        assert torch.equal(encoder(tokens_BS, mask_BS)[b, s], encoder.word_table.weight[tokens_BS[b, s]])


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_lstm_against_torch_on_packed_rows(layers: int) -> None:
    encoder = encoder_of(LstmShape(vocab_size=V, width=6, embedding=5, layers=layers))
    assert isinstance(encoder, LstmEncoder)
    lstm = nn.LSTM(5, 3, layers, bidirectional=True, batch_first=True).double()
    with torch.no_grad():
        for depth, both in enumerate(encoder.stack):
            assert isinstance(both, Bidirectional)
            for side, suffix in ((both.rightward[0], ""), (both.leftward[0], "_reverse")):
                layer = side.layers[0]  # type: ignore[union-attr, index]
                assert isinstance(layer, RecurrentLayer)
                for name, weight in (
                    ("weight_ih", layer.weight_input_GD),
                    ("weight_hh", layer.weight_hidden_GH),
                    ("bias_ih", layer.bias_G),
                ):
                    g, i, f, o = weight.chunk(4)
                    getattr(lstm, f"{name}_l{depth}{suffix}").copy_(torch.cat([i, f, g, o]))
                getattr(lstm, f"bias_hh_l{depth}{suffix}").zero_()
    tokens_BS, mask_BS = rows()
    packed = nn.utils.rnn.pack_padded_sequence(encoder.word_table(tokens_BS), mask_BS.sum(1), batch_first=True)
    expected, _ = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
    torch.testing.assert_close(encoder(tokens_BS, mask_BS)[mask_BS], expected[mask_BS])


def naive_conv_attention(encoder: ConvAttentionEncoder, tokens_S: Tensor) -> Tensor:
    """One text, position by position."""
    shape, states_SD = encoder.shape, encoder.word_table(tokens_S)
    S, D = states_SD.shape
    for depth, layer in enumerate(encoder.convolutions):
        conv, normed = layer.conv, F.layer_norm(states_SD, (D,), layer.norm.weight, layer.norm.bias)  # type: ignore[union-attr, arg-type]
        reach = (shape.kernel - 1) * 2**depth
        mixed = []
        for place in range(S):
            total = conv.bias.clone()  # type: ignore[union-attr, operator]
            for k in range(shape.kernel):
                seen = place - reach // 2 + k * 2**depth
                if 0 <= seen < S:
                    total = total + conv.weight[:, :, k] @ normed[seen]  # type: ignore[union-attr, index]
            mixed.append(total[:D] * total[D:].sigmoid())
        states_SD = states_SD + torch.stack(mixed)
    normed = encoder.norm(states_SD)
    query, key, value = encoder.project_in(normed).chunk(3, 1)
    heads, width = shape.heads, D // shape.heads
    found = []
    for h in range(heads):
        part = slice(h * width, (h + 1) * width)
        weights = (query[:, part] @ key[:, part].T / width**0.5).softmax(1)
        found.append(weights @ value[:, part])
    states_SD = states_SD + encoder.project_out(torch.cat(found, 1))
    given: Tensor = states_SD + encoder.connected(states_SD)
    return given


@pytest.mark.parametrize("kernel", [2, 3, 5])
def test_conv_attention_equals_a_loop_over_positions(kernel: int) -> None:
    encoder = encoder_of(ConvAttentionShape(vocab_size=V, width=6, kernel=kernel, convolutions=3, heads=2))
    tokens_BS, mask_BS = rows()
    states_BSD = encoder(tokens_BS, mask_BS)
    for row, length in enumerate(mask_BS.sum(1).tolist()):
        expected = naive_conv_attention(encoder, tokens_BS[row, :length])
        torch.testing.assert_close(states_BSD[row, :length], expected)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "learned", "none"])
def test_a_transformer_gives_the_features_of_the_language_model(positions: str, norm: str) -> None:
    options = {"positions": positions, "norm": norm, "context": 9, "layers": 2, "bias": True}
    model = small_model("transformer", vocabulary=some_vocabulary(V), **options)
    shape = TransformerShape.model_validate(
        {"vocab_size": V, "width": 8, "heads": 2, "inner": 16, "first": 0, **options}
    )
    encoder = TransformerEncoder(shape).eval()
    own = model.state_dict()
    inside = {name.removeprefix("features."): own[name] for name in own if name.startswith("features.")}
    encoder.load_state_dict({"word_table.weight": own["embedding.weight"], **inside})
    tokens_BS, mask_BS = rows()
    hidden_BSD, _ = model.read(model.start(3), torch.cat([torch.zeros(3, 1, dtype=torch.int64), tokens_BS], 1))
    features = PretrainedFeatures(shape, None, tuned=False).eval()
    features.encoder.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(features(Source(tokens_BS, mask_BS)), hidden_BSD[:, 1:], atol=2e-5, rtol=1e-4)
    assert (features.window, shape.source_window) == (8, 8)


def test_a_transformer_sees_no_later_words() -> None:
    encoder = encoder_of(shape_of("transformer", V, width=8, heads=2, positions=9))
    tokens_BS, mask_BS = rows()
    before = encoder(tokens_BS, mask_BS)
    other_BS = tokens_BS.clone()
    other_BS[:, 3:] = (other_BS[:, 3:] + 1) % V
    after = encoder(other_BS, mask_BS)
    torch.testing.assert_close(after[:, :3], before[:, :3])
    assert not torch.isclose(after[:, 3:], before[:, 3:]).all(2).any()


# Features


def test_the_features_of_an_elmo_are_its_mixed_layers() -> None:
    shape = ElmoShape(vocab_size=V, embedding=3, hidden=3, layers=2, first=0)
    torch.manual_seed(0)
    features = PretrainedFeatures(shape, None, tuned=False).double().eval()
    assert features.mix is not None
    with torch.no_grad():
        features.mix.weights.copy_(torch.tensor([1.0, 0.0, -1.0]))
    tokens_BS, mask_BS = rows()
    with_first = torch.cat([torch.zeros(3, 1, dtype=torch.int64), tokens_BS], 1)
    layers = features.encoder.layers(with_first, torch.cat([torch.ones(3, 1, dtype=torch.bool), mask_BS], 1))
    shares = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64).softmax(0)
    expected = sum(float(share) * layer for share, layer in zip(shares, layers, strict=True))
    assert isinstance(expected, Tensor)
    found = features(Source(tokens_BS, mask_BS))
    torch.testing.assert_close(found[mask_BS], expected[:, 1:][mask_BS])
    found.sum().backward()
    assert features.mix.weights.grad is not None
    assert not any(parameter.requires_grad for parameter in features.encoder.parameters())
    assert features.width == 6


@varied
def test_features_as_wide_as_the_encoder_or_projected(shape: EncoderShape) -> None:
    torch.manual_seed(0)
    plain, projected = (PretrainedFeatures(shape, width, tuned=True).double().eval() for width in (None, 5))
    projected.encoder.load_state_dict(plain.encoder.state_dict())
    source = Source(*rows())
    assert (plain.width, projected.width, plain.project) == (shape.width, 5, None)
    assert projected.project is not None
    torch.testing.assert_close(projected(source), projected.project(plain(source)))
    plain(source)[source.mask_BS].square().sum().backward()
    idle = [name for name, parameter in plain.named_parameters() if parameter.grad is None]
    assert all("type_table" in name for name in idle)


# Errors


def test_wrong_options_are_named() -> None:
    cases: list[tuple[Any, str]] = [
        (
            lambda: shape_of("lstn", V),
            "unknown encoder 'lstn': did you mean 'lstm'? Known: bag, bert, conv-attention, elmo, lstm, transformer",
        ),
        (
            lambda: shape_of("elmo", V, width=7),
            "the encoder is 7 wide, but elmo joins two directions of equal width; choose an even width",
        ),
        (
            lambda: shape_of("conv-attention", V, width=7, heads=2),
            "the encoder is 7 wide and has 2 heads: the heads must divide the width evenly",
        ),
        (
            lambda: shape_of("transformer", V, width=6, heads=2),
            "a head of the encoder is 3 wide, but rotary positions need an even width; choose another number of heads "
            "or other positions",
        ),
        (
            lambda: encoder_of(shape_of("transformer", V, width=8, heads=2, positions=4))(*rows()),
            "got 7 tokens, but the encoder reads at most 4; shorten the text or use an encoder with more positions",
        ),
    ]
    for attempt, message in cases:
        with pytest.raises(ConfigError) as caught:
            attempt()
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"kind": "gru", "vocab_size": 3},
            "the kind of encoder is 'gru', expected one of bag, bert, conv-attention, distilbert, elmo, lstm, roberta, "
            "transformer",
        ),
        ({"kind": ["lstm"]}, "the kind of encoder is ['lstm'], expected one of bag, bert,"),
        ("lstm", "expected a table with the shape of an encoder"),
        ({"kind": "bag"}, "Field required"),
        ({"kind": "bag", "vocab_size": 3, "heads": 2}, "Extra inputs are not permitted"),
    ],
)
def test_a_wrong_shape_in_a_configuration_is_named(values: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(EncoderShape).validate_python(values)
    assert caught.value.errors()[0]["msg"].startswith(message)


def test_a_new_kind_needs_one_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    class DoubleShape(BagShape):
        kind: Literal["double"] = "double"  # type: ignore[assignment]

    class DoubleEncoder(BagEncoder):
        Shape = DoubleShape

        def walk(self, tokens_BS: Tensor, mask_BS: Tensor) -> Iterator[Tensor]:
            for states_BSD in super().walk(tokens_BS, mask_BS):
                yield 2 * states_BSD

    ENCODERS.names()  # loads the others
    monkeypatch.setattr(ENCODERS, "_entries", dict(ENCODERS._entries))
    ENCODERS.register("double")(DoubleEncoder)
    config = ClassifierConfig(encoder="double", labels=("x", "y"))
    assert config.context is None
    shape = TypeAdapter(EncoderShape).validate_python({"kind": "double", "vocab_size": V, "width": 4})
    assert shape.model_dump() == {"vocab_size": V, "width": 4, "dropout": 0.0, "first": None, "kind": "double"}
    encoder, (tokens_BS, mask_BS) = make_encoder(shape), rows()
    assert isinstance(encoder, DoubleEncoder)
    assert torch.equal(encoder(tokens_BS, mask_BS), 2 * encoder.word_table(tokens_BS))
    assert isinstance(shape_of("double", V), DoubleShape)


def test_every_shape_declares_the_common_options() -> None:
    for shape in VARIED:
        assert isinstance(shape, BaseShape)
        assert isinstance(shape.kind, str)
        assert shape.vocab_size == V
        assert shape.source_window is None or shape.source_window + (shape.first is not None) <= 12
