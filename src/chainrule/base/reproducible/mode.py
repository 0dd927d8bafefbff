"""A mode in which a model computes the same bits on every CPU, whatever its vector instructions.

    with reproducible(model):
        log_probs_BV, state = model.step(state, token_B)

Torch chooses its kernels by the CPU, and their sums differ in the last bits. In this mode every operation is inspected:

- operations that copy, select, compare, or round one result once (a + b, a · b, a / b) run as they are;
- sums, matrix products and functions such as √a and exp run in the kernels of `kernels.py`;
- compound operations (softmax, layer norm, attention, convolution) are composed of these in `rules.py`;
- any other operation is an error, so a result is never reproducible by luck.

It is slower than torch; `docs/verbs/compress.md` has the figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from chainrule.base.kernels import kernels_suspended
from chainrule.base.reproducible.rules import PACKED, RULES
from chainrule.errors import ConfigError

EXACT_NAMES = (
    "_local_scalar_dense _to_copy _unsafe_view abs alias all amax amin aminmax any arange argmax argmin argsort "
    "as_strided bitwise_and bitwise_not bitwise_or bucketize cat ceil clamp clamp_max clamp_min clone constant_pad_nd "
    "copy count_nonzero cummax detach div embedding empty empty_like empty_strided eq equal expand eye fill flip "
    "floor full full_like gather ge gt index index_copy index_select isfinite isin isinf isnan le lift_fresh "
    "logical_and logical_not logical_or lt masked_fill masked_select max maximum min minimum mul ne neg new_empty "
    "new_empty_strided new_full new_ones new_zeros nonzero ones ones_like permute reciprocal relu remainder repeat "
    "resize roll round scalar_tensor scatter searchsorted select select_scatter set_ sign slice sort split "
    "split_with_sizes squeeze stack t topk transpose tril triu unbind unfold unsqueeze view where zero zeros "
    "zeros_like "
)
EXACT = frozenset(EXACT_NAMES.split())
"""Operations that copy, select or compare values, or round one result once; `div` and `mul` are of two values."""


class Reproducible(TorchDispatchMode):
    """The mode; `strict` raises for operations that have no reproducible form."""

    def __init__(self, *, strict: bool) -> None:
        super().__init__()
        self._strict = strict

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        in_place = name.endswith("_") and name not in EXACT
        plain = name.removesuffix("_") if in_place else name
        if plain in EXACT or not _has_floats(args):
            return func(*args, **kwargs)
        if plain in RULES:
            out = kwargs.pop("out", args[0] if in_place else None)
            result = RULES[plain](*args, **kwargs)
            return result if out is None else out.copy_(result)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                return func.decompose(*args, **kwargs)
        if self._strict:
            raise ConfigError(f"the operation {plain} of this model has no reproducible form; leave --portable out")
        return func(*args, **kwargs)


@contextmanager
def reproducible(model: object = None, *, strict: bool = True) -> Iterator[None]:
    """Compute reproducibly on the CPU; the parameters of `model` must not change meanwhile.

    Without `strict`, operations that have no reproducible form run as they are.
    """
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    PACKED.clear()
    PACKED.update({weight.data_ptr(): {} for weight in weights})
    try:
        with kernels_suspended(), Reproducible(strict=strict):
            yield
    finally:
        PACKED.clear()


def _has_floats(values: Any) -> bool:
    """Whether one of the tensors has floating-point numbers; arithmetic with integers is exact."""
    for value in values:
        if isinstance(value, Tensor):
            if value.is_floating_point():
                return True
        elif isinstance(value, list | tuple) and _has_floats(value):
            return True
    return False
