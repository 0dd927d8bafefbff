"""A map of vectors in two dimensions: their first two principal components.

The vectors, scaled to length one so that distances follow the cosine, are centred and projected on the two directions
of largest variance (Pearson, 1901). `shares` tells how much of the variance each direction has: the map shows that much
of the vectors, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from chainrule.base.arrays import Array
from chainrule.errors import ConfigError
from chainrule.evaluation.vectors import unit_vectors


class MapPoint(NamedTuple):
    """A word or text and its place on the map."""

    label: str
    x: float
    y: float


@dataclass(frozen=True)
class VectorMap:
    """Places of words or texts, and the share of the variance in each direction."""

    points: list[MapPoint]
    shares: tuple[float, float]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "points": [point._asdict() for point in self.points]}


def map_vectors(labels: Sequence[str], vectors_ND: Array) -> VectorMap:
    """The map of vectors with these labels."""
    if len(labels) < 3:
        raise ConfigError(f"a map of {len(labels)} vectors is no map; give at least 3 words or texts")
    units_ND = unit_vectors(np.asarray(vectors_ND, np.float64))
    centred_ND = units_ND - units_ND.mean(0)
    left_NK, sizes_K, _ = np.linalg.svd(centred_ND, full_matrices=False)
    places_N2 = np.zeros((len(labels), 2))
    width = min(2, len(sizes_K))
    places_N2[:, :width] = left_NK[:, :width] * sizes_K[:width]
    # The sign of a direction is arbitrary: the point farthest from the middle is on its positive side.
    farthest_2 = places_N2[np.abs(places_N2).argmax(0), [0, 1]]
    places_N2 *= np.where(farthest_2 < 0, -1.0, 1.0)
    total = float((sizes_K**2).sum())
    shares = [*(sizes_K[:width] ** 2 / total if total else np.zeros(width)).tolist(), 0.0][:2]
    points = [MapPoint(label, x, y) for label, (x, y) in zip(labels, places_N2.tolist(), strict=True)]
    return VectorMap(points, (shares[0], shares[1]))
