"""The weights of the components of mixtures."""

from __future__ import annotations

from collections.abc import Mapping

from chainrule.reports.blocks.block import Block
from chainrule.reports.blocks.matrix import Matrix
from chainrule.reports.blocks.table import Column, Table, decimals, percent
from chainrule.reports.section import Section
from chainrule.runs.base import Run


def mixtures_section(runs: Mapping[str, Run]) -> Section | None:
    """Tables of the weights; None: no run is a mixture."""
    blocks: list[Block] = [_weights(name, run) for name, run in runs.items() if run.result.get("weights")]
    if not blocks:
        return None
    about = "The share of each component in the mixed probability, fitted on held-out text."
    return Section("mixtures", "Weights of mixtures", about, blocks)


def _weights(name: str, run: Run) -> Block:
    components = list(run.result["weights"])
    by_bucket: list[list[float]] = run.model.weights.tolist()
    if len(by_bucket) == 1:
        rows = sorted(zip(components, by_bucket[0], strict=True), key=lambda row: -row[1])
        return Table([Column("component"), Column("weight", decimals(4))], rows, f"Weights of {name}")
    buckets = [f"bucket {number}" for number in range(1, len(by_bucket) + 1)]
    return Matrix(f"Weights of {name} by bucket of contexts", buckets, components, by_bucket, by_bucket, show=percent)
