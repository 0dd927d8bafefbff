"""How much of a gradient reaches an input k steps back: vanishing and exploding in an RNN, kept by an LSTM.

Each layer reads 101 random inputs. The gradient of its last output is followed back to every input, and its norm is
divided by the norm at the last input. Writes `vanishing_gradients.svg`.
"""

from __future__ import annotations

from pathlib import Path

import torch

from chainrule.layers.recurrent.stack import Recurrence
from chainrule.reports.charts.curves import CurvePoint, curves
from chainrule.reports.charts.library import to_svg

WIDTH, ROWS, STEPS = 64, 16, 100
SHOWN = (1, 2, 3, 5, 7, 10, 14, 20, 30, 50, 70, 100)
NAMED = (7, 100)  # the distances of the table


def rnn(radius: float, activation: str) -> Recurrence:
    """An RNN whose recurrent matrix has this spectral radius; it starts with 1."""
    layer = Recurrence("rnn", WIDTH, WIDTH, activation=activation)
    with torch.no_grad():
        layer.layers[0].weight_hidden_GH.mul_(radius)
    return layer


def lstm(forget_bias: float) -> Recurrence:
    """An LSTM whose forget gates start near σ(forget_bias)."""
    layer = Recurrence("lstm", WIDTH, WIDTH)
    with torch.no_grad():
        layer.layers[0].bias_G[2 * WIDTH : 3 * WIDTH] = forget_bias  # gates: candidate, input, forget, output
    return layer


def shares(layer: Recurrence) -> dict[int, float]:
    """The norm of the gradient at the input k steps back, relative to that at the last input, by k."""
    inputs_BTD = torch.randn(ROWS, STEPS + 1, WIDTH, generator=torch.Generator().manual_seed(1), requires_grad=True)
    hidden_BTU, _ = layer(inputs_BTD, layer.start(ROWS))
    (gradient_BTD,) = torch.autograd.grad(hidden_BTU[:, -1].sum(), inputs_BTD)
    norms_T = gradient_BTD.norm(dim=(0, 2)).flip(0)
    return {k: float(norms_T[k] / norms_T[0]) for k in SHOWN}


def main() -> None:
    torch.manual_seed(1)
    layers = {
        "RNN, tanh, radius 1": rnn(1.0, "tanh"),
        "RNN, ReLU, radius 1.5": rnn(1.5, "relu"),
        "LSTM, forget bias 1": lstm(1.0),
        "LSTM, forget bias 5": lstm(5.0),
    }
    points = []
    for name, layer in layers.items():
        share = shares(layer)
        print(f"{name:22}", *(f"{share[k]:9.1e} after {k} steps" for k in NAMED))
        points += [CurvePoint(name, k, torch.tensor(share[k]).log10().item()) for k in SHOWN]
    chart = curves(
        points,
        title="Gradient at an input k steps back, relative to the last input",
        x_title="k, steps back",
        y_title="log10 of the relative norm",
        log_x=True,
    )
    Path("vanishing_gradients.svg").write_text(to_svg(chart), encoding="utf-8")


if __name__ == "__main__":
    main()
