"""The bits of a text by two other routes: `eval`, which scores it, and `compress`, which writes it as a file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainrule.base.results import json_value
from chainrule.data.store import open_store
from chainrule.errors import DataError
from chainrule.evaluation.text import Evaluation, evaluate
from chainrule.inference.archive import Reader
from chainrule.inference.compress import CompressionResult, compress
from chainrule.inference.subject import TextModel
from chainrule.text.readers import open_texts


@dataclass(frozen=True)
class BitsCheck:
    """What `eval` and `compress` say of one text."""

    evaluation: Evaluation
    compression: CompressionResult | None  # None: the model gives scores, which cannot be coded
    coded_bytes: int  # of the archive's bytes, those of the range codes; the others are header and checksums

    def to_dict(self) -> dict[str, Any]:
        """All values for JSON."""
        sizes = None if self.compression is None else {**vars(self.compression), "coded_bytes": self.coded_bytes}
        record: dict[str, Any] = json_value({"eval": self.evaluation.to_dict(), "compress": sizes})
        return record


def check_bits(subject: TextModel, text: str, *, fingerprint: bytes, settings: Mapping[str, Any]) -> BitsCheck:
    """Measure and compress a text in a folder that is removed afterwards: nothing of it is left in the cache."""
    if not text:
        raise DataError("the text is empty; expected at least one character")
    with tempfile.TemporaryDirectory(prefix="chainrule-") as name:
        folder = Path(name)
        file = folder / "text.txt"
        file.write_bytes(text.encode(errors="surrogateescape"))
        store = open_store(open_texts([file]), subject.tokenizer, cache=folder / "cache")
        evaluation = evaluate(subject.model, store, subject.tokenizer)
        compression, coded = None, 0
        if subject.model.normalised:
            compression = compress(
                subject.model,
                subject.tokenizer,
                open_texts([file], exact=True),
                folder / "archive",
                fingerprint=fingerprint,
                settings=settings,
                cache=folder / "cache",
            )
            coded = _coded_bytes(folder / "archive")
    return BitsCheck(evaluation, compression, coded)


def _coded_bytes(path: Path) -> int:
    """The bytes of the range codes of an archive: that of the residue, then one per block of tokens."""
    with path.open("rb") as file:
        reader = Reader(file, path)
        reader.header()
        size = len(reader.section())
        while file.tell() < path.stat().st_size:
            reader.checksum()
            size += len(reader.section())
    return size
