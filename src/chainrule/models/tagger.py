"""A tagger: an encoder reads a sentence, and each word is given a tag by the states of its pieces.

    h = encoder(x),   w_t = mean of h over the pieces of word t,   s_t = W₂ gelu(W₁ w_t + b₁) + b₂

and p(y_t | x) = softmax(s_t), or with `crf` a chain in which tags know the one before (layers/crf.py). Sequence
labelling as in seed 000, section 2.1.

Legend: B batch, S tokens of a sentence, T words, D width of the states, L tags.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from chainrule.layers.crf import LinearChainCrf
from chainrule.models.classifier import LabelConfig, LabelModel
from chainrule.registry import MODELS
from chainrule.types import Batch, OutputChoice, Outputs, State, Vocabulary


class TaggerConfig(LabelConfig):
    """The shape of a tagger."""

    crf: bool = Field(False, description="tags know the one before: a chain, and its best path")


@MODELS.register("tagger", family="tagger", task="tags", objective="labels")
class Tagger(LabelModel):
    """p(tag of each word | sentence)."""

    Config = TaggerConfig
    config: TaggerConfig
    of_words: ClassVar[bool] = True

    def __init__(self, config: TaggerConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__(config, vocabulary, output)
        self.network = self.make_network()
        self.chain = LinearChainCrf(len(config.labels)) if config.crf else None

    def forward(self, batch: Batch, state: State = None) -> Outputs:
        """Read the sentences of a batch -> the scores of each word's tags, BTL."""
        assert batch.source is not None
        assert batch.parts_BS is not None
        states_BSD = self.read(batch.source)
        return Outputs(self.network(word_means(states_BSD, batch.parts_BS, batch.targets_BT.shape[1])), None)

    def nats(self, outputs: Outputs, batch: Batch) -> Tensor:
        """-log p of the tags of each sentence, B."""
        assert batch.weights_BT is not None
        scores_BTL = outputs.hidden_BTD.float()
        if self.chain is not None:
            return self.chain.negative_log_prob(scores_BTL, batch.targets_BT, batch.weights_BT > 0)
        nats_BT = F.cross_entropy(scores_BTL.transpose(1, 2), batch.targets_BT, reduction="none")
        return (nats_BT * batch.weights_BT).sum(1)

    def choose(self, outputs: Outputs, batch: Batch) -> Tensor:
        """The tag of each word, BT: the most probable one, or that of the most probable path."""
        assert batch.weights_BT is not None
        scores_BTL = outputs.hidden_BTD.float()
        return scores_BTL.argmax(2) if self.chain is None else self.chain.best(scores_BTL, batch.weights_BT > 0)


def word_means(states_BSD: Tensor, parts_BS: Tensor, words: int) -> Tensor:
    """The mean of the states of each word's pieces, BTD; zeros where a row has no such word."""
    numbers_T1 = torch.arange(words, device=parts_BS.device)[:, None]
    pieces_BTS = (parts_BS[:, None] == numbers_T1).to(states_BSD.dtype)
    # What pads a row may be anything, even what is no number.
    kept_BSD = states_BSD.masked_fill((parts_BS < 0)[:, :, None], 0.0)
    return pieces_BTS @ kept_BSD / pieces_BTS.sum(2, keepdim=True).clamp_min(1)
