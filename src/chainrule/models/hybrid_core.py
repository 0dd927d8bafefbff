"""What the hybrid translator and the hybrid language model share: encoder, allocation, and the two branches.

    encoded = BiGRU(features)                        aligned_t = Σ_s A_ts v_s        (layers/allocation.py)
    autoregressive    h_t = GRU(h_{t-1}, y_{t-1}),   a_t = attention(h_t),   f_t = W [a_t; aligned_t] + b
    in parallel       n_t = U [attention(BiLSTM(aligned)_t); aligned_t] + c          (layers/parallel_branch.py)
    p(y_t) = (1-γ)·softmax(V f_t) + γ·softmax(V n_t)                                 (layers/mixed_output.py)

Legend: B batch, A sources, R rows of the decoder, W rows of each source, T target places, P places made ready, S source
time, D width of an embedding, H hidden width, E width of the encoder's states, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from pydantic import BaseModel, Field, JsonValue
from torch import Tensor, nn
from torch.nn import functional

from chainrule.layers.attention.source import SourceAttention, SourceStates
from chainrule.layers.attention.source_memory import regroup
from chainrule.layers.dropout import drop
from chainrule.layers.nonautoregressive.allocation import Allocation, AllocationSource
from chainrule.layers.nonautoregressive.parallel_branch import KnownTokens, ParallelBranch, choose_revealed
from chainrule.layers.outputs.mixed import NEVER, MixedOutput, log_odds, mix, pack
from chainrule.layers.recurrent.stack import Bidirectional, Recurrence

LIVE: dict[str, JsonValue] = {"live": True}  # may be set anew for a trained model

TABLE_ENTRIES = 2**24
"""Up to so many entries, log p of the parallel branch is kept for all places and tokens: a step only looks it up."""


class HybridOptions(BaseModel):
    """The shape of a hybrid, and how its branches are mixed."""

    hidden: int = Field(512, ge=2, multiple_of=2, description="width of each layer's state, half of it a direction's")
    cell: Literal["gru", "lstm"] = Field("gru", description="of the encoder")
    encoder_layers: int = Field(1, ge=1)
    nar_layers: int = Field(1, ge=1, description="layers of the branch that predicts all places at once")
    score: Literal["dot", "general", "additive"] = Field("general", description="how states are compared")
    allocation_threshold: float = Field(
        0.01, ge=0, lt=1, description="source words of less weight take no part in a place", json_schema_extra=LIVE
    )
    mixing: Literal["fixed", "learned", "gated"] = Field("fixed", description="whether γ is given, learned, or by step")
    gamma: float = Field(
        0.1,
        ge=0,
        le=1,
        description="γ, share of the parallel branch; where it is learned: at first",
        json_schema_extra=LIVE,
    )
    nar_weight: float = Field(1.0, ge=0, description="weight of the parallel branch's loss; 0: it is not trained")
    glancing: float = Field(0.5, ge=0, le=1, description="share of the wrong places whose tokens training reveals")


class Encoded(NamedTuple):
    """A source as the encoder has it."""

    states_BSE: Tensor
    mask_BS: Tensor | None  # None: nothing is padding
    bias_B1S: Tensor | None  # -inf at padding
    last_BE: Tensor
    tokens_B: Tensor  # how many each source has


class Second(NamedTuple):
    """What the parallel branch says of the first P places of each source."""

    features_APD: Tensor
    odds_AP: Tensor  # log γ/(1-γ), but for what a gate adds by step; NEVER beyond a row's places
    places_A: Tensor  # how many each source has
    table_APV: Tensor | None  # log p of all tokens, where that is no large table


class Plan(SourceStates):
    """All that is made of A sources for W rows each: what the decoder attends to, and what it is told of each place."""

    __slots__ = ("aligned", "joined_APD", "second")

    def __init__(
        self, memory: SourceStates, aligned: AllocationSource, joined_APD: Tensor, second: Second | None, rows: int = 1
    ) -> None:
        super().__init__(memory.keys_ASX, memory.values_ASU, memory.bias_A1S, rows)
        self.aligned, self.joined_APD, self.second = aligned, joined_APD, second

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Plan:
        """What `change` does to rows is done to the rows' sources; those that no row needs any more are left out."""
        source_A, rows = regroup(change, len(self.keys_ASX), self.rows, self.keys_ASX.device)
        if source_A is None:
            return Plan(self, self.aligned, self.joined_APD, self.second, rows)

        def chosen(part: Tensor) -> Tensor:
            return part.index_select(0, source_A)

        bias_A1S = None if self.bias_A1S is None else chosen(self.bias_A1S)
        memory = SourceStates(chosen(self.keys_ASX), chosen(self.values_ASU), bias_A1S)
        aligned = AllocationSource(chosen(self.aligned.keys_BSD), chosen(self.aligned.values_BSD), bias_A1S)
        second = None
        if self.second is not None:
            second = Second(*(None if part is None else chosen(part) for part in self.second))  # type: ignore[arg-type]
        return Plan(memory, aligned, chosen(self.joined_APD), second, rows)


class Writing(NamedTuple):
    """What the decoder remembers: its source with all that was made of it, the GRU's state, and the place to write."""

    memory: Plan
    hidden_RH: Tensor
    place: int


class Revealed(NamedTuple):
    """How tokens are revealed in training: their vectors, and the share of the wrong places at which they are."""

    embedding: nn.Embedding
    share: float


class HybridCore(nn.Module):
    """Encoder, allocation, both branches and the gate between them."""

    def __init__(self, options: HybridOptions, width: int, dropout: float) -> None:
        """`width` is that of the embeddings, and of the features that the output layer gets."""
        super().__init__()
        self.width, self.dropout, self.mixing, hidden = width, dropout, options.mixing, options.hidden
        self.encoder = Bidirectional(options.cell, width, hidden // 2, options.encoder_layers, dropout)
        self.allocation = Allocation(hidden, width)
        self.first_state = nn.Linear(hidden, hidden)
        self.decoder = Recurrence("gru", width, hidden)
        self.attend = SourceAttention(options.score, hidden, hidden)
        self.join = nn.Linear(hidden, width, bias=False)
        self.join_aligned = nn.Linear(width, width)
        self.parallel = ParallelBranch(hidden, width, hidden, options.nar_layers, dropout, options.score)
        self._gate(options, width)

    def _gate(self, options: HybridOptions, width: int) -> None:
        first = torch.tensor(log_odds(min(max(options.gamma, 0.01), 0.99)))
        if self.mixing != "fixed":
            self.log_odds = nn.Parameter(first)
        if self.mixing == "gated":
            self.gate_first = nn.Linear(width, 1, bias=False)
            self.gate_second = nn.Linear(width, 1, bias=False)

    def mixes(self, gamma: float) -> bool:
        """Whether both branches make the distribution, for a γ that is given."""
        return self.mixing != "fixed" or gamma > 0

    # The source

    def encode(self, features_BSD: Tensor, mask_BS: Tensor) -> Encoded:
        """Features of sources and what of them is no padding -> what both branches begin with."""
        with torch.autocast(features_BSD.device.type, enabled=False):
            return self._encode(features_BSD.float() if features_BSD.dtype.itemsize < 4 else features_BSD, mask_BS)

    def _encode(self, features_BSD: Tensor, mask_BS: Tensor) -> Encoded:
        tokens_B = mask_BS.sum(1)
        if bool(mask_BS.all()):
            states_BSE, layers = self.encoder(features_BSD)
            return Encoded(states_BSE, None, None, layers[-1][0], tokens_B)
        states_BSE, layers = self.encoder(features_BSD, tokens_B)
        bias_BS = states_BSE.new_zeros(mask_BS.shape).masked_fill_(~mask_BS, -torch.inf)
        return Encoded(states_BSE, mask_BS, bias_BS.unsqueeze(1), layers[-1][0], tokens_B)

    def align(self, encoded: Encoded) -> AllocationSource:
        """What the allocation needs of a source."""
        return self.allocation.read(encoded.states_BSE, encoded.bias_B1S)

    # The autoregressive branch

    def plan(self, encoded: Encoded, aligned: AllocationSource, second: Second | None) -> Plan:
        """A source as the decoder needs it; no place is made ready yet."""
        memory = self.attend.make_memory(encoded.states_BSE, encoded.mask_BS)
        return Plan(memory, aligned, aligned.values_BSD[:, :0], second)

    def first(self, encoded: Encoded) -> Tensor:
        """The decoder's state before the first token -> BH."""
        first_BH: Tensor = self.first_state(encoded.last_BE).tanh()
        return first_BH

    def ready(self, plan: Plan, places: int, threshold: float) -> Plan:
        """The plan with at least so many places made ready."""
        have = plan.joined_APD.shape[1]
        if places <= have:
            return plan
        joined_ATD = self.join_aligned(self.allocation(plan.aligned, have, places - have, threshold))
        joined_APD = torch.cat([plan.joined_APD, joined_ATD], 1) if have else joined_ATD
        return Plan(plan, plan.aligned, joined_APD, plan.second, plan.rows)

    def write(
        self, plan: Plan, hidden_RH: Tensor, embedded_RTD: Tensor, joined_RTD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Read T tokens after each state -> features RTD, where each step looked RTS, the states after each RTH."""
        # The recurrence needs the whole precision, and so do the states that pass between it and the attention.
        with torch.autocast(embedded_RTD.device.type, enabled=False):
            path_RTH, _ = self.decoder(embedded_RTD, [(hidden_RH,)])
            vector_RTH, weights_RTS = self.attend(path_RTH, plan)
            return self.join(self._drop(vector_RTH)) + joined_RTD, weights_RTS, path_RTH

    def read(
        self, encoded: Encoded, aligned: AllocationSource, second: Second | None, embedded_BTD: Tensor, threshold: float
    ) -> tuple[Tensor, Tensor, Plan]:
        """Read T tokens after each source -> features BTD, what is allotted to the T places BTD, and the plan."""
        aligned_BTD = self.allocation(aligned, 0, embedded_BTD.shape[1], threshold)
        plan = self.plan(encoded, aligned, second)
        features_BTD, _, _ = self.write(plan, self.first(encoded), embedded_BTD, self.join_aligned(aligned_BTD))
        return features_BTD, aligned_BTD, plan

    # The parallel branch

    def parallel_inputs(self, aligned_BTD: Tensor, places_B: Tensor) -> Tensor:
        """What is known of each place beside tokens -> BTD."""
        return self.parallel.inputs(aligned_BTD, places_B, self.allocation.sinusoids)

    def features_at_once(
        self,
        encoded: Encoded,
        aligned: AllocationSource,
        places_R: Tensor,
        threshold: float,
        known: KnownTokens | None = None,
    ) -> Tensor:
        """Features of all places of R = A·W rows, so many each -> RTD."""
        shortest, T = (int(bound) for bound in places_R.aminmax())
        rows = len(places_R) // len(encoded.states_BSE)
        aligned_RTD = self.allocation(aligned, 0, T, threshold)
        if rows > 1:
            aligned_RTD = aligned_RTD.repeat_interleave(rows, 0)
        memory = self.parallel.attend.make_memory(encoded.states_BSE, encoded.mask_BS)
        inputs_RTD = self.parallel_inputs(aligned_RTD, places_R)
        features_RTD: Tensor = self.parallel(inputs_RTD, memory, None if shortest == T else places_R, known)
        return features_RTD

    def parallel_loss(
        self,
        output: MixedOutput,
        encoded: Encoded,
        aligned_BTD: Tensor,
        places_B: Tensor,
        targets_BT: Tensor,
        held_BT: Tensor,
        revealed: Revealed,
    ) -> Tensor:
        """The loss of the parallel branch in rows of so many places, at those that are held, some being revealed."""
        memory = self.parallel.attend.make_memory(encoded.states_BSE, encoded.mask_BS)
        inputs_BTD = self.parallel_inputs(aligned_BTD, places_B)
        known, asked_BT = None, held_BT
        if revealed.share:
            with torch.no_grad():
                features_BTD = self.parallel(inputs_BTD, memory, places_B)
                wrong_BT = torch.zeros_like(held_BT)
                wrong_BT[held_BT] = output.scores(features_BTD[held_BT]).argmax(1) != targets_BT[held_BT]
                shown_BT = choose_revealed(wrong_BT, held_BT, revealed.share)
            known, asked_BT = KnownTokens(revealed.embedding(targets_BT), shown_BT), held_BT & ~shown_BT
        features_MD = self.parallel(inputs_BTD, memory, places_B, known)[asked_BT]
        # As if all places had been asked for, so that the weight of this loss does not depend on how many were shown.
        scale = int(held_BT.sum()) / max(1, len(features_MD))
        return scale * output.base.loss(features_MD, targets_BT[asked_BT])

    # The mixture

    def answered(self, encoded: Encoded, aligned: AllocationSource, places_B: Tensor, options: HybridOptions) -> Second:
        """What the parallel branch says of rows of so many places, with its share in the mixture.

        In training too it only answers: what it learns from is a loss of its own.
        """
        with torch.no_grad() if self.training else contextlib.nullcontext():
            features_BPD = self.features_at_once(encoded, aligned, places_B, options.allocation_threshold)
        return self.second(features_BPD, places_B, options.gamma)

    def second(self, features_BPD: Tensor, places_B: Tensor, gamma: float) -> Second:
        """Features of rows of so many places with their share in the mixture.

        One place more than any row has stands for all beyond.
        """
        if self.mixing == "gated":
            odds_BP = self.gate_second(features_BPD).squeeze(2) + self.log_odds
        else:
            odds = self.log_odds if self.mixing == "learned" else features_BPD.new_tensor(log_odds(gamma))
            odds_BP = odds.expand(features_BPD.shape[:2])
        beyond_BP = torch.arange(features_BPD.shape[1], device=places_B.device) >= places_B[:, None]
        odds_BP = functional.pad(odds_BP.masked_fill(beyond_BP, NEVER), (0, 1), value=NEVER)
        return Second(functional.pad(features_BPD, (0, 0, 0, 1)), odds_BP, places_B, None)

    def odds(self, features_RTD: Tensor, odds_RT: Tensor) -> Tensor:
        """The log-odds of the parallel branch given the features of the other -> RT."""
        return odds_RT + self.gate_first(features_RTD).squeeze(2) if self.mixing == "gated" else odds_RT

    def packed(self, features_RTD: Tensor, plan: Plan, place: int | Tensor) -> Tensor:
        """Features of both branches for the output layer, from a place on, of all rows or of each its own."""
        if plan.second is None:
            return features_RTD
        T = features_RTD.shape[1]
        second_RTD, odds_RT = (at_places(part, plan.rows, place, T) for part in plan.second[:2])
        return pack(features_RTD, second_RTD, self.odds(features_RTD, odds_RT))

    def log_probs(self, output: MixedOutput, features_RTD: Tensor, plan: Plan, place: int | Tensor) -> Tensor:
        """log p(. | prefix) by both branches from the features of the first -> RTV."""
        (R, T, _), second = features_RTD.shape, plan.second
        if second is None or second.table_APV is None:
            packed_RTD = self.packed(features_RTD, plan, place)
            return output.log_probs(packed_RTD.flatten(0, 1)).view(R, T, -1)
        first_RTV = output.base.log_probs(features_RTD.flatten(0, 1)).view(R, T, -1)
        odds_RT, table_RTV = (at_places(part, plan.rows, place, T) for part in (second.odds_AP, second.table_APV))
        return mix(first_RTV, table_RTV, self.odds(features_RTD, odds_RT).unsqueeze(2))

    def gate_loss(
        self, output: MixedOutput, features_BTD: Tensor, plan: Plan, targets_BT: Tensor, held_BT: Tensor
    ) -> Tensor:
        """-log p of the mixture as a function of the gate alone: the branches learn from losses of their own."""
        packed_MD = self.packed(features_BTD.detach(), plan, 0)[held_BT]
        first_MD, second_MD, odds_M1 = output.unpack(packed_MD)
        with torch.no_grad():
            targets_M = targets_BT[held_BT]
            first_M, second_M = (output.base.log_prob(part_MD, targets_M) for part_MD in (first_MD, second_MD))
        return -mix(first_M, second_M, odds_M1.squeeze(1)).sum()

    def _drop(self, inputs: Tensor) -> Tensor:
        return drop(inputs, self.dropout, training=self.training)


def tabled(second: Second, output: MixedOutput) -> Second:
    """The same with log p of all tokens at all places, unless that is a large table."""
    if second.odds_AP.numel() * output.size > TABLE_ENTRIES:
        return second
    table_NV = output.base.log_probs(second.features_APD.flatten(0, 1))
    return second._replace(table_APV=table_NV.unflatten(0, second.odds_AP.shape))


def at_places(part_AP: Tensor, rows: int, place: int | Tensor, T: int) -> Tensor:
    """What A sources with so many rows each have for T places from `place` on, that of all rows or of each its own.

    Beyond the last of the P places is what the last one has. -> RT…
    """
    P = part_AP.shape[1]
    if isinstance(place, int):
        if place + T <= P:
            part_AT = part_AP[:, place : place + T]
        else:
            part_AT = part_AP[:, torch.arange(place, place + T, device=part_AP.device).clamp_(max=P - 1)]
        return part_AT if rows == 1 else part_AT.repeat_interleave(rows, 0)
    places_RT = (place[:, None] + torch.arange(T, device=place.device)).clamp_(max=P - 1)
    return part_AP[torch.arange(len(place), device=place.device).div_(rows, rounding_mode="floor")[:, None], places_RT]
