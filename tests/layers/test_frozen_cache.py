"""Cached states of a frozen encoder, against those computed anew."""

from __future__ import annotations

import torch

from chainrule.layers.encoders.build import make_encoder, shape_of
from chainrule.layers.encoders.frozen_cache import FrozenStateCache
from chainrule.types import Source


def test_cached_states_equal_those_of_the_encoder_and_are_computed_once() -> None:
    torch.manual_seed(2)
    encoder, reads = make_encoder(shape_of("lstm", 9, width=6, dropout=0.0)), []

    def read(source: Source) -> torch.Tensor:
        reads.append(source.tokens_BS.tolist())
        return encoder(*source)  # type: ignore[no-any-return]

    cached = FrozenStateCache(read)
    tokens_BS = torch.tensor([[3, 4, 5, 1], [6, 1, 1, 1], [3, 4, 5, 1]])
    mask_BS = torch.arange(4) < torch.tensor([4, 2, 4])[:, None]
    for _ in range(2):
        states_BSD = cached(Source(tokens_BS, mask_BS))
        torch.testing.assert_close(states_BSD[mask_BS], encoder(tokens_BS, mask_BS)[mask_BS])
    assert reads == [[[3, 4, 5, 1]], [[6, 1]]]  # each text separately, without padding
    assert not states_BSD.requires_grad
    short = cached(Source(tokens_BS[1:2, :2], mask_BS[1:2, :2]))
    assert torch.equal(short[0], states_BSD[1, :2])  # independent of the batch


def test_the_cache_is_bounded() -> None:
    cached = FrozenStateCache(lambda source: source.tokens_BS[:, :, None].float(), capacity=4 * 3)
    tokens_BS = torch.tensor([[1, 2, 3], [4, 5, 6]])
    for _ in range(2):
        states_BSD = cached(Source(tokens_BS, torch.ones(2, 3, dtype=torch.bool)))
        assert torch.equal(states_BSD[:, :, 0], tokens_BS.float())
    assert len(cached.states) == 1
