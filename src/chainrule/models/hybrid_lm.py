"""The hybrid as a language model: the source is the text so far, the target how it goes on.

Text is cut into blocks. What was read before a block, its first token's predecessor included, is the source, as much of
it as `context` says; the next tokens are the target, as many as `block` says. Inside a block

    p(x_t | x_<t) = (1-γ)·p_AR(x_t | x_<t) + γ·p_NAR(x_t | what was read before the block)

with the parts of `hybrid_core.py`. A target is always as long as a block, so no length is foretold and none ends it.
Scoring in parallel reads all whole blocks of a text as rows of one batch, and stepping opens one block after the other.
In training the blocks are counted from the beginning of each piece of text, with all that came before as context.

Legend: B batch, T time, V vocabulary, D width, L tokens of a block, C tokens of context, S source time, X tokens of a
stream, N blocks of all rows.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from chainrule.layers.dropout import word_mask
from chainrule.layers.outputs.mixed import MixedOutput
from chainrule.models.hybrid_core import Encoded, HybridCore, HybridOptions, Plan, Revealed, Second, Writing, at_places
from chainrule.models.language_model import LanguageModel, LanguageModelConfig, Prefix
from chainrule.registry import MODELS
from chainrule.types import Batch, OutputChoice, Outputs, Preferences, Vocabulary

TOKENS_AT_ONCE = 2**14
"""About how many tokens, source and target together, are read at once when a long text is scored."""


class HybridLmConfig(HybridOptions, LanguageModelConfig):
    """The shape of a hybrid language model."""

    block: int = Field(32, ge=1, description="tokens foretold at once: the length of a target")
    context: int = Field(128, ge=1, description="most tokens before a block that are its source")


class BlockCore(HybridCore):
    """The shared parts, made as a feature layer is."""

    window: int | None = None

    def __init__(self, config: HybridLmConfig, embedding: nn.Embedding) -> None:
        super().__init__(config, embedding.embedding_dim, config.dropout)


@MODELS.register("hybrid-lm", family="hybrid", task="lm", counterpart="hybrid")
class HybridLanguageModel(LanguageModel):
    """Blocks of text that are foretold at once and written word by word."""

    Features = BlockCore  # type: ignore[assignment]
    Config = HybridLmConfig
    prefers = Preferences(parallel=True, streams_context=True)
    config: HybridLmConfig
    features: BlockCore  # type: ignore[assignment]
    output: MixedOutput

    def __init__(self, config: HybridLmConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__(config, vocabulary, output)
        self.output = MixedOutput(self.output)  # type: ignore[arg-type]

    @property
    def feature_width(self) -> int:
        """The width of what `read` and `predictors` give, which depends on whether branches are mixed."""
        return 2 * self.output.width + 1 if self.features.mixes(self.config.gamma) else self.output.width

    # Training

    def forward(self, batch: Batch, state: Prefix | None = None) -> Outputs:
        """Read the inputs of a batch -> hidden_BTD to predict its targets from, and the state to carry on with."""
        B, T = batch.inputs_BT.shape
        before_BX = batch.inputs_BT[:, :0] if state is None or state.recent_BL is None else state.recent_BL
        blocks = -(-T // self.config.block)
        rest = (0, blocks * self.config.block - T)
        stream_BX = torch.cat([before_BX, functional.pad(batch.inputs_BT, rest, value=self.eos)], 1)
        apart = self.training and self.config.mixing == "fixed"  # a γ that is given needs no mixture to be trained
        read = _Blocks(self, stream_BX, before_BX.shape[1], blocks, mixed=not apart)
        extra = None
        if self.training:
            held_BT = torch.ones_like(batch.inputs_BT, dtype=torch.bool)
            if batch.weights_BT is not None:
                held_BT = batch.weights_BT > 0
            targets_NL, held_NL = (
                functional.pad(part_BT, rest).view(B * blocks, -1) for part_BT in (batch.targets_BT, held_BT)
            )
            extra = self._extra(read, targets_NL, held_NL)
        after = None
        if state is not None:
            after = Prefix(None, self._recent(stream_BX[:, : before_BX.shape[1] + T]), None)
        return Outputs(read.hidden_NLD.view(B, blocks * self.config.block, -1)[:, :T], after, extra)

    def _extra(self, read: _Blocks, targets_NL: Tensor, held_NL: Tensor) -> Tensor | None:
        """The loss of the parallel branch and of the gate, as a sum."""
        parts = []
        if self.config.nar_weight:
            revealed = Revealed(self.embedding, self.config.glancing)
            loss = self.features.parallel_loss(
                self.output, read.encoded, read.aligned_NLD, read.places_N, targets_NL, held_NL, revealed
            )
            parts.append(self.config.nar_weight * loss)
        if self.config.mixing != "fixed":
            parts.append(self.features.gate_loss(self.output, read.features_NLD, read.plan, targets_NL, held_NL))
        return torch.stack(parts).sum() if parts else None

    # Reading

    def start(self, batch: int) -> Prefix:
        """The empty prefix."""
        return Prefix(None, self.unigram_counts.new_empty(batch, 0), None)

    def _extend(self, state: Prefix, tokens_BT: Tensor) -> tuple[Tensor, Prefix]:
        """Read tokens after a prefix of any length -> hidden_BTD and the longer prefix, nothing pending."""
        writing, T, L, parts, done = state.features, tokens_BT.shape[1], self.config.block, [], 0
        assert state.recent_BL is not None
        if writing is not None:
            done = min(T, L - writing.place)
            hidden_BTD, writing = self._write(writing, tokens_BT[:, :done])
            parts.append(hidden_BTD)
        stream_BX = torch.cat([state.recent_BL, tokens_BT], 1)
        first, (whole, rest) = state.recent_BL.shape[1] + done, divmod(T - done, L)
        if whole:
            parts.append(self._read_blocks(stream_BX, first, whole))
        if rest:
            writing = self._opened(self._recent(stream_BX[:, : first + whole * L + 1]))
            hidden_BTD, writing = self._write(writing, tokens_BT[:, T - rest :])
            parts.append(hidden_BTD)
        if writing is not None and writing.place == L:
            writing = None
        return torch.cat(parts, 1), Prefix(writing, self._recent(stream_BX), None)

    def _recent(self, stream_BX: Tensor) -> Tensor:
        """What a block that begins with the last token of a stream has as its source -> BS."""
        return stream_BX[:, -self.config.context :]

    def _opened(self, source_BS: Tensor) -> Writing:
        """A block before its first token."""
        core = self.features
        encoded = core.encode(self._embed(source_BS), torch.ones_like(source_BS, dtype=torch.bool))
        aligned = core.align(encoded)
        second = self._second(encoded, aligned, source_BS)
        plan = core.ready(core.plan(encoded, aligned, second), self.config.block, self.config.allocation_threshold)
        return Writing(plan, core.first(encoded), 0)

    def _second(self, encoded: Encoded, aligned: Any, like_NS: Tensor) -> Second | None:
        """What the parallel branch says of whole blocks, if it takes part."""
        if not self.features.mixes(self.config.gamma):
            return None
        places_N = like_NS.new_full((len(like_NS),), self.config.block)
        return self.features.answered(encoded, aligned, places_N, self.config)

    def _write(self, writing: Writing, tokens_BT: Tensor) -> tuple[Tensor, Writing]:
        """Read tokens that still belong to a block -> features of both branches BTD, and the block after them."""
        plan, hidden_RH, place = writing
        T = tokens_BT.shape[1]
        joined_RTD = at_places(plan.joined_APD, plan.rows, place, T)
        features_RTD, _, path_RTH = self.features.write(plan, hidden_RH, self._embed(tokens_BT), joined_RTD)
        return self.features.packed(features_RTD, plan, place), Writing(plan, path_RTH[:, -1], place + T)

    def _read_blocks(self, stream_BX: Tensor, first: int, count: int) -> Tensor:
        """Features of `count` whole blocks from a place of a stream on, some of them at once -> BTD."""
        L, C = self.config.block, self.config.context
        at_once = max(1, TOKENS_AT_ONCE // (len(stream_BX) * (L + C)))
        parts = []
        for begin in range(first, first + count * L, at_once * L):
            some = min(at_once, (first + count * L - begin) // L)
            hidden_NLD = _Blocks(self, stream_BX, begin, some, mixed=True).hidden_NLD
            parts.append(hidden_NLD.view(len(stream_BX), some * L, -1))
        return torch.cat(parts, 1)

    def _embed(self, tokens_BT: Tensor) -> Tensor:
        embedded_BTD = self.embedding(tokens_BT)
        if self.training and self.config.word_dropout:
            embedded_BTD = embedded_BTD * word_mask(tokens_BT, self.vocab_size, self.config.word_dropout)
        return self._drop(embedded_BTD)


class _Blocks:
    """Whole blocks of a stream read side by side, each with its own source."""

    features_NLD: Tensor
    aligned_NLD: Tensor
    plan: Plan

    def __init__(self, model: HybridLanguageModel, stream_BX: Tensor, first: int, count: int, *, mixed: bool) -> None:
        """`count` blocks of each row from place `first` on; N = B·count, the blocks of a row adjacent."""
        core, config = model.features, model.config
        source_NS, mask_NS = sources(stream_BX, first, count, config.block, config.context)
        inputs_NL = stream_BX[:, first : first + count * config.block].reshape(-1, config.block)
        self.places_N = torch.full_like(inputs_NL[:, 0], config.block)
        self.encoded = core.encode(model._embed(source_NS), mask_NS)
        aligned = core.align(self.encoded)
        second = model._second(self.encoded, aligned, source_NS) if mixed else None
        self.features_NLD, self.aligned_NLD, self.plan = core.read(
            self.encoded, aligned, second, model._embed(inputs_NL), config.allocation_threshold
        )
        self.hidden_NLD = core.packed(self.features_NLD, self.plan, 0)


def sources(stream_BX: Tensor, first: int, count: int, block: int, context: int) -> tuple[Tensor, Tensor]:
    """The tokens up to and with the first of each of `count` blocks, at most `context` -> NS, and no padding NS."""
    last_K = first + block * torch.arange(count, device=stream_BX.device)
    begin_K = (last_K + 1 - context).clamp(min=0)
    places_S = torch.arange(int((last_K - begin_K).max()) + 1, device=stream_BX.device)
    place_KS = begin_K[:, None] + places_S
    mask_KS = place_KS <= last_K[:, None]
    source_BKS = stream_BX[:, torch.where(mask_KS, place_KS, last_K[:, None])]
    return source_BKS.flatten(0, 1), mask_KS.expand(len(stream_BX), -1, -1).flatten(0, 1)
