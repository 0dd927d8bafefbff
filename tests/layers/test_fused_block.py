"""The fused parts of a Transformer block against torch's operations: in double precision, and with the same dropout."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from chainrule.base.kernels import kernels_suspended
from chainrule.engines.fused.attention import BLOCK
from chainrule.layers.attention.positions import Rotary
from chainrule.layers.blocks import Block, BlockShape
from chainrule.layers.fused import attention
from chainrule.layers.fused.parts import fused_kernels_support
from chainrule.models.at import LinearBlock

WIDTH, HEADS = 24, 3


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made_block(
    *, rotary: bool = True, dropout: float = 0.0, scale: float | None = None, head: int = WIDTH // HEADS
) -> Block:
    torch.manual_seed(3)
    shape = BlockShape(
        width=WIDTH, heads=HEADS, inner=40, dropout=dropout, attention_dropout=dropout, scale=scale, eps=1e-3,
        head_width=head,
    )  # fmt: skip
    block = Block(shape, Rotary(600, head) if rotary else None)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return block


def gradients(block: Block, stream_ND: Tensor, rows: int) -> list[Tensor]:
    """The stream after the block, and the gradients of the stream and all parameters for a fixed random weighting."""
    stream_ND = stream_ND.detach().clone().requires_grad_()
    out_ND, cache = block(stream_ND, rows)
    assert cache is None
    weights_ND = torch.randn(out_ND.shape, generator=torch.Generator().manual_seed(5)).to(out_ND.dtype)
    return [out_ND.detach(), *torch.autograd.grad((out_ND * weights_ND).sum(), [stream_ND, *block.parameters()])]


def assert_near(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            one.double() / other.abs().max(), other.double() / other.abs().max(), atol=3e-6, rtol=0
        )


@pytest.mark.parametrize("rotary", [True, False])
@pytest.mark.parametrize(("rows", "length"), [(3, 1), (2, 7), (1, BLOCK), (2, 2 * BLOCK + 5)])
def test_a_fused_block_equals_torch_in_double_precision(rotary: bool, rows: int, length: int) -> None:
    block = made_block(rotary=rotary, scale=None if rotary else 0.3)
    stream_ND = torch.randn(rows * length, WIDTH)
    assert fused_kernels_support(stream_ND.requires_grad_())
    assert_near(gradients(block, stream_ND, rows), gradients(copy.deepcopy(block).double(), stream_ND.double(), rows))


@pytest.mark.parametrize("head", [2, 16, 20, 32, 48, 66])
def test_heads_of_any_width(head: int) -> None:
    block, stream_ND = made_block(head=head), torch.randn(2 * 40, WIDTH)
    assert_near(gradients(block, stream_ND, 2), gradients(copy.deepcopy(block).double(), stream_ND.double(), 2))


@pytest.mark.parametrize("length", [9, BLOCK + 3])
def test_dropout_draws_the_same_masks_as_torch(length: int) -> None:
    block, stream_ND = made_block(dropout=0.3), torch.randn(2 * length, WIDTH)
    torch.manual_seed(8)
    fused = gradients(block, stream_ND, 2)
    state = torch.get_rng_state()
    torch.manual_seed(8)
    with kernels_suspended():
        expected = gradients(block, stream_ND, 2)
    assert_near(fused, expected)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.allclose(fused[0], gradients(block.eval(), stream_ND, 2)[0])


def count_calls(monkeypatch: pytest.MonkeyPatch, kind: type[torch.autograd.Function]) -> list[int]:
    calls, apply = [], kind.apply
    monkeypatch.setattr(kind, "apply", lambda *given: (calls.append(1), apply(*given))[1])
    return calls


def test_masks_and_caches_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    block, calls = made_block(), count_calls(monkeypatch, attention.FusedAttention)
    stream_ND = torch.randn(2 * 6, WIDTH, requires_grad=True)
    block(stream_ND, 2, mask=torch.ones(1, 1, 6, 6, dtype=torch.bool))
    block(stream_ND, 2, causal=False)
    block(stream_ND, 2, block.start(2, 8, stream_ND))
    LinearBlock(block.shape)(stream_ND, 2)
    with torch.no_grad():
        block(stream_ND, 2)
    with torch.autocast("cpu", torch.bfloat16):
        block(stream_ND, 2)
    torch.set_num_threads(2)
    block(stream_ND, 2)
    assert not calls
    torch.set_num_threads(1)
    block(stream_ND, 2)
    assert calls
