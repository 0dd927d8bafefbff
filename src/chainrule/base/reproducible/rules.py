"""Torch operations in reproducible form: the same bits on every CPU. `mode.py` calls them instead of torch's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from chainrule.base.reproducible import kernels
from chainrule.errors import ConfigError

Rule = TypeVar("Rule", bound=Callable[..., Any])
RULES: dict[str, Callable[..., Any]] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a function as the reproducible form of operations."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


PACKED: dict[int, dict[Any, Tensor]] = {}
"""The addresses of weights, and their contiguous forms by shape and strides: a transposed weight is copied once."""


def _packed(matrix: Tensor) -> Tensor:
    if matrix.is_contiguous() or matrix.data_ptr() not in PACKED:
        return matrix.contiguous()
    forms, layout = PACKED[matrix.data_ptr()], (matrix.shape, matrix.stride())
    if layout not in forms:
        forms[layout] = matrix.contiguous()
    return forms[layout]


# Sums and products


@rule("sum")
def _sum(values: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    values = values if dtype is None else values.to(dtype)
    dims = range(values.dim()) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    dims = sorted(one % max(1, values.dim()) for one in dims)
    kept = [one for one in range(values.dim()) if one not in dims]
    shape = [values.shape[one] for one in kept]
    rows_NM = values.permute(*kept, *dims).reshape(math.prod(shape), -1).contiguous()
    result_N = values.new_empty(len(rows_NM))
    kernels.sums(rows_NM.numpy(), result_N.numpy())
    return result_N.reshape([1 if one in dims else size for one, size in enumerate(values.shape)] if keepdim else shape)


@rule("mean")
def _mean(values: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    total = _sum(values, dim, keepdim, dtype=dtype)
    return total / (values.numel() // max(1, total.numel()))


@rule("cumsum")
def _cumsum(values: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    moved = values.movedim(dim, -1).contiguous()
    result = torch.empty_like(moved)
    length = moved.shape[-1] if moved.dim() else 1
    kernels.running_sums(moved.reshape(-1, length).numpy(), result.view(-1, length).numpy())
    return result.movedim(-1, dim)


@rule("mm")
def _mm(left_NM: Tensor, right_MX: Tensor) -> Tensor:
    result_NX = left_NM.new_zeros(len(left_NM), right_MX.shape[1])
    kernels.product(left_NM.contiguous().numpy(), _packed(right_MX).numpy(), result_NX.numpy())
    return result_NX


@rule("bmm")
def _bmm(left: Tensor, right: Tensor) -> Tensor:
    pairs = zip(left, right, strict=True)
    return torch.stack([_mm(one, other) for one, other in pairs]) if len(left) else left.new_zeros(0, *right.shape[1:])


@rule("addmm", "baddbmm")
def _add_product(added: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = (_mm if left.dim() == 2 else _bmm)(left, right)
    return _times(added, beta) + _times(product, alpha)


@rule("add")
def _add(one: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
    return one + _times(other, alpha)


@rule("sub")
def _sub(one: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
    return one - _times(other, alpha)


@rule("rsub")
def _rsub(one: Tensor, other: Any, alpha: float = 1) -> Tensor:
    difference: Tensor = other - _times(one, alpha)
    return difference


def _times(value: Tensor, factor: float) -> Tensor:
    return value if factor == 1 else value * factor


@rule("addcmul")
def _addcmul(added: Tensor, one: Tensor, other: Tensor, *, value: float = 1) -> Tensor:
    return added + _times(one * other, value)


@rule("lerp")
def _lerp(start: Tensor, end: Tensor, weight: Any) -> Tensor:
    moved: Tensor = start + weight * (end - start)
    return moved


@rule("index_put")
def _index_put(target: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    if accumulate:
        raise ConfigError("a sum at repeated indices has no reproducible form; leave --portable out")
    result: Tensor = torch.ops.aten.index_put(target, indices, values)
    return result


@rule("scatter_add")
def _scatter_add(target: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Along the last dimension of a matrix, one column of the source at a time."""
    if target.dim() != 2 or dim % 2 != 1:
        raise ConfigError("scatter_add along this dimension has no reproducible form; leave --portable out")
    result = target.clone()
    for index_N1, source_N1 in zip(index.split(1, 1), source.split(1, 1), strict=True):
        rows_N1 = torch.arange(len(index_N1))[:, None]
        result[rows_N1, index_N1] = result[rows_N1, index_N1] + source_N1
    return result


# Functions


def _function(number: int) -> Callable[[Tensor], Tensor]:
    def apply(values: Tensor) -> Tensor:
        plain = values.contiguous()
        result = torch.empty_like(plain)
        kernels.apply(number, plain.view(-1).numpy(), result.view(-1).numpy())
        return result

    return apply


_exp, _log = rule("exp")(_function(kernels.EXP)), rule("log")(_function(kernels.LOG))
_tanh, _sigmoid = rule("tanh")(_function(kernels.TANH)), rule("sigmoid")(_function(kernels.SIGMOID))
_erf, _expm1 = rule("erf")(_function(kernels.ERF)), rule("expm1")(_function(kernels.EXPM1))
_log1p = rule("log1p")(_function(kernels.LOG1P))
rule("sin")(_function(kernels.SIN))
rule("cos")(_function(kernels.COS))


@rule("log2")
def _log2(values: Tensor) -> Tensor:
    return _log(values) / math.log(2)


@rule("sqrt")
def _sqrt(values: Tensor) -> Tensor:
    """By numpy, which rounds once; torch calls a library whose last bit depends on the CPU."""
    return torch.from_numpy(np.sqrt(np.atleast_1d(values.contiguous().numpy()))).view(values.shape)


@rule("rsqrt")
def _rsqrt(values: Tensor) -> Tensor:
    return 1.0 / _sqrt(values)


@rule("pow")
def _pow(base: Any, exponent: Any) -> Tensor:
    if exponent == 2 if isinstance(exponent, int | float) else False:
        squared: Tensor = base * base
        return squared
    if isinstance(base, int | float):
        base = torch.tensor(float(base), dtype=exponent.dtype)
    return _exp(exponent * _log(base))


@rule("gelu")
def _gelu(values: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (values + 0.044715 * (values * values * values))
        return 0.5 * values * (1.0 + _tanh(inner))
    return 0.5 * values * (1.0 + _erf(values * math.sqrt(0.5)))


@rule("silu")
def _silu(values: Tensor) -> Tensor:
    return values * _sigmoid(values)


@rule("glu")
def _glu(values: Tensor, dim: int = -1) -> Tensor:
    one, gate = values.chunk(2, dim)
    return one * _sigmoid(gate)


@rule("elu")
def _elu(values: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    negative = _times(_expm1(_times(values, input_scale)), alpha)
    return _times(torch.where(values > 0, values, negative), scale)


@rule("softplus")
def _softplus(values: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    return values.clamp(min=0) + _log1p(_exp(-values.abs()))


@rule("log_sigmoid_forward")
def _log_sigmoid(values: Tensor) -> tuple[Tensor, Tensor]:
    result = values.clamp(max=0) - _log1p(_exp(-values.abs()))
    return result, result.new_empty(0)


@rule("logaddexp")
def _logaddexp(one: Tensor, other: Tensor) -> Tensor:
    larger = torch.maximum(one, other)
    difference = torch.where(one == other, torch.zeros_like(larger), -(one - other).abs())
    return larger + _log1p(_exp(difference))


# Compounds


@rule("_softmax")
def _softmax(values: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    top = values.amax(dim, keepdim=True)
    powers = _exp(values - top.masked_fill(top.isinf(), 0.0))
    return powers / _sum(powers, dim, True)


@rule("_log_softmax")
def _log_softmax(values: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return values - _logsumexp(values, [dim], True)


@rule("logsumexp")
def _logsumexp(values: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    top = values.amax(dim, keepdim=True)
    top = top.masked_fill(top.isinf(), 0.0)
    total = _log(_sum(_exp(values - top), dim, True)) + top
    return total if keepdim else total.squeeze(dim)


@rule("native_layer_norm")
def _layer_norm(
    values: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(-len(shape), 0))
    mean = _mean(values, dims, True)
    centred = values - mean
    scale = _rsqrt(_mean(centred * centred, dims, True) + eps)
    normed = centred * scale
    normed = normed if weight is None else normed * weight
    return normed if bias is None else normed + bias, mean, scale


@rule("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math")
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *options: Any,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
    is_causal: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """softmax(QKᵀ · scale + mask) V for queries, keys and values BHTE."""
    causal = is_causal or (len(options) > 1 and bool(options[1]))
    (B, H, T, E), L = query.shape, key.shape[2]
    product = _bmm(query.reshape(B * H, T, E), key.reshape(B * H, L, E).transpose(1, 2))
    scores = product.view(B, H, T, L) * (1 / math.sqrt(E) if scale is None else scale)
    if causal:
        scores = scores.masked_fill(torch.ones(T, L, dtype=torch.bool).triu(1), -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    weights = _softmax(scores, -1).view(B * H, T, L)
    result = _bmm(weights, value.reshape(B * H, L, -1)).view(B, H, T, -1)
    return result, _logsumexp(scores, [-1])


@rule("convolution")
def _convolution(
    values_BDT: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """A convolution over time: one matrix product per group over windows of the input."""
    if transposed or values_BDT.dim() != 3:
        raise ConfigError("this convolution has no reproducible form; leave --portable out")
    padded_BDT = nn.functional.pad(values_BDT, (padding[0], padding[0]))
    reach = dilation[0] * (weight.shape[2] - 1) + 1
    windows_BDTK = padded_BDT.unfold(2, reach, stride[0])[..., :: dilation[0]]
    B, D, T, K = windows_BDTK.shape
    inputs_NX = windows_BDTK.permute(0, 2, 1, 3).reshape(B * T, D * K)
    parts = zip(inputs_NX.chunk(groups, 1), weight.chunk(groups, 0), strict=True)
    result_NF = torch.cat([_mm(part, kernel.flatten(1).t()) for part, kernel in parts], 1)
    result_NF = result_NF if bias is None else result_NF + bias
    return result_NF.view(B, T, -1).transpose(1, 2)
