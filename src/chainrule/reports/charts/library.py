"""altair and vl-convert, imported when a chart is made: specifications and SVG."""

from __future__ import annotations

import hashlib
import json
import re
from importlib import import_module
from typing import Any

from chainrule.errors import ConfigError

Spec = dict[str, Any]
"""A Vega-Lite specification with its data."""


class _Library:
    """A module of the extra `report`; an error states how to install it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(import_module(self._name), name)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f'charts need {error.name}, which is not installed: pip install "chainrule[report]"'
            ) from None


alt: Any = _Library("altair")
vl_convert: Any = _Library("vl_convert")


def to_svg(spec: Spec) -> str:
    """The chart as an SVG document; the same specification gives the same bytes."""
    drawn: str = vl_convert.vegalite_to_svg(spec)
    return _own_names(drawn, spec) + "\n"


def _own_names(svg: str, spec: Spec) -> str:
    """The SVG with names of its own: vl-convert counts clips on from chart to chart, and a page may hold several."""
    own = hashlib.blake2b(json.dumps(spec, sort_keys=True).encode(), digest_size=4).hexdigest()
    numbers: dict[str, int] = {}
    return re.sub(
        r'(?<=[("#])clip\d+(?=[)"])',
        lambda found: f"clip-{own}-{numbers.setdefault(found[0], len(numbers))}",
        svg,
    )
