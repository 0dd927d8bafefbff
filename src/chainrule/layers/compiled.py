"""The parameters of layers in the form that the decoding engine takes, and when they are packed again."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from chainrule.base.kernels import inference_kernel_supports
from chainrule.engines.decode.allocation import AllocationWeights, CompiledAllocation
from chainrule.engines.decode.hybrid import CompiledHybrid, HybridWeights
from chainrule.engines.decode.parallel_branch import CompiledParallel, ParallelWeights
from chainrule.engines.decode.recurrent import CompiledRecurrence, RecurrentState
from chainrule.engines.decode.recurrent_encoder import CompiledEncoder, EncoderWeights
from chainrule.engines.decode.recurrent_weights import RecurrentWeights
from chainrule.engines.decode.stack import CompiledStack, Precision, StackState, Wanted
from chainrule.engines.decode.weights import BlockWeights, Linear, Norm, SourceWeights, StackWeights
from chainrule.layers.blocks import Block
from chainrule.layers.transformer_stack import TransformerStack

Array = np.ndarray[Any, Any]
_version = attrgetter("_version")
Weights = StackWeights | RecurrentWeights | HybridWeights | EncoderWeights | ParallelWeights | AllocationWeights
Engine = CompiledStack | CompiledRecurrence | CompiledHybrid | CompiledEncoder | CompiledParallel | CompiledAllocation


class PackedModel:
    """The compiled form of a model; packed when it is first used, and again after its parameters have changed.

    Changes in place are counted by torch, except those that another process makes in shared memory. So a model also
    forgets its compiled form when its mode changes, as it does before and after every validation of a training.
    """

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._packed: tuple[Any, ...] = ()
        self._held: _HeldParameters | None = None

    def forget(self) -> None:
        """Pack again before the next use."""
        self._engine, self._packed = None, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedModel:
        return PackedModel()  # a copy of a model has parameters of its own

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedModel, ()

    @overload
    def engine(  # type: ignore[overload-overlap]  # functions that always return None
        self, model: nn.Module, precision: Precision, weights: Callable[[], StackWeights | None]
    ) -> CompiledStack | None: ...

    @overload
    def engine(  # type: ignore[overload-overlap]
        self, model: nn.Module, precision: Precision, weights: Callable[[], RecurrentWeights | None]
    ) -> CompiledRecurrence | None: ...

    @overload
    def engine(  # type: ignore[overload-overlap]
        self, model: nn.Module, precision: Precision, weights: Callable[[], HybridWeights | None]
    ) -> CompiledHybrid | None: ...

    @overload
    def engine(  # type: ignore[overload-overlap]
        self, model: nn.Module, precision: Precision, weights: Callable[[], EncoderWeights | None]
    ) -> CompiledEncoder | None: ...

    @overload
    def engine(  # type: ignore[overload-overlap]
        self, model: nn.Module, precision: Precision, weights: Callable[[], ParallelWeights | None]
    ) -> CompiledParallel | None: ...

    @overload
    def engine(  # type: ignore[overload-overlap]
        self, model: nn.Module, precision: Precision, weights: Callable[[], AllocationWeights | None]
    ) -> CompiledAllocation | None: ...

    @overload
    def engine(
        self, model: nn.Module, precision: Precision, weights: Callable[[], StackWeights | RecurrentWeights | None]
    ) -> CompiledStack | CompiledRecurrence | None: ...

    def engine(self, model: nn.Module, precision: Precision, weights: Callable[[], Weights | None]) -> Engine | None:
        """The engine of the model as it is now; None: it is computed by torch."""
        if model.training:
            return None
        if self._held is None or not self._held.by(model):
            self._held = _HeldParameters(model)
        parameters = self._held.parameters
        if not inference_kernel_supports(parameters[0]):
            return None
        state = precision, parameters[0].data_ptr(), self._held.changes()
        if state != self._packed:
            described = weights()
            self._engine = None if described is None else _compile(described, precision)
            self._packed = state
        return self._engine


class _HeldParameters:
    """The parameters of a model, and what holds them: torch takes ten times as long to list them as to compare."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters, self._model = [*model.parameters()], model
        self._counted = [parameter for parameter in self.parameters if not parameter.is_inference()]
        holders = (part for module in model.modules() for part in (module._modules, module._parameters))
        self._holders: list[tuple[dict[str, Any], list[tuple[str, Any]]]] = [
            (holder, [*holder.items()]) for holder in holders if holder
        ]

    def changes(self) -> int:
        """A number that grows when a parameter is changed in place."""
        return sum(map(_version, self._counted))

    def by(self, model: nn.Module) -> bool:
        """Whether the model still holds the same modules and parameters."""
        if model is not self._model:
            return False
        for holder, items in self._holders:
            if len(holder) != len(items):
                return False
            for name, held in items:
                if holder.get(name) is not held:
                    return False
        return True


def _compile(weights: Weights, precision: Precision) -> Engine:
    if isinstance(weights, RecurrentWeights):
        return CompiledRecurrence(weights, precision)
    if isinstance(weights, HybridWeights):
        return CompiledHybrid(weights, precision)
    if isinstance(weights, EncoderWeights):
        return CompiledEncoder(weights, precision)
    if isinstance(weights, ParallelWeights):
        return CompiledParallel(weights, precision)
    if isinstance(weights, AllocationWeights):
        return CompiledAllocation(weights)
    return CompiledStack(weights, precision)


@overload
def predict(state: StackState, tokens_BT: Tensor, wanted: Wanted) -> tuple[Tensor, StackState]: ...


@overload
def predict(state: RecurrentState, tokens_BT: Tensor, wanted: Wanted) -> tuple[Tensor, RecurrentState]: ...


def predict(
    state: StackState | RecurrentState, tokens_BT: Tensor, wanted: Wanted
) -> tuple[Tensor, StackState | RecurrentState]:
    """log p of the next token after the last of T tokens, BV, or after each, BTV, and the state after them."""
    log_probs, after = state.log_probs(tokens_BT.numpy(), wanted)
    found = torch.from_numpy(log_probs)
    return (found if wanted == "last" else found.view(*tokens_BT.shape, -1)), after


@overload
def choose_continuations(
    state: StackState, token_R: Tensor, log_prob_AW: Tensor, count: int
) -> tuple[Tensor, Tensor, StackState]: ...


@overload
def choose_continuations(
    state: RecurrentState, token_R: Tensor, log_prob_AW: Tensor, count: int
) -> tuple[Tensor, Tensor, RecurrentState]: ...


def choose_continuations(
    state: StackState | RecurrentState, token_R: Tensor, log_prob_AW: Tensor, count: int
) -> tuple[Tensor, Tensor, StackState | RecurrentState]:
    """The best continuations of the prefixes of each prompt, as `Stepper.best_continuations` gives them."""
    best_AM, cell_AM, after = state.best_continuations(token_R.numpy(), log_prob_AW.numpy(), count)
    return torch.from_numpy(best_AM), torch.from_numpy(cell_AM), after


@overload
def read_features(state: StackState, tokens_BT: Tensor) -> tuple[Tensor, StackState]: ...


@overload
def read_features(state: RecurrentState, tokens_BT: Tensor) -> tuple[Tensor, RecurrentState]: ...


def read_features(state: StackState | RecurrentState, tokens_BT: Tensor) -> tuple[Tensor, StackState | RecurrentState]:
    """The features after each of T tokens, BTD, and the state after them."""
    features_ND, after = state.features(tokens_BT.numpy())
    return torch.from_numpy(features_ND).view(*tokens_BT.shape, -1), after


def stack_weights(
    stack: TransformerStack,
    embedding: nn.Embedding,
    window: int,
    output: Linear | None,
    distances_HL: Tensor | None = None,
    *,
    causal: bool = True,
) -> StackWeights:
    """The parameters of a stack of blocks; `causal` False: an encoder, whose positions attend to all of their text."""
    linear = stack.block_list[0].decays() is not None
    shape, rotary = stack.block_list[0].shape, stack.block_list[0].rotary
    head_width = shape.attention_width // shape.heads
    half = head_width // 2
    return StackWeights(
        blocks=[_block_weights(block) for block in stack.block_list],
        embedding_VD=as_array(embedding.weight),
        heads=shape.heads,
        head_width=head_width,
        window=window,
        activation=shape.activation,
        score_scale=head_width**-0.5 if shape.scale is None else shape.scale,
        eps=shape.eps,
        norm=norm_weights(stack.norm) if shape.pre else None,
        pre=shape.pre,
        rms=shape.norm == "rms",
        embedding_scale=stack.scale,
        positions_LD=None if stack.positions is None else as_array(stack.positions.table_CD),
        cosines_LE=None if rotary is None else as_array(rotary.cos_CE)[:, :half],
        sines_LE=None if rotary is None else as_array(rotary.sin_CE)[:, half:],
        distances_HL=None if distances_HL is None else as_array(distances_HL),
        gated=shape.gated,
        attention="linear" if linear else "causal" if causal else "full",
        output=output,
    )


def _block_weights(block: Block) -> BlockWeights:
    return BlockWeights(
        norm=norm_weights(block.norm_attention),
        into=linear_weights(block.project_in),
        out=linear_weights(block.project_out),
        feed_norm=norm_weights(block.norm_feedforward),
        widen=linear_weights(block.widen),
        narrow=linear_weights(block.narrow),
        source=_source_weights(block) if block.reads_source else None,
        decay_H=None if (decay_H := block.decays()) is None else as_array(decay_H),
    )


def _source_weights(block: Block) -> SourceWeights:
    query, memory, out = map(linear_weights, (block.project_query, block.project_memory, block.project_source))
    return SourceWeights(norm_weights(block.norm_source), query, memory, out)


def linear_weights(layer: nn.Linear) -> Linear:
    """The parameters of a linear layer."""
    return Linear(as_array(layer.weight), None if layer.bias is None else as_array(layer.bias))


def norm_weights(norm: nn.Module) -> Norm:
    """The parameters of a LayerNorm or RMSNorm."""
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    return Norm(as_array(norm.weight), None if bias is None else as_array(bias))


def as_array(parameter: Tensor) -> Array:
    array: Array = parameter.detach().numpy()
    return array
