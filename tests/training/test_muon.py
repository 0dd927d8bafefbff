"""Muon in float32 against torch's own, and the orthogonalisation against its definition."""

from __future__ import annotations

import torch

from chainrule.training.muon import Float32Muon, orthogonalise

SHAPES = ((6, 4), (6, 4), (4, 9), (5, 5))


def matrices() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def test_the_updates_are_those_of_torch_up_to_its_bfloat16() -> None:
    ours, theirs = matrices(), matrices()
    options = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9}
    optimizers = (Float32Muon(ours, **options), torch.optim.Muon(theirs, **options))
    generator = torch.Generator().manual_seed(4)
    for _ in range(3):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for mine, other, start in zip(ours, theirs, matrices(), strict=True):
        moved = (other - start).abs().mean()
        assert (mine - other).abs().max() < 0.1 * moved


def test_saved_states_are_interchangeable() -> None:
    ours, theirs = matrices(), matrices()
    first, second = Float32Muon(ours, lr=0.02), torch.optim.Muon(theirs, lr=0.02)
    for matrix in ours:
        matrix.grad = torch.ones_like(matrix)
    first.step()
    second.load_state_dict(first.state_dict())
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(first.state[mine], second.state[other])


def test_orthogonalise_keeps_singular_vectors_and_brings_the_values_near_one() -> None:
    matrices = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    found = orthogonalise(matrices, (3.4445, -4.7750, 2.0315), 5, 1e-7)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    values = left.mT @ found @ right.mT
    diagonal = values.diagonal(dim1=1, dim2=2)
    assert ((diagonal > 0.6) & (diagonal < 1.3)).all()
    torch.testing.assert_close(values, torch.diag_embed(diagonal), atol=1e-4, rtol=0)
