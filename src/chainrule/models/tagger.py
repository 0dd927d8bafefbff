"""A tagger: an encoder reads a sentence, and each word is labelled by the states of its tokens.

    h = encoder(x)        w_t = mean of h over the tokens of word t        s_t = W₂ gelu(W₁ w_t + b₁) + b₂

The tags are independent, p(y_t | x) = softmax(s_t), or with `crf` a linear chain in which each tag depends on the tag
before it (`layers/crf.py`).
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from chainrule.layers.crf import LinearChainCrf
from chainrule.models.classifier import LabelConfig, LabelModel
from chainrule.registry import MODELS
from chainrule.types import Batch, OutputChoice, Outputs, State, Vocabulary


class TaggerConfig(LabelConfig):
    """Options of a tagger."""

    crf: bool = Field(False, description="each tag depends on the tag before it: a linear-chain CRF")


@MODELS.register("tagger", family="tagger", task="tags", objective="labels")
class Tagger(LabelModel):
    """p(tag of each word | sentence)."""

    suggestions = (
        "model.crf=true if tags depend on their neighbours",
        "model.pretrained=RUN|FOLDER|PACKAGE",
    )

    Config = TaggerConfig
    config: TaggerConfig

    def __init__(self, config: TaggerConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__(config, vocabulary, output)
        self.network = self.make_network()
        self.chain = LinearChainCrf(len(config.labels)) if config.crf else None

    def forward(self, batch: Batch, state: State = None) -> Outputs:
        """Read the sentences of a batch -> the scores of the tags of each word, BTC."""
        assert batch.source is not None
        assert batch.parts_BS is not None
        states_BSD = self.reader(batch.source)
        return Outputs(self.network(word_means(states_BSD, batch.parts_BS, batch.targets_BT.shape[1])), None)

    def negative_log_probs(self, outputs: Outputs, batch: Batch) -> Tensor:
        """-log p of the tags of each sentence, B."""
        assert batch.weights_BT is not None
        scores_BTC = outputs.hidden_BTD.float()
        if self.chain is not None:
            return self.chain.negative_log_prob(scores_BTC, batch.targets_BT, batch.weights_BT > 0)
        nats_BT = F.cross_entropy(scores_BTC.transpose(1, 2), batch.targets_BT, reduction="none")
        return (nats_BT * batch.weights_BT).sum(1)

    def probabilities(self, outputs: Outputs, batch: Batch) -> Tensor:
        """p of each tag of each word given the sentence, BTC; undefined where a row has no word."""
        assert batch.weights_BT is not None
        scores_BTC = outputs.hidden_BTD.float()
        return scores_BTC.softmax(2) if self.chain is None else self.chain.marginals(scores_BTC, batch.weights_BT > 0)

    def predict(self, outputs: Outputs, batch: Batch) -> Tensor:
        """The most probable tag of each word, or the most probable sequence of tags with `crf`, BT."""
        assert batch.weights_BT is not None
        scores_BTC = outputs.hidden_BTD.float()
        return scores_BTC.argmax(2) if self.chain is None else self.chain.best(scores_BTC, batch.weights_BT > 0)


def word_means(states_BSD: Tensor, parts_BS: Tensor, words: int) -> Tensor:
    """The mean of the states of the tokens of each word, BTD; zeros for words that a row does not have."""
    inside_BS = (parts_BS >= 0) & (parts_BS < words)
    word_BS = parts_BS.masked_fill(~inside_BS, 0).long()
    # The states of padding may be anything, even NaN.
    kept_BSD = states_BSD.masked_fill(~inside_BS[:, :, None], 0.0)
    zeros_BTD = states_BSD.new_zeros(len(parts_BS), words, states_BSD.shape[2])
    sums_BTD = zeros_BTD.scatter_add(1, word_BS[:, :, None].expand_as(kept_BSD), kept_BSD)
    tokens_BT = zeros_BTD[:, :, 0].scatter_add(1, word_BS, inside_BS.to(states_BSD.dtype))
    return sums_BTD / tokens_BT.clamp_min(1)[:, :, None]
