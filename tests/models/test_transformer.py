"""The transformer against its formulas written out in numpy, and against GPT-2 with the same weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from builders import small_model, some_vocabulary
from chainrule.decoding import Greedy, generate
from chainrule.engines.decode.stack import StackState
from chainrule.errors import ConfigError
from chainrule.layers.attention.positions import Rotary, sinusoidal_table
from chainrule.models.language_model import LONG_TEXT

EOS, V = 0, 13
Array = np.ndarray[Any, Any]


def weights(model: Any) -> dict[str, Array]:
    return {name: tensor.detach().double().numpy() for name, tensor in model.state_dict().items()}


def layer_norm(row_D: Array, scale: Array, shift: Array | float) -> Array:
    centred = row_D - row_D.mean()
    return centred / math.sqrt((centred**2).mean() + 1e-5) * scale + shift


def activation(name: str, x: Array) -> Array:
    if name == "relu2":
        return np.maximum(x, 0) ** 2
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu-tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + np.array([math.erf(value / math.sqrt(2)) for value in x]))


def turned(row_E: Array, place: int) -> Array:
    """Rotary positions, one plane at a time: components i and i + E/2 turn by place / 10000^(2i/E)."""
    half, out = len(row_E) // 2, np.empty_like(row_E)
    for i in range(half):
        angle = place * 10000 ** (-2 * i / len(row_E))
        out[i] = row_E[i] * math.cos(angle) - row_E[i + half] * math.sin(angle)
        out[i + half] = row_E[i] * math.sin(angle) + row_E[i + half] * math.cos(angle)
    return out


class Naive:
    """The decoder of the papers, one position, one head, one number after another."""

    def __init__(self, model: Any) -> None:
        self.w, self.c = weights(model), model.config

    def linear(self, name: str, row: Array) -> Array:
        return self.w[f"{name}.weight"] @ row + self.w.get(f"{name}.bias", 0.0)

    def norm(self, name: str, row: Array) -> Array:
        return layer_norm(row, self.w[f"{name}.weight"], self.w.get(f"{name}.bias", 0.0))

    def embed(self, token: int, place: int) -> Array:
        row = self.w["embedding.weight"][token]
        if self.c.positions == "learned":
            return row + self.w["features.positions.table_CD"][place]
        if self.c.positions == "sinusoidal":
            width = len(row)
            rates = [place / 10000 ** (2 * (i // 2) / width) for i in range(width)]
            table = np.array([math.cos(r) if i % 2 else math.sin(r) for i, r in enumerate(rates)])
            return row * math.sqrt(width) + table
        return row

    def attend(self, name: str, rows: list[Array]) -> list[Array]:
        heads, width = self.c.heads, self.c.embedding // self.c.heads
        parts = [self.linear(f"{name}.project_in", row).reshape(3, heads, width) for row in rows]
        if self.c.positions == "rotary":
            for place, part in enumerate(parts):
                part[:2] = [[turned(row_E, place) for row_E in rows_HE] for rows_HE in part[:2]]
        mixed = []
        for t in range(len(rows)):
            joined = []
            for h in range(heads):
                scores = np.array([parts[t][0, h] @ parts[s][1, h] / math.sqrt(width) for s in range(t + 1)])
                share = np.exp(scores - scores.max())
                joined.append(sum(a * parts[s][2, h] for s, a in enumerate(share / share.sum())))
            mixed.append(self.linear(f"{name}.project_out", np.concatenate(joined)))
        return mixed

    def block(self, number: int, stream: list[Array]) -> list[Array]:
        name = f"features.blocks.{number}"

        def feedforward(row: Array) -> Array:
            return self.linear(f"{name}.narrow", activation(self.c.activation, self.linear(f"{name}.widen", row)))

        if self.c.norm == "post":
            mixed = self.attend(name, stream)
            stream = [self.norm(f"{name}.norm_attention", x + m) for x, m in zip(stream, mixed, strict=True)]
            return [self.norm(f"{name}.norm_feedforward", x + feedforward(x)) for x in stream]
        mixed = self.attend(name, [self.norm(f"{name}.norm_attention", x) for x in stream])
        stream = [x + m for x, m in zip(stream, mixed, strict=True)]
        return [x + feedforward(self.norm(f"{name}.norm_feedforward", x)) for x in stream]

    def log_probs(self, tokens: list[int]) -> list[float]:
        stream = [self.embed(token, place) for place, token in enumerate([EOS, *tokens[:-1]])]
        for number in range(self.c.layers):
            stream = self.block(number, stream)
        if self.c.norm == "pre":
            stream = [self.norm("features.norm", x) for x in stream]
        found = []
        for token, hidden_D in zip(tokens, stream, strict=True):
            scores_V = self.w["output.weight_VD" if "output.weight_VD" in self.w else "embedding.weight"] @ hidden_D
            scores_V = scores_V + self.w["output.bias_V"]
            found.append(float(scores_V[token] - scores_V.max() - np.log(np.exp(scores_V - scores_V.max()).sum())))
        return found


@pytest.mark.parametrize("activation", ["gelu", "gelu-tanh", "relu", "relu2"])
def test_every_activation_is_its_formula(activation: str) -> None:
    model = small_model("transformer", layers=2, activation=activation, bias=True)
    assert_naive(model)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "learned", "none"])
def test_every_way_of_positions_and_norms_is_its_formula(positions: str, norm: str) -> None:
    assert_naive(small_model("transformer", layers=2, positions=positions, norm=norm))
    assert_naive(small_model("transformer", layers=1, positions=positions, norm=norm, bias=True, tied=False))


@torch.no_grad()
def assert_naive(model: Any) -> None:
    tokens = [4, 0, 12, 7, 7, 1]
    assert model.log_probs(torch.tensor([tokens]))[0].tolist() == pytest.approx(
        Naive(model).log_probs(tokens), abs=5e-5
    )


def test_the_sinusoidal_table_is_the_published_formula() -> None:
    table_CD = sinusoidal_table(50, 7)
    for place in (0, 1, 17, 49):
        for i in range(7):
            angle = place / 10000 ** (2 * (i // 2) / 7)
            expected = math.sin(angle) if i % 2 == 0 else math.cos(angle)
            assert float(table_CD[place, i]) == pytest.approx(expected, abs=1e-5)


def test_rotary_scores_depend_only_on_the_distance() -> None:
    rotary, (query_E, key_E) = Rotary(40, 6), torch.randn(2, 6, generator=torch.Generator().manual_seed(0))

    def score(query_at: int, key_at: int) -> float:
        turned_query, turned_key = (
            rotary(row_E.view(1, 1, 1, 6), place) for row_E, place in ((query_E, query_at), (key_E, key_at))
        )
        return float((turned_query * turned_key).sum())

    for distance in (0, 1, 5, 20):
        scores = [score(place + distance, place) for place in (0, 3, 11, 19)]
        assert scores == pytest.approx([scores[0]] * 4, abs=1e-5)
    assert score(5, 0) != pytest.approx(score(6, 0), abs=1e-3)
    assert score(0, 0) == pytest.approx(float(query_E @ key_E), abs=1e-5)


def gpt2_like(model: Any) -> Any:
    """transformers' GPT-2 with the weights of ours."""
    from transformers import GPT2Config, GPT2LMHeadModel

    c, w = model.config, model.state_dict()
    config = GPT2Config(
        vocab_size=V,
        n_positions=c.context,
        n_embd=c.embedding,
        n_layer=c.layers,
        n_head=c.heads,
        bos_token_id=0,
        eos_token_id=0,
    )
    theirs = GPT2LMHeadModel(config).eval()
    copies: dict[str, Tensor] = {
        "transformer.wte.weight": w["embedding.weight"],
        "transformer.wpe.weight": w["features.positions.table_CD"],
        "transformer.ln_f.weight": w["features.norm.weight"],
        "transformer.ln_f.bias": w["features.norm.bias"],
        "lm_head.weight": w["embedding.weight"],
    }
    names = {
        "project_in": "attn.c_attn",
        "project_out": "attn.c_proj",
        "norm_attention": "ln_1",
        "norm_feedforward": "ln_2",
        "widen": "mlp.c_fc",
        "narrow": "mlp.c_proj",
    }
    for number in range(c.layers):
        for ours, name in names.items():
            weight = w[f"features.blocks.{number}.{ours}.weight"]
            copies[f"transformer.h.{number}.{name}.weight"] = weight.T if weight.dim() == 2 else weight
            copies[f"transformer.h.{number}.{name}.bias"] = w[f"features.blocks.{number}.{ours}.bias"]
    missing, unexpected = theirs.load_state_dict(copies, strict=False)
    assert not missing
    assert not unexpected
    return theirs


@torch.no_grad()
def test_it_is_gpt_2_with_the_weights_of_gpt_2() -> None:
    options = {"positions": "learned", "activation": "gelu-tanh", "bias": True, "layers": 2, "feedforward": 0}
    model = small_model("transformer", context=24, **options)
    model.output.bias_V.zero_()
    theirs = gpt2_like(model)
    tokens_BT = torch.randint(0, V, (3, 20), generator=torch.Generator().manual_seed(0))
    fed_BT = torch.cat([torch.full((3, 1), EOS), tokens_BT], 1)
    logits_BTV = theirs(fed_BT).logits.log_softmax(2)
    expected_BT = logits_BTV[:, :-1].gather(2, tokens_BT[:, :, None])[:, :, 0]
    torch.testing.assert_close(model.log_probs(tokens_BT), expected_BT, atol=1e-4, rtol=1e-4)

    prompt = fed_BT[:1, 1:5]
    ours = generate(model, prompt[0], eos=None, bos=EOS, max_new_tokens=15, choose=Greedy())[0].tolist()
    written = fed_BT[0, :5].tolist()
    for _ in range(15):
        written.append(int(theirs(torch.tensor([written])).logits[0, -1].argmax()))
    assert ours == written[5:]


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        small_model("transformer", vocabulary=some_vocabulary(), heads=3)
    assert str(caught.value) == (
        "model.embedding is 8 and model.heads is 3: the heads must divide the width evenly; try model.heads=2"
    )


def test_rotary_heads_of_odd_width_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        small_model("transformer", embedding=6, heads=2)
    assert str(caught.value) == (
        "model.embedding is 6 and model.heads is 2: rotary positions need heads of even width, but these are 3 wide; "
        "choose another model.heads or other model.positions"
    )


@pytest.mark.parametrize("activation_name", ["relu2", "gelu", "gelu-tanh", "relu"])
@torch.no_grad()
def test_long_texts_are_scored_by_torch_with_the_numbers_of_the_engine(activation_name: str) -> None:
    model = small_model("transformer", vocabulary=some_vocabulary(V), context=20, activation=activation_name).eval()
    tokens_BT = torch.randint(1, V, (2, LONG_TEXT + 30))
    before, threads = model.start(2), torch.get_num_threads()
    assert isinstance(before.features, StackState)
    inputs_BT = torch.cat([torch.full((2, 1), model.eos), tokens_BT[:, :-1]], 1)
    by_engine_BTV, _ = model.extend(before, inputs_BT)
    expected_BT = by_engine_BTV.gather(2, tokens_BT[:, :, None])[:, :, 0]
    for count in (1, 2):  # the activation has a kernel for one thread
        torch.set_num_threads(count)
        torch.testing.assert_close(model.log_probs(tokens_BT), expected_BT, atol=2e-5, rtol=0)
    torch.set_num_threads(threads)
    first_BT, state = model.score(tokens_BT[:, :LONG_TEXT], model.start(2))
    assert not isinstance(state.features, StackState)
    rest_BT, _ = model.score(tokens_BT[:, LONG_TEXT:], state)
    torch.testing.assert_close(torch.cat([first_BT, rest_BT], 1), expected_BT, atol=2e-5, rtol=0)


@torch.no_grad()
def test_short_texts_and_int8_are_scored_by_the_engine() -> None:
    model = small_model("transformer", vocabulary=some_vocabulary(V), context=20).eval()
    tokens_BT = torch.randint(1, V, (1, LONG_TEXT))
    assert isinstance(model.score(tokens_BT[:, 1:], model.start(1))[1].features, StackState)
    model.precision = "int8"
    assert isinstance(model.score(tokens_BT, model.start(1))[1].features, StackState)
