"""Data sets of the Hugging Face hub or of a local folder, as records.

    hf:NAME:SPLIT, hf:NAME/CONFIG:SPLIT        downloaded and kept by the datasets library
    hf:FOLDER:SPLIT                            saved by `save_to_disk`, or a folder of .parquet, .csv or .jsonl files
    hf-stream:…                                the same, read piece by piece without keeping a copy

A field may be nested, as in `translation.en`. Class labels are given by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from chainrule.errors import DataError

PREFIXES = ("hf:", "hf-stream:")
BATCH = 1000
SAVED = ("dataset_dict.json", "state.json")
"""Files in a folder that `save_to_disk` wrote."""


def is_data_set(source: str | Path) -> bool:
    """Whether a source is the name of a data set."""
    return str(source).startswith(PREFIXES)


def field_of(record: dict[str, Any], field: str) -> Any:
    """The value of a field, `outer.inner` if it is nested; None: there is none."""
    if field in record or "." not in field:
        return record.get(field)
    outer, _, inner = field.partition(".")
    below = record.get(outer)
    return field_of(below, inner) if isinstance(below, dict) else None


def field_names(record: dict[str, Any]) -> str:
    """The names of the fields of a record, for messages; those of an object inside it as `outer.inner`."""
    names = [f"{name}.{inner}" for name, value in record.items() for inner in _names_inside(value)]
    return ", ".join([*(name for name, value in record.items() if not _names_inside(value)), *names]) or "none"


def _names_inside(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []


def _outer(field: str) -> str:
    return field.partition(".")[0]


class DataSet:
    """One split of a data set, loaded when it is first read."""

    def __init__(self, spec: str) -> None:
        prefix, _, rest = spec.partition(":")
        self.spec, self.streams = spec, prefix == "hf-stream"
        self.name, colon, self.split = rest.rpartition(":")
        if not colon or not self.name or not self.split:
            raise DataError(
                f"got '{spec}': expected {prefix}:NAME:SPLIT or {prefix}:NAME/CONFIG:SPLIT; "
                "name the split, as in :train."
            )

    def records(self, fields: Mapping[str, str], optional: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """The records, with the columns that the fields are in; `fields` maps each to the option that names it."""
        loaded, wanted = self._loaded, [self._column(field, option) for field, option in fields.items()]
        wanted += [name for name in map(_outer, optional) if name in self._columns]
        wanted, features = list(dict.fromkeys(wanted)), loaded.features or {}
        for batch in loaded.select_columns(wanted).iter(batch_size=BATCH):
            for values in zip(*(batch[name] for name in wanted), strict=True):
                yield {name: _named(value, features.get(name)) for name, value in zip(wanted, values, strict=True)}

    def lines(self, fields: Mapping[str, str], optional: Sequence[str] = ()) -> Iterator[bytes]:
        """The records as JSON lines."""
        for record in self.records(fields, optional):
            yield json.dumps(record).encode() + b"\n"

    def _column(self, field: str, option: str) -> str:
        for name in (field, _outer(field)):
            if name in self._columns:
                return name
        raise DataError(
            f"{self.spec}: no field '{field}' (found {', '.join(self._columns)}); name the right one with {option}."
        )

    @cached_property
    def _columns(self) -> list[str]:
        """The names of the columns; a stream may not know them before its first record."""
        known = self._loaded.column_names
        return list(next(iter(self._loaded), {})) if known is None else list(known)

    @cached_property
    def _loaded(self) -> Any:
        try:
            import datasets
        except ImportError as error:
            raise DataError(
                f"reading '{self.spec}' needs the datasets library: pip install 'chainrule[datasets]'."
            ) from error
        try:
            if Path(self.name).is_dir():
                return self._from_folder(datasets)
            return self._from_hub(datasets)
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())
            raise DataError(
                f"cannot read '{self.spec}' ({reason}): check the name, the split and the network."
            ) from error

    def _from_folder(self, datasets: Any) -> Any:
        if not any((Path(self.name) / file).exists() for file in SAVED):
            return datasets.load_dataset(self.name, split=self.split, streaming=self.streams)
        found = datasets.load_from_disk(self.name)
        found = found[self.split] if isinstance(found, datasets.DatasetDict) else found
        return found.to_iterable_dataset() if self.streams else found

    def _from_hub(self, datasets: Any) -> Any:
        """NAME, OWNER/NAME, NAME/CONFIG or OWNER/NAME/CONFIG from the hub; two parts may mean either."""
        parts, how = self.name.split("/"), {"split": self.split, "streaming": self.streams}
        if len(parts) > 2:
            return datasets.load_dataset("/".join(parts[:2]), "/".join(parts[2:]), **how)
        try:
            return datasets.load_dataset(*parts, **how)
        except datasets.exceptions.DatasetNotFoundError:
            return datasets.load_dataset(self.name, **how)


def _named(value: Any, feature: Any) -> Any:
    """A value with the names of its class labels instead of their numbers; a missing label (-1) is None."""
    import datasets

    if value is None or feature is None:
        return value
    if isinstance(feature, datasets.ClassLabel):
        return feature.int2str(value) if value >= 0 else None
    if isinstance(feature, dict):
        return {name: _named(value[name], inner) for name, inner in feature.items()}
    if isinstance(feature, datasets.List | datasets.LargeList):
        return [_named(part, feature.feature) for part in value]
    return value
