"""The classifier and the tagger as models: inputs, padding and probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from chainrule.config import parse
from chainrule.data.labels import LabelledTexts
from chainrule.data.rows import Rows
from chainrule.data.tags import TaggedWords
from chainrule.errors import ConfigError
from chainrule.layers.encoders.build import shape_of
from chainrule.models.tagger import word_means
from chainrule.objectives.labels import LabelLikelihood
from chainrule.registry import MODELS, OUTPUTS
from chainrule.text.formats.labels import Labels
from chainrule.types import Batch, OutputChoice, Vocabulary

EOS, TOKENS = 1, 12
ENCODERS = ("bag", "lstm", "conv-attention", "elmo", "bert", "transformer")


def build(name: str, output: str = "softmax", **options: Any) -> Any:
    make, layer = MODELS.get(name).make, OUTPUTS.get(output).make
    torch.manual_seed(3)
    small = {"embedding": 8, "hidden": 6, "heads": 2, "positions": 20, "dropout": 0.0, "labels": ["a", "b", "c"]}
    config = parse(make.Config, {**small, **options}, "model")
    return make(config, Vocabulary(TOKENS, EOS, np.arange(TOKENS)), OutputChoice(layer, layer.Config()))


def rows(texts: list[list[int]]) -> Rows:
    return Rows(np.asarray([token for text in texts for token in (*text, EOS)]), EOS)


FIRST = [[2, 3, 4], [5], [6, 7, 8, 9, 10, 11], []]
SECOND = [[3], [4, 5, 6], [2], [9]]


def texts(paired: bool = False, multiple: bool = False) -> LabelledTexts:
    each = [[0], [2], [1, 2], [0]] if multiple else [[0], [2], [1], [0]]
    ids = np.asarray([number for one in each for number in one], np.int32)
    labels = Labels(("a", "b", "c"), ids, np.cumsum([*map(len, each)]), multiple)
    return LabelledTexts(rows(FIRST), rows(SECOND) if paired else None, labels)


def sentences() -> TaggedWords:
    words = [[2, 3], [4], [5, 6, 7], [8], [9], [10, 11]]
    return TaggedWords(
        rows(words), Labels(("a", "b", "c"), np.asarray([0, 1, 2, 1, 0, 2], np.int32), np.asarray([3, 4, 6])), 0
    )


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("name", ["classifier", "tagger"])
def test_padding_and_batch_mates_change_nothing(name: str, encoder: str) -> None:
    model = build(name, encoder=encoder).eval()
    examples: Any = texts() if name == "classifier" else sentences()
    together = examples.batch(np.arange(len(examples)))
    with torch.no_grad():
        nats_B = model.negative_log_probs(model(together), together)
        for number in range(len(examples)):
            alone = examples.batch(np.asarray([number]))
            torch.testing.assert_close(
                model.negative_log_probs(model(alone), alone)[0], nats_B[number], atol=1e-5, rtol=1e-5
            )


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("name", ["classifier", "tagger"])
def test_every_parameter_learns(name: str, encoder: str) -> None:
    paired = {"pairs": True} if name == "classifier" else {"crf": True}
    model = build(name, encoder=encoder, **paired)
    examples: Any = texts(paired=True) if name == "classifier" else sentences()
    batch = examples.batch(np.arange(len(examples)))
    LabelLikelihood(LabelLikelihood.Config()).loss(model, batch, None, 0).total.backward()
    still = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    # A constant added to all keys does not change attention weights.
    assert [key for key in still if "project_in.bias" not in key] == []


def test_one_label_is_a_softmax_by_hand() -> None:
    model, batch = build("classifier").eval(), texts().batch(np.arange(4))
    with torch.no_grad():
        outputs = model(batch)
    probabilities_BL = model.probabilities(outputs)
    torch.testing.assert_close(probabilities_BL.sum(1), torch.ones(4))
    for row, target in enumerate([0, 2, 1, 0]):
        assert float(model.negative_log_probs(outputs, batch)[row]) == pytest.approx(
            -float(probabilities_BL[row, target].log()), rel=1e-5
        )
    assert model.predict(outputs, batch)[:, 0].tolist() == probabilities_BL.argmax(1).tolist()


def test_several_labels_are_independent_by_hand() -> None:
    model, batch = build("classifier", multi_label=True).eval(), texts(multiple=True).batch(np.arange(4))
    outputs = model(batch)
    p_BL = model.probabilities(outputs)
    right_BL = torch.where(batch.targets_BT == 1, p_BL, 1 - p_BL)
    torch.testing.assert_close(model.negative_log_probs(outputs, batch), -right_BL.log().sum(1))
    assert torch.equal(model.predict(outputs, batch), (p_BL > 0.5).long())


def test_the_second_text_of_a_pair_is_marked() -> None:
    """Two texts in the other order are another pair; only the learned vector shows it to a bag."""
    model = build("classifier", pairs=True, pooling="mean").eval()
    there, back = texts(paired=True), LabelledTexts(rows(SECOND), rows(FIRST), texts().labels)
    batch, swapped = there.batch(np.arange(4)), back.batch(np.arange(4))
    torch.testing.assert_close(model(batch).hidden_BTD, model(swapped).hidden_BTD)
    torch.nn.init.normal_(model.second_D)
    states_BSD = model.encode(batch).states_BSD
    plain_BSD = model.reader(batch.source)
    assert batch.parts_BS is not None
    torch.testing.assert_close(states_BSD[batch.parts_BS == 0], plain_BSD[batch.parts_BS == 0])
    torch.testing.assert_close(states_BSD[batch.parts_BS == 1], plain_BSD[batch.parts_BS == 1] + model.second_D)
    assert not torch.allclose(model(batch).hidden_BTD, model(swapped).hidden_BTD)


@pytest.mark.parametrize("pooling", ["attention", "attention-from-pooled", "mean", "max", "first"])
def test_every_pooling_is_used(pooling: str) -> None:
    model, batch = build("classifier", pooling=pooling).eval(), texts().batch(np.arange(4))
    encoded = model.encode(batch)
    vector_BD = model.pooling(encoded.states_BSD, encoded.mask_BS, encoded.pooled_BE)
    torch.testing.assert_close(model(batch).hidden_BTD[:, 0], model.network(vector_BD))


def test_words_are_the_means_of_their_pieces() -> None:
    torch.manual_seed(1)
    states_BSD, parts_BS = torch.randn(2, 5, 3), torch.tensor([[0, 0, 1, 2, -1], [0, 1, -1, -1, -1]])
    states_BSD[1, 2:] = torch.nan  # padding may be anything
    means_BTD = word_means(states_BSD, parts_BS, 3)
    for row in range(2):
        for word in range(3):
            pieces = [states_BSD[row, place] for place in range(5) if parts_BS[row, place] == word]
            wanted = torch.stack(pieces).mean(0) if pieces else torch.zeros(3)
            torch.testing.assert_close(means_BTD[row, word], wanted)


def test_the_memory_of_the_means_grows_with_the_tokens() -> None:
    """Not with their square: that of this sentence is 160 GB."""
    states_BSD = torch.randn(1, 200_000, 1)
    means_BTD = word_means(states_BSD, torch.arange(200_000)[None], 200_000)
    torch.testing.assert_close(means_BTD, states_BSD)


def test_a_tagger_by_hand() -> None:
    model, batch = build("tagger", encoder="lstm").eval(), sentences().batch(np.arange(3))
    with torch.no_grad():
        outputs = model(batch)
    assert batch.weights_BT is not None
    log_probs_BTL = outputs.hidden_BTD.log_softmax(2)
    for row in range(3):
        words = range(int(batch.weights_BT[row].sum()))
        wanted = -sum(float(log_probs_BTL[row, word, batch.targets_BT[row, word]]) for word in words)
        assert float(model.negative_log_probs(outputs, batch)[row]) == pytest.approx(wanted, rel=1e-5)


def test_a_tagger_with_a_chain_uses_it() -> None:
    model, batch = build("tagger", crf=True).eval(), sentences().batch(np.arange(3))
    torch.nn.init.normal_(model.chain.moves_LL)
    outputs = model(batch)
    assert batch.weights_BT is not None
    kept_BT = batch.weights_BT > 0
    torch.testing.assert_close(
        model.negative_log_probs(outputs, batch),
        model.chain.negative_log_prob(outputs.hidden_BTD, batch.targets_BT, kept_BT),
    )
    assert torch.equal(model.predict(outputs, batch), model.chain.best(outputs.hidden_BTD, kept_BT))


def test_a_frozen_encoder_stays_as_it_is_and_a_tuned_one_learns() -> None:
    shape = shape_of("lstm", TOKENS, width=6, dropout=0.5).model_dump()
    batch = texts().batch(np.arange(4))
    for tuned in (False, True):
        model = build("classifier", pretrained="somewhere", pretrained_shape=shape, tuned=tuned).train()
        LabelLikelihood(LabelLikelihood.Config()).loss(model, batch, None, 0).total.backward()
        grads = [p.grad for p in model.pretrained.encoder.parameters()]
        assert all((grad is not None) == tuned for grad in grads)
        again = [model.encode(batch).states_BSD for _ in range(2)]
        assert torch.equal(*again) == (not tuned)  # a frozen encoder has no dropout
        assert (model.reader.cache is None) == tuned
    fresh = build("classifier", pretrained="somewhere", pretrained_shape=shape).eval()
    assert fresh.reader.cache is None  # only training caches states
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh(batch).hidden_BTD, model.eval()(batch).hidden_BTD)


def test_the_same_seed_makes_the_same_model() -> None:
    for name in ("classifier", "tagger"):
        first, second = (build(name, encoder="elmo").state_dict() for _ in range(2))
        assert all(torch.equal(first[key], second[key]) for key in first)
        assert first["unigram_counts"].tolist() == list(range(TOKENS))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tuned": True}, "model.tuned needs a pretrained encoder; give one with model.pretrained"),
        (
            {"pretrained": "x", "encoder": "bag"},
            "got both model.encoder = bag (trained from scratch) and model.pretrained = x; give one of the two",
        ),
        (
            {"pretrained": "x"},
            "model.pretrained is x, but model.pretrained_shape is missing; give the shape that `open_pretrained` "
            "returns, as `train` does",
        ),
        (
            {"pretrained": "x", "pretrained_shape": {"kind": "bag", "vocab_size": 5}},
            "the text has 12 different tokens, but the pretrained encoder knows 5; leave --tokenizer out, so that the "
            "text is read by the encoder's own tokeniser",
        ),
        (
            {"labels": ["a"]},
            "model.labels has 1 name, expected at least 2; `train` takes them from the data",
        ),
        (
            {"output": "adaptive"},
            "classifiers and taggers have their own output layer, so none can be chosen; leave --output out",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build("classifier", **options)
    assert str(caught.value) == message


def test_the_window_is_that_of_the_encoder() -> None:
    assert build("classifier", encoder="bert").config.context == 20
    assert build("classifier", encoder="lstm").config.context is None
    shape = shape_of("transformer", TOKENS, positions=9, first=2, width=8).model_dump()
    assert build("tagger", pretrained="x", pretrained_shape=shape).config.context == 8


def test_batches_move_whole() -> None:
    from chainrule.data.batches import to_device

    batch = texts(paired=True).batch(np.arange(2))
    moved = to_device(batch, torch.device("meta"))
    assert isinstance(moved, Batch)
    assert moved.parts_BS is not None
    assert moved.parts_BS.device.type == "meta"
