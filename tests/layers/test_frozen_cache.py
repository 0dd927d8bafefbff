"""Cached states of a frozen encoder, against those computed anew."""

from __future__ import annotations

import torch

from chainrule.layers.encoders.build import make_encoder, shape_of
from chainrule.layers.encoders.frozen_cache import FrozenStateCache
from chainrule.types import Source


def test_cached_states_equal_those_of_the_encoder_and_are_computed_once() -> None:
    torch.manual_seed(2)
    encoder, reads = make_encoder(shape_of("lstm", 9, width=6, dropout=0.0)), []

    def read(source: Source, types_BS: torch.Tensor | None) -> torch.Tensor:
        assert types_BS is None
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
    cached = FrozenStateCache(lambda source, types_BS: source.tokens_BS[:, :, None].float(), capacity=4 * 3)
    tokens_BS = torch.tensor([[1, 2, 3], [4, 5, 6]])
    for _ in range(2):
        states_BSD = cached(Source(tokens_BS, torch.ones(2, 3, dtype=torch.bool)))
        assert torch.equal(states_BSD[:, :, 0], tokens_BS.float())
    assert len(cached.states) == 1


def test_texts_with_other_types_are_other_texts() -> None:
    reads = []

    def read(source: Source, types_BS: torch.Tensor | None) -> torch.Tensor:
        assert types_BS is not None
        reads.append(types_BS.tolist())
        return (source.tokens_BS + 10 * types_BS)[:, :, None].float()

    cached, tokens_BS = FrozenStateCache(read), torch.tensor([[1, 2, 3], [1, 2, 3], [4, 5, 5]])
    mask_BS, types_BS = (
        torch.tensor([[True] * 3] * 2 + [[True, True, False]]),
        torch.tensor([[0, 0, 1], [0, 1, 1], [0, 1, 1]]),
    )
    for _ in range(2):
        states_BS = cached(Source(tokens_BS, mask_BS), types_BS)[:, :, 0]
        assert states_BS.tolist() == [[1, 2, 13], [1, 12, 13], [4, 15, 0]]
    assert reads == [[[0, 0, 1]], [[0, 1, 1]], [[0, 1]]]
