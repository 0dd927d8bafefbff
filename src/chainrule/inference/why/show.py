"""An explanation for people, as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

from chainrule.base.tables import show_table
from chainrule.inference.why.records import (
    AttentionRow,
    BackoffPath,
    Branches,
    CacheMemory,
    ContextCurve,
    Expected,
    Reason,
    RecurrentTrace,
    Shares,
    Why,
)

STRONGEST = 5
"""Positions of an attention row that are listed."""


def show_why(found: Why) -> str:
    """A token and its reasons."""
    head = (
        f"{found.token}  {found.bits:.2f} bits, p {found.probability:.4g}, rank {found.rank:,}, "
        f"best: {_list(found.best)}"
    )
    return "\n".join([head, *(show_reason(reason) for reason in found.reasons)])


@singledispatch
def show_reason(reason: Reason) -> str:
    """One reason as text."""
    raise TypeError(f"{type(reason).__name__} has no text")


@show_reason.register
def _(reason: ContextCurve) -> str:
    points = ", ".join(f"{known}: {bits:.2f}" for known, bits in zip(reason.known, reason.bits, strict=True))
    return f"bits by number of known tokens  {points}"


@show_reason.register
def _(reason: BackoffPath) -> str:
    rows = [["context", "seen", "p", "back-off"]]
    for tried in reason.tried:
        figures = ["" if value is None else f"{value:.4g}" for value in (tried.probability, tried.backoff)]
        rows.append([" ".join(tried.context) or "(none)", "yes" if tried.in_table else "no", *figures])
    return f"order {reason.order} of {reason.largest} decided\n{show_table(rows)}"


@show_reason.register
def _(reason: Shares) -> str:
    rows = [["component", "weight", "p", "share"]]
    rows += [[one.name, f"{one.weight:.3f}", f"{one.probability:.4g}", f"{one.share:.1%}"] for one in reason.components]
    inside = [f"{one.name}: {show_reason(part)}" for one in reason.components for part in one.reasons]
    return "\n".join([show_table(rows), *inside])


@show_reason.register
def _(reason: CacheMemory) -> str:
    remembered = ", ".join(f"{one.token} {one.weight:.3f}" for one in reason.remembered)
    return f"{reason.cache} cache of {reason.tokens} tokens  {remembered or 'empty'}"


@show_reason.register
def _(reason: AttentionRow) -> str:
    lines = []
    for number, heads in enumerate(reason.weights, start=1):
        mean = [sum(column) / len(heads) for column in zip(*heads, strict=True)]
        strongest = sorted(range(len(mean)), key=lambda place: -mean[place])[:STRONGEST]
        read = ", ".join(f"{reason.tokens[place]} {mean[place]:.3f}" for place in strongest)
        lines.append(f"attention, layer {number}, mean of {len(heads)} heads  {read}")
    return "\n".join(lines)


@show_reason.register
def _(reason: RecurrentTrace) -> str:
    lines = []
    for number, layer in enumerate(reason.layers, start=1):
        gates = "".join(f", {name} gate {values[-1]:.3f}" for name, values in layer.gates.items())
        lines.append(f"{reason.cell}, layer {number}  state {layer.size[-1]:.3f}, change {layer.change[-1]:.3f}{gates}")
    return "\n".join(lines)


@show_reason.register
def _(reason: Branches) -> str:
    return (
        f"gamma {reason.gamma:.3f}\nAR   p {reason.ar:.4g}, best: {_list(reason.ar_best)}\n"
        f"NAR  p {reason.nar:.4g}, best: {_list(reason.nar_best)}"
    )


def _list(best: Sequence[Expected]) -> str:
    return ", ".join(f"{one.token} {one.probability:.3f}" for one in best)
