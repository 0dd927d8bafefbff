"""The Transformer with a source against its formulas written out in numpy, and against Marian with the same weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_transformer import activation, layer_norm, turned, weights
from torch import Tensor

from builders import small_config, small_translator, some_source, some_tokens, some_vocabulary
from chainrule.checkpoint.build import build_model
from chainrule.decoding import beam_search
from chainrule.errors import ConfigError
from chainrule.interop.huggingface.marian import load_marian, marian_options, stream_order
from chainrule.types import Batch, Source, Vocabulary

EOS, V = 0, 13
Array = np.ndarray[Any, Any]
Rows = list[Array]


# The formulas


class Naive:
    """The encoder and decoder of the paper, one sentence, one position, one head, one number after another."""

    def __init__(self, model: Any) -> None:
        self.w, self.c = weights(model), model.config
        self.weights: Rows = []  # the weights over the source in the last layer, averaged over the heads, TS

    def linear(self, name: str, row: Array) -> Array:
        return self.w[f"{name}.weight"] @ row + self.w.get(f"{name}.bias", 0.0)

    def norm(self, name: str, row: Array) -> Array:
        return layer_norm(row, self.w[f"{name}.weight"], self.w.get(f"{name}.bias", 0.0))

    def embed(self, side: str, row: Array, place: int) -> Array:
        if self.c.positions == "learned":
            return row + self.w[f"{side}.positions.table_CD"][place]
        if self.c.positions == "sinusoidal":
            rates = [place / 10000 ** (2 * (i // 2) / len(row)) for i in range(len(row))]
            return row * math.sqrt(len(row)) + [math.cos(r) if i % 2 else math.sin(r) for i, r in enumerate(rates)]
        return row

    def mix(self, query: Array, keys: Rows, values: Rows) -> tuple[Array, Array]:
        """Attention of one position to others, rows of HE each -> its output, D, and its weights per head."""
        mixed, looked = [], []
        for h in range(self.c.heads):
            scores = np.array([query[h] @ key[h] for key in keys]) / math.sqrt(len(query[h]))
            share = np.exp(scores - scores.max())
            looked.append(share / share.sum())
            mixed.append(sum(a * value[h] for a, value in zip(looked[-1], values, strict=True)))
        return np.concatenate(mixed), np.array(looked)

    def split(self, name: str, row: Array, parts: int) -> Array:
        return self.linear(name, row).reshape(parts, self.c.heads, -1)

    def attend(self, name: str, rows: Rows, causal: bool) -> Rows:
        parts = [self.split(f"{name}.project_in", row, 3) for row in rows]
        if self.c.positions == "rotary":
            for place, part in enumerate(parts):
                part[:2] = [[turned(row_E, place) for row_E in rows_HE] for rows_HE in part[:2]]
        seen = [t + 1 if causal else len(rows) for t in range(len(rows))]
        mixed = [
            self.mix(parts[t][0], [part[1] for part in parts[:end]], [part[2] for part in parts[:end]])[0]
            for t, end in enumerate(seen)
        ]
        return [self.linear(f"{name}.project_out", row) for row in mixed]

    def read(self, name: str, rows: Rows, encoded: Rows) -> Rows:
        pairs = [self.split(f"{name}.project_memory", row, 2) for row in encoded]
        keys, values = [key for key, _ in pairs], [value for _, value in pairs]
        found = [self.mix(self.split(f"{name}.project_query", row, 1)[0], keys, values) for row in rows]
        self.weights = [weights.mean(0) for _, weights in found]
        return [self.linear(f"{name}.project_source", mixed) for mixed, _ in found]

    def feed(self, name: str, rows: Rows) -> Rows:
        kind = self.c.activation

        def inner(row: Array) -> Array:
            return row / (1 + np.exp(-row)) if kind == "swish" else activation(kind, row)

        return [self.linear(f"{name}.narrow", inner(self.linear(f"{name}.widen", row))) for row in rows]

    def part(self, norm: str, stream: Rows, change: Callable[[Rows], Rows]) -> Rows:
        """A part of a block applied to the stream, with the norm before it or after the sum."""
        if self.c.norm == "post":
            return [self.norm(norm, x + y) for x, y in zip(stream, change(stream), strict=True)]
        changed = change([self.norm(norm, x) for x in stream])
        return [x + y for x, y in zip(stream, changed, strict=True)]

    def side(self, side: str, tokens: list[int], encoded: Rows | None = None) -> Rows:
        table = self.w["embedding.weight" if encoded else "source_embedding.weight"]
        stream = [self.embed(side, table[token], place) for place, token in enumerate(tokens)]
        for number in range(self.c.decoder_layers if encoded else self.c.encoder_layers):
            name = f"{side}.blocks.{number}"
            attend = functools.partial(self.attend, name, causal=encoded is not None)
            stream = self.part(f"{name}.norm_attention", stream, attend)
            if encoded:
                stream = self.part(f"{name}.norm_source", stream, functools.partial(self.read, name, encoded=encoded))
            stream = self.part(f"{name}.norm_feedforward", stream, functools.partial(self.feed, name))
        return stream if self.c.norm == "post" else [self.norm(f"{side}.norm", x) for x in stream]

    def rows(self, source: list[int], tokens: list[int]) -> Array:
        """log p(. | eos, y_<t, source) for each t, TV."""
        hidden = self.side("decoder", [EOS, *tokens[:-1]], self.side("encoder", source))
        scores_TV = np.array([self.w["output.weight_VD"] @ row + self.w["output.bias_V"] for row in hidden])
        return scores_TV - np.log(np.exp(scores_TV).sum(1, keepdims=True))


@torch.no_grad()
def assert_naive(**options: Any) -> None:
    """Scores, steps and attention of a small model in double precision are those of the formulas."""
    model = small_translator("seq2seq-transformer", **{"encoder_layers": 2, "decoder_layers": 2} | options)
    model = model.double()
    naive, source, tokens_BT = Naive(model), some_source([8, 5, 2], padding=1, size=9), some_tokens(3, 7)
    # The tables of these two were made in single precision.
    near = {"atol": 1e-5 if model.config.positions in ("rotary", "sinusoidal") else 1e-10, "rtol": 0}
    log_probs_BT, looked_BTS = model.log_probs(tokens_BT, source), model.attention(tokens_BT, source)
    first_BV, state = model.prefill(model.start(source), model.shift_right(tokens_BT)[:, :4])
    then_BV, state = model.step(state, tokens_BT[:, 3])
    last_BV, _ = model.prefill(state, tokens_BT[:, 4:6])
    for row in range(3):
        given = source.tokens_BS[row][source.mask_BS[row]].tolist()
        rows_TV = torch.from_numpy(naive.rows(given, tokens_BT[row].tolist()))
        torch.testing.assert_close(log_probs_BT[row], rows_TV.gather(1, tokens_BT[row, :, None])[:, 0], **near)
        stepped_3V = torch.stack([first_BV[row], then_BV[row], last_BV[row]])
        torch.testing.assert_close(stepped_3V, rows_TV[[3, 4, 6]], **near)
        weights_TS = torch.from_numpy(np.array(naive.weights))
        torch.testing.assert_close(looked_BTS[row, :, : len(given)], weights_TS, **near)
        assert not looked_BTS[row, :, len(given) :].any()


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", ["rotary", "sinusoidal", "learned", "none"])
def test_every_way_of_positions_and_norms_is_its_formula(positions: str, norm: str) -> None:
    assert_naive(positions=positions, norm=norm)
    assert_naive(positions=positions, norm=norm, bias=True, tied=False, shared=False, encoder_layers=1)


@pytest.mark.parametrize("activation", ["gelu", "gelu-tanh", "relu", "relu2", "swish"])
def test_every_activation_is_its_formula(activation: str) -> None:
    assert_naive(activation=activation, positions="none", encoder_layers=1, decoder_layers=1)


def test_depths_heads_and_vocabularies_are_free() -> None:
    one, other = some_vocabulary(V, EOS), some_vocabulary(9, EOS)
    separate = Vocabulary(one.size, one.eos, one.counts_V, source=other)
    assert_naive(vocabulary=separate, positions="learned", encoder_layers=3, decoder_layers=1, heads=4)
    assert_naive(vocabulary=separate, positions="learned", encoder_layers=1, decoder_layers=3, heads=1, feedforward=0)


# Marian


@functools.cache
def marian(start: int = EOS, activation: str = "swish", seed: int = 1) -> Any:
    """transformers' Marian with random weights in which everything matters, and which ends its texts now and then."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=V, d_model=16, max_position_embeddings=40, scale_embedding=True, activation_function=activation,
        encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=24,
        decoder_layers=3, decoder_attention_heads=4, decoder_ffn_dim=24,
        eos_token_id=EOS, pad_token_id=start, decoder_start_token_id=start, forced_eos_token_id=None,
        attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(seed)
    theirs = MarianMTModel(config).eval()
    with torch.no_grad():
        for parameter in theirs.model.parameters():
            if parameter.requires_grad:  # positions are not trained
                parameter.add_(torch.randn_like(parameter) * (0.6 if parameter.dim() == 2 else 0.1))
        theirs.final_logits_bias.copy_(torch.randn(1, V) * 0.3)
        theirs.final_logits_bias[0, EOS] = 1.0
    return theirs.double()


def loaded(theirs: Any) -> Any:
    """Our model with their weights, and with their positions to the last digit."""
    config = theirs.config.to_dict()
    values = small_config("seq2seq-transformer", **marian_options(config))
    model: Any = build_model(values, some_vocabulary(V, EOS)).eval()
    load_marian(model, theirs.state_dict(), start=config["decoder_start_token_id"])
    model.double()
    for side in ("encoder", "decoder"):
        positions = getattr(model, side).positions
        table_CD = getattr(theirs.model, side).embed_positions.weight[:, stream_order(16)]
        torch.testing.assert_close(positions.table_CD, table_CD, atol=1e-5, rtol=0)
        positions.table_CD = table_CD
    return model


def streams(model: Any, batch: Batch) -> dict[str, list[Tensor]]:
    """The output of each block of each side for a batch, ND, and the features, BTD."""
    found: dict[str, list[Tensor]] = {"encoder": [], "decoder": []}
    hooks = [
        block.register_forward_hook(lambda _block, _given, out, side=side: found[side].append(out[0]))
        for side in found
        for block in getattr(model, side).blocks
    ]
    hidden_BTD = model(batch).hidden_BTD
    for hook in hooks:
        hook.remove()
    return {**found, "features": [hidden_BTD]}


@pytest.mark.parametrize(("start", "activation"), [(EOS, "swish"), (EOS, "relu"), (V - 1, "gelu")])
@torch.no_grad()
def test_every_layer_is_that_of_marian_with_its_weights(start: int, activation: str) -> None:
    theirs = marian(start, activation)
    model, source, tokens_BT = loaded(theirs), some_source([10, 8, 3, 0], size=V), some_tokens(4, 20)
    tokens_BT = tokens_BT.masked_fill(tokens_BT == EOS, 1)  # none inside a text
    started_BT = torch.cat([torch.full((4, 1), start), tokens_BT[:, :-1]], 1)
    expected = theirs(
        input_ids=source.tokens_BS,
        attention_mask=source.mask_BS.long(),
        decoder_input_ids=started_BT,
        output_hidden_states=True,
        output_attentions=True,
    )
    near = {"atol": 1e-10, "rtol": 1e-10}
    order_D, seen_N = stream_order(16), source.mask_BS.flatten()
    ours = streams(model, Batch(model.shift_right(tokens_BT), tokens_BT, source=source))
    assert len(ours["encoder"]) == 2
    assert len(ours["decoder"]) == 3
    for stream_ND, hidden_BSD in zip(ours["encoder"], expected.encoder_hidden_states[1:], strict=True):
        torch.testing.assert_close(stream_ND[seen_N], hidden_BSD.flatten(0, 1)[seen_N][:, order_D], **near)
    for stream_ND, hidden_BTD in zip(ours["decoder"], expected.decoder_hidden_states[1:], strict=True):
        torch.testing.assert_close(stream_ND, hidden_BTD.flatten(0, 1)[:, order_D], **near)
    logits_BTV = ours["features"][0] @ model.output.weight_VD.T + model.output.bias_V
    torch.testing.assert_close(logits_BTV, expected.logits, **near)
    log_probs_BT = expected.logits.log_softmax(2).gather(2, tokens_BT[:, :, None])[:, :, 0]
    torch.testing.assert_close(model.log_probs(tokens_BT, source), log_probs_BT, **near)
    torch.testing.assert_close(model.attention(tokens_BT, source), expected.cross_attentions[-1].mean(1), **near)


def their_texts(theirs: Any, source: Source, **search: Any) -> tuple[list[list[int]], list[float]]:
    """The texts that transformers generates, each up to its eos, and the scores of a beam."""
    theirs.generation_config.bos_token_id = None
    found = theirs.generate(
        input_ids=source.tokens_BS, attention_mask=source.mask_BS.long(), do_sample=False,
        return_dict_in_generate=True, output_scores=True, **search,
    )  # fmt: skip
    texts = [tokens[1:] for tokens in found.sequences.tolist()]
    scores = found.sequences_scores.tolist() if search["num_beams"] > 1 else []
    return [text[: text.index(EOS) + 1] if EOS in text else text for text in texts], scores


@pytest.mark.parametrize("start", [EOS, V - 1])
@pytest.mark.parametrize(("beams", "wanted"), [(1, 1), (4, 1), (4, 4), (5, 3)])
def test_texts_are_those_of_marian(beams: int, wanted: int, start: int) -> None:
    lengths = set()
    for seed in (1, 2):
        theirs, source = marian(start, seed=seed), some_source([13, 2, 9, 6, 1, 12], seed=seed, size=V)
        model = loaded(theirs)
        search: dict[str, Any] = {"num_beams": beams, "num_return_sequences": wanted}
        if beams > 1:
            search |= {"early_stopping": False, "length_penalty": 1.0}
        texts, scores = their_texts(theirs, source, max_new_tokens=20, **search)
        with torch.inference_mode():
            state = model.start(source)
        found = beam_search(
            model, state, torch.full((6, 1), EOS), eos=EOS, beams=beams, max_new_tokens=20, length_penalty=1.0,
            num_return_sequences=wanted,
        )  # fmt: skip
        flat = [hypothesis for hypotheses in found for hypothesis in hypotheses]
        assert [hypothesis.tokens for hypothesis in flat] == texts
        assert beams == 1 or [hypothesis.score for hypothesis in flat] == pytest.approx(scores, abs=1e-5)
        lengths |= set(map(len, texts))
    assert len(lengths) > (1 if wanted == 1 else 2)  # texts of different lengths


# Errors


def test_a_source_or_target_beyond_the_context_is_refused() -> None:
    model = small_translator("seq2seq-transformer", context=6)
    sentence = (
        "got 7 tokens, but the model reads at most model.context = 6; shorten the line or train with a larger context"
    )
    with pytest.raises(ConfigError) as caught:
        model.start(some_source([6]))
    assert str(caught.value) == sentence
    _, state = model.prefill(model.start(some_source([5])), some_tokens(1, 6))
    with pytest.raises(ConfigError) as caught:
        model.step(state, torch.tensor([1]))
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"encoder_ffn_dim": 32},
            "encoder_ffn_dim is 32 and decoder_ffn_dim is 24; supported are only models with the same value for both",
        ),
        (
            {"activation_function": "tanh"},
            "activation_function is 'tanh'; supported are swish, silu, relu, relu2, gelu, gelu_new",
        ),
    ],
)
def test_marian_models_of_other_kinds_are_refused(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        marian_options(marian().config.to_dict() | changed)
    assert str(caught.value) == sentence


def test_weights_that_do_not_fit_are_refused() -> None:
    model, tensors = loaded(marian()), marian().state_dict()
    cases: list[tuple[dict[str, Tensor], int, str]] = [
        (
            {name: tensor for name, tensor in tensors.items() if "decoder.layers.1.fc1" not in name},
            EOS,
            "the weights are not those of a MarianMTModel: model.decoder.layers.1.fc1.weight is missing",
        ),
        (
            tensors | {"model.shared.weight": torch.zeros(V + 1, 16)},
            EOS,
            "the weights of the MarianMTModel do not match the model; create the model with marian_options of its "
            "config.json",
        ),
        (
            tensors,
            3,
            "their decoder starts with token 3 and ours with 0, so its embedding must be a separate table; set "
            "model.tied=false and model.shared=false",
        ),
    ]
    for given, start, sentence in cases:
        with pytest.raises(ConfigError) as caught:
            load_marian(model, given, start=start)
        assert str(caught.value) == sentence
