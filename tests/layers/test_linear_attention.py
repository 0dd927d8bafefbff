"""Linear attention against loops over single positions: in steps, in chunks, and with a carried state."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from chainrule.layers.attention import linear
from chainrule.layers.attention.linear import (
    CHUNK,
    SPANS,
    TINY,
    Decay,
    LinearSelfAttention,
    LinearState,
    linear_attention,
)
from chainrule.types import select_rows

B, H, E = 2, 3, 4
DECAY = torch.tensor([0.3, 0.95, 1.0], dtype=torch.float64)
decays = pytest.mark.parametrize("decay_H", [None, DECAY], ids=["plain", "decay"])
lengths = pytest.mark.parametrize("length", [1, 2, 5, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 7])


def parts(length: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value, BHTE each, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, B, H, length, E, generator=generator, dtype=torch.float64)
    return query, key, value


def feature(x: float) -> float:
    """elu(x) + 1."""
    return x + 1 if x > 0 else math.exp(x)


def naive(query_TE: Tensor, key_TE: Tensor, value_TE: Tensor, decay: float) -> Tensor:
    """Σ_i γ^(t-i) φ(q_t)·φ(k_i) v_i / Σ_i γ^(t-i) φ(q_t)·φ(k_i), of one head, by loops -> TE."""
    queries, keys = ([[feature(x) for x in row] for row in part.tolist()] for part in (query_TE, key_TE))
    out_TE = torch.zeros_like(value_TE)
    for t, query in enumerate(queries):
        weights = [
            decay ** (t - i) * sum(a * b for a, b in zip(query, key, strict=True))
            for i, key in enumerate(keys[: t + 1])
        ]
        for i, weight in enumerate(weights):
            out_TE[t] += weight / (sum(weights) + TINY) * value_TE[i]
    return out_TE


def pieces(
    given: tuple[Tensor, Tensor, Tensor], sizes: list[int], decay_H: Tensor | None
) -> tuple[Tensor, LinearState]:
    """The same positions, `sizes` at a time."""
    state, mixed = None, []
    for piece in zip(*(part.split(sizes, 2) for part in given), strict=True):
        mixed_BHTE, state = linear_attention(*piece, state, decay_H)
        mixed.append(mixed_BHTE)
    assert state is not None
    return torch.cat(mixed, 2), state


@decays
@lengths
def test_it_equals_the_formula_by_loops(length: int, decay_H: Tensor | None) -> None:
    given = parts(length)
    mixed_BHTE, _ = linear_attention(*given, None, decay_H)
    row, gammas = 1, [1.0] * H if decay_H is None else decay_H.tolist()
    for head, gamma in enumerate(gammas):
        expected_TE = naive(*(part[row, head] for part in given), gamma)
        torch.testing.assert_close(mixed_BHTE[row, head], expected_TE)


@decays
@lengths
def test_all_at_once_equals_step_by_step(length: int, decay_H: Tensor | None) -> None:
    given = parts(length)
    mixed_BHTE, state = linear_attention(*given, None, decay_H)
    stepped_BHTE, last = pieces(given, [1] * length, decay_H)
    torch.testing.assert_close(mixed_BHTE, stepped_BHTE)
    torch.testing.assert_close(tuple(state), tuple(last))


@decays
def test_several_calls_with_a_carried_state_equal_one_call(decay_H: Tensor | None) -> None:
    sizes = [3, 1, CHUNK, 2 * CHUNK + 5, 1, CHUNK - 1]
    given = parts(sum(sizes))
    whole_BHTE, state = linear_attention(*given, None, decay_H)
    carried_BHTE, last = pieces(given, sizes, decay_H)
    torch.testing.assert_close(carried_BHTE, whole_BHTE)
    torch.testing.assert_close(tuple(state), tuple(last))


def test_the_state_consists_of_the_two_sums() -> None:
    _, key, value = given = parts(CHUNK + 3)
    _, (sum_BHEE, norm_BHE) = linear_attention(*given, None, DECAY)
    head, place = 1, CHUNK + 2
    expected_EE, expected_E = torch.zeros(E, E, dtype=torch.float64), torch.zeros(E, dtype=torch.float64)
    for t in range(place + 1):
        features_E = torch.tensor([feature(x) for x in key[0, head, t].tolist()], dtype=torch.float64)
        expected_EE += DECAY[head] ** (place - t) * torch.outer(features_E, value[0, head, t])
        expected_E += DECAY[head] ** (place - t) * features_E
    torch.testing.assert_close(sum_BHEE[0, head], expected_EE)
    torch.testing.assert_close(norm_BHE[0, head], expected_E)


@decays
@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("length", [1, 3, 7])  # one step; less than a chunk; chunks and a remainder
def test_gradients_equal_finite_differences(
    length: int, carried: bool, decay_H: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "CHUNK", 3)
    before = linear_attention(*parts(2, seed=1), None, decay_H)[1] if carried else ()
    given = [*parts(length), *before, *([] if decay_H is None else [decay_H * 0.9])]
    inputs = [tensor[:1, :2, :, :2] if tensor.dim() == 4 else tensor for tensor in given]
    inputs = [tensor[:1, :2, :2] if tensor.dim() == 3 else tensor for tensor in inputs]
    inputs = [(tensor[:2] if tensor.dim() == 1 else tensor).clone().requires_grad_() for tensor in inputs]
    if carried:
        inputs[3] = inputs[3][:, :, :2].detach().clone().requires_grad_()

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        state = LinearState(*tensors[3:5]) if carried else None
        gamma_H = None if decay_H is None else tensors[-1]
        mixed_BHTE, (sum_BHEE, norm_BHE) = linear_attention(*tensors[:3], state, gamma_H)
        return mixed_BHTE, sum_BHEE, norm_BHE

    assert torch.autograd.gradcheck(run, tuple(inputs))


def test_memory_for_the_gradient_is_linear_in_the_length() -> None:
    def kept(length: int) -> int:
        """Number of values saved for the backward pass, counting each storage once."""
        given = [part.requires_grad_() for part in parts(length)]
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 8
            held.append(tensor)  # so that no two storages have the same address
            return tensor

        held: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            linear_attention(*given, None, DECAY)  # type: ignore[arg-type]
        return sum(sizes.values())

    four, eight = kept(4 * CHUNK), kept(8 * CHUNK)
    assert eight < 2.1 * four
    # A chunk saves its M × M scores and one sum of E × E; one sum per position would be far more.
    assert eight < 8 * CHUNK * B * H * (2 * CHUNK + 16 * E)


@pytest.mark.parametrize("length", [1, CHUNK + 5])
def test_sums_keep_full_precision_under_autocast(length: int) -> None:
    given = [part.bfloat16() for part in parts(length)]
    exact_BHTE, exact = linear_attention(*(part.double() for part in given), None, DECAY)  # type: ignore[arg-type]
    with torch.autocast("cpu", torch.bfloat16):
        mixed_BHTE, state = linear_attention(*given, None, DECAY.float())  # type: ignore[arg-type]
        again_BHTE, _ = linear_attention(*given, state, DECAY.float())  # type: ignore[arg-type]
    assert mixed_BHTE.dtype == again_BHTE.dtype == torch.bfloat16
    assert {tensor.dtype for tensor in state} == {torch.float32}
    assert {tensor.dtype for tensor in exact} == {torch.float64}
    torch.testing.assert_close(tuple(state), tuple(part.float() for part in exact), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(mixed_BHTE, exact_BHTE.bfloat16(), atol=0.02, rtol=0.01)


def test_keys_whose_features_vanish_give_no_nan() -> None:
    query, key, value = parts(3)
    mixed_BHTE, _ = linear_attention(query, key - 1000, value)
    assert torch.equal(mixed_BHTE, torch.zeros_like(mixed_BHTE))


def test_heads_start_with_memories_from_short_to_long() -> None:
    gamma_H = Decay(5)()
    spans = [1 / (1 - gamma) for gamma in gamma_H.tolist()]
    ratio = (SPANS[1] / SPANS[0]) ** (1 / 4)
    assert spans == pytest.approx([SPANS[0] * ratio**head for head in range(5)], rel=1e-3)
    assert (1 / (1 - Decay(1)())).item() == pytest.approx(SPANS[0], rel=1e-3)


def layer(*, decay: bool, dropout: float = 0.0) -> LinearSelfAttention:
    torch.manual_seed(0)
    return LinearSelfAttention(6, 2, dropout=dropout, decay=decay).double()


@pytest.mark.parametrize("decay", [False, True])
def test_the_layer_equals_projections_around_the_formula(decay: bool) -> None:
    attention, inputs_BTD = layer(decay=decay), torch.randn(2, 5, 6, dtype=torch.float64)
    query, key, value = (inputs_BTD @ attention.project_in.weight.T).chunk(3, -1)
    heads = []
    for head in range(2):
        at = slice(3 * head, 3 * head + 3)
        gamma = 1.0 if attention.decay is None else attention.decay()[head].item()
        heads.append(torch.stack([naive(query[b, :, at], key[b, :, at], value[b, :, at], gamma) for b in range(2)]))
    expected_BTD = torch.cat(heads, -1) @ attention.project_out.weight.T
    mixed_BTD, state = attention(inputs_BTD, None)
    assert state is None
    torch.testing.assert_close(mixed_BTD, expected_BTD)


def test_the_layer_continues_from_any_selection_of_rows() -> None:
    attention, inputs_BTD = layer(decay=True), torch.randn(3, 5, 6, dtype=torch.float64)
    whole_BTD, _ = attention(inputs_BTD, None)
    _, state = attention(inputs_BTD[:, :4], attention.start(3))
    rows_K = torch.tensor([2, 0, 0, 1])
    mixed_KTD, _ = attention(inputs_BTD[rows_K, 4:], select_rows(state, rows_K))
    torch.testing.assert_close(mixed_KTD, whole_BTD[rows_K, 4:])


def test_the_layer_drops_its_output_only_in_training() -> None:
    attention, inputs_BTD = layer(decay=True, dropout=0.5), torch.randn(2, 5, 6, dtype=torch.float64)
    whole_BTD, _ = attention.eval()(inputs_BTD, None)
    dropped_BTD, _ = attention.train()(inputs_BTD, None)
    kept = dropped_BTD != 0
    assert 0.1 < kept.double().mean() < 0.9
    torch.testing.assert_close(dropped_BTD[kept], 2 * whole_BTD[kept])
