"""The hybrid as a language model: the source is the text before a block, the target is the block.

Text is cut into blocks of `block` tokens. The source of a block are the last `context` tokens before its targets, i.e.
up to and including its first input. Inside a block

    p(x_t | x_<t) = (1-γ)·p_AR(x_t | x_<t) + γ·p_NAR(x_t | source of the block)

with the parts of `hybrid_core.py`. All targets have the same length, so no length is predicted. Parallel scoring reads
all whole blocks of a text as rows of one batch; stepping processes one block after the other. In training, blocks start
at the beginning of each piece of text, and the pieces before it are context.

With a pretrained encoder (`pretrained`), the source of a block is read by it instead of the embedding. In suffixes
a block is a row R with M positions, W is the number of blocks of a text, and N that of its tokens.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from chainrule.engines.decode.hybrid import CompiledHybrid, HybridWeights, Results
from chainrule.layers.nonautoregressive.allocation import AllocationSource
from chainrule.layers.nonautoregressive.parallel_branch import KnownTokens
from chainrule.layers.outputs.mixed import MixedOutput
from chainrule.models.feature_layer import LanguageModelConfig
from chainrule.models.hybrid_compiled import add_table, log_probs, predicts, read_compiled
from chainrule.models.hybrid_core import Glancing, HybridCore, HybridOptions
from chainrule.models.hybrid_state import (
    BlockState,
    DecoderMemory,
    EncodedSource,
    ParallelPrediction,
    ParallelSource,
    block_sources,
    slice_positions,
)
from chainrule.models.language_model import LanguageModel, Prefix
from chainrule.models.pretrained_encoder import PretrainedFields, make_pretrained
from chainrule.registry import MODELS
from chainrule.types import Batch, OutputChoice, Outputs, Preferences, Source, Vocabulary

TOKENS_PER_PASS = 2**14
"""Approximate number of tokens, sources and targets together, that are read in one pass when a long text is scored."""


class HybridLmConfig(PretrainedFields, HybridOptions, LanguageModelConfig):
    """Options of a hybrid language model."""

    block: int = Field(32, ge=1, description="tokens of a block, which the parallel branch predicts in one pass")
    context: int = Field(
        128,
        ge=1,
        description="largest number of tokens before a block that are its source; a pretrained encoder may lower it",
    )

    # In the mixture the parallel branch sees no token of its block, so revealed ones would train it for another task.
    glancing: float = Field(0.0, ge=0, le=1, description="share of the wrong tokens that training reveals")

    @property
    def source_limit(self) -> int:
        """Largest number of source tokens, which a pretrained encoder limits to what it reads at once."""
        window = None if self.pretrained_shape is None else self.pretrained_shape.source_window
        return self.context if window is None else min(self.context, window)


class BlockCore(HybridCore):
    """The parts of a hybrid, with the constructor of a feature layer."""

    window: int | None = None

    def __init__(self, config: HybridLmConfig, embedding: nn.Embedding) -> None:
        super().__init__(config, embedding.embedding_dim, config.dropout)


@MODELS.register("hybrid-lm", family="hybrid", task="lm", counterpart="hybrid")
class HybridLanguageModel(LanguageModel):
    """Blocks of text, predicted by an autoregressive and a parallel branch."""

    suggestions = (
        "chainrule generate RUN --mode draft for speed: the same text as ar",
        "model.block=16 for longer blocks",
        "chainrule tune RUN --valid TEXT to fit gamma",
    )

    Features = BlockCore  # type: ignore[assignment]
    Config = HybridLmConfig
    prefers = Preferences(parallel=True, streams_context=True)
    modes: ClassVar[tuple[str, ...]] = ("ar", "nar", "draft")
    config: HybridLmConfig
    features: BlockCore  # type: ignore[assignment]
    output: MixedOutput

    def __init__(self, config: HybridLmConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__(config, vocabulary, output)
        self.output = MixedOutput(self.output)  # type: ignore[arg-type]
        self.pretrained = make_pretrained(
            config,
            vocabulary.size,
            config.embedding,
            side="text",
            tokenizer="tokenizer.kind",
            embedding=config.token_embedding,
        )

    @property
    def tuned_parameters(self) -> list[nn.Parameter]:
        """The parameters of the pretrained encoder."""
        return [] if self.pretrained is None else list(self.pretrained.encoder.parameters())

    @property
    def feature_width(self) -> int:
        """Width of the features that `read` and `predictors` return: packed features if the branches are mixed."""
        return 2 * self.output.width + 1 if self.features.mixes(self.config.gamma) else self.output.width

    # Training

    def forward(self, batch: Batch, state: Prefix | None = None) -> Outputs:
        """Read the inputs of a batch -> hidden_BTD that predict its targets, and the state after them."""
        B, T = batch.inputs_BT.shape
        before_BN = batch.inputs_BT[:, :0] if state is None or state.recent_BL is None else state.recent_BL
        blocks = -(-T // self.config.block)
        padding = (0, blocks * self.config.block - T)
        stream_BN = torch.cat([before_BN, functional.pad(batch.inputs_BT, padding, value=self.eos)], 1)
        separate = self.training and self.config.mixing == "fixed"  # a constant γ needs no mixture in training
        read = _BlockReading(self, stream_BN, before_BN.shape[1], blocks, mixed=not separate)
        extra = None
        if self.training:
            real_BT = torch.ones_like(batch.inputs_BT, dtype=torch.bool)
            if batch.weights_BT is not None:
                real_BT = batch.weights_BT > 0
            targets_RM, real_RM = (
                functional.pad(part_BT, padding).view(B * blocks, -1) for part_BT in (batch.targets_BT, real_BT)
            )
            extra = self._extra_loss(read, targets_RM, real_RM)
        after = None
        if state is not None:
            after = Prefix(None, self._last_context(stream_BN[:, : before_BN.shape[1] + T]), None)
        return Outputs(read.hidden_RMD.view(B, blocks * self.config.block, -1)[:, :T], after, extra)

    def _extra_loss(self, read: _BlockReading, targets_RM: Tensor, real_RM: Tensor) -> Tensor | None:
        """The losses of the parallel branch and the gate, added; None: there are none."""
        parts = []
        if self.config.nar_weight:
            glancing = Glancing(self.embedding, self.config.glancing)
            loss = self.features.parallel_loss(
                self.output, read.encoded, read.aligned_RMD, read.lengths_R, targets_RM, real_RM, glancing
            )
            parts.append(self.config.nar_weight * loss)
        if self.config.mixing != "fixed":
            parts.append(self.features.gate_loss(self.output, read.features_RMD, read.memory, targets_RM, real_RM))
        return torch.stack(parts).sum() if parts else None

    # Reading

    def start(self, batch: int) -> Prefix:
        """The empty prefix."""
        return Prefix(None, self.unigram_counts.new_empty(batch, 0), None)

    def _extend(self, state: Prefix, tokens_BT: Tensor) -> tuple[Tensor, Prefix]:
        """Read tokens after a prefix of any length -> hidden_BTD, and the new state without a pending token.

        The tokens complete the current block, fill whole blocks, and start a new one.
        """
        current, T, size, parts, done = state.features, tokens_BT.shape[1], self.config.block, [], 0
        assert state.recent_BL is not None
        if current is not None and current.position < size:
            done = min(T, size - current.position)
            hidden_BTD, current = self._read_in_block(current, tokens_BT[:, :done])
            parts.append(hidden_BTD)
        stream_BN = torch.cat([state.recent_BL, tokens_BT], 1)
        first, (whole, rest) = state.recent_BL.shape[1] + done, divmod(T - done, size)
        if whole == 1 and not rest:
            whole, rest = 0, size  # as a block that can be rewound
        if whole:
            parts.append(self._read_blocks(stream_BN, first, whole))
            current = None
        if rest:
            current = self._open_block(self._last_context(stream_BN[:, : first + whole * size + 1]))
            hidden_BTD, current = self._read_in_block(current, tokens_BT[:, T - rest :])
            parts.append(hidden_BTD)
        return torch.cat(parts, 1), Prefix(current, self._recent(stream_BN), None)

    def prefill(self, state: Prefix, tokens_BT: Tensor) -> tuple[Tensor, Prefix]:
        state, compiled = self._within_block(state, tokens_BT)
        return self._predict(state, tokens_BT, "last") if compiled else super().prefill(state, tokens_BT)

    def extend(self, state: Prefix, tokens_BT: Tensor) -> tuple[Tensor, Prefix]:
        state, compiled = self._within_block(state, tokens_BT)
        return self._predict(state, tokens_BT, "all") if compiled else super().extend(state, tokens_BT)

    def _within_block(self, state: Prefix, tokens_BT: Tensor) -> tuple[Prefix, bool]:
        """The state with an open block if it has room for all tokens, and whether the engine predicts after them."""
        current, recent_BL, pending_B = state
        assert recent_BL is not None
        read = 0 if current is None else current.position % self.config.block
        if pending_B is not None or read + tokens_BT.shape[1] > self.config.block:
            return state, False
        if not read and (current is None or current.position):
            current = self._open_block(self._last_context(torch.cat([recent_BL, tokens_BT[:, :1]], 1)))
        return state._replace(features=current), predicts(current.memory)

    def _predict(self, state: Prefix, tokens_BT: Tensor, wanted: Results) -> tuple[Tensor, Prefix]:
        """log p by the engine after tokens of the open block, and the state after them."""
        current: BlockState = state.features
        assert state.recent_BL is not None
        found, path_RTU = read_compiled(current.memory, current.path_RLU[:, -1], current.position, tokens_BT, wanted)
        current = current._replace(path_RLU=torch.cat([current.path_RLU, path_RTU], 1))
        return found, Prefix(current, self._recent(torch.cat([state.recent_BL, tokens_BT], 1)), None)

    def _recent(self, stream_BN: Tensor) -> Tensor:
        """The context of the next block, also if tokens of the current one are removed again."""
        return stream_BN[:, -(self.config.source_limit + self.config.block) :]

    @property
    def _engine(self) -> CompiledHybrid | None:
        """The compiled form of the autoregressive branch and the output layer; None: torch computes them."""
        return self._packed.engine(self, self.precision, self._compiled_branch)

    def _compiled_branch(self) -> HybridWeights:
        return self.features.compiled(self.embedding, self.output.base.compiled)

    def rewindable(self, state: Prefix) -> int | None:
        """The number of tokens until the end of the current block."""
        read = 0 if state.features is None else state.features.position % self.config.block
        return self.config.block - read - (state.pending_B is not None)

    def rewind(self, state: Prefix, count: int) -> Prefix:
        """The prefix without its last `count` tokens, all of them in the current block."""
        current: BlockState = state.features
        assert state.recent_BL is not None
        left, kept_BL = current.position - count, state.recent_BL[:, : state.recent_BL.shape[1] - count]
        if not left:  # the source of the block includes its first input, which is removed too
            return Prefix(None, kept_BL, None)
        return Prefix(current._replace(path_RLU=current.path_RLU[:, : left + 1]), kept_BL, None)

    def _last_context(self, stream_BN: Tensor) -> Tensor:
        """The source of a block whose first input is the last token of a stream -> BS."""
        return stream_BN[:, -self.config.source_limit :]

    def _encode(self, source_BS: Tensor) -> EncodedSource:
        """A source without padding."""
        return self._encode_source(Source(source_BS, torch.ones_like(source_BS, dtype=torch.bool)))

    def _encode_source(self, source: Source) -> EncodedSource:
        """Encode sources by their embeddings, or by the features of the pretrained encoder.

        A source ends before the first target of its block, so an encoder that sees all of it sees no later token.
        """
        if self.pretrained is None:
            return self.features.encode(self._embed(source.tokens_BS), source.mask_BS)
        return self.features.encode(self._drop(self.pretrained(source)), source.mask_BS)

    def _open_block(self, source_BS: Tensor) -> BlockState:
        """The state before the first token of a block."""
        core, encoded = self.features, self._encode(source_BS)
        allocation = core.read_allocation(encoded)
        parallel = self._predict_in_parallel(encoded, allocation, source_BS)
        if (engine := self._engine) is not None and parallel is not None:
            parallel = add_table(parallel, self.output, engine)
        memory = core.make_memory(encoded, allocation, parallel, engine)
        memory = core.prepare_positions(memory, self.config.block, self.config.allocation_threshold)
        return BlockState(memory, encoded, core.first_hidden(encoded).unsqueeze(1))

    def _predict_in_parallel(
        self, encoded: EncodedSource, allocation: AllocationSource, source_RS: Tensor
    ) -> ParallelPrediction | None:
        """The prediction of the parallel branch for whole blocks; None: the branches are not mixed.

        In training no gradient flows through it: the branch has its own loss.
        """
        if not self.features.mixes(self.config.gamma):
            return None
        lengths_R = source_RS.new_full((len(source_RS),), self.config.block)
        constant = self.training
        return self.features.predict_in_parallel(encoded, allocation, lengths_R, self.config, constant=constant)

    def _read_in_block(self, state: BlockState, tokens_BT: Tensor) -> tuple[Tensor, BlockState]:
        """Read tokens of the current block -> packed features of both branches BTX, and the state after them."""
        memory, position, T = state.memory, state.position, tokens_BT.shape[1]
        hidden_RU = state.path_RLU[:, -1]
        if memory.compiled is not None:
            features_RTD, path_RTU = read_compiled(memory, hidden_RU, position, tokens_BT, "features")
        else:
            joined_RTD = slice_positions(memory.joined_ALD, memory.rows, position, T)
            features_RTD, _, path_RTU = self.features.decode(memory, hidden_RU, self._embed(tokens_BT), joined_RTD)
        packed_RTX = self.features.pack_features(features_RTD, memory, position)
        return packed_RTX, state._replace(path_RLU=torch.cat([state.path_RLU, path_RTU], 1))

    def _read_blocks(self, stream_BN: Tensor, first: int, count: int) -> Tensor:
        """Packed features of `count` whole blocks from position `first` of a stream on, in bounded memory -> BTX."""
        size = self.config.block
        chunk = max(1, TOKENS_PER_PASS // (len(stream_BN) * (size + self.config.source_limit)))
        parts = []
        for begin in range(first, first + count * size, chunk * size):
            blocks = min(chunk, (first + count * size - begin) // size)
            hidden_RMD = _BlockReading(self, stream_BN, begin, blocks, mixed=True).hidden_RMD
            parts.append(hidden_RMD.view(len(stream_BN), blocks * size, -1))
        return torch.cat(parts, 1)

    # Several tokens in one parallel pass

    def predict_block(self, tokens_BT: Tensor) -> Tensor:
        """log p of each token of a block after given texts, by the parallel branch -> BTV."""
        source = self._parallel_source(self._encode(self._last_context(tokens_BT)))
        return log_probs(self.features.parallel(*source, None), self.output, self._engine)

    def predict_rest(self, state: Prefix, token_B: Tensor) -> tuple[Tensor, Prefix]:
        """log p of the other tokens of the block by the parallel branch, which sees those read and `token_B` -> BTV."""
        assert state.recent_BL is not None
        current: BlockState | None = state.features
        inputs_BL = torch.cat([state.recent_BL, token_B[:, None]], 1)
        if current is None or current.position == self.config.block:
            current = self._open_block(self._last_context(inputs_BL))
        if not current.position and current.memory.parallel is not None:
            prediction = current.memory.parallel  # of the mixture: nothing of the block is known yet
            features_BTD = slice_positions(prediction.features_ALD, current.memory.rows, 0, self.config.block)
            return log_probs(features_BTD, self.output, self._engine), state._replace(features=current)
        source = current.parallel or self._parallel_source(current.encoded)
        known = self._known_tokens(inputs_BL[:, inputs_BL.shape[1] - current.position :])
        features_BTD = self.features.parallel(*source, None, known)[:, current.position :]
        state = state._replace(features=current._replace(parallel=source))
        return log_probs(features_BTD, self.output, self._engine), state

    def _parallel_source(self, encoded: EncodedSource) -> ParallelSource:
        """What the parallel branch reads for a whole block."""
        lengths_B = encoded.tokens_B.new_full((len(encoded.states_BSE),), self.config.block)
        allocation = self.features.read_allocation(encoded)
        return self.features.parallel_source(encoded, allocation, lengths_B, self.config.allocation_threshold)

    def _known_tokens(self, known_BT: Tensor) -> KnownTokens:
        """The first T tokens of a block as known to the parallel branch."""
        T, size = known_BT.shape[1], self.config.block
        shown_BL = (torch.arange(size, device=known_BT.device) < T).expand(len(known_BT), -1)
        return KnownTokens(self.embedding(functional.pad(known_BT, (0, size - T))), shown_BL)


class _BlockReading:
    """Whole blocks of a stream, read as rows of one batch, each with its own source."""

    features_RMD: Tensor  # of the autoregressive branch
    aligned_RMD: Tensor
    memory: DecoderMemory

    def __init__(self, model: HybridLanguageModel, stream_BN: Tensor, first: int, count: int, *, mixed: bool) -> None:
        """Read `count` blocks of each text from position `first` on; the R = B·W blocks are grouped by text."""
        core, config = model.features, model.config
        source_RS, mask_RS = block_sources(stream_BN, first, count, config.block, config.source_limit)
        inputs_RM = stream_BN[:, first : first + count * config.block].reshape(-1, config.block)
        self.lengths_R = torch.full_like(inputs_RM[:, 0], config.block)
        self.encoded = model._encode_source(Source(source_RS, mask_RS))
        allocation = core.read_allocation(self.encoded)
        parallel = model._predict_in_parallel(self.encoded, allocation, source_RS) if mixed else None
        self.features_RMD, self.aligned_RMD, self.memory = core.decode_from_start(
            self.encoded, allocation, parallel, model._embed(inputs_RM), config.allocation_threshold
        )
        self.hidden_RMD = core.pack_features(self.features_RMD, self.memory, 0)
