"""The recurrent translators against their formulas, written for one row and one position at a time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from builders import rows_by_steps, stir
from chainrule.config import parse
from chainrule.errors import ConfigError
from chainrule.layers.recurrent.stack import RecurrentLayer
from chainrule.models.translator import ConditionedModel
from chainrule.registry import MODELS, OUTPUTS
from chainrule.types import Batch, OutputChoice, Source, Vocabulary

V, V_SOURCE = 11, 9
LENGTHS = [4, 6, 1]
EACH = [
    ("seq2seq-rnn", {}),
    ("seq2seq-rnn", {"cell": "gru", "layers": 3, "reversed_source": False, "tied": False}),
    ("seq2seq-attention", {}),
    ("seq2seq-attention", {"score": "additive", "cell": "gru", "encoder_layers": 2, "decoder_layers": 2}),
    ("seq2seq-attention", {"score": "dot", "input_feeding": False, "tied": False, "decoder_layers": 2}),
]
each = pytest.mark.parametrize(("name", "options"), EACH, ids=["rnn", "rnn-gru", "general", "additive", "dot"])
ATTENDING = [
    {"cell": cell, "score": score, "input_feeding": feeding, "encoder_layers": layers[0], "decoder_layers": layers[1]}
    for cell, score, feeding, layers in itertools.product(
        ("lstm", "gru"), ("dot", "general", "additive"), (True, False), ((1, 1), (2, 3))
    )
]


def made(name: str, **options: Any) -> Any:
    """A small translator in double precision, of two vocabularies, in which every weight matters."""
    torch.manual_seed(0)
    kind, output = MODELS.get(name).make, OUTPUTS.get("softmax").make
    vocabulary = Vocabulary(
        V, 0, np.ones(V, dtype=np.int64), Vocabulary(V_SOURCE, 0, np.ones(V_SOURCE, dtype=np.int64))
    )
    config = kind.Config(**{"embedding": 5, "hidden": 6, **options})
    model = kind(config, vocabulary, OutputChoice(output, output.Config()))
    stir(model)
    return model.double().eval()


def some_pairs(lengths: list[int] = LENGTHS, steps: int = 5) -> tuple[Source, Tensor]:
    """Sources of unequal lengths, any tokens in their padding, and targets BT."""
    chance = torch.Generator().manual_seed(1)
    tokens_BS = torch.randint(0, V_SOURCE, (len(lengths), max(lengths)), generator=chance)
    mask_BS = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Source(tokens_BS, mask_BS), torch.randint(0, V, (len(lengths), steps), generator=chance)


def alone(source: Source, row: int) -> Source:
    """One row of a source without its padding."""
    tokens_BS = source.tokens_BS[row : row + 1, : int(source.mask_BS[row].sum())]
    return Source(tokens_BS, torch.ones_like(tokens_BS, dtype=torch.bool))


# The formulas


def cell(kind: str, W: Tensor, layer: RecurrentLayer, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One step of one layer on vectors, `W` being its input weights."""
    blocks, h = len(layer.bias_G) // len(state[0]), state[0]
    W, U, b = (part.chunk(blocks) for part in (W, layer.weight_hidden_GH, layer.bias_G))
    if kind == "gru":
        z, r = (torch.sigmoid(W[k] @ x + U[k] @ h + b[k]) for k in (1, 2))
        return (z * h + (1 - z) * torch.tanh(W[0] @ x + U[0] @ (r * h) + b[0]),)
    g, i, f, o = (W[k] @ x + U[k] @ h + b[k] for k in range(4))
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def run(kind: str, layers: nn.ModuleList, inputs: list[Tensor], states: list) -> tuple[list[Tensor], list]:
    """All steps of a stack on vectors -> its outputs and last states."""
    after = []
    for layer, state in zip(layers, states, strict=True):
        outputs = []
        for x in inputs:
            state = cell(kind, layer.weight_input_GD, layer, x, state)
            outputs.append(state[0])
        inputs = outputs
        after.append(state)
    return inputs, after


def zeros(kind: str, width: int, layers: int) -> list[tuple[Tensor, ...]]:
    return [(torch.zeros(width, dtype=torch.float64),) * (2 if kind == "lstm" else 1)] * layers


def log_softmax(model: Any, feature_H: Tensor, token: int) -> Tensor:
    feature = feature_H if model.bridge is None else model.bridge.weight @ feature_H + model.bridge.bias
    logits_V = torch.stack([w @ feature + b for w, b in zip(model.output.weight_VD, model.output.bias_V, strict=True)])
    return logits_V[token] - logits_V.exp().sum().log()


def naive_rnn(model: Any, source: list[int], target: list[int]) -> Tensor:
    """log p of each target token, T."""
    c = model.config
    read = source[::-1] if c.reversed_source else source
    inputs = [model.source_embedding.weight[token] for token in read]
    _, states = run(c.cell, model.encoder.layers, inputs, zeros(c.cell, c.hidden, c.layers))
    inputs = [model.embedding.weight[token] for token in [model.eos, *target[:-1]]]
    outputs, _ = run(c.cell, model.decoder.layers, inputs, states)
    return torch.stack([log_softmax(model, h, token) for h, token in zip(outputs, target, strict=True)])


def encode(model: Any, source: list[int]) -> tuple[list[Tensor], list[tuple[Tensor, ...]]]:
    """The states of a bidirectional encoder, and the decoder's first."""
    c, half = model.config, model.config.hidden // 2
    states = [model.source_embedding.weight[token] for token in source]
    for rightward, leftward in zip(model.encoder.rightward, model.encoder.leftward, strict=True):
        right, _ = run(c.cell, rightward.layers, states, zeros(c.cell, half, 1))
        left, _ = run(c.cell, leftward.layers, states[::-1], zeros(c.cell, half, 1))
        states = [torch.cat(pair) for pair in zip(right, left[::-1], strict=True)]
    end = torch.cat([states[-1][:half], states[0][half:]])
    parts = torch.tanh(model.first_state.weight @ end + model.first_state.bias).view(c.decoder_layers, -1, c.hidden)
    return states, [tuple(layer) for layer in parts]


def score(attend: Any, kind: str, h: Tensor, e: Tensor) -> Tensor:
    if kind == "dot":
        return h @ e
    if kind == "general":
        return h @ (attend.score.project.weight @ e)
    sums = attend.score.project_query.weight @ h + attend.score.project.weight @ e + attend.score.project.bias
    return attend.score.vector_X @ sums.tanh()


def naive_attention(model: Any, source: list[int], target: list[int]) -> tuple[Tensor, Tensor]:
    """log p of each target token, T, and the attention weights for each, TS."""
    c, attend = model.config, model.attend
    encoded, states = encode(model, source)
    combine = torch.cat([attend.project_context.weight, attend.project_query.weight], 1)
    fed, log_probs, looked = torch.zeros(c.hidden, dtype=torch.float64), [], []
    for before, token in zip([model.eos, *target[:-1]], target, strict=True):
        x, after = model.embedding.weight[before], []
        for depth, (layer, state) in enumerate(zip(model.decoder.layers, states, strict=True)):
            W = layer.weight_input_GD
            if depth == 0 and c.input_feeding:
                W, x = torch.cat([W, model.feed.weight], 1), torch.cat([x, fed])
            after.append(cell(c.cell, W, layer, x, state))
            x = after[-1][0]
        states = after
        exps = torch.stack([score(attend, c.score, x, e).exp() for e in encoded])
        weights = exps / exps.sum()
        context = sum(weight * e for weight, e in zip(weights, encoded, strict=True))
        fed = torch.tanh(combine @ torch.cat([context, x]) + attend.project_query.bias)
        log_probs.append(log_softmax(model, fed, token))
        looked.append(weights)
    return torch.stack(log_probs), torch.stack(looked)


def same_gradients(model: Any, ours: Tensor, theirs: Tensor) -> None:
    """Two computations of one row of numbers have the same gradients."""
    slope = torch.linspace(-1, 2, ours.numel(), dtype=torch.float64).view(ours.shape)
    parameters = list(model.parameters())
    torch.testing.assert_close(*(torch.autograd.grad((way * slope).sum(), parameters) for way in (ours, theirs)))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("backwards", [True, False])
@pytest.mark.parametrize("layers", [1, 3])
def test_without_attention_it_equals_the_formulas(kind: str, backwards: bool, layers: int) -> None:
    model = made("seq2seq-rnn", cell=kind, layers=layers, reversed_source=backwards)
    source, tokens_BT = some_pairs()
    ours = model.log_probs(tokens_BT, source)
    rows = [(alone(source, row).tokens_BS[0].tolist(), tokens_BT[row].tolist()) for row in range(3)]
    theirs = torch.stack([naive_rnn(model, *row) for row in rows])
    torch.testing.assert_close(ours, theirs)
    same_gradients(model, ours, theirs)


@pytest.mark.parametrize("options", ATTENDING, ids=lambda options: "-".join(map(str, options.values())))
def test_with_attention_it_equals_the_formulas(options: dict) -> None:
    model = made("seq2seq-attention", **options)
    source, tokens_BT = some_pairs()
    ours, looked_BTS = model.log_probs(tokens_BT, source), model.attention(tokens_BT, source)
    theirs = []
    for row in range(3):
        log_probs_T, looked_TS = naive_attention(
            model, alone(source, row).tokens_BS[0].tolist(), tokens_BT[row].tolist()
        )
        theirs.append(log_probs_T)
        torch.testing.assert_close(looked_BTS[row, :, : LENGTHS[row]], looked_TS)
    torch.testing.assert_close(ours, torch.stack(theirs))
    same_gradients(model, ours, torch.stack(theirs))


# The contract


@each
@torch.no_grad()
def test_padding_and_batch_mates_change_nothing(name: str, options: dict) -> None:
    model = made(name, **options)
    source, tokens_BT = some_pairs()
    together_BT = model.log_probs(tokens_BT, source)
    wider = Source(
        torch.cat([source.tokens_BS, torch.full((3, 4), 7)], 1),
        torch.cat([source.mask_BS, torch.zeros(3, 4, dtype=torch.bool)], 1),
    )
    torch.testing.assert_close(model.log_probs(tokens_BT, wider), together_BT)
    for row in range(3):
        torch.testing.assert_close(model.log_probs(tokens_BT[row : row + 1], alone(source, row))[0], together_BT[row])


@each
@pytest.mark.parametrize("graph", [True, False])
def test_steps_and_prefixes_of_any_length_equal_one_pass(name: str, options: dict, graph: bool) -> None:
    model = made(name, **options)
    source, tokens_BT = some_pairs(steps=6)
    with torch.set_grad_enabled(graph):
        whole_BT = model.log_probs(tokens_BT, source)
        rows_BTV = rows_by_steps(ConditionedModel(model, source), tokens_BT)
        torch.testing.assert_close(rows_BTV[:, :-1].gather(2, tokens_BT[:, :, None])[:, :, 0], whole_BT)
        state, read = model.start(source), 0
        for size in (3, 1, 2):
            row_BV, state = model.prefill(state, model.shift_right(tokens_BT)[:, read : read + size])
            read += size
            torch.testing.assert_close(row_BV, rows_BTV[:, read - 1])


@each
@pytest.mark.parametrize(
    "picks",
    [[[0, 0, 1, 1, 2, 2], [1, 1, 2, 3, 5, 4], [2, 3]], [[2, 0, 0, 1], [3, 3, 0], [0, 2, 1]], [[1, 2, 0, 1, 2, 0], [0]]],
)
@torch.no_grad()
def test_selected_rows_continue_their_prefixes(name: str, options: dict, picks: list[list[int]]) -> None:
    model = made(name, **options)
    source, _ = some_pairs()
    state, origin_K, read_KT = model.start(source), torch.arange(3), torch.zeros(3, 0, dtype=torch.long)
    for step, pick in enumerate([*picks, [0]]):
        token_K = (torch.arange(len(origin_K)) * 3 + step) % V
        row_KV, state = model.step(state, token_K)
        read_KT = torch.cat([read_KT, token_K[:, None]], 1)
        fresh_KV, _ = model.prefill(model.start(Source(*(part[origin_K] for part in source))), read_KT)
        torch.testing.assert_close(row_KV, fresh_KV)
        rows_K = torch.tensor(pick)
        state, origin_K, read_KT = model.select(state, rows_K), origin_K[rows_K], read_KT[rows_K]


@torch.no_grad()
def test_hypotheses_of_one_sentence_share_its_encoding() -> None:
    model = made("seq2seq-attention")
    state = model.start(some_pairs()[0])
    grown = model.select(state, torch.arange(3).repeat_interleave(4))
    assert grown.memory.keys_ASX is state.memory.keys_ASX
    assert len(grown.fed_BU) == 12


@pytest.mark.parametrize("options", ATTENDING[:4], ids=lambda options: "-".join(map(str, options.values())))
@torch.no_grad()
def test_attention_sums_to_one_and_leaves_out_padding(options: dict) -> None:
    source, tokens_BT = some_pairs()
    weights_BTS = made("seq2seq-attention", **options).attention(tokens_BT, source)
    torch.testing.assert_close(weights_BTS.sum(2), torch.ones(3, 5, dtype=torch.float64))
    assert torch.equal(weights_BTS == 0, ~source.mask_BS[:, None].expand_as(weights_BTS))


def test_attention_of_a_model_without_it_is_refused() -> None:
    model = made("seq2seq-rnn")
    assert not model.attends
    with pytest.raises(TypeError, match=r"^Seq2SeqRnn has no attention$"):
        model.attention(torch.zeros(3, 2, dtype=torch.long), some_pairs()[0])


@torch.no_grad()
def test_a_reversed_source_is_the_source_reversed() -> None:
    forwards, backwards = (made("seq2seq-rnn", reversed_source=flag) for flag in (False, True))
    source, tokens_BT = some_pairs([6, 6, 6])
    flipped = Source(source.tokens_BS.flip(1), source.mask_BS)
    torch.testing.assert_close(backwards.log_probs(tokens_BT, flipped), forwards.log_probs(tokens_BT, source))
    assert not torch.allclose(backwards.log_probs(tokens_BT, source), forwards.log_probs(tokens_BT, source))


# Training


@each
def test_dropout_acts_only_in_training(name: str, options: dict) -> None:
    model = made(name, dropout=0.5, hidden=64, **options)
    source, tokens_BT = some_pairs()
    state = model.begin(source, stepping=False)
    kept_BTH = model.read(state, tokens_BT)[0]
    assert torch.equal(model.read(state, tokens_BT)[0], kept_BTH)
    assert (kept_BTH != 0).all()
    model.train()
    features_BTH, after = model.read(state, tokens_BT)
    assert 0.4 < float((features_BTH == 0).double().mean()) < 0.6
    if getattr(after, "fed_BU", None) is not None:  # the vector that is fed is the output
        assert torch.equal(after.fed_BU, features_BTH[:, -1])


def test_dropout_between_layers_and_on_embeddings() -> None:
    model = made("seq2seq-attention", dropout=0.5, hidden=64, encoder_layers=2, decoder_layers=2).train()
    source, _ = some_pairs()
    torch.manual_seed(3)
    first = model.begin(source, stepping=False).memory.keys_ASX
    torch.manual_seed(4)
    assert not torch.allclose(model.begin(source, stepping=False).memory.keys_ASX, first)
    gates_BG, state = torch.randn(3, 256, dtype=torch.float64), model.decoder.start(3)
    layers = [model.decoder.advance(gates_BG.clone(), state)[1] for _ in range(2)]
    assert torch.equal(layers[0][0][0], layers[1][0][0])  # inputs of the first layer are dropped before
    assert not torch.allclose(layers[0][1][0], layers[1][1][0])


@pytest.mark.parametrize(("name", "options"), EACH[1:4], ids=["rnn", "general", "additive"])
def test_mixed_precision_computes_the_recurrence_in_full(name: str, options: dict) -> None:
    model = made(name, **options).float()
    source, tokens_BT = some_pairs()
    batch = Batch(model.shift_right(tokens_BT), tokens_BT, source=source)
    hidden_BTH, _ = model.read(model.begin(source, stepping=False), batch.inputs_BT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed_BTH, _ = model.read(model.begin(source, stepping=False), batch.inputs_BT)
        model(batch).hidden_BTD.float().sum().backward()
    torch.testing.assert_close(mixed_BTH, hidden_BTH)


def test_a_width_that_two_directions_cannot_share_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(MODELS.get("seq2seq-attention").make.Config, {"hidden": 7}, "model")
    assert str(caught.value) == "model.hidden = 7: input should be a multiple of 2"
