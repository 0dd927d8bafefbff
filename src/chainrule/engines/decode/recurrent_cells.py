"""One step of each recurrent cell for one row, given the sums of its gates; as in `layers/recurrent/cells.py`.

A state `state[at:]` is h, followed by c if the cell has one. All vectors are U wide. Loops run over parts of arrays, so
that indices start at 0: one that might be negative would count from the end, which prevents vector instructions.
"""

from __future__ import annotations

from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.functions import ZERO, sigmoid, tanh

RNN, RNN_RELU, LSTM, LSTM_PEEPHOLE, LSTM_COUPLED, GRU, GRU_AFTER = range(7)
"""Indices of CELLS of `recurrent_weights.py` as plain numbers, which kernels can use."""


@compiled
def add_part(sums, sums_at, terms, terms_at, count):  # type: ignore[no-untyped-def]
    """sums += terms."""
    part, more = sums[sums_at : sums_at + count], terms[terms_at : terms_at + count]
    for j in range(len(part)):
        part[j] += more[j]


@compiled
def copy_part(values, at, out, out_at, count):  # type: ignore[no-untyped-def]
    part, target = values[at : at + count], out[out_at : out_at + count]
    for j in range(len(part)):
        target[j] = part[j]


@compiled
def _sigmoid(part):  # type: ignore[no-untyped-def]
    for j in range(len(part)):
        part[j] = sigmoid(part[j])


@compiled
def _tanh(part):  # type: ignore[no-untyped-def]
    for j in range(len(part)):
        part[j] = tanh(part[j])


@compiled
def _add_product(part, factors, values):  # type: ignore[no-untyped-def]
    for j in range(len(part)):
        part[j] += factors[j] * values[j]


@compiled
def add_tanh(values, at, terms, count):  # type: ignore[no-untyped-def]
    """values = tanh(values + terms)."""
    part = values[at : at + count]
    for j in range(len(part)):
        part[j] = tanh(part[j] + terms[j])


@compiled
def step_rnn(relu, sums, at, state, before, U):  # type: ignore[no-untyped-def]
    """h = tanh(a), or max(a, 0)."""
    part, h = sums[at : at + U], state[before : before + U]
    if relu:
        for j in range(len(h)):
            h[j] = max(part[j], ZERO)
    else:
        for j in range(len(h)):
            h[j] = tanh(part[j])


@compiled
def step_lstm(coupled, sums, at, floats, extra, state, before, U):  # type: ignore[no-untyped-def]
    """c = f∘c + i∘g, h = o∘tanh(c); coupled: f = 1 - i. With peepholes (`extra` ≥ 0) the gates also see c."""
    h, c = state[before : before + U], state[before + U : before + 2 * U]
    g, i, f = sums[at : at + U], sums[at + U : at + 2 * U], sums[at + 2 * U : at + 3 * U]
    o = f if coupled else sums[at + 3 * U : at + 4 * U]
    if extra >= 0:
        _add_product(i, floats[extra : extra + U], c)
        _add_product(f, floats[extra + U : extra + 2 * U], c)
    _tanh(g)
    _sigmoid(i)
    if coupled:
        for j in range(len(c)):
            c[j] += i[j] * (g[j] - c[j])
    else:
        _sigmoid(f)
        for j in range(len(c)):
            c[j] = f[j] * c[j] + i[j] * g[j]
    if extra >= 0:
        _add_product(o, floats[extra + 2 * U : extra + 3 * U], c)
    _sigmoid(o)
    for j in range(len(g)):
        g[j] = tanh(c[j])
    for j in range(len(h)):
        h[j] = o[j] * g[j]


@compiled
def step_cell(cell, sums, at, gates, gates_at, floats, extra, state, before, U):  # type: ignore[no-untyped-def]
    """One step of any cell but `gru`, whose candidate needs a product of its own; `cell` is an index of CELLS.

    `sums` are those of the state, `gates` those of the inputs.
    """
    if cell == GRU_AFTER:
        step_gru_after(sums, at, gates, gates_at, floats, extra, state, before, U)
    elif cell in (RNN, RNN_RELU):
        add_part(sums, at, gates, gates_at, U)
        step_rnn(cell == RNN_RELU, sums, at, state, before, U)
    else:
        add_part(sums, at, gates, gates_at, 3 * U if cell == LSTM_COUPLED else 4 * U)
        step_lstm(cell == LSTM_COUPLED, sums, at, floats, extra, state, before, U)


@compiled
def activate_gru(sums, at, state, before, U):  # type: ignore[no-untyped-def]
    """Sums of n z r: replace those of z by the gate, and those of r by r∘h."""
    _sigmoid(sums[at + U : at + 3 * U])
    reset, h = sums[at + 2 * U : at + 3 * U], state[before : before + U]
    for j in range(len(reset)):
        reset[j] *= h[j]


@compiled
def finish_gru(inner, inner_at, gate, gate_at, state, before, U):  # type: ignore[no-untyped-def]
    """h = n + z∘(h - n), where n = tanh(inner)."""
    n, z, h = inner[inner_at : inner_at + U], gate[gate_at : gate_at + U], state[before : before + U]
    _tanh(n)
    for j in range(len(h)):
        h[j] = n[j] + z[j] * (h[j] - n[j])


@compiled
def step_gru_after(sums, at, gates, gates_at, floats, extra, state, before, U):  # type: ignore[no-untyped-def]
    """The form in which the reset gate acts after the product: n = tanh(a + r∘(Uh + b))."""
    add_part(sums, at + U, gates, gates_at + U, 2 * U)
    _sigmoid(sums[at + U : at + 3 * U])
    n, r = sums[at : at + U], sums[at + 2 * U : at + 3 * U]
    a, b = gates[gates_at : gates_at + U], floats[extra : extra + U]
    for j in range(len(n)):
        n[j] = (n[j] + b[j]) * r[j]
    for j in range(len(n)):
        n[j] = a[j] + n[j]
    finish_gru(sums, at, sums, at + U, state, before, U)
