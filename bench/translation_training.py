"""Training speed of the encoder-decoder Transformer against torch.nn.Transformer with the same shapes.

256 wide, 3 + 3 layers, 4 heads, feed-forward width 1,024, 8,000 words, pre-norm, dropout 0.1, label smoothing 0.1,
AdamW, gradients clipped at 1, one matrix for both embeddings and the output. Both read the same batches of pairs of
about equal length, up to 4,000 tokens per side including padding; the share of padding is reported. The project's model
is measured in the peer's form (biases, ReLU, sinusoidal positions, attention dropout) and in its default form. In the
peer's form the peer starts with the same weights, and both must have the same loss. The peer also has dropout inside
its feed-forward layers, which the project has not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from harness import (
    Figure,
    FixedBatches,
    Project,
    alternate,
    arguments,
    begin,
    parameter_count,
    report,
    speed,
    speed_up,
    update,
)
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.data.pairs import PairBatches, PairStore
from chainrule.data.rows import Rows
from chainrule.layers.attention.positions import sinusoidal_table
from chainrule.types import Batch, Vocabulary

VOCABULARY, EOS, WIDTH, HEADS, LAYERS, INNER, CONTEXT = 8000, 0, 256, 4, 3, 1024, 256
DROPOUT, SMOOTHING, LR, BETAS, CLIP = 0.1, 0.1, 1e-3, (0.9, 0.99), 1.0
PAIRS, MAX_TOKENS = 20_000, 4000
PEERS_FORM = {"bias": True, "activation": "relu", "positions": "sinusoidal", "attention_dropout": DROPOUT}
FORMS: dict[str, dict[str, Any]] = {"peer's form": PEERS_FORM, "default form": {}}
MOST_PADDING = 10.0
"""Largest allowed share of padding, in percent of all positions."""

# The names of the layers of a block in torch. In a decoder the norms after the first are numbered one higher.
PLACES = {"project_out": "self_attn.out_proj", "widen": "linear1", "narrow": "linear2", "norm_attention": "norm1"}
LAST_PLACES = {
    "encoder": {"norm_feedforward": "norm2"},
    "decoder": {
        "norm_source": "norm2",
        "norm_feedforward": "norm3",
        "project_source": "multihead_attn.out_proj",
    },
}


# Pairs


def some_pairs(count: int) -> PairStore:
    """Return pairs of random sentences of 3 to 100 words, mostly 10 to 30, with about equal lengths on both sides."""
    rng = np.random.default_rng(1)
    source_P = np.clip(rng.lognormal(3.0, 0.5, count), 3, 100).astype(int)
    target_P = np.clip(source_P * rng.normal(1.05, 0.15, count), 3, 100).astype(int)
    stores = cast(Any, None), cast(Any, None)  # batches need only the rows
    return PairStore(*stores, *(Rows(_lines(lengths_P, rng), EOS) for lengths_P in (source_P, target_P)))


def _lines(lengths_P: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return lines of the given lengths, each ending with eos; word frequencies follow Zipf's law."""
    tokens = np.minimum(rng.zipf(1.2, int(lengths_P.sum() + len(lengths_P))), VOCABULARY - 1)
    tokens[np.cumsum(lengths_P + 1) - 1] = EOS
    return tokens


def tokens_of(batch: Batch) -> int:
    """Count the tokens of both sides without padding."""
    assert batch.source is not None
    assert batch.weights_BT is not None
    return int(batch.weights_BT.sum()) + int(batch.source.mask_BS.sum())


# The peer


class Peer(nn.Module):
    """torch.nn.Transformer with embeddings, positions and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.bias_V = nn.Parameter(torch.zeros(VOCABULARY))
        self.register_buffer("positions_CD", sinusoidal_table(CONTEXT, WIDTH))
        self.dropout = nn.Dropout(DROPOUT)
        self.transformer = nn.Transformer(
            WIDTH, HEADS, LAYERS, LAYERS, INNER, DROPOUT, batch_first=True, norm_first=True
        )

    def embed(self, tokens_BT: Tensor) -> Tensor:
        embedded_BTD = self.embedding(tokens_BT) * math.sqrt(WIDTH)
        return cast(Tensor, self.dropout(embedded_BTD + self.positions_CD[: tokens_BT.shape[1]]))

    def forward(self, batch: Batch) -> Tensor:
        """The loss in nats per token."""
        assert batch.source is not None
        assert batch.weights_BT is not None
        is_padding_BS = ~batch.source.mask_BS
        hidden_BTD = self.transformer(
            self.embed(batch.source.tokens_BS),
            self.embed(batch.inputs_BT),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(batch.inputs_BT.shape[1]),
            src_key_padding_mask=is_padding_BS,
            memory_key_padding_mask=is_padding_BS,
            tgt_is_causal=True,
        )
        targets_BT = batch.targets_BT.masked_fill(batch.weights_BT == 0, -100)
        logits_BTV = F.linear(hidden_BTD, self.embedding.weight, self.bias_V)
        smoothing = SMOOTHING if self.training else 0.0
        return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), label_smoothing=smoothing)


@torch.no_grad()
def same_weights(peer: Peer, model: nn.Module) -> None:
    """Copy the weights of the project's model in the peer's form to the peer."""
    ours, weights = model.state_dict(), {}
    for side in ("encoder", "decoder"):
        for kind in ("weight", "bias"):
            weights[f"{side}.norm.{kind}"] = ours[f"{side}.norm.{kind}"]
            for number in range(LAYERS):
                block, theirs = f"{side}.blocks.{number}", f"{side}.layers.{number}"
                for place, name in {**PLACES, **LAST_PLACES[side]}.items():
                    weights[f"{theirs}.{name}.{kind}"] = ours[f"{block}.{place}.{kind}"]
                weights[f"{theirs}.self_attn.in_proj_{kind}"] = ours[f"{block}.project_in.{kind}"]
                if side == "decoder":
                    parts = [ours[f"{block}.project_{part}.{kind}"] for part in ("query", "memory")]
                    weights[f"{theirs}.multihead_attn.in_proj_{kind}"] = torch.cat(parts)
    peer.transformer.load_state_dict(weights)
    peer.embedding.weight.copy_(ours["embedding.weight"])
    peer.bias_V.copy_(ours["output.bias_V"])


@torch.no_grad()
def check(peer: Peer, model: Any, batch: Batch) -> None:
    """Check that both have the same loss with the same weights, without dropout and smoothing."""
    same_weights(peer, model)
    assert batch.weights_BT is not None
    expected = float(peer.eval()(batch))
    log_probs_BT = model.eval().log_probs(batch.targets_BT, batch.source)
    found = -float((log_probs_BT * batch.weights_BT).sum() / batch.weights_BT.sum())
    peer.train()
    if abs(found - expected) > 1e-4:
        raise SystemExit(f"the losses differ: {found:.6f}, torch.nn.Transformer {expected:.6f}")


def peer_steps(peer: Peer, batches: Sequence[Batch], count: int) -> Callable[[], None]:
    """Return a function that takes `count` training steps with the peer."""
    optimizer = torch.optim.AdamW(peer.parameters(), lr=LR, betas=BETAS, weight_decay=0.0, fused=True)
    endless = itertools.cycle(batches)

    def steps() -> None:
        for batch in itertools.islice(endless, count):
            update(peer(batch), peer, optimizer, CLIP)

    return steps


def project(form: dict[str, Any], batches: Sequence[Batch]) -> Project:
    model = {
        "name": "seq2seq-transformer",
        "embedding": WIDTH,
        "encoder_layers": LAYERS,
        "decoder_layers": LAYERS,
        "heads": HEADS,
        "feedforward": INNER,
        "dropout": DROPOUT,
        "context": CONTEXT,
    }
    training = {"optimizer": "adamw", "lr": LR, "beta1": BETAS[0], "beta2": BETAS[1], "clip": CLIP}
    output = {"name": "softmax", "label_smoothing": SMOOTHING}
    vocabulary = Vocabulary(VOCABULARY, EOS, np.ones(VOCABULARY, np.int64))
    return Project(
        {"model": {**model, **form}, "output": output, "training": training}, vocabulary, FixedBatches(batches)
    )


def main() -> None:
    options = begin(arguments(__doc__, repeats=7))
    count, max_tokens = (1, 400) if options.quick else (4, MAX_TOKENS)
    made = PairBatches(some_pairs(PAIRS), np.arange(PAIRS), max_tokens, seed=1)
    batches = [made.batch(index)[0] for index in range(count)]
    projects = {name: project(form, batches) for name, form in FORMS.items()}
    torch.manual_seed(1)
    peer = Peer().train()
    check(peer, projects["peer's form"].model, batches[0])
    for one in projects.values():
        one.choose_threads(options.threads)
    contestants: dict[str, Callable[[], object]] = {"peer": peer_steps(peer, batches, count)}
    contestants |= {name: partial(one.steps, count) for name, one in projects.items()}
    times = alternate(contestants, options.repeats)
    tokens = sum(map(tokens_of, batches))
    figures = [
        Figure(
            name,
            speed(times, name, tokens),
            "tokens/s",
            speed(times, "peer", tokens),
            speed_up(times, name, "peer"),
            at_least=1.1,
            note=f"{parameter_count(one.model):,} parameters",
        )
        for name, one in projects.items()
    ]
    padding = 100 * made.padding
    figures.append(
        Figure(
            "padding",
            padding,
            "% of positions",
            MOST_PADDING,
            padding / MOST_PADDING,
            at_most=1.0,
            note="peer: the limit",
        )
    )
    report(figures, options, peer=f"torch.nn.Transformer, {parameter_count(peer):,} parameters", tokens=tokens)


if __name__ == "__main__":
    main()
