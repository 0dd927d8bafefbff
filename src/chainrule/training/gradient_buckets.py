"""Sums of gradients over the processes of `torchrun`, begun while the rest of the backward pass is computed.

Gradients are collected in buckets, in the reverse order of the parameters, which is about the order in which the
backward pass completes them. The sum of a bucket begins when the last of its gradients is there and all earlier buckets
have begun, so that every process begins them in the same order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

BUCKET_ENTRIES = 2**20
"""Numbers per bucket, 4 MB: a few buckets for a small model, and long messages for a large one."""


class GradientBuckets:
    """Sums the gradients of parameters over all processes."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.buckets: list[list[nn.Parameter]] = [[]]
        for parameter in reversed(parameters):
            if sum(one.numel() for one in self.buckets[-1]) >= BUCKET_ENTRIES:
                self.buckets.append([])
            self.buckets[-1].append(parameter)
        self._number = {id(one): number for number, bucket in enumerate(self.buckets) for one in bucket}
        self._missing = [len(bucket) for bucket in self.buckets]
        self._begun: list[tuple[Tensor, Any]] = []
        self.active = False  # whether the backward pass is the last of a step
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._count)

    def _count(self, parameter: Tensor) -> None:
        if not self.active:
            return
        self._missing[self._number[id(parameter)]] -= 1
        while len(self._begun) < len(self.buckets) and not self._missing[len(self._begun)]:
            self._begin()

    def _begin(self) -> None:
        """Begin the sum of the next bucket; a parameter without a gradient counts as 0."""
        bucket = self.buckets[len(self._begun)]
        flat = torch.cat([_gradient(parameter).flatten() for parameter in bucket])
        self._begun.append((flat, torch.distributed.all_reduce(flat, async_op=True)))

    def finish(self, present: list[bool]) -> None:
        """Wait for all sums; `present`: of the parameters, in their order, those with a gradient in any process."""
        while len(self._begun) < len(self.buckets):
            self._begin()
        has_gradient = iter(reversed(present))
        for bucket, (flat, work) in zip(self.buckets, self._begun, strict=True):
            work.wait()
            for parameter, sums in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
                parameter.grad = sums.view_as(parameter) if next(has_gradient) else None
        self._begun, self._missing, self.active = [], [len(bucket) for bucket in self.buckets], False


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
