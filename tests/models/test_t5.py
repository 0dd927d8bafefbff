"""T5 against the T5 of transformers with the same weights, sentinels, and span corruption."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from builders import OUTPUT_LAYERS, some_tokens, some_vocabulary
from chainrule.checkpoint.build import build_model, load_weights, weights_of
from chainrule.config import RunConfig
from chainrule.data.spans import SpanBatches
from chainrule.decoding import Greedy, generate
from chainrule.errors import ConfigError
from chainrule.models.translator import ConditionedModel
from chainrule.objectives.likelihood import Likelihood
from chainrule.objectives.spans import SpanCorruption
from chainrule.registry import MODELS, OBJECTIVES
from chainrule.types import Batch, Source, Vocabulary

EOS, WORDS, SENTINELS = 0, 13, 4
V = WORDS + SENTINELS
SMALL = {
    "embedding": 8,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "heads": 2,
    "buckets": 8,
    "distance": 10,
    "context": 24,
    "sentinels": SENTINELS,
}
SHAPES: list[dict[str, Any]] = [
    {},
    {"tied": False, "head_width": 6},
    {"gated": True, "activation": "gelu-tanh", "tied": False},
    {"gated": True, "activation": "gelu-tanh", "feedforward": 12, "heads": 4},
    {"gated": True, "activation": "relu"},
    {"activation": "gelu-tanh", "head_width": 3},
]


def fresh_t5(output: str = "softmax", vocabulary: Vocabulary | None = None, seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    values = {"model": {"name": "t5", **SMALL, **options}, "output": {"name": output}}
    return build_model(RunConfig.model_validate(values), vocabulary or some_vocabulary(WORDS, EOS)).eval()


@torch.no_grad()
def stirred_t5(output: str = "softmax", by: float = 0.1, **options: Any) -> Any:
    """One in which every weight matters, norms too; published sizes are large enough for all others."""
    model = fresh_t5(output, **options)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * by)
    return model


def some_source(batch: int = 3, length: int = 17, seed: int = 5) -> Source:
    """Sources of random words of which each is shorter than the one before it, ended by eos, padded by anything."""
    tokens_BS = some_tokens(batch, length, seed)
    lengths_B = torch.tensor([length - 4 * row for row in range(batch)])
    tokens_BS[torch.arange(batch), lengths_B - 1] = EOS
    return Source(tokens_BS, torch.arange(length) < lengths_B[:, None])


# The T5 of transformers


def t5_like(model: Any) -> Any:
    """transformers' T5 with the weights of ours."""
    from transformers import T5Config, T5ForConditionalGeneration

    c = model.config
    config = T5Config(
        vocab_size=V,
        d_model=c.embedding,
        d_kv=c.head_width or c.embedding // c.heads,
        d_ff=c.feedforward or 4 * c.embedding,
        num_layers=c.encoder_layers,
        num_decoder_layers=c.decoder_layers,
        num_heads=c.heads,
        relative_attention_num_buckets=c.buckets,
        relative_attention_max_distance=c.distance,
        feed_forward_proj=("gated-" if c.gated else "") + {"relu": "relu", "gelu-tanh": "gelu_new"}[c.activation],
        tie_word_embeddings=c.tied,  # it only decides whether the decoder output is scaled
        pad_token_id=EOS,
        eos_token_id=EOS,
        decoder_start_token_id=EOS,
        attn_implementation="eager",
    )
    theirs = T5ForConditionalGeneration(config).eval()
    if not c.tied:
        theirs.lm_head.weight = torch.nn.Parameter(theirs.lm_head.weight.clone())
    missing, unexpected = theirs.load_state_dict(as_theirs(model), strict=False)
    assert set(missing) <= {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"}
    assert not unexpected
    return theirs


def as_theirs(model: Any) -> dict[str, Tensor]:
    """Our weights under their names."""
    w, c = model.state_dict(), model.config
    embedding_VD = w["embedding.weight"] * math.sqrt(c.embedding)
    copies = {"shared.weight": embedding_VD, "lm_head.weight": embedding_VD if c.tied else w["output.weight_VD"]}
    for side, layers in (("encoder", c.encoder_layers), ("decoder", c.decoder_layers)):
        copies[f"{side}.final_layer_norm.weight"] = w[f"{side}.norm.weight"]
        copies[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = w[f"{side}.relative.table_UH"]
        for number in range(layers):
            own = {name: w.get(f"{side}.blocks.{number}.{name}.weight") for name in PARTS}
            for name, weight in block_as_theirs(own, c.gated).items():
                copies[f"{side}.block.{number}.layer.{name}.weight"] = weight
    return copies


PARTS = (
    *("norm_attention", "project_in", "project_out"),
    *("norm_source", "project_query", "project_memory", "project_source"),
    *("norm_feedforward", "widen", "narrow"),
)


def block_as_theirs(own: dict[str, Tensor], gated: bool) -> dict[str, Tensor]:
    parts = {"0.layer_norm": own["norm_attention"], "0.SelfAttention.o": own["project_out"]}
    parts |= zip(
        ("0.SelfAttention.q", "0.SelfAttention.k", "0.SelfAttention.v"), own["project_in"].chunk(3), strict=True
    )
    last = 1
    if own["norm_source"] is not None:
        last = 2
        parts |= {"1.layer_norm": own["norm_source"], "1.EncDecAttention.q": own["project_query"]}
        parts |= zip(("1.EncDecAttention.k", "1.EncDecAttention.v"), own["project_memory"].chunk(2), strict=True)
        parts["1.EncDecAttention.o"] = own["project_source"]
    parts |= {f"{last}.layer_norm": own["norm_feedforward"], f"{last}.DenseReluDense.wo": own["narrow"]}
    if not gated:
        return parts | {f"{last}.DenseReluDense.wi": own["widen"]}
    names = (f"{last}.DenseReluDense.wi_0", f"{last}.DenseReluDense.wi_1")
    return parts | dict(zip(names, own["widen"].chunk(2), strict=True))


def both(**options: Any) -> tuple[Any, Any]:
    model = stirred_t5(**options)
    model.output.bias_V.data.zero_()
    return model, t5_like(model)


def their_answer(theirs: Any, source: Source, inputs_BT: Tensor) -> Any:
    return theirs(
        input_ids=source.tokens_BS,
        attention_mask=source.mask_BS.long(),
        decoder_input_ids=inputs_BT,
        output_attentions=True,
    )


@pytest.mark.parametrize("options", SHAPES, ids=str)
@torch.no_grad()
def test_it_is_t5_with_the_weights_of_t5(options: dict[str, Any]) -> None:
    model, theirs = both(**options)
    source, tokens_BT = some_source(), some_tokens(3, 20, size=V)
    inputs_BT = model.shift_right(tokens_BT)
    expected = their_answer(theirs, source, inputs_BT)

    seen = source.mask_BS
    torch.testing.assert_close(
        model.encode(source)[seen], expected.encoder_last_hidden_state[seen], atol=1e-5, rtol=1e-5
    )
    hidden_BTD = model(Batch(inputs_BT, tokens_BT, source=source)).hidden_BTD
    logits_BTV = hidden_BTD @ model.output.weight_VD.T
    torch.testing.assert_close(logits_BTV, expected.logits, atol=1e-5, rtol=1e-5)
    log_probs_BT = expected.logits.log_softmax(2).gather(2, tokens_BT[:, :, None])[:, :, 0]
    torch.testing.assert_close(model.log_probs(tokens_BT, source), log_probs_BT, atol=1e-5, rtol=1e-5)
    attention_BTS = expected.cross_attentions[-1].mean(1)
    torch.testing.assert_close(model.attention(tokens_BT, source), attention_BTS, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", SHAPES, ids=str)
@torch.no_grad()
def test_steps_and_prefills_are_those_of_t5(options: dict[str, Any]) -> None:
    """Each position's distribution, read in pieces of different length from the cache."""
    model, theirs = both(**options)
    source, tokens_BT = some_source(), some_tokens(3, 20, size=V)
    inputs_BT = model.shift_right(tokens_BT)
    expected_BTV = their_answer(theirs, source, inputs_BT).logits.log_softmax(2)
    state, at = model.start(source), 0
    for new in (1, 1, 3, 1, 6, 1, 1, 5, 1):
        row_BV, state = model.prefill(state, inputs_BT[:, at : at + new])
        at += new
        torch.testing.assert_close(row_BV, expected_BTV[:, at - 1], atol=1e-5, rtol=1e-5)
    assert at == 20


@pytest.mark.parametrize("options", SHAPES[:4], ids=str)
@torch.no_grad()
def test_greedy_texts_are_those_of_t5(options: dict[str, Any]) -> None:
    source, words = some_source(), set()
    for seed in range(3):
        model, theirs = both(**options, seed=seed, by=0.5)  # large changes, or it repeats one word
        written_BT = their_texts(theirs, source)
        for row in range(3):
            one = Source(source.tokens_BS[row : row + 1], source.mask_BS[row : row + 1])
            ours = generate(ConditionedModel(model, one), eos=EOS, bos=EOS, max_new_tokens=16, choose=Greedy())[
                0
            ].tolist()
            assert ours == written_BT[row, 1 : len(ours) + 1].tolist()
            assert set(written_BT[row, len(ours) + 1 :].tolist()) <= {EOS}
            words |= set(ours)
    assert len(words) > 5


def their_texts(theirs: Any, source: Source) -> Tensor:
    """The tokens that transformers generates, after the first, padded with eos, BT."""
    theirs.generation_config.bos_token_id = None
    written_BT: Tensor = theirs.generate(
        input_ids=source.tokens_BS,
        attention_mask=source.mask_BS.long(),
        max_new_tokens=16,
        do_sample=False,
        num_beams=1,
        use_cache=False,  # their cache fails where encoder and decoder are not equally deep
    )
    return written_BT


def test_fresh_weights_are_of_the_published_sizes() -> None:
    """As large as those that transformers begins with, which follows the published code; norms are ones."""
    from transformers import T5Config, T5ForConditionalGeneration

    wide = {"embedding": 96, "heads": 3, "head_width": 48, "feedforward": 200, "encoder_layers": 1, "decoder_layers": 1}
    ours = as_theirs(fresh_t5(**wide, buckets=400, distance=300))
    config = T5Config(
        vocab_size=V, d_model=96, num_heads=3, d_kv=48, d_ff=200, num_layers=1, relative_attention_num_buckets=400
    )
    theirs = T5ForConditionalGeneration(config).state_dict()
    for name, weight in ours.items():
        deviation, mean = float(weight.std()), float(weight.mean())
        assert deviation == pytest.approx(float(theirs[name].std()), rel=0.12), name
        assert mean == pytest.approx(1.0 if "norm" in name else 0.0, abs=5 * deviation / math.sqrt(weight.numel())), (
            name
        )


# Padding, rows, other output layers


@torch.no_grad()
def test_padding_and_batch_mates_change_nothing() -> None:
    model, source, tokens_BT = stirred_t5(), some_source(), some_tokens(3, 9)
    together_BT = model.log_probs(tokens_BT, source)
    for row in range(3):
        own_1S = source.tokens_BS[row : row + 1, source.mask_BS[row]]
        alone_1T = model.log_probs(tokens_BT[row : row + 1], Source(own_1S, torch.ones_like(own_1S, dtype=torch.bool)))
        torch.testing.assert_close(alone_1T[0], together_BT[row], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_select_permutes_prefixes_with_their_sources() -> None:
    model, source, tokens_BT = stirred_t5(), some_source(), some_tokens(3, 6)
    rows_K = torch.tensor([2, 0, 0, 1])
    _, state = model.prefill(model.start(source), model.shift_right(tokens_BT))
    next_K = torch.tensor([1, 2, 3, 4])
    row_KV, _ = model.step(model.select(state, rows_K), next_K)
    chosen = Source(source.tokens_BS[rows_K], source.mask_BS[rows_K])
    inputs_KT = torch.cat([model.shift_right(tokens_BT)[rows_K], next_K[:, None]], 1)
    expected_KV, _ = model.prefill(model.start(chosen), inputs_KT)
    torch.testing.assert_close(row_KV, expected_KV, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("output", OUTPUT_LAYERS)
@torch.no_grad()
def test_words_and_sentinels_together_have_probability_one(output: str) -> None:
    model = stirred_t5(output)
    row_BV, _ = model.step(model.start(some_source()), torch.tensor([EOS, 1, WORDS]))
    assert row_BV.shape == (3, V)
    torch.testing.assert_close(row_BV.exp().sum(1), torch.ones(3))


# Sentinels


def test_sentinels_follow_the_vocabulary_and_are_not_counted() -> None:
    vocabulary = some_vocabulary(WORDS, EOS)
    model = fresh_t5(vocabulary=vocabulary)
    assert model.sentinels == range(WORDS, V)
    assert model.vocab_size == len(model.embedding.weight) == V
    assert model.unigram_counts.tolist() == vocabulary.counts_V.tolist()


@torch.no_grad()
def test_loaded_weights_are_the_saved_ones() -> None:
    saved, other = stirred_t5(), fresh_t5(seed=1)
    load_weights(other, weights_of(saved))
    source, tokens_BT = some_source(), some_tokens(3, 9, size=V)
    assert torch.equal(other.log_probs(tokens_BT, source), saved.log_probs(tokens_BT, source))
    assert other.unigram_counts.tolist() == saved.unigram_counts.tolist()


def test_the_same_seed_gives_the_same_model() -> None:
    for shared in (True, False):
        one, same, other = (fresh_t5(seed=seed, shared=shared).state_dict() for seed in (0, 0, 1))
        assert all(torch.equal(one[name], same[name]) for name in one)
        assert not torch.equal(one["embedding.weight"], other["embedding.weight"])


# Learning


def test_spans_are_learned() -> None:
    """In a text that counts in a circle every gap follows from its surroundings."""
    words, length = 10, 24
    text = np.arange(4000) % words + 1
    vocabulary = Vocabulary(words + 1, EOS, np.bincount(text, minlength=words + 1))
    model = fresh_t5(vocabulary=vocabulary, embedding=16, encoder_layers=1, decoder_layers=1, dropout=0.0)
    objective = SpanCorruption(SpanCorruption.Config())
    batches = SpanBatches(
        text, 16, length, eos=EOS, seed=0, noise=0.15, mean_span=3.0,
        first_sentinel=model.sentinels.start, sentinels=len(model.sentinels),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-2)
    for step in range(120):
        loss = objective.loss(model, batches.batch(step)[0], None, step)
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
    batch, _ = batches.batch(10_000)
    shares_V = np.unique(batch.targets_BT.numpy(), return_counts=True)[1] / batch.targets_BT.numel()
    with torch.no_grad():
        loss = objective.loss(model.eval(), batch, None, 0)
    assert float(loss.total) / loss.count < 0.25 * float(-(shares_V * np.log(shares_V)).sum())


@torch.no_grad()
def test_the_loss_of_spans_is_the_likelihood() -> None:
    model = stirred_t5()
    tokens_BT = some_tokens(3, 9, size=V)
    batch = Batch(model.shift_right(tokens_BT), tokens_BT, source=some_source())
    spans, likelihood = (kind(kind.Config()).loss(model, batch, None, 0) for kind in (SpanCorruption, Likelihood))
    assert OBJECTIVES.get("spans").task == "spans"
    assert torch.equal(spans.total, likelihood.total)
    assert spans.count == likelihood.count == 27
    assert float(spans.total) == pytest.approx(-float(model.log_probs(tokens_BT, batch.source).sum()), rel=1e-5)


# Errors


def test_two_vocabularies_are_refused() -> None:
    one = some_vocabulary(WORDS, EOS)
    with pytest.raises(ConfigError) as caught:
        fresh_t5(vocabulary=Vocabulary(one.size, one.eos, one.counts_V, source=one))
    assert str(caught.value) == ("t5 has one vocabulary for source and target, but got two; use a joint tokenizer")


def test_heads_must_divide_the_width_unless_their_width_is_given() -> None:
    with pytest.raises(ConfigError) as caught:
        fresh_t5(heads=3)
    assert str(caught.value) == (
        "model.embedding is 8 and model.heads is 3: the heads must divide the width evenly; try model.heads=2"
    )
    assert fresh_t5(heads=3, head_width=5).decoder.blocks[0].project_out.weight.shape == (8, 15)


def test_a_source_beyond_the_context_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        fresh_t5().start(some_source(1, 25))
    assert str(caught.value) == (
        "got 25 tokens, but the model reads at most model.context = 24; shorten the line or train with a larger context"
    )


def test_it_is_registered_as_a_translator_of_its_own_family() -> None:
    assert (MODELS.get("t5").family, MODELS.get("t5").task) == ("t5", "translation")
