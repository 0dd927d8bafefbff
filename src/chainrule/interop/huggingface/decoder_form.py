"""The common form of our `transformer` and the decoders of Hugging Face, by our names.

GPT-2 and GPT-NeoX are pre-norm and have no output bias, which our default form has. It moves into the weights: the
stream gets one more component per head, all of them zero. The final norm, whose bias is free, sets the first of them to
one, and the output table has the bias as that column. The other norms must not notice the wider stream:

    mean 0   the norms remove the mean of the stream, so all that writes to it may be centred first
    1/D'     the variance is then Σx²/D' instead of Σx²/D, which other scales and another epsilon make up for

The logits are the same up to rounding. An import finds the first form again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from chainrule.checkpoint.build import model_options
from chainrule.config import RunConfig
from chainrule.errors import ConfigError
from chainrule.interop.common import Obstacle
from chainrule.interop.huggingface.output_layers import word_vector_obstacles

BIAS_KEY = "chainrule_output_bias"
"""Marks a config.json whose model has the output bias in its weights."""

ACTIVATIONS = {
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
}
THEIR_ACTIVATIONS = {"gelu-tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "relu2": "relu2"}

NORMS = ("norm_attention", "norm_feedforward")
LINEARS = ("project_in", "project_out", "widen", "narrow")
PARTS = ("weight", "bias")


@dataclass(frozen=True)
class DecoderForm:
    """A pre-norm decoder without output bias."""

    embedding_VD: Tensor
    head_VD: Tensor  # the output table
    blocks: list[dict[str, Tensor]]  # by the names of a block: norm_attention.weight, …; biases are always there
    norm: dict[str, Tensor]  # the final one: weight and bias
    positions_CD: Tensor | None  # added to the embeddings; None: rotary
    heads: int
    eps: float
    rotated: int  # rotated components of a head
    has_bias: bool = True  # whether biases of layers and norms may differ from zero
    holds_output_bias: bool = False

    @property
    def width(self) -> int:
        return self.embedding_VD.shape[1]

    @property
    def tied(self) -> bool:
        return torch.equal(self.embedding_VD, self.head_VD)


# Export


def decoder_obstacles(config: RunConfig) -> list[Obstacle]:
    """What no decoder of Hugging Face has."""
    found, options = [], model_options(config)
    if options.norm != "pre":
        found.append(
            Obstacle(f"model.norm is {options.norm}, but GPT-2 and GPT-NeoX are pre-norm", "--set model.norm=pre")
        )
    return found + word_vector_obstacles(config)


def decoder_form(model: Any) -> DecoderForm:
    """The form of a `transformer`, widened if its output layer has a bias."""
    own, c = {name: tensor.detach() for name, tensor in model.state_dict().items()}, model.config
    places = [f"features.blocks.{number}." for number in range(c.layers)]
    form = DecoderForm(
        embedding_VD=own["embedding.weight"] * model.features.scale,
        head_VD=model.output.weight_VD.detach(),
        blocks=[
            {name: tensor for layer in (*NORMS, *LINEARS) for name, tensor in _layer(own, place, layer)}
            for place in places
        ],
        norm=dict(_layer(own, "features.", "norm", short=True)),
        positions_CD=_positions(model),
        heads=c.heads,
        eps=c.eps,
        rotated=c.embedding // c.heads,
        has_bias=c.bias,
    )
    bias_V = model.output.bias_V
    return form if bias_V is None or not bool(bias_V.any()) else _hold_bias(form, bias_V.detach())


def _layer(own: dict[str, Tensor], place: str, layer: str, *, short: bool = False) -> list[tuple[str, Tensor]]:
    """Weight and bias of a layer; a missing bias is zero."""
    weight = own[f"{place}{layer}.weight"]
    bias = own.get(f"{place}{layer}.bias", weight.new_zeros(len(weight)))
    return [(part if short else f"{layer}.{part}", tensor) for part, tensor in zip(PARTS, (weight, bias), strict=True)]


def _positions(model: Any) -> Tensor | None:
    """The vectors added to the embeddings: zeros if there are no positions, None if they are rotary."""
    c, added = model.config, model.features.positions
    if added is not None:
        table_CD: Tensor = added.table_CD.detach()
        return table_CD
    return None if c.positions == "rotary" else torch.zeros(c.context, c.embedding)


def _hold_bias(form: DecoderForm, bias_V: Tensor) -> DecoderForm:
    """The form with the output bias in its weights."""
    D, H = form.width, form.heads
    wide, E = D + H, D // H
    scale = math.sqrt(D / wide)
    factor_3 = form.head_VD.new_tensor([math.sqrt((E + 1) / E), 1.0, 1.0])  # theirs divide the queries by √(E + 1)

    def heads(tensor: Tensor) -> Tensor:
        """The outputs of project_in, with one more component per head."""
        parts = tensor.unflatten(0, (3, H, E)) * factor_3.view(3, *[1] * (tensor.dim() + 1))
        return _pad(parts, 2, 1).flatten(0, 2)

    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "project_in.weight": lambda x: _pad(heads(x), 1, H),
        "project_in.bias": heads,
        "project_out.weight": lambda x: _pad(_pad(_centre(x, 0).unflatten(1, (H, E)), 2, 1).flatten(1), 0, H),
        "project_out.bias": lambda x: _pad(_centre(x, 0), 0, H),
        "widen.weight": lambda x: _pad(x, 1, H),
        "widen.bias": lambda x: x,
        "narrow.weight": lambda x: _pad(_centre(x, 0), 0, H),
        "narrow.bias": lambda x: _pad(_centre(x, 0), 0, H),
        **{f"{norm}.weight": lambda x: _pad(x * scale, 0, H) for norm in NORMS},
        **{f"{norm}.bias": lambda x: _pad(x, 0, H) for norm in NORMS},
    }
    norm = {"weight": _pad(form.norm["weight"] * scale, 0, H), "bias": _pad(form.norm["bias"], 0, H)}
    norm["bias"][D] = 1.0
    head_VD = _pad(form.head_VD, 1, H)
    head_VD[:, D] = bias_V
    return replace(
        form,
        embedding_VD=_pad(_centre(form.embedding_VD, 1), 1, H),
        head_VD=head_VD,
        blocks=[{name: changes[name](tensor) for name, tensor in block.items()} for block in form.blocks],
        norm=norm,
        positions_CD=None if form.positions_CD is None else _pad(_centre(form.positions_CD, 1), 1, H),
        eps=form.eps * D / wide,
        holds_output_bias=True,
    )


def _centre(tensor: Tensor, axis: int) -> Tensor:
    """Subtract the mean over an axis of the stream."""
    return tensor - tensor.mean(axis, keepdim=True)


def _pad(tensor: Tensor, axis: int, count: int) -> Tensor:
    """Append zeros along an axis."""
    return pad(tensor, (0, 0) * (tensor.dim() - 1 - axis) + (0, count))


# Import


def _release_bias(form: DecoderForm) -> tuple[DecoderForm, Tensor]:
    """A form that holds an output bias -> the form without it, and the bias, V."""
    H = form.heads
    D = form.width - H
    E = D // H
    if D < H or D % H:
        raise ConfigError(
            f"config.json has {BIAS_KEY}, but the width {form.width} has no room for it; restore the file"
        )
    scale = math.sqrt(D / form.width)
    factor_3 = form.head_VD.new_tensor([math.sqrt((E + 1) / E), 1.0, 1.0])

    def heads(tensor: Tensor) -> Tensor:
        parts: Tensor = tensor.unflatten(0, (3, H, E + 1)) / factor_3.view(3, *[1] * (tensor.dim() + 1))
        return parts[:, :, :E].flatten(0, 2)

    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "project_in.weight": lambda x: heads(x)[:, :D],
        "project_in.bias": heads,
        "project_out.weight": lambda x: x[:D].unflatten(1, (H, E + 1))[:, :, :E].flatten(1),
        "widen.weight": lambda x: x[:, :D],
        "widen.bias": lambda x: x,
        **{f"{norm}.weight": lambda x: x[:D] / scale for norm in NORMS},
    }
    head_VD, embedding_VD = form.head_VD[:, :D], form.embedding_VD[:, :D]
    if torch.equal(_centre(head_VD, 1), embedding_VD):
        embedding_VD = head_VD  # they were one table
    without = replace(
        form,
        embedding_VD=embedding_VD,
        head_VD=head_VD,
        blocks=[
            {name: changes.get(name, lambda x: x[:D])(tensor) for name, tensor in block.items()}
            for block in form.blocks
        ],
        norm={"weight": form.norm["weight"][:D] / scale, "bias": form.norm["bias"][:D]},
        positions_CD=None if form.positions_CD is None else form.positions_CD[:, :D],
        eps=float(f"{form.eps * form.width / D:.9g}"),
        rotated=E,
        holds_output_bias=False,
    )
    return without, form.head_VD[:, D].clone()


def imported_parts(form: DecoderForm) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Any]]:
    """The options, weights and output options of our `transformer` with a form."""
    bias_V = None
    if form.holds_output_bias:
        form, bias_V = _release_bias(form)
    tensors = {"norm.bias": form.norm["bias"]} | {
        f"{number}.{name}": tensor for number, block in enumerate(form.blocks) for name, tensor in block.items()
    }
    has_bias = form.has_bias or any(bool(t.any()) for name, t in tensors.items() if name.endswith(".bias"))
    parts = PARTS if has_bias else ("weight",)
    found = {"embedding.weight": form.embedding_VD}
    if form.positions_CD is not None:
        found["features.positions.table_CD"] = form.positions_CD
    found |= {f"features.norm.{part}": form.norm[part] for part in parts}
    for number, block in enumerate(form.blocks):
        found |= {
            f"features.blocks.{number}.{layer}.{part}": block[f"{layer}.{part}"]
            for layer in (*NORMS, *LINEARS)
            for part in parts
        }
    if not form.tied:
        found["output.weight_VD"] = form.head_VD
    if bias_V is not None:
        found["output.bias_V"] = bias_V
    options = {
        "embedding": form.width,
        "layers": len(form.blocks),
        "heads": form.heads,
        "positions": "rotary" if form.positions_CD is None else "learned",
        "norm": "pre",
        "bias": has_bias,
        "eps": form.eps,
        "tied": form.tied,
    }
    return options, found, {"bias": bias_V is not None}
