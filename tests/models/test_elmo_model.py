"""elmo: each direction against a naive recurrence, what they share, and runs of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import chainrule as cr
from builders import pairs_text, small_config, small_model, some_tokens, some_vocabulary
from chainrule.checkpoint.build import build_model
from chainrule.errors import ConfigError
from chainrule.layers.encoders.char_convolution import spell
from chainrule.layers.encoders.elmo import Direction
from chainrule.objectives.likelihood import output_loss
from chainrule.types import Batch, Source, Vocabulary

V = 13


def elmo(**options: Any) -> Any:
    return small_model("elmo", layers=2, **options).double()


def recur(direction: Direction, inputs_TE: Tensor) -> Tensor:
    """The last layer's features of one row, by the equations of the LSTM, step by step."""
    for depth, stack in enumerate(direction.stack):
        layer: Any = stack.layers[0]  # type: ignore[union-attr, index]
        h = c = inputs_TE.new_zeros(layer.weight_hidden_GH.shape[1])
        outputs = []
        for x in inputs_TE:
            g, i, f, o = (layer.weight_input_GD @ x + layer.weight_hidden_GH @ h + layer.bias_G).chunk(4)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h if direction.narrow is None else direction.narrow[depth](h))
        inputs_TE = torch.stack(outputs) + (inputs_TE if depth else 0)
    return inputs_TE


def predicted(model: Any, direction: Direction, read: Tensor, targets: Tensor) -> Tensor:
    """log p of each target after reading each token of a row."""
    features_TE = recur(direction, model.encoder.word_table(read))
    scores_TV = features_TE @ model.output.weight_VD.T + model.output.bias_V
    return scores_TV.log_softmax(1)[torch.arange(len(targets)), targets]


# The directions


@pytest.mark.parametrize("options", [{}, {"hidden": 5}, {"tied": False}], ids=str)
@torch.no_grad()
def test_both_directions_step_by_step(options: dict[str, Any]) -> None:
    model, tokens_BT = elmo(**options), some_tokens(2, 6)
    right_BT, left_BT = model.log_probs(tokens_BT), model.backward_lm_log_probs(tokens_BT)
    for row, tokens_T in enumerate(tokens_BT):
        end = torch.zeros(1, dtype=torch.int64)
        expected = predicted(model, model.encoder.rightward, torch.cat([end, tokens_T[:-1]]), tokens_T)
        torch.testing.assert_close(right_BT[row], expected)
        back = tokens_T.flip(0)
        expected = predicted(model, model.encoder.leftward, torch.cat([end, back[:-1]]), back)
        torch.testing.assert_close(left_BT[row], expected.flip(0))


def test_backward_is_forward_on_the_reversed_text() -> None:
    model, tokens_BT = elmo(), some_tokens(3, 9)
    from_right = model.backward_lm_log_probs(tokens_BT)
    model.encoder.rightward.load_state_dict(model.encoder.leftward.state_dict())
    torch.testing.assert_close(model.log_probs(tokens_BT.flip(1)).flip(1), from_right)


@torch.no_grad()
def test_the_backward_loss_is_that_of_the_reversed_row() -> None:
    """Also with padded rows, and with inputs sampled from the model."""
    model, text_BT = elmo(), some_tokens(3, 8)
    weights_BT = (torch.arange(7) < torch.tensor([[7], [4], [1]])).double()
    batch = Batch(text_BT[:, :-1], text_BT[:, 1:], weights_BT)
    expected = 0.0
    for row, length in enumerate((7, 4, 1)):
        back = text_BT[row, : length + 1].flip(0)
        expected -= float(predicted(model, model.encoder.leftward, back[:-1], back[1:]).sum())
    assert float(model.backward_lm_loss(batch)) == pytest.approx(expected)
    written_BT = batch.inputs_BT.clone()
    written_BT[:, 1:] = (written_BT[:, 1:] + 1) % V
    assert float(model.backward_lm_loss(batch._replace(inputs_BT=written_BT))) == pytest.approx(expected)
    whole = sum(
        float(predicted(model, model.encoder.leftward, row.flip(0)[:-1], row.flip(0)[1:]).sum()) for row in text_BT
    )
    assert float(model.backward_lm_loss(batch._replace(weights_BT=None))) == pytest.approx(-whole)


def test_training_lowers_the_sum_of_both_losses() -> None:
    model, text_BT = elmo(), some_tokens(2, 6)
    batch = Batch(text_BT[:, :-1], text_BT[:, 1:])
    alone = output_loss(model, model(batch), batch)
    assert model(batch).extra is None
    model.train()
    both = output_loss(model, model(batch), batch)
    assert both.count == alone.count == 10
    torch.testing.assert_close(both.total, alone.total + model.backward_lm_loss(batch))
    with torch.no_grad():
        assert model(batch).extra is None  # computed in training only


def test_the_directions_share_embedding_and_output_and_nothing_else() -> None:
    model, text_BT = elmo().train(), some_tokens(2, 6)
    batch = Batch(text_BT[:, :-1], text_BT[:, 1:])
    reached = {}
    for name, loss in (
        ("right", model.output.loss(model(batch).hidden_BTD.flatten(0, 1), batch.targets_BT.flatten())),
        ("left", model.backward_lm_loss(batch)),
    ):
        model.zero_grad()
        loss.backward()
        reached[name] = {key for key, parameter in model.named_parameters() if parameter.grad is not None}
    assert reached["right"] & reached["left"] == {"encoder.word_table.weight", "output.bias_V"}
    assert model.output.weight_VD is model.encoder.word_table.weight
    assert all(key.startswith("encoder.leftward.") for key in reached["left"] - reached["right"])
    assert reached["right"] | reached["left"] == {key for key, _ in model.named_parameters()}


def test_only_the_forward_state_is_carried() -> None:
    model, text_BT = elmo().train(), some_tokens(2, 11)
    inputs_BT, targets_BT = text_BT[:, :-1], text_BT[:, 1:]
    whole = model(Batch(inputs_BT, targets_BT), model.start(2))
    first = model(Batch(inputs_BT[:, :4], targets_BT[:, :4]), model.start(2))
    second = model(Batch(inputs_BT[:, 4:], targets_BT[:, 4:]), first.state)
    torch.testing.assert_close(torch.cat([first.hidden_BTD, second.hidden_BTD], 1), whole.hidden_BTD)
    torch.testing.assert_close(second.extra, model.backward_lm_loss(Batch(inputs_BT[:, 4:], targets_BT[:, 4:])))


# Words in context


def test_encode_is_the_mean_of_the_layers_after_eos() -> None:
    model, tokens_BS = elmo(), some_tokens(3, 5)
    mask_BS = torch.arange(5) < torch.tensor([[5], [3], [1]])
    vectors_BSP, layers = model.encode_text(Source(tokens_BS, mask_BS)), model.layers(tokens_BS, mask_BS)
    torch.testing.assert_close(vectors_BSP, sum(layers) / 3)
    for row, length in enumerate((5, 3, 1)):
        read = torch.cat([torch.zeros(1, dtype=torch.int64), tokens_BS[row, :length]])
        embedded = model.encoder.word_table(read)
        right = recur(model.encoder.rightward, embedded)[1:]
        left = recur(model.encoder.leftward, embedded.flip(0)).flip(0)[1:]
        torch.testing.assert_close(layers[-1][row, :length], torch.cat([right, left], 1))
        torch.testing.assert_close(layers[0][row, :length], torch.cat([embedded, embedded], 1)[1:])


# Spellings


def test_words_are_read_by_their_spelling() -> None:
    options = {"characters": True, "kernels": [1, 2], "filters": 3, "spelling": 7}
    model = elmo(**options)
    assert model.encoder.word_table.spellings_VL.tolist() == [spell(word, 7) for word in some_vocabulary().pieces or ()]
    assert "embedding.weight" not in model.state_dict()
    assert model.output.weight_VD.shape == (V, 8)
    tokens_BT = some_tokens(2, 4)
    before = model.log_probs(tokens_BT)
    model.encoder.word_table.spellings_VL[int(tokens_BT[0, 0])] = torch.tensor(spell("zebra", 7))
    assert not torch.allclose(model.log_probs(tokens_BT)[0, 1:], before[0, 1:])
    torch.testing.assert_close(model.log_probs(tokens_BT)[0, 0], before[0, 0])


def test_a_model_without_spellings_is_not_trained() -> None:
    vocabulary = Vocabulary(V, 0, np.ones(V, np.int64))
    model = build_model(small_config("elmo", characters=True), vocabulary).train()
    with pytest.raises(ConfigError) as caught:
        model(Batch(some_tokens(1, 3), some_tokens(1, 3)))
    assert str(caught.value) == (
        "model.characters reads words by their spelling, but the vocabulary has no spellings; set Vocabulary.pieces, "
        "as `train` does"
    )


# Runs


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "pairs.txt"
    path.write_text("".join(" ".join(line) + "\n" for line in pairs_text(400).splitlines()))
    return path


@pytest.mark.parametrize("characters", [False, True])
def test_both_directions_learn(characters: bool, text: Path, tmp_path: Path) -> None:
    shape = {"embedding": 16, "hidden": 16, "layers": 2, "characters": characters, "kernels": [1, 2], "filters": 8}
    training = {"batch_size": 16, "length": 12, "lr": 0.02, "validations": 1}
    run = cr.train(
        text,
        out=tmp_path / "run",
        model="elmo",
        tokenizer="word",
        steps=60,
        device="cpu",
        settings={"model": shape, "training": training},
    )
    model: Any = run.model
    tokens = torch.tensor([run.tokenizer.encode(line) for line in ("a b a b a b", "g h g h g h")])
    with torch.no_grad():
        right, left = model.log_probs(tokens), model.backward_lm_log_probs(tokens)
    for known_BT in (right[:, 1:], left[:, :-1]):  # the first letter determines all others
        assert float(known_BT.mean()) > math.log(0.5)
    again = cr.load(tmp_path / "run", device="cpu")
    with torch.no_grad():
        assert torch.equal(again.model.log_probs(tokens), right)
    texts = [one.generate("a b", max_new_tokens=4, seed=1) for one in (again, run)]
    assert texts[0] == texts[1]
    assert again.evaluate(text).perplexity < 3


def test_a_stopped_training_resumes_exactly(text: Path, tmp_path: Path) -> None:
    def trained(name: str, steps: int) -> dict[str, Tensor]:
        training = {"batch_size": 4, "length": 6, "lr": 0.01, "validations": 2, "schedule": "constant", "warmup": 0.0}
        shape = {"embedding": 4, "hidden": 4, "characters": True, "dropout": 0.2}
        run = cr.train(
            text,
            out=tmp_path / name,
            model="elmo",
            tokenizer="word",
            steps=steps,
            device="cpu",
            settings={"model": shape, "training": training},
        )
        checkpoint = run.folder.read_checkpoint()
        assert checkpoint is not None
        return checkpoint.tensors

    whole = trained("whole", 6)
    trained("parts", 3)
    parts = trained("parts", 6)
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
