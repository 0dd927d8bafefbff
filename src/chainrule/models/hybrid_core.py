"""What the hybrid translator and the hybrid language model share: encoder, allocation, two branches and their mixture.

    encoder           e = BiGRU(x)        aligned_t = Σ_s A_ts v_s
    autoregressive    h_t = GRU(h_{t-1}, y_{t-1})        f_t = W [attention(h_t, e); aligned_t] + b
    parallel          n_t = U [attention(BiLSTM(aligned)_t, e); aligned_t] + c
    mixture           p(y_t) = (1-γ)·softmax(V f_t) + γ·softmax(V n_t)

The allocation A and the parallel branch are in `layers/nonautoregressive/`, the mixture in `layers/outputs/mixed.py`.
The records that pass between the parts are in `hybrid_state.py`. Lengths of targets include `eos`.
"""

from __future__ import annotations

import contextlib
from typing import Literal, NamedTuple

import torch
from pydantic import BaseModel, Field
from torch import Tensor, nn
from torch.nn import functional

from chainrule.engines.decode import weights
from chainrule.engines.decode.hybrid import CompiledHybrid, HybridWeights
from chainrule.layers.attention.source import SourceAttention
from chainrule.layers.compiled import as_array, linear_weights
from chainrule.layers.compiled_recurrence import attention_weights, make_memory, recurrence_weights
from chainrule.layers.dropout import drop
from chainrule.layers.fused.linear import Linear
from chainrule.layers.nonautoregressive.allocation import Allocation, AllocationSource
from chainrule.layers.nonautoregressive.parallel_branch import KnownTokens, ParallelBranch, choose_revealed
from chainrule.layers.outputs.mixed import NEVER, MixedOutput, log_odds, mix, pack
from chainrule.layers.recurrent.bidirectional import Bidirectional
from chainrule.layers.recurrent.stack import Recurrence
from chainrule.models.hybrid_state import (
    CompiledSources,
    DecoderMemory,
    EncodedSource,
    ParallelPrediction,
    ParallelSource,
    slice_positions,
)
from chainrule.models.options import live


class HybridOptions(BaseModel):
    """Options of the branches of a hybrid and of their mixture."""

    hidden: int = Field(512, ge=2, multiple_of=2, description="units of each layer; each encoder direction has half")
    cell: Literal["gru", "lstm"] = Field("gru", description="recurrent cell of the encoder")
    encoder_layers: int = Field(1, ge=1, le=1 << 10, description="number of encoder layers")
    nar_layers: int = Field(1, ge=1, le=1 << 10, description="number of layers of the parallel branch")
    score: Literal["dot", "general", "additive"] = Field("general", description="attention score")
    allocation_threshold: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="source words with a smaller weight at a target position are ignored there",
        json_schema_extra=live(choices=(0.0, 0.003, 0.01, 0.03, 0.1)),
    )
    mixing: Literal["fixed", "learned", "gated"] = Field(
        "fixed", description="γ is a constant (fixed), a learned constant (learned), or depends on the step (gated)"
    )
    gamma: float = Field(
        0.1,
        ge=0,
        le=1,
        description="γ, the weight of the parallel branch; its initial value if it is learned",
        json_schema_extra=live(low=0.0, high=1.0, where={"mixing": ["fixed"], "nar": ["positions"]}),
    )
    nar_weight: float = Field(1.0, ge=0, description="weight of the parallel branch's loss; 0: it is not trained")
    glancing: float = Field(0.5, ge=0, le=1, description="share of the wrong tokens that training reveals")


class Glancing(NamedTuple):
    """Glancing training: the embedding of revealed tokens, and the share of wrong tokens to reveal."""

    embedding: nn.Embedding
    share: float


class HybridCore(nn.Module):
    """Encoder, allocation, both branches and the gate between them."""

    def __init__(self, options: HybridOptions, width: int, dropout: float) -> None:
        """`width` is the width of the embeddings, and of the features for the output layer."""
        super().__init__()
        self.width, self.dropout, self.mixing, hidden = width, dropout, options.mixing, options.hidden
        self.encoder = Bidirectional(options.cell, width, hidden // 2, options.encoder_layers, dropout)
        self.allocation = Allocation(hidden, width)
        self.first_state = Linear(hidden, hidden)
        self.decoder = Recurrence("gru", width, hidden)
        self.attend = SourceAttention(options.score, hidden, hidden)
        self.join = Linear(hidden, width, bias=False)
        self.join_aligned = Linear(width, width)
        self.parallel = ParallelBranch(hidden, width, hidden, options.nar_layers, dropout, options.score)
        self._make_gate(options, width)

    def _make_gate(self, options: HybridOptions, width: int) -> None:
        initial = torch.tensor(log_odds(min(max(options.gamma, 0.01), 0.99)))
        if self.mixing != "fixed":
            self.log_odds = nn.Parameter(initial)
        if self.mixing == "gated":
            self.gate_first = Linear(width, 1, bias=False)
            self.gate_second = Linear(width, 1, bias=False)

    def mixes(self, gamma: float) -> bool:
        """Whether both branches contribute to the distribution; `gamma` is the constant γ."""
        return self.mixing != "fixed" or gamma > 0

    def compiled(self, embedding: nn.Embedding, output: weights.Linear | None) -> HybridWeights:
        """The parameters of the autoregressive branch for the engine, between an embedding and an output layer."""
        (cell,) = recurrence_weights(self.decoder, embedding).layers
        return HybridWeights(
            embedding_VD=as_array(embedding.weight),
            cell=cell,
            attention=attention_weights(self.attend),
            join=linear_weights(self.join),
            join_aligned=linear_weights(self.join_aligned),
            output=output,
            gate_D=as_array(self.gate_first.weight)[0] if self.mixing == "gated" else None,
        )

    # The source

    def encode(self, features_BSD: Tensor, mask_BS: Tensor) -> EncodedSource:
        """Encode the features of sources; the mask is False at padding."""
        with torch.autocast(features_BSD.device.type, enabled=False):
            return self._encode(features_BSD.float() if features_BSD.dtype.itemsize < 4 else features_BSD, mask_BS)

    def _encode(self, features_BSD: Tensor, mask_BS: Tensor) -> EncodedSource:
        tokens_B = mask_BS.sum(1)
        if bool(mask_BS.all()):
            states_BSE, layers = self.encoder(features_BSD)
            return EncodedSource(states_BSE, None, None, layers[-1][0], tokens_B)
        states_BSE, layers = self.encoder(features_BSD, tokens_B)
        bias_BS = states_BSE.new_zeros(mask_BS.shape).masked_fill_(~mask_BS, -torch.inf)
        return EncodedSource(states_BSE, mask_BS, bias_BS.unsqueeze(1), layers[-1][0], tokens_B)

    def read_allocation(self, encoded: EncodedSource) -> AllocationSource:
        """Keys and values of a source for the allocation."""
        return self.allocation.read(encoded.states_BSE, encoded.bias_B1S, encoded.tokens_B)

    # The autoregressive branch

    def make_memory(
        self,
        encoded: EncodedSource,
        allocation: AllocationSource,
        parallel: ParallelPrediction | None,
        engine: CompiledHybrid | None = None,
    ) -> DecoderMemory:
        """The memory of the decoder, which the engine reads if there is one; no positions are prepared yet."""
        layers, compiled = None, None
        if engine is not None:
            layers, compiled = engine.memory, CompiledSources(engine, encoded.tokens_B)
        states = make_memory(self.attend, encoded.states_BSE, encoded.mask_BS, layers)
        return DecoderMemory(states, allocation, allocation.values_BSD[:, :0], parallel, compiled=compiled)

    def first_hidden(self, encoded: EncodedSource) -> Tensor:
        """The decoder's state before the first token -> BU."""
        hidden_BU: Tensor = self.first_state(encoded.last_BE).tanh()
        return hidden_BU

    def prepare_positions(self, memory: DecoderMemory, count: int, threshold: float) -> DecoderMemory:
        """The memory with at least the first `count` positions prepared."""
        prepared = memory.joined_ALD.shape[1]
        if count <= prepared:
            return memory
        aligned_ALD = self.allocation(memory.allocation, prepared, count - prepared, threshold)
        if memory.compiled is None:
            joined_ALD = self.join_aligned(aligned_ALD)
        else:
            joined_ALD = torch.from_numpy(memory.compiled.engine.prepare(as_array(aligned_ALD)))
        if prepared:
            joined_ALD = torch.cat([memory.joined_ALD, joined_ALD], 1)
        return memory.with_positions(joined_ALD)

    def decode(
        self, memory: DecoderMemory, hidden_RU: Tensor, embedded_RTD: Tensor, joined_RTD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Read T tokens after each state -> features RTD, attention weights RTS, and the states after each, RTU."""
        # The recurrence needs full precision, and so do the states that pass between it and the attention.
        with torch.autocast(embedded_RTD.device.type, enabled=False):
            path_RTU, _ = self.decoder(embedded_RTD, [(hidden_RU,)])
            vector_RTU, weights_RTS = self.attend(path_RTU, memory)
            return self.join(self._drop(vector_RTU)) + joined_RTD, weights_RTS, path_RTU

    def decode_from_start(
        self,
        encoded: EncodedSource,
        allocation: AllocationSource,
        parallel: ParallelPrediction | None,
        embedded_BTD: Tensor,
        threshold: float,
    ) -> tuple[Tensor, Tensor, DecoderMemory]:
        """Read the first T tokens of each target -> features BTD, the aligned features BTD, and the memory."""
        aligned_BTD = self.allocation(allocation, 0, embedded_BTD.shape[1], threshold)
        memory, hidden_BU = self.make_memory(encoded, allocation, parallel), self.first_hidden(encoded)
        features_BTD, _, _ = self.decode(memory, hidden_BU, embedded_BTD, self.join_aligned(aligned_BTD))
        return features_BTD, aligned_BTD, memory

    # The parallel branch

    def parallel_features(
        self,
        encoded: EncodedSource,
        allocation: AllocationSource,
        lengths_R: Tensor,
        threshold: float,
        known: KnownTokens | None = None,
    ) -> Tensor:
        """Features of all positions of R = A·W targets of given lengths -> RTD."""
        source = self.parallel_source(encoded, allocation, lengths_R, threshold)
        whole = int(lengths_R.min()) == source.inputs_RLD.shape[1]
        features_RTD: Tensor = self.parallel(*source, None if whole else lengths_R, known)
        return features_RTD

    def parallel_source(
        self, encoded: EncodedSource, allocation: AllocationSource, lengths_R: Tensor, threshold: float
    ) -> ParallelSource:
        """What the parallel branch reads for R = A·W targets of given lengths."""
        rows = len(lengths_R) // len(encoded.states_BSE)
        aligned_RTD = self.allocation(allocation, 0, int(lengths_R.max()), threshold)
        if rows > 1:
            aligned_RTD = aligned_RTD.repeat_interleave(rows, 0)
        states = self.parallel.memory(encoded.states_BSE, encoded.mask_BS)
        return ParallelSource(self._parallel_inputs(aligned_RTD, lengths_R), states)

    def _parallel_inputs(self, aligned_BTD: Tensor, lengths_B: Tensor) -> Tensor:
        """The inputs of the parallel branch without tokens -> BTD."""
        return self.parallel.inputs(aligned_BTD, lengths_B, self.allocation.sinusoids)

    def parallel_loss(
        self,
        output: MixedOutput,
        encoded: EncodedSource,
        aligned_BTD: Tensor,
        lengths_B: Tensor,
        targets_BT: Tensor,
        real_BT: Tensor,
        glancing: Glancing,
    ) -> Tensor:
        """The loss of the parallel branch on targets of given lengths, summed; `real_BT` is False at padding."""
        states = self.parallel.memory(encoded.states_BSE, encoded.mask_BS)
        inputs_BTD = self._parallel_inputs(aligned_BTD, lengths_B)
        known, predicted_BT = None, real_BT
        if glancing.share:
            with torch.no_grad():
                features_BTD = self.parallel(inputs_BTD, states, lengths_B)
                wrong_BT = torch.zeros_like(real_BT)
                wrong_BT[real_BT] = output.scores(features_BTD[real_BT]).argmax(1) != targets_BT[real_BT]
                shown_BT = choose_revealed(wrong_BT, real_BT, glancing.share)
            known, predicted_BT = KnownTokens(glancing.embedding(targets_BT), shown_BT), real_BT & ~shown_BT
        features_MD = self.parallel(inputs_BTD, states, lengths_B, known)[predicted_BT]
        # Scaled to all positions, so that the weight of this loss does not depend on the number of revealed tokens.
        scale = int(real_BT.sum()) / max(1, len(features_MD))
        return scale * output.base.loss(features_MD, targets_BT[predicted_BT])

    # The mixture

    def predict_in_parallel(
        self,
        encoded: EncodedSource,
        allocation: AllocationSource,
        lengths_B: Tensor,
        options: HybridOptions,
        *,
        constant: bool = False,
    ) -> ParallelPrediction:
        """The prediction of the parallel branch for targets of given lengths, with its weight in the mixture.

        `constant`: no gradient flows through it, because the branch has its own loss.
        """
        with torch.no_grad() if constant else contextlib.nullcontext():
            features_BLD = self.parallel_features(encoded, allocation, lengths_B, options.allocation_threshold)
        return self._weight_prediction(features_BLD, lengths_B, options.gamma)

    def _weight_prediction(self, features_BLD: Tensor, lengths_B: Tensor, gamma: float) -> ParallelPrediction:
        """Features of targets of given lengths with their weight in the mixture.

        One position is added, which represents all positions beyond the length.
        """
        if self.mixing == "gated":
            odds_BL = self.gate_second(features_BLD).squeeze(2) + self.log_odds
        else:
            odds = self.log_odds if self.mixing == "learned" else features_BLD.new_tensor(log_odds(gamma))
            odds_BL = odds.expand(features_BLD.shape[:2])
        beyond_BL = torch.arange(features_BLD.shape[1], device=lengths_B.device) >= lengths_B[:, None]
        odds_BL = functional.pad(odds_BL.masked_fill(beyond_BL, NEVER), (0, 1), value=NEVER)
        return ParallelPrediction(functional.pad(features_BLD, (0, 0, 0, 1)), odds_BL, lengths_B, None)

    def _complete_odds(self, features_RTD: Tensor, odds_RT: Tensor) -> Tensor:
        """The log-odds of the parallel branch, with the part of the gate that depends on the other branch -> RT."""
        return odds_RT + self.gate_first(features_RTD).squeeze(2) if self.mixing == "gated" else odds_RT

    def pack_features(self, features_RTD: Tensor, memory: DecoderMemory, position: int | Tensor) -> Tensor:
        """Features of both branches for the output layer, from a position on, which may differ by row."""
        if memory.parallel is None:
            return features_RTD
        T = features_RTD.shape[1]
        second_RTD, odds_RT = (slice_positions(part, memory.rows, position, T) for part in memory.parallel[:2])
        return pack(features_RTD, second_RTD, self._complete_odds(features_RTD, odds_RT))

    def log_probs(
        self, output: MixedOutput, features_RTD: Tensor, memory: DecoderMemory, position: int | Tensor
    ) -> Tensor:
        """log p(. | prefix) of the mixture, from the features of the autoregressive branch -> RTV."""
        (R, T, _), parallel = features_RTD.shape, memory.parallel
        if parallel is None or parallel.table_ALV is None:
            packed_RTX = self.pack_features(features_RTD, memory, position)
            return output.log_probs(packed_RTX.flatten(0, 1)).view(R, T, -1)
        first_RTV = output.base.log_probs(features_RTD.flatten(0, 1)).view(R, T, -1)
        parts = (parallel.odds_AL, parallel.table_ALV)
        odds_RT, table_RTV = (slice_positions(part, memory.rows, position, T) for part in parts)
        return mix(first_RTV, table_RTV, self._complete_odds(features_RTD, odds_RT).unsqueeze(2))

    def gate_loss(
        self, output: MixedOutput, features_BTD: Tensor, memory: DecoderMemory, targets_BT: Tensor, real_BT: Tensor
    ) -> Tensor:
        """-log p of the mixture, summed, as a function of the gate alone: the branches have their own losses."""
        packed_MX = self.pack_features(features_BTD.detach(), memory, 0)[real_BT]
        first_MD, second_MD, odds_M1 = output.unpack(packed_MX)
        with torch.no_grad():
            targets_M = targets_BT[real_BT]
            first_M, second_M = (output.base.log_prob(part_MD, targets_M) for part_MD in (first_MD, second_MD))
        return -mix(first_M, second_M, odds_M1.squeeze(1)).sum()

    def _drop(self, inputs: Tensor) -> Tensor:
        return drop(inputs, self.dropout, training=self.training)
