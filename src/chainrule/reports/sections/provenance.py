"""Where every number comes from: the command, the versions, hashes of data and weights, protocols, signatures."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata

from chainrule.evaluation.measurement import package_version
from chainrule.reports.blocks.table import Column, Table
from chainrule.reports.section import Section
from chainrule.reports.system import System
from chainrule.runs.base import Run

LIBRARIES = ("torch", "numpy", "sacrebleu", "altair", "vl-convert-python")
LINES = ("data", "valid", "tokenizer", "weights", "seed")
"""Lines of the signature of a run that are shown, besides the versions."""


def versions() -> dict[str, str]:
    """The versions that the figures and the charts depend on."""
    return {
        "chainrule": package_version(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in LIBRARIES},
    }


def provenance(command: str, systems: Sequence[System], runs: Mapping[str, Run], data: Mapping[str, str]) -> Section:
    """Tables of all that the figures depend on. `data`: fingerprints of test data by name."""
    made = [
        ["command", command],
        *(["test data", f"{name}: {fingerprint}"] for name, fingerprint in data.items()),
        *([name, version] for name, version in versions().items()),
    ]
    protocols = [
        [system.name, metric, signature, system.protocol]
        for system in systems
        for metric, signature in [(score.metric, score.signature) for score in system.scores] or [("all", "")]
    ]
    return Section(
        "provenance",
        "How it was measured",
        "Rerun the command on the same runs and data for the same figures. Equal signatures make comparable figures.",
        [
            Table([Column("what"), Column("value", code=True)], made, "This report"),
            Table(
                [Column("run"), Column("figure"), Column("signature", code=True), Column("protocol")],
                protocols,
                "Signature and protocol of each figure",
            ),
            Table(
                [
                    Column("run"),
                    Column("folder", code=True),
                    *(Column(line, code=True) for line in LINES),
                    Column("trained with"),
                ],
                [[name, str(run.folder.given), *_hashes(run)] for name, run in runs.items()],
                "How the runs were trained: versions, and the first digits of their fingerprints",
            ),
        ],
    )


def _hashes(run: Run) -> list[str | None]:
    lines = run.folder.signature.lines()
    versions = ", ".join(f"{name} {lines[name]}" for name in ("chainrule", "torch") if name in lines)
    return [*(_short(lines[line]) if line in lines else None for line in LINES), versions]


def _short(value: str) -> str:
    """The kind of a tokeniser, and the first digits of a fingerprint."""
    kind, mark, digits = value.rpartition("#")
    return f"{kind}{mark}{digits[:12]}"
