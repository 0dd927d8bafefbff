"""The mixture of an autoregressive and a non-autoregressive translator, over one encoder.

    p(y_t | y_<t, x) = (1-γ)·p_AR(y_t | y_<t, x) + γ·p_NAR(y_t | x)

The autoregressive branch is a GRU with attention, which also reads the part of the source that is allotted to the
current position. The parallel branch predicts all positions in one pass, given a length, or with `nar = "ctc"` by CTC
without a length (`layers/nonautoregressive/ctc.py`). In the mixture the length is always the predicted one: the true
length would reveal where the target ends. The branches are in `hybrid_core.py`.

The training loss is the sum of the cross-entropies of both branches and of the length. As -log is convex, (1-γ) times
the first plus γ times the second is an upper bound of the loss of the mixture, for every γ. A learned γ is trained on
the exact loss of the mixture, with the branches held constant. Objectives that sample translations differentiate the
mixture itself (`policy_features`).

Gu et al., "Non-Autoregressive Neural Machine Translation", 2018. Glancing training and refinement are described in
`layers/nonautoregressive/parallel_branch.py`. Lengths include `eos` in this file, except those that `predict_lengths`
returns and `predict_parallel` takes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.engines.decode.hybrid import CompiledHybrid, HybridWeights, Results
from chainrule.errors import ConfigError
from chainrule.layers.dropout import drop
from chainrule.layers.nonautoregressive.allocation import AllocationSource, LengthPredictor
from chainrule.layers.nonautoregressive.ctc import CtcHead
from chainrule.layers.nonautoregressive.parallel_branch import KnownTokens
from chainrule.layers.outputs.mixed import MixedOutput
from chainrule.models.hybrid_compiled import (
    add_table,
    best_with_log_probs,
    best_words,
    check_compiled,
    predicts,
    read_compiled,
    second_best,
    second_words,
)
from chainrule.models.hybrid_core import Glancing, HybridCore, HybridOptions
from chainrule.models.hybrid_state import (
    DecoderMemory,
    DecoderState,
    EncodedSource,
    ParallelPrediction,
    slice_positions,
)
from chainrule.models.translator import PretrainedConfig, Translator
from chainrule.registry import MODELS
from chainrule.types import Batch, OutputChoice, Outputs, Source, Vocabulary

Seconds = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Rows M and positions M -> the second most probable token there, M, and how much less probable it is, in nats, M."""


class HybridConfig(HybridOptions, PretrainedConfig):
    """Options of a hybrid translator."""

    nar: Literal["positions", "ctc"] = Field(
        "positions", description="parallel branch: positions of a predicted length, or CTC"
    )
    upsample: int = Field(2, ge=1, description="CTC: slots per source word")
    length_range: int = Field(20, ge=1, description="largest predicted difference between source and target length")
    length_weight: float = Field(0.1, ge=0, description="weight of the loss of the length")


@MODELS.register("hybrid", family="hybrid", task="translation", counterpart="hybrid-lm")
class Hybrid(Translator):
    """An autoregressive and a parallel branch over one encoder."""

    suggestions = (
        "chainrule translate RUN --mode nar|draft for speed, after training on chainrule distill",
        "model.nar=ctc to translate in parallel without predicting a length",
        "chainrule tune RUN --valid SRC TGT to fit gamma",
    )

    Config = HybridConfig
    config: HybridConfig
    output: MixedOutput
    modes: ClassVar[tuple[str, ...]] = ("ar", "nar", "draft")

    def __init__(self, config: HybridConfig, vocabulary: Vocabulary, output: OutputChoice) -> None:
        super().__init__(config, vocabulary, output, config.embedding)
        self.output = MixedOutput(self.output)  # type: ignore[arg-type]
        self.core = HybridCore(config, config.embedding, config.dropout)
        self.slots = CtcHead(config.hidden, config.embedding, config.upsample) if config.nar == "ctc" else None
        self.length = LengthPredictor(config.hidden, config.length_range) if config.nar == "positions" else None
        _ = self.mixes  # raises ConfigError for a CTC branch in a mixture

    @property
    def mixes(self) -> bool:
        """Whether both branches contribute to the distribution."""
        both = self.core.mixes(self.config.gamma)
        if both and self.config.nar == "ctc":
            raise ConfigError(
                f"model.nar is ctc with {self.config.mixing} mixing and gamma {self.config.gamma}, but CTC gives no "
                "distribution per position to mix: set model.mixing=fixed and model.gamma=0, or model.nar=positions"
            )
        return both

    @property
    def _trains_separately(self) -> bool:
        return self.training and self.config.mixing == "fixed"

    # The source

    def encode(self, source: Source) -> EncodedSource:
        """What both branches need of a source."""
        return self.core.encode(self._drop(self.embed_source(source)), source.mask_BS)

    def begin(self, source: Source, *, stepping: bool) -> DecoderState:
        return self.begin_decoding(self.encode(source), stepping=stepping)

    def begin_decoding(self, encoded: EncodedSource, *, stepping: bool, mixed: bool = True) -> DecoderState:
        """The state before the first token of a target; `stepping`: prepared for many short calls.

        `mixed` False: the autoregressive branch predicts alone, whatever γ is.
        """
        allocation = self.core.read_allocation(encoded)
        parallel = self._predict_in_parallel(encoded, allocation) if mixed and self.mixes else None
        engine = self._engine if stepping else None
        if parallel is not None and stepping:
            parallel = add_table(parallel, self.output, engine)
        memory = self.core.make_memory(encoded, allocation, parallel, engine)
        if stepping:
            memory = self._prepare_positions(memory, encoded.states_BSE.shape[1] + 8)
        return DecoderState(memory, self.core.first_hidden(encoded), 0)

    @property
    def _engine(self) -> CompiledHybrid | None:
        """The compiled form of the autoregressive branch and the output layer; None: torch computes them."""
        return self._packed.engine(self, self.precision, self._compiled)

    def _compiled(self) -> HybridWeights:
        return self.core.compiled(self.embedding, self.output.base.compiled)

    def _prepare_positions(self, memory: DecoderMemory, count: int) -> DecoderMemory:
        return self.core.prepare_positions(memory, count, self.config.allocation_threshold)

    # The autoregressive branch

    def read(self, state: DecoderState, tokens_BT: Tensor) -> tuple[Tensor, DecoderState]:
        """Append T target tokens to each prefix -> the packed features of both branches, and the new state."""
        features_RTD, after = self._read_features(state, tokens_BT)
        return self.core.pack_features(features_RTD, after.memory, state.position), after

    def prefill(self, state: DecoderState, tokens_BT: Tensor) -> tuple[Tensor, DecoderState]:
        if predicts(state.memory):
            return self._read_compiled(state, tokens_BT, "last")
        features_RTD, after = self._read_features(state, tokens_BT)
        last_R1D, position = features_RTD[:, -1:], after.position - 1
        return self.core.log_probs(self.output, last_R1D, after.memory, position)[:, 0], after

    def extend(self, state: DecoderState, tokens_BT: Tensor) -> tuple[Tensor, DecoderState]:
        if predicts(state.memory):
            return self._read_compiled(state, tokens_BT, "all")
        features_RTD, after = self._read_features(state, tokens_BT)
        return self.core.log_probs(self.output, features_RTD, after.memory, state.position), after

    def _read_features(self, state: DecoderState, tokens_BT: Tensor) -> tuple[Tensor, DecoderState]:
        """Append T target tokens -> the autoregressive features RTD, and the new state."""
        if state.memory.compiled is not None:
            return self._read_compiled(state, tokens_BT, "features")
        features_RTD, _, after = self._read_with_weights(state, tokens_BT)
        return features_RTD, after

    def _read_compiled(self, state: DecoderState, tokens_BT: Tensor, wanted: Results) -> tuple[Tensor, DecoderState]:
        """The same by the engine, or log p after the last token or after each."""
        memory, end = self._with_room(state, tokens_BT.shape[1])
        found, path_RTU = read_compiled(memory, state.hidden_RU, state.position, tokens_BT, wanted)
        return found, DecoderState(memory, path_RTU[:, -1], end)

    def _with_room(self, state: DecoderState, count: int) -> tuple[DecoderMemory, int]:
        """The memory with the next `count` positions prepared, and the position after them."""
        memory, position, end = state.memory, state.position, state.position + count
        if end > memory.joined_ALD.shape[1]:
            memory = self._prepare_positions(memory, end if not position else 2 * end)
        return memory, end

    def attention(self, tokens_BT: Tensor, source: Source) -> Tensor:
        return self._read_with_weights(self.begin(source, stepping=False), self.shift_right(tokens_BT))[1]

    def check(self, state: DecoderState, position: int | Tensor, tokens_RT: Tensor) -> tuple[Tensor, Tensor]:
        """Read T tokens from a position on, which may differ by row.

        Returns the most probable token after each, RT, and the recurrent states after each, RTU. Tokens after the first
        one that is not the next of its row are undefined.
        """
        T, last = tokens_RT.shape[1], position if isinstance(position, int) else int(position.max())
        memory = self._prepare_positions(state.memory, last + T)
        if predicts(memory) and memory.parallel is not None:
            return check_compiled(memory, state.hidden_RU, position, tokens_RT)
        if memory.compiled is not None:
            features_RTD, path_RTU = read_compiled(memory, state.hidden_RU, position, tokens_RT, "features")
        else:
            joined_RTD = slice_positions(memory.joined_ALD, memory.rows, position, T)
            embedded_RTD = self.embedding(tokens_RT)
            features_RTD, _, path_RTU = self.core.decode(memory, state.hidden_RU, embedded_RTD, joined_RTD)
        if predicts(memory):
            return best_words(features_RTD, self.output, self._engine), path_RTU
        return self.core.log_probs(self.output, features_RTD, memory, position).argmax(2), path_RTU

    def advance(self, state: DecoderState, path_RTU: Tensor, last_R: list[int]) -> DecoderState:
        """The state after the first last_R[r] + 1 tokens that `check` read in row r."""
        rows = len(last_R)
        hidden_RU = path_RTU[:, last_R[0]] if rows == 1 else path_RTU[torch.arange(rows), last_R]
        return state._replace(hidden_RU=hidden_RU)

    def target_log_probs(self, state: DecoderState, inputs_RT: Tensor, targets_RT: Tensor) -> Tensor:
        """log p of each target after the state and the inputs up to it -> RT."""
        packed_RTX, _ = self.read(state, inputs_RT)
        return self.output.log_prob(packed_RTX.flatten(0, 1), targets_RT.flatten()).view_as(targets_RT)

    def _read_with_weights(self, state: DecoderState, tokens_BT: Tensor) -> tuple[Tensor, Tensor, DecoderState]:
        """Append T target tokens -> the autoregressive features RTD, the attention weights RTS, and the new state."""
        memory, end = self._with_room(state, tokens_BT.shape[1])
        joined_RTD = slice_positions(memory.joined_ALD, memory.rows, state.position, end - state.position)
        embedded_BTD = self._drop(self.embedding(tokens_BT))
        features_RTD, weights_RTS, path_RTU = self.core.decode(memory, state.hidden_RU, embedded_BTD, joined_RTD)
        return features_RTD, weights_RTS, DecoderState(memory, path_RTU[:, -1], end)

    # The parallel branch

    def _predict_in_parallel(
        self, encoded: EncodedSource, allocation: AllocationSource, *, constant: bool = False
    ) -> ParallelPrediction:
        """The prediction of the parallel branch at the predicted length; `constant`: without gradient."""
        with torch.no_grad():
            lengths_B = self.predict_lengths(encoded)[:, 0] + 1
        return self.core.predict_in_parallel(encoded, allocation, lengths_B, self.config, constant=constant)

    def predict_lengths(self, encoded: EncodedSource, count: int = 1) -> Tensor:
        """The most probable lengths of the target, without `eos`, best first -> BK."""
        assert self.length is not None
        scores_BC = self.length(encoded.states_BSE, encoded.mask_BS)
        return self.length.best(scores_BC, encoded.tokens_B - 1, count)

    def predict_parallel(
        self, encoded: EncodedSource, lengths_R: Tensor, known: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """log p of all tokens at all positions of rows of given lengths, up to a constant per position -> RTV.

        The R = A·W rows belong to A sources. `known` are tokens RT and a mask of the revealed ones, bool RT, which is
        False beyond a row's length. The result is undefined there.
        """
        features_RTD = self._position_features(encoded, lengths_R, known)
        return self.output.scores(features_RTD.flatten(0, 1)).view(*features_RTD.shape[:2], self.output.size)

    def predict_words(self, encoded: EncodedSource, lengths_R: Tensor) -> tuple[Tensor, Seconds]:
        """The most probable tokens at all positions of rows of given lengths, RT, and the second ones at given ones."""
        features_RTD, engine = self._position_features(encoded, lengths_R), self._engine

        def seconds(row_M: Tensor, place_M: Tensor) -> tuple[Tensor, Tensor]:
            return second_words(features_RTD[row_M, place_M], self.output, engine)

        return best_words(features_RTD, self.output, engine), seconds

    def _position_features(
        self, encoded: EncodedSource, lengths_R: Tensor, known: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """The features of the parallel branch at all positions of rows of given lengths, without `eos` -> RTD."""
        shown = None
        if known is not None:
            tokens_RT, shown_RT = (nn.functional.pad(part, (0, 1)) for part in known)
            shown = KnownTokens(self.embedding(tokens_RT), shown_RT)
        allocation, threshold = self.core.read_allocation(encoded), self.config.allocation_threshold
        return self.core.parallel_features(encoded, allocation, lengths_R + 1, threshold, shown)[:, :-1]

    def decode_ctc(self, encoded: EncodedSource) -> list[list[int]] | None:
        """The tokens of each target by CTC; None: the branch predicts by length."""
        if self.slots is None:
            return None
        (features_BQD, slots_B), engine = self._slot_features(encoded), self._engine
        return self.slots.best(features_BQD, slots_B, partial(best_with_log_probs, output=self.output, engine=engine))

    def draft_words(self, encoded: EncodedSource, state: DecoderState) -> tuple[Tensor, Seconds, Tensor]:
        """`predict_words` at the predicted length of each source, from the state if it has them, and the lengths B."""
        parallel = state.memory.parallel
        if parallel is not None and parallel.table_ALV is not None:
            table_ALV = parallel.table_ALV
            words_AL, lengths_A = table_ALV.argmax(2), parallel.lengths_A - 1
            return words_AL, lambda row_M, place_M: second_best(table_ALV[row_M, place_M]), lengths_A
        lengths_B = self.predict_lengths(encoded)[:, 0]
        return *self.predict_words(encoded, lengths_B), lengths_B

    def _slot_features(self, encoded: EncodedSource) -> tuple[Tensor, Tensor]:
        """Features of all slots BQD, and the number of slots of each source B."""
        assert self.slots is not None
        branch, slots_B = self.core.parallel, encoded.tokens_B * self.slots.count
        memory = branch.memory(encoded.states_BSE, encoded.mask_BS)
        return branch(self.slots.inputs(encoded.states_BSE), memory, slots_B), slots_B

    # Training

    def forward(self, batch: Batch, state: object = None) -> Outputs:
        """Read source and inputs -> packed features; in training also the losses that `_extra_loss` adds."""
        assert batch.source is not None
        encoded = self.encode(batch.source)
        allocation = self.core.read_allocation(encoded)
        # Each branch has its own loss, so a constant γ needs no mixture in training.
        mixed = self.mixes and not self._trains_separately
        parallel = self._predict_in_parallel(encoded, allocation, constant=self.training) if mixed else None
        embedded_BTD = self._drop(self.embedding(batch.inputs_BT))
        features_BTD, aligned_BTD, memory = self.core.decode_from_start(
            encoded, allocation, parallel, embedded_BTD, self.config.allocation_threshold
        )
        extra = self._extra_loss(batch, encoded, aligned_BTD, features_BTD, memory) if self.training else None
        return Outputs(self.core.pack_features(features_BTD, memory, 0), None, extra)

    def policy_features(self, batch: Batch) -> Tensor:
        """Features of the mixture, from which translations are sampled, with gradient through both branches."""
        assert batch.source is not None
        return self.read(self.begin(batch.source, stepping=False), batch.inputs_BT)[0]

    def _extra_loss(
        self, batch: Batch, encoded: EncodedSource, aligned_BTD: Tensor, features_BTD: Tensor, memory: DecoderMemory
    ) -> Tensor | None:
        """The losses of the parallel branch, the length and the gate, added; None: there are none."""
        targets_BT, config = batch.targets_BT, self.config
        real_BT = torch.ones_like(targets_BT, dtype=torch.bool) if batch.weights_BT is None else batch.weights_BT > 0
        lengths_B = real_BT.sum(1)
        parts = []
        if config.nar_weight:
            parts.append(config.nar_weight * self._parallel_loss(encoded, aligned_BTD, targets_BT, real_BT))
        if config.length_weight and self.length is not None:
            scores_BC = self.length(encoded.states_BSE, encoded.mask_BS)
            parts.append(config.length_weight * self.length.loss(scores_BC, encoded.tokens_B - 1, lengths_B - 1))
        if config.mixing != "fixed":
            parts.append(self.core.gate_loss(self.output, features_BTD, memory, targets_BT, real_BT))
        return torch.stack(parts).sum() if parts else None

    def _parallel_loss(
        self, encoded: EncodedSource, aligned_BTD: Tensor, targets_BT: Tensor, real_BT: Tensor
    ) -> Tensor:
        """The loss of the parallel branch: by CTC, or of its positions at the true length."""
        if self.slots is None:
            glancing = Glancing(self.embedding, self.config.glancing)
            return self.core.parallel_loss(
                self.output, encoded, aligned_BTD, real_BT.sum(1), targets_BT, real_BT, glancing
            )
        return self.slots.loss(*self._slot_features(encoded), self.output.base, targets_BT, real_BT.sum(1) - 1)

    def _drop(self, inputs: Tensor) -> Tensor:
        return drop(inputs, self.config.dropout, training=self.training)
