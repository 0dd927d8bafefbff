"""The hand-written recurrences against torch.nn, naive loops under autograd, and finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from chainrule.base.kernels import kernels_suspended
from chainrule.errors import ConfigError
from chainrule.layers.recurrent.bidirectional import Bidirectional
from chainrule.layers.recurrent.kernel import has_kernel, run_kernel
from chainrule.layers.recurrent.stack import (
    CELLS,
    Recurrence,
    RecurrentLayer,
    make_cell,
    reverse,
    spectral_radius,
)
from chainrule.types import detach_state, select_rows

VARIANTS = [(kind, {}) for kind in CELLS] + [("rnn", {"activation": "relu"}), ("gru", {"reset": "after"})]
IDS = [" ".join([kind, *options.values()]) for kind, options in VARIANTS]
variants = pytest.mark.parametrize(("kind", "options"), VARIANTS, ids=IDS)


def blocks(weight: Tensor, count: int) -> list[Tensor]:
    return list(weight.chunk(count))


def naive_step(layer: RecurrentLayer, kind: str, options: dict, x_BD: Tensor, state: list[Tensor]) -> list[Tensor]:
    """One step written as in the papers, one gate at a time."""
    count = layer.cell.blocks
    W, b = blocks(layer.weight_input_GD, count), blocks(layer.bias_G, count)
    U, h = blocks(layer.weight_hidden_GH, count), state[0]
    a = [x_BD @ W[k].T + b[k] for k in range(count)]
    if kind == "rnn":
        total = a[0] + h @ U[0].T
        return [total.relu() if options.get("activation") == "relu" else total.tanh()]
    if kind == "gru":
        z, r = (a[1] + h @ U[1].T).sigmoid(), (a[2] + h @ U[2].T).sigmoid()
        inner = r * (h @ U[0].T + layer.extra) if options.get("reset") == "after" else (r * h) @ U[0].T
        n = (a[0] + inner).tanh()
        return [z * h + (1 - z) * n]
    c, s = state[1], [a[k] + h @ U[k].T for k in range(count)]
    if kind == "lstm-coupled":
        i = s[1].sigmoid()
        c = (1 - i) * c + i * s[0].tanh()
        return [s[2].sigmoid() * c.tanh(), c]
    p_i, p_f, p_o = layer.extra if kind == "lstm-peephole" else torch.zeros(3, 1, dtype=h.dtype)
    i, f = (s[1] + p_i * c).sigmoid(), (s[2] + p_f * c).sigmoid()
    c = f * c + i * s[0].tanh()
    return [(s[3] + p_o * c).sigmoid() * c.tanh(), c]


def naive(stack: Recurrence, options: dict, inputs_BTD: Tensor, state: list) -> tuple[Tensor, list]:
    after = []
    for layer, before in zip(stack.layers, state, strict=True):
        current, outputs = list(before), []
        for x_BD in inputs_BTD.unbind(1):
            current = naive_step(layer, stack.kind, options, x_BD, current)
            outputs.append(current[0])
        inputs_BTD = torch.stack(outputs, 1)
        after.append(tuple(current))
    return inputs_BTD, after


def random_state(stack: Recurrence, batch: int) -> list:
    return [tuple(torch.randn_like(part).requires_grad_() for part in parts) for parts in stack.start(batch)]


def scalar(hidden: Tensor, state: list) -> Tensor:
    """A number that depends differently on every output and every part of the last state."""
    parts = [hidden] + [part for parts in state for part in parts]
    return sum((part * torch.linspace(-1, 2, part.numel(), dtype=part.dtype).view(part.shape)).sum() for part in parts)


@variants
def test_outputs_and_gradients_equal_a_naive_loop(kind: str, options: dict) -> None:
    torch.manual_seed(0)
    stack = Recurrence(kind, 3, 4, layers=2, **options).double()
    inputs, state = torch.randn(5, 7, 3, dtype=torch.float64, requires_grad=True), random_state(stack, 5)
    leaves = [inputs, *(part for parts in state for part in parts), *stack.parameters()]
    ours, theirs = stack(inputs, state), naive(stack, options, inputs, state)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(scalar(*ours), leaves), torch.autograd.grad(scalar(*theirs), leaves))


@variants
def test_gradients_equal_finite_differences(kind: str, options: dict) -> None:
    torch.manual_seed(1)
    stack = Recurrence(kind, 2, 3, **options).double()
    names = [name for name, _ in stack.named_parameters()]

    def run(inputs: Tensor, *rest: Tensor) -> Tensor:
        states = stack.layers[0].cell.states
        given = dict(zip(names, rest[states:], strict=True))
        return scalar(*torch.func.functional_call(stack, given, (inputs, [rest[:states]])))

    leaves = [torch.randn(2, 4, 2, dtype=torch.float64, requires_grad=True), *random_state(stack, 2)[0]]
    leaves += [parameter.detach().clone().requires_grad_() for parameter in stack.parameters()]
    assert torch.autograd.gradcheck(run, leaves)


# The index of each block in the gate order of torch.
ORDER = {"rnn": [0], "lstm": [2, 0, 1, 3], "gru": [2, 1, 0]}


def from_torch(peer: nn.RNNBase, stack: Recurrence, kind: str, suffixes: tuple[str, ...] = ("l0", "l1")) -> None:
    """Copy the weights of the torch layers with these suffixes into the layers of a stack."""
    order = ORDER[kind]
    for layer, suffix in zip(stack.layers, suffixes, strict=True):
        pick = [
            torch.cat([blocks(getattr(peer, f"{name}_{suffix}"), len(order))[k] for k in order])
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]
        layer.weight_input_GD.data, layer.weight_hidden_GH.data = pick[0].clone(), pick[1].clone()
        if layer.extra is None:
            layer.bias_G.data = pick[2] + pick[3]
        else:  # the candidate of torch has two separate biases
            width = stack.hidden_size
            layer.extra.data = pick[3][:width].clone()
            layer.bias_G.data = pick[2] + torch.cat([torch.zeros_like(pick[3][:width]), pick[3][width:]])


@pytest.mark.parametrize(
    ("kind", "peer_class", "options", "peer_options"),
    [
        ("lstm", nn.LSTM, {}, {}),
        ("gru", nn.GRU, {"reset": "after"}, {}),
        ("rnn", nn.RNN, {}, {}),
        ("rnn", nn.RNN, {"activation": "relu"}, {"nonlinearity": "relu"}),
    ],
    ids=["lstm", "gru", "rnn tanh", "rnn relu"],
)
def test_equals_torch_with_the_same_weights(kind: str, peer_class: type, options: dict, peer_options: dict) -> None:
    torch.manual_seed(2)
    peer = peer_class(6, 8, 2, batch_first=True, **peer_options)
    stack = Recurrence(kind, 6, 8, layers=2, **options)
    with torch.no_grad():
        from_torch(peer, stack, kind)
    inputs, state = torch.randn(3, 9, 6, requires_grad=True), random_state(stack, 3)
    parts = [torch.stack(column) for column in zip(*state, strict=True)]
    hidden, last = stack(inputs, state)
    peer_hidden, peer_last = peer(inputs, tuple(parts) if len(parts) == 2 else parts[0])
    peer_parts = peer_last if isinstance(peer_last, tuple) else (peer_last,)
    peer_state = [tuple(part[depth] for part in peer_parts) for depth in range(2)]
    torch.testing.assert_close((hidden, last), (peer_hidden, peer_state), rtol=1e-5, atol=1e-5)
    leaves = [inputs, *(part for parts in state for part in parts)]
    ours = torch.autograd.grad(scalar(hidden, last), [*leaves, *stack.parameters()])
    theirs = torch.autograd.grad(scalar(peer_hidden, peer_state), [*leaves, *peer.parameters()])
    torch.testing.assert_close(ours[: len(leaves)], theirs[: len(leaves)], rtol=1e-5, atol=1e-5)
    for depth in range(2):
        names = [name for name, _ in peer.named_parameters()]
        peer_grads = dict(zip(names, theirs[len(leaves) :], strict=True))
        grads = dict(zip([name for name, _ in stack.named_parameters()], ours[len(leaves) :], strict=True))
        for name, peer_name in (
            ("weight_input_GD", "weight_ih"),
            ("weight_hidden_GH", "weight_hh"),
            ("bias_G", "bias_ih"),
        ):
            expected = blocks(peer_grads[f"{peer_name}_l{depth}"], len(ORDER[kind]))
            expected = torch.cat([expected[k] for k in ORDER[kind]])
            torch.testing.assert_close(grads[f"layers.{depth}.{name}"], expected, rtol=1e-5, atol=1e-4)


@variants
def test_two_chunks_with_the_state_carried_equal_one(kind: str, options: dict) -> None:
    torch.manual_seed(3)
    stack = Recurrence(kind, 4, 5, layers=2, **options)
    inputs = torch.randn(2, 12, 4)
    whole, last = stack(inputs)
    first, state = stack(inputs[:, :7])
    second, state = stack(inputs[:, 7:], detach_state(state))
    torch.testing.assert_close((torch.cat([first, second], 1), state), (whole, last))


@variants
@torch.no_grad()
def test_without_a_graph_single_steps_and_one_pass_equal_the_pass_with_one(kind: str, options: dict) -> None:
    torch.manual_seed(4)
    stack = Recurrence(kind, 4, 5, layers=2, **options)
    inputs = torch.randn(3, 6, 4)
    with torch.enable_grad():
        whole, last = stack(inputs)
    state, steps = stack.start(3), []
    for t in range(6):
        hidden, state = stack(inputs[:, t : t + 1], state)
        steps.append(hidden)
    torch.testing.assert_close((torch.cat(steps, 1), state), (whole.detach(), detach_state(last)))
    torch.testing.assert_close(stack(inputs), (whole.detach(), detach_state(last)))


LENGTHS = torch.tensor([3, 7, 1, 6])


def within(values_BTU: Tensor) -> list[Tensor]:
    """The rows without their padding."""
    return [row_TU[:length] for row_TU, length in zip(values_BTU, LENGTHS.tolist(), strict=True)]


@variants
def test_rows_that_end_early_equal_each_row_alone(kind: str, options: dict) -> None:
    torch.manual_seed(8)
    stack = Recurrence(kind, 3, 4, layers=2, **options).double()
    inputs, state = torch.randn(4, 7, 3, dtype=torch.float64, requires_grad=True), random_state(stack, 4)
    leaves = [inputs, *(part for parts in state for part in parts), *stack.parameters()]
    hidden, last = stack(inputs, state, LENGTHS)
    alone = [stack(row[None], select_rows(state, torch.tensor([number]))) for number, row in enumerate(within(inputs))]
    alone_last = [
        tuple(map(torch.cat, zip(*rows, strict=True))) for rows in zip(*(row[1] for row in alone), strict=True)
    ]
    torch.testing.assert_close((within(hidden), last), ([row[0][0] for row in alone], alone_last))
    ours = torch.autograd.grad(scalar(torch.cat(within(hidden)), last), leaves)
    theirs = torch.autograd.grad(scalar(torch.cat([row[0][0] for row in alone]), alone_last), leaves)
    torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        torch.testing.assert_close(stack(inputs, state, LENGTHS)[1], last)


@pytest.mark.parametrize("kind", ["lstm", "lstm-coupled", "lstm-peephole"])
def test_padding_leaves_the_memory_untouched(kind: str) -> None:
    torch.manual_seed(9)
    stack, inputs = Recurrence(kind, 3, 4), torch.randn(4, 7, 3)
    _, [(hidden, memory)] = stack(inputs, None, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        inputs[row, length:] = 100 * torch.randn(7 - length, 3)
    _, [(other_hidden, other_memory)] = stack(inputs, None, LENGTHS)
    assert torch.equal(hidden, other_hidden)
    assert torch.equal(memory, other_memory)


PEERS = pytest.mark.parametrize(
    ("kind", "peer_class", "options"), [("lstm", nn.LSTM, {}), ("gru", nn.GRU, {"reset": "after"})], ids=["lstm", "gru"]
)


def packed(peer: nn.RNNBase, inputs_BTD: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The result of torch for rows of unequal lengths: hidden_BTU, and the last states, each (layers, B, U)."""
    rows = nn.utils.rnn.pack_padded_sequence(inputs_BTD, LENGTHS, batch_first=True, enforce_sorted=False)
    hidden, last = peer(rows)
    return nn.utils.rnn.pad_packed_sequence(hidden, batch_first=True)[0], last if isinstance(last, tuple) else (last,)


@PEERS
def test_rows_that_end_early_equal_torchs_packed_sequences(kind: str, peer_class: type, options: dict) -> None:
    torch.manual_seed(10)
    peer = peer_class(6, 8, 2, batch_first=True).double()
    stack = Recurrence(kind, 6, 8, layers=2, **options).double()
    from_torch(peer, stack, kind)
    inputs = torch.randn(4, 7, 6, dtype=torch.float64, requires_grad=True)
    hidden, last = stack(inputs, None, LENGTHS)
    peer_hidden, parts = packed(peer, inputs)
    peer_last = [tuple(part[depth] for part in parts) for depth in range(2)]
    torch.testing.assert_close((within(hidden), last), (within(peer_hidden), peer_last))
    ours, theirs = (scalar(torch.cat(within(all_)), end) for all_, end in ((hidden, last), (peer_hidden, peer_last)))
    torch.testing.assert_close(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs))


@PEERS
@pytest.mark.parametrize("padded", [True, False])
def test_both_directions_equal_torch(kind: str, peer_class: type, options: dict, padded: bool) -> None:
    torch.manual_seed(11)
    peer = peer_class(6, 8, 2, batch_first=True, bidirectional=True).double()
    stack = Bidirectional(kind, 6, 8, layers=2, **options).double()
    for depth in range(2):
        from_torch(peer, stack.rightward[depth], kind, (f"l{depth}",))
        from_torch(peer, stack.leftward[depth], kind, (f"l{depth}_reverse",))
    inputs = torch.randn(4, 7, 6, dtype=torch.float64, requires_grad=True)
    hidden, last = stack(inputs, LENGTHS if padded else None)
    if padded:
        peer_hidden, parts = packed(peer, inputs)
        hidden, peer_hidden = torch.cat(within(hidden)), torch.cat(within(peer_hidden))
    else:
        peer_hidden, end = peer(inputs)
        parts = end if isinstance(end, tuple) else (end,)
    # torch concatenates the directions along the layers
    peer_last = [tuple(torch.cat([*part[2 * depth : 2 * depth + 2]], 1) for part in parts) for depth in range(2)]
    torch.testing.assert_close((hidden, last), (peer_hidden, peer_last))
    weights = [stack.leftward[0].layers[0].weight_hidden_GH, stack.rightward[1].layers[0].weight_input_GD]
    peer_weights = [peer.weight_hh_l0_reverse, peer.weight_ih_l1]
    inputs_grad, *ours = torch.autograd.grad(scalar(hidden, last), [inputs, *weights])
    peer_grad, *theirs = torch.autograd.grad(scalar(peer_hidden, peer_last), [inputs, *peer_weights])
    theirs = [torch.cat([blocks(grad, len(ORDER[kind]))[k] for k in ORDER[kind]]) for grad in theirs]
    torch.testing.assert_close([inputs_grad, *ours], [peer_grad, *theirs])


def test_rows_are_reversed_within_their_lengths() -> None:
    tokens_BT = torch.arange(28).view(4, 7)
    expected = [row[:length][::-1] + row[length:] for row, length in zip(tokens_BT.tolist(), LENGTHS, strict=True)]
    assert reverse(tokens_BT, LENGTHS).tolist() == expected
    assert reverse(tokens_BT).tolist() == [row[::-1] for row in tokens_BT.tolist()]
    vectors_BTD = torch.randn(4, 7, 3)
    assert torch.equal(reverse(reverse(vectors_BTD, LENGTHS), LENGTHS), vectors_BTD)


@variants
def test_advancing_by_gates_equals_one_pass(kind: str, options: dict) -> None:
    torch.manual_seed(12)
    stack = Recurrence(kind, 4, 5, layers=2, **options).double()
    inputs = torch.randn(3, 6, 4, dtype=torch.float64, requires_grad=True)
    leaves = [inputs, *stack.parameters()]
    whole = stack(inputs)
    state, steps = stack.start(3), []
    for gates_BG in stack.gates(inputs).unbind(0):
        hidden_BU, state = stack.advance(gates_BG.clone(), state)
        steps.append(hidden_BU)
    stepped = torch.stack(steps, 1), state
    torch.testing.assert_close(stepped, whole)
    torch.testing.assert_close(
        torch.autograd.grad(scalar(*stepped), leaves), torch.autograd.grad(scalar(*whole), leaves)
    )


def test_rows_of_a_batch_are_independent() -> None:
    stack, inputs = Recurrence("lstm", 4, 5, layers=2), torch.randn(4, 6, 4)
    rows = torch.tensor([2, 0])
    hidden, state = stack(inputs)
    few, few_state = stack(inputs[rows])
    torch.testing.assert_close((few, few_state), (hidden[rows], select_rows(state, rows)))


def test_variational_dropout_keeps_one_mask_over_time() -> None:
    torch.manual_seed(5)
    stack = Recurrence("rnn", 4, 64, layers=2, dropout=0.5, variational=True, activation="relu")
    first, second = stack.layers
    with torch.no_grad():  # the first layer outputs ones, and the second copies its input
        for parameter in stack.parameters():
            parameter.zero_()
        first.bias_G.fill_(1.0)
        second.weight_input_GD.copy_(torch.eye(64))
    hidden_BTU, _ = stack(torch.zeros(3, 5, 4))
    assert set(hidden_BTU.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(hidden_BTU, hidden_BTU[:, :1].expand_as(hidden_BTU))
    assert not torch.equal(hidden_BTU[0], hidden_BTU[1])
    stack.variational = False
    hidden_BTU, _ = stack(torch.zeros(3, 5, 4))
    assert not torch.equal(hidden_BTU, hidden_BTU[:, :1].expand_as(hidden_BTU))
    stack.eval()
    assert torch.equal(stack(torch.zeros(3, 5, 4))[0], torch.ones(3, 5, 64))


def test_recurrent_dropout_drops_weights_and_scales_the_rest() -> None:
    torch.manual_seed(6)
    stack = Recurrence("lstm", 3, 16, recurrent_dropout=0.25)
    layer, inputs = stack.layers[0], torch.randn(2, 5, 3)
    torch.manual_seed(7)
    dropped, _ = stack(inputs)
    torch.manual_seed(7)
    masked = nn.functional.dropout(layer.weight_hidden_GH, 0.25)
    assert (masked == 0).any()
    stack.eval()
    kept = {"layers.0.weight_hidden_GH": masked}
    expected, _ = torch.func.functional_call(stack, kept, (inputs,))
    torch.testing.assert_close(dropped, expected)
    dropped.sum().backward()
    assert torch.equal(layer.weight_hidden_GH.grad[masked == 0], torch.zeros(int((masked == 0).sum())))


def test_mixed_precision_computes_the_recurrence_in_full() -> None:
    stack, inputs = Recurrence("gru", 4, 5), torch.randn(2, 3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden, _ = stack(inputs)
    torch.testing.assert_close(hidden, stack(inputs)[0])


def test_initial_values() -> None:
    rnn, lstm, coupled = (Recurrence(kind, 8, 32).layers[0] for kind in ("rnn", "lstm", "lstm-coupled"))
    assert spectral_radius(rnn.weight_hidden_GH) == pytest.approx(1, abs=1e-5)
    assert lstm.weight_hidden_GH.abs().max() <= 32**-0.5
    assert torch.equal(lstm.bias_G[64:96], torch.ones(32))  # the forget gate
    assert torch.equal(coupled.bias_G[32:64], -torch.ones(32))  # the input gate


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (
            ("lsmt", 4, 4),
            {},
            "unknown recurrent cell 'lsmt': did you mean 'lstm'? Known: gru, lstm, lstm-coupled, lstm-peephole, rnn",
        ),
        (("rnn", 4, 4), {"activation": "relo"}, "unknown activation 'relo': did you mean 'relu'? Known: relu, tanh"),
        (("gru", 4, 4), {"reset": "aftr"}, "unknown reset 'aftr': did you mean 'after'? Known: after, before"),
        (
            ("gru", 4, 0),
            {},
            "a recurrent stack needs input_size, hidden_size and layers of at least 1, "
            "but got 4, 0 and 1: raise the one below 1",
        ),
        (
            ("gru", 4, 4),
            {"dropout": 1.0},
            "dropout is 1.0: choose a rate of at least 0 and below 1",
        ),
    ],
)
def test_wrong_options_are_named(arguments: tuple, options: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Recurrence(*arguments, **options)
    assert str(caught.value) == message


KERNEL = [variant for variant in VARIANTS if variant[0] in ("lstm", "gru")]
kernel_variants = pytest.mark.parametrize(("kind", "options"), KERNEL, ids=lambda value: str(value))


def test_the_kernel_supports_two_kinds_of_cells_without_gradients() -> None:
    for kind, options in VARIANTS:
        stack, inputs_BTD = Recurrence(kind, 5, 9, **options), torch.randn(1, 2, 5)
        assert not has_kernel(stack.cell, inputs_BTD)
        with torch.no_grad():
            assert has_kernel(stack.cell, inputs_BTD) == ((kind, options) in KERNEL)
            assert not has_kernel(stack.cell, inputs_BTD.double())


@kernel_variants
@pytest.mark.parametrize("rows", [1, 3, 6])
@pytest.mark.parametrize("width", [9, 10])  # the rows of the weights are, and are not, a multiple of four
def test_the_kernel_equals_the_loop(kind: str, options: dict, rows: int, width: int) -> None:
    torch.manual_seed(0)
    stack = Recurrence(kind, 5, width, layers=2, dropout=0.5, **options).eval()
    inputs_BTD, state = 3 * torch.randn(rows, 7, 5), random_state(stack, rows)
    state = [tuple(part.float() for part in layer) for layer in state]
    before = torch.stack([part for layer in state for part in layer])
    lengths_B = torch.randint(1, 8, (rows,))
    for some in (None, lengths_B):
        loop_BTU, loop_states = stack(inputs_BTD, state, some)  # records a graph
        with torch.no_grad():
            kernel_BTU, kernel_states = stack(inputs_BTD, state, some)
        for row, length in enumerate([7] * rows if some is None else some.tolist()):
            torch.testing.assert_close(kernel_BTU[row, :length], loop_BTU[row, :length].detach(), atol=2e-6, rtol=1e-5)
        for loop, kernel in zip(loop_states, kernel_states, strict=True):
            torch.testing.assert_close(kernel, tuple(part.detach() for part in loop), atol=2e-6, rtol=1e-5)
    assert torch.equal(before, torch.stack([part for layer in state for part in layer]))  # the state is not overwritten


both_ways = pytest.mark.parametrize(("kind", "options"), [one for one in VARIANTS if "activation" not in one[1]])


@both_ways
@pytest.mark.parametrize("rows", [1, 3, 8])  # the engine takes six side by side
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("ragged", [False, True])
def test_the_engine_equals_the_loop_in_both_directions(
    kind: str, options: dict, rows: int, layers: int, ragged: bool
) -> None:
    torch.manual_seed(0)
    both = Bidirectional(kind, 5, 9, layers, dropout=0.5, **options).eval()
    inputs_BTD = 3 * torch.randn(rows, 7, 5)
    lengths_B = torch.randint(1, 8, (rows,)) if ragged else None
    loop_BTU, loop_states = both(inputs_BTD, lengths_B)  # records a graph
    with torch.no_grad():
        kernel_BTU, kernel_states = both(inputs_BTD, lengths_B)
    for row, length in enumerate([7] * rows if lengths_B is None else lengths_B.tolist()):
        torch.testing.assert_close(kernel_BTU[row, :length], loop_BTU[row, :length].detach(), atol=2e-6, rtol=1e-5)
        assert not kernel_BTU[row, length:].any()
    for loop, kernel in zip(loop_states, kernel_states, strict=True):
        for one, other in zip(loop, kernel, strict=True):
            torch.testing.assert_close(other, one.detach(), atol=2e-6, rtol=1e-5)


@both_ways
@pytest.mark.parametrize("width", [9, 16])
def test_a_row_of_the_engine_depends_on_no_other(kind: str, options: dict, width: int) -> None:
    torch.manual_seed(0)
    both = Bidirectional(kind, 5, width, 2, **options).eval()
    inputs_BTD, lengths = torch.randn(9, 7, 5), [3, 7, 1, 5, 7, 2, 6, 4, 7]
    with torch.no_grad():
        together_BTU, states = both(inputs_BTD, torch.tensor(lengths))
        for row, length in enumerate(lengths):
            alone_BTU, own_states = both(inputs_BTD[row : row + 1, :length])
            assert torch.equal(alone_BTU[0], together_BTU[row, :length])
            for together, own in zip(states, own_states, strict=True):
                assert all(torch.equal(one[row], other[0]) for one, other in zip(together, own, strict=True))


def test_the_engine_notices_changed_weights() -> None:
    both, inputs_BTD = Bidirectional("gru", 5, 6).eval(), torch.randn(2, 4, 5)
    with torch.no_grad():
        before_BTU, _ = both(inputs_BTD)
        both.rightward[0].layers[0].bias_G += 1.0
        after_BTU, _ = both(inputs_BTD)
        assert not torch.equal(before_BTU, after_BTU)
        with kernels_suspended():
            torch.testing.assert_close(both(inputs_BTD)[0], after_BTU)


def test_the_kernel_handles_large_numbers() -> None:
    gates_BTG = torch.tensor([1e4, -1e4, 0.0, 80.0]).repeat_interleave(2).view(1, 1, 8)  # g i f o
    lstm = make_cell("lstm")
    _, (_, cell_BU) = run_kernel(lstm, gates_BTG, torch.zeros(8, 2), None)
    assert cell_BU.abs().max() < 1e-37
    _, (last_BU, cell_BU) = run_kernel(lstm, -gates_BTG, torch.zeros(8, 2), None)
    assert cell_BU.tolist() == [[-1.0, -1.0]]
    assert last_BU.abs().max() < 1e-6  # σ(-80)
