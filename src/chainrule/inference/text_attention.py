"""What the attention pooling of a classifier looks at: the weight of each token in the vector of its text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from chainrule.base.html import element
from chainrule.base.modes import evaluating
from chainrule.data.batches import to_device
from chainrule.errors import ConfigError
from chainrule.inference.subject import TextModel
from chainrule.types import Batch


@dataclass(frozen=True)
class TextAttention:
    """The tokens that the classifier reads and their weights, which sum to 1.

    A text ends with `<eos>`; the texts of a pair follow one another.
    """

    tokens: list[str]
    weights: list[float]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def _repr_html_(self) -> str:
        """The text for notebooks, darker where the weight is larger."""
        highest = max(self.weights)
        return " ".join(
            element("span", token, style=f"background:rgba(0,114,178,{0.8 * weight / highest:.3f})")
            for token, weight in zip(self.tokens, self.weights, strict=True)
        )


def text_attention(subject: TextModel, batch: Batch, text: str | tuple[str, str]) -> TextAttention:
    """The attention of one text or pair of texts, given as a batch of one."""
    model = subject.model
    with evaluating(model):
        weights_1S = model.attention(to_device(batch, subject.device))
    if weights_1S is None:
        raise ConfigError(
            f"{subject.name} has the pooling {model.config.pooling}, which has no attention to show; train with "
            "model.pooling=attention"
        )
    texts = [text] if isinstance(text, str) else list(text)
    weights: list[float] = weights_1S[0].double().cpu().tolist()
    assert batch.source is not None
    read = batch.source.tokens_BS.shape[1]
    parts = [0] * read if batch.parts_BS is None else batch.parts_BS[0].tolist()
    tokens = [piece for part, one in enumerate(texts) for piece in _pieces(subject, one, parts.count(part))]
    if len(weights) > read:  # the token that the encoder reads before every text
        tokens.insert(0, subject.tokenizer.piece(model.reader.encoder.shape.first))
    return TextAttention(tokens, weights)


def _pieces(subject: TextModel, text: str, count: int) -> list[str]:
    """The first `count` tokens of a text; the last of them is the end."""
    tokenizer = subject.tokenizer
    return [*tokenizer.written_pieces(text.replace("\n", " "))[: count - 1], tokenizer.piece(tokenizer.eos)]
