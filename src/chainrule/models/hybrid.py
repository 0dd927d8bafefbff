"""The mixture of an autoregressive and a non-autoregressive translator, over one encoder.

    p(y_t | y_<t, x) = (1-γ)·p_AR(y_t | y_<t, x) + γ·p_NAR(y_t | x)

The autoregressive branch is a GRU with attention that is also told what of the source is allotted to the place it
writes. The other branch predicts all places in one pass, given a length. In the mixture that length is always the one
foretold from the source: the true one would tell where the target ends before it is written. The parts are in
`hybrid_core.py`; the branch may also be one of slots and blanks, in `layers/slots.py`.

One loss trains all of it: the cross-entropy of either branch by itself, and that of the length. As -log is convex,
(1-γ) of the first and γ of the second bound the mixture's own loss from above, whatever γ will be. Where γ is learned,
it learns from the mixture's exact loss, in which the branches are held fixed.

Gu et al., "Non-Autoregressive Neural Machine Translation", 2018; glancing and refining: `layers/parallel_branch.py`.
Legend: B batch, A sources, R rows, W rows of each source, T target places, P places made ready, S source time, D width
of an embedding, H hidden width, V vocabulary, K lengths tried.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.errors import ConfigError
from chainrule.layers.dropout import drop
from chainrule.layers.nonautoregressive.allocation import AllocationSource, LengthPredictor
from chainrule.layers.nonautoregressive.ctc import CtcHead
from chainrule.layers.nonautoregressive.parallel_branch import KnownTokens
from chainrule.layers.outputs.mixed import MixedOutput
from chainrule.models.hybrid_core import (
    Encoded,
    HybridCore,
    HybridOptions,
    Plan,
    Revealed,
    Second,
    Writing,
    at_places,
    tabled,
)
from chainrule.models.translator import PretrainedConfig, Translator
from chainrule.registry import MODELS
from chainrule.types import Batch, OutputChoice, Outputs, Source, Vocabulary


class HybridConfig(HybridOptions, PretrainedConfig):
    """The shape of a hybrid translator."""

    nar: Literal["positions", "ctc"] = Field("positions", description="places by a length foretold, or slots by source")
    upsample: int = Field(2, ge=1, description="ctc: slots of each source word")
    length_range: int = Field(20, ge=1, description="largest difference of source and target length that is foretold")
    length_weight: float = Field(0.1, ge=0, description="weight of the loss of the length")


@MODELS.register("hybrid", family="hybrid", task="translation", counterpart="hybrid-lm")
class Hybrid(Translator):
    """Two branches over one encoder: one writes word by word, one all at once."""

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
        _ = self.mixes  # refuses what does not go together

    @property
    def mixes(self) -> bool:
        """Whether both branches make the distribution."""
        both = self.core.mixes(self.config.gamma)
        if both and self.config.nar == "ctc":
            raise ConfigError(
                f"model.nar is ctc with {self.config.mixing} mixing and gamma {self.config.gamma}, but slots give no "
                "distribution by place to mix in: set model.mixing=fixed and model.gamma=0, or model.nar=positions"
            )
        return both

    @property
    def _trains_apart(self) -> bool:
        return self.training and self.config.mixing == "fixed"

    # The source

    def encode(self, source: Source) -> Encoded:
        """Read a source: all that both branches need of it."""
        return self.core.encode(self._drop(self.embed_source(source)), source.mask_BS)

    def begin(self, source: Source, *, stepping: bool) -> Writing:
        return self.begin_decoding(self.encode(source), stepping=stepping)

    def begin_decoding(self, encoded: Encoded, *, stepping: bool, mixed: bool = True) -> Writing:
        """The state before the first token of a target; `stepping`: with all that spares work at each step.

        Unless it is `mixed`, the first branch writes alone, whatever γ is.
        """
        aligned = self.core.align(encoded)
        second = self._second(encoded, aligned) if mixed and self.mixes else None
        if second is not None and stepping:
            second = tabled(second, self.output)
        plan = self.core.plan(encoded, aligned, second)
        if stepping:
            plan = self._ready(plan, encoded.states_BSE.shape[1] + 8)
        return Writing(plan, self.core.first(encoded), 0)

    def _ready(self, plan: Plan, places: int) -> Plan:
        return self.core.ready(plan, places, self.config.allocation_threshold)

    # Writing word by word

    def read(self, state: Writing, tokens_BT: Tensor) -> tuple[Tensor, Writing]:
        """Append T target tokens to each prefix -> the features of both branches after each, and the longer state."""
        features_RTD, _, after = self._look(state, tokens_BT)
        return self.core.packed(features_RTD, after.memory, state.place), after

    def prefill(self, state: Writing, tokens_BT: Tensor) -> tuple[Tensor, Writing]:
        features_RTD, _, after = self._look(state, tokens_BT)
        return self.core.log_probs(self.output, features_RTD[:, -1:], after.memory, after.place - 1)[:, 0], after

    def extend(self, state: Writing, tokens_BT: Tensor) -> tuple[Tensor, Writing]:
        features_RTD, _, after = self._look(state, tokens_BT)
        return self.core.log_probs(self.output, features_RTD, after.memory, state.place), after

    def attention(self, tokens_BT: Tensor, source: Source) -> Tensor:
        return self._look(self.begin(source, stepping=False), self.shifted(tokens_BT))[1]

    def check(self, state: Writing, place: int | Tensor, tokens_RT: Tensor) -> tuple[Tensor, Tensor]:
        """Read T tokens from a position on, the same for all rows or one for each.

        Gives log p(. | prefix) after each RTV, and the recurrent states after each RTU.
        """
        T, hidden_RH = tokens_RT.shape[1], state.hidden_RH
        memory = self._ready(state.memory, (place if isinstance(place, int) else int(place.max())) + T)
        joined_RTD = at_places(memory.joined_APD, memory.rows, place, T)
        features_RTD, _, path_RTH = self.core.write(memory, hidden_RH, self.embedding(tokens_RT), joined_RTD)
        return self.core.log_probs(self.output, features_RTD, memory, place), path_RTH

    def advance(self, state: Writing, path_RTH: Tensor, last_R: list[int]) -> Writing:
        """The state after the first last_R[r] + 1 tokens that `check` read in row r."""
        rows = len(last_R)
        hidden_RH = path_RTH[:, last_R[0]] if rows == 1 else path_RTH[torch.arange(rows), last_R]
        return state._replace(hidden_RH=hidden_RH)

    def target_log_probs(self, state: Writing, inputs_RT: Tensor, targets_RT: Tensor) -> Tensor:
        """log p of each target after the state and the inputs up to it -> RT."""
        packed_RTD, _ = self.read(state, inputs_RT)
        return self.output.log_prob(packed_RTD.flatten(0, 1), targets_RT.flatten()).view_as(targets_RT)

    def _look(self, state: Writing, tokens_BT: Tensor) -> tuple[Tensor, Tensor, Writing]:
        """Append T target tokens -> the first branch's features RTD, where it looked RTS, and the longer state."""
        memory, hidden_RH, place = state
        end = place + tokens_BT.shape[1]
        if end > memory.joined_APD.shape[1]:
            memory = self._ready(memory, end if not place else 2 * end)
        joined_RTD = at_places(memory.joined_APD, memory.rows, place, end - place)
        embedded_BTD = self._drop(self.embedding(tokens_BT))
        features_RTD, weights_RTS, path_RTH = self.core.write(memory, hidden_RH, embedded_BTD, joined_RTD)
        return features_RTD, weights_RTS, Writing(memory, path_RTH[:, -1], end)

    # Writing all at once

    def _second(self, encoded: Encoded, aligned: AllocationSource) -> Second:
        """What the parallel branch says at the length foretold."""
        with torch.no_grad():
            places_B = self.predict_lengths(encoded)[:, 0] + 1
        return self.core.answered(encoded, aligned, places_B, self.config)

    def predict_lengths(self, encoded: Encoded, count: int = 1) -> Tensor:
        """The most probable lengths of the target, `eos` not counted, the best first -> BK."""
        assert self.length is not None
        scores_BL = self.length(encoded.states_BSE, encoded.mask_BS)
        return self.length.best(scores_BL, encoded.tokens_B - 1, count)

    def predict_parallel(
        self, encoded: Encoded, lengths_R: Tensor, known: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """log p, but for a constant a place, of all tokens at all places of rows of given lengths -> RTV.

        The R = A·W rows are those of A sources. `known` are tokens RT and which of them are revealed, bool RT, none of
        them beyond its row. What stands beyond a row's length means nothing.
        """
        shown = None
        if known is not None:
            tokens_RT, shown_RT = (nn.functional.pad(part, (0, 1)) for part in known)
            shown = KnownTokens(self.embedding(tokens_RT), shown_RT)
        aligned = self.core.align(encoded)
        features_RTD = self.core.features_at_once(
            encoded, aligned, lengths_R + 1, self.config.allocation_threshold, shown
        )[:, :-1]
        return self.output.scores(features_RTD.flatten(0, 1)).view(*features_RTD.shape[:2], self.output.size)

    def decode_ctc(self, encoded: Encoded) -> list[list[int]] | None:
        """The tokens that the slots of each source leave; None where the branch goes by lengths."""
        if self.slots is None:
            return None
        return self.slots.best(*self._slot_features(encoded), self.output.base)

    def draft_scores(self, encoded: Encoded, state: Writing) -> tuple[Tensor, Tensor]:
        """What one pass says for each source BTV, and its length B, looked up where the plan has it."""
        second = state.memory.second
        if second is not None and second.table_APV is not None:
            return second.table_APV, second.places_A - 1
        lengths_B = self.predict_lengths(encoded)[:, 0]
        return self.predict_parallel(encoded, lengths_B), lengths_B

    def _slot_features(self, encoded: Encoded) -> tuple[Tensor, Tensor]:
        """Features of all slots BUD, and how many each source has B."""
        assert self.slots is not None
        branch, slots_B = self.core.parallel, encoded.tokens_B * self.slots.count
        memory = branch.attend.make_memory(encoded.states_BSE, encoded.mask_BS)
        return branch(self.slots.inputs(encoded.states_BSE), memory, slots_B), slots_B

    # Training

    def forward(self, batch: Batch, state: object = None) -> Outputs:
        """Read source and inputs -> packed features; in training also what teaches the other branch and the length."""
        assert batch.source is not None
        encoded = self.encode(batch.source)
        aligned = self.core.align(encoded)
        # Each branch learns from a loss of its own: a γ that is given needs no mixture to be trained.
        second = self._second(encoded, aligned) if self.mixes and not self._trains_apart else None
        embedded_BTD = self._drop(self.embedding(batch.inputs_BT))
        features_BTD, aligned_BTD, plan = self.core.read(
            encoded, aligned, second, embedded_BTD, self.config.allocation_threshold
        )
        extra = self._extra(batch, encoded, aligned_BTD, features_BTD, plan) if self.training else None
        return Outputs(self.core.packed(features_BTD, plan, 0), None, extra)

    def _extra(
        self, batch: Batch, encoded: Encoded, aligned_BTD: Tensor, features_BTD: Tensor, plan: Plan
    ) -> Tensor | None:
        """The loss of the parallel branch, of the length and of the gate, as a sum."""
        targets_BT, config = batch.targets_BT, self.config
        held_BT = torch.ones_like(targets_BT, dtype=torch.bool) if batch.weights_BT is None else batch.weights_BT > 0
        places_B = held_BT.sum(1)
        parts = []
        if config.nar_weight:
            parts.append(config.nar_weight * self._parallel_loss(encoded, aligned_BTD, targets_BT, held_BT))
        if config.length_weight and self.length is not None:
            scores_BL = self.length(encoded.states_BSE, encoded.mask_BS)
            parts.append(config.length_weight * self.length.loss(scores_BL, encoded.tokens_B - 1, places_B - 1))
        if config.mixing != "fixed":
            parts.append(self.core.gate_loss(self.output, features_BTD, plan, targets_BT, held_BT))
        return torch.stack(parts).sum() if parts else None

    def _parallel_loss(self, encoded: Encoded, aligned_BTD: Tensor, targets_BT: Tensor, held_BT: Tensor) -> Tensor:
        """The loss of the other branch: of its slots, or of its places at the true length."""
        if self.slots is None:
            revealed = Revealed(self.embedding, self.config.glancing)
            return self.core.parallel_loss(
                self.output, encoded, aligned_BTD, held_BT.sum(1), targets_BT, held_BT, revealed
            )
        return self.slots.loss(*self._slot_features(encoded), self.output.base, targets_BT, held_BT.sum(1) - 1)

    def _drop(self, inputs: Tensor) -> Tensor:
        return drop(inputs, self.config.dropout, training=self.training)
