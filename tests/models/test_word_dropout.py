"""The option `word_dropout`: words of the vocabulary are dropped from the input of a whole batch."""

from __future__ import annotations

import pytest
import torch

from builders import small_model
from chainrule.types import Batch

TOKENS_BT = torch.arange(1, 13).repeat(2).view(2, 12)  # every word once in each row
MODELS = ["lstm", "transformer", "elmo", "hybrid-lm"]


def embedded(model: torch.nn.Module, seed: int = 0) -> torch.Tensor:
    """The embeddings that the feature layer of a language model reads -> BTD."""
    seen: list[torch.Tensor] = []
    hook = model.features.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    torch.manual_seed(seed)
    model(Batch(TOKENS_BT, TOKENS_BT))
    hook.remove()
    return seen[0]


def test_a_dropped_word_is_zero_everywhere_and_the_others_are_scaled() -> None:
    model = small_model("rnn", word_dropout=0.5).train()
    table_VD, embedded_BTD = model.embedding.weight, embedded(model)
    dropped_BT = (embedded_BTD == 0).all(2)
    assert torch.equal(dropped_BT[0], dropped_BT[1])  # the same words in all rows
    assert 0 < dropped_BT[0].sum() < 12
    torch.testing.assert_close(embedded_BTD[~dropped_BT], 2 * table_VD[TOKENS_BT[~dropped_BT]])
    assert not torch.equal(dropped_BT, (embedded(model, seed=1) == 0).all(2))  # other words in another batch


def test_the_share_of_dropped_words() -> None:
    model = small_model("rnn", word_dropout=0.2).train()
    share = torch.stack([(embedded(model, seed) == 0).all(2)[0].float().mean() for seed in range(200)]).mean()
    assert float(share) == pytest.approx(0.2, abs=0.03)


@pytest.mark.parametrize("name", MODELS)
def test_it_acts_in_training_alone(name: str) -> None:
    plain, dropping = (small_model(name, word_dropout=rate) for rate in (0.0, 0.5))
    dropping.load_state_dict(plain.state_dict())
    tokens_BT = TOKENS_BT[:, :6]  # no more than the small models read
    assert torch.equal(plain.log_probs(tokens_BT), dropping.log_probs(tokens_BT))
    features = []
    for model in (plain, dropping):
        torch.manual_seed(0)
        features.append(model.train()(Batch(tokens_BT, tokens_BT)).hidden_BTD)
    assert not torch.allclose(*features)
