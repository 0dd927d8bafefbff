"""Runs that compress texts and restore them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

from chainrule.base.over_arrays import native_arrays
from chainrule.base.progress import Progress
from chainrule.checkpoint.build import adjust, live_values, load_model
from chainrule.errors import ConfigError
from chainrule.inference.archive import Needs
from chainrule.inference.bits_check import BitsCheck, check_bits
from chainrule.inference.compress import CompressionResult, compress, decompress
from chainrule.runs.base import EvaluatedRun
from chainrule.text.readers import open_texts
from chainrule.types import SteppingModel


class ArchivingRun(EvaluatedRun):
    """A run whose model gives the probabilities for a range coder."""

    def compress(
        self, file: str | Path, out: str | Path, *, portable: bool = False, progress: Progress | None = None
    ) -> CompressionResult:
        """Write `file` to `out` in about as many bits as `evaluate` reports.

        Args:
            file: The text to compress.
            out: The archive to write.
            portable: Compute the same bits on every CPU, so that any computer can decompress; slower. Those of n-grams
                always are.
            progress: Called with the tokens done and the total.
        """
        return compress(
            self._archive_model(portable, live_values(self.model)),
            self.tokenizer,
            open_texts([file], exact=True),
            Path(out),
            fingerprint=self.fingerprint,
            portable=portable,
            settings=live_values(self.model),
            progress=progress,
        )

    def decompress(
        self,
        file: str | Path,
        out: str | Path,
        *,
        note: Callable[[str], None] = lambda text: None,
        progress: Progress | None = None,
    ) -> CompressionResult:
        """Write the text that `compress` put into `file` to `out`, byte for byte, with the settings it records.

        Args:
            file: The archive.
            out: The text file to write.
            note: Called with a sentence if the archive is not portable and was written with another CPU or version.
            progress: Called with the tokens done and the total.
        """

        def load_for_archive(needs: Needs) -> SteppingModel:
            self._check_settings(file, needs.settings)
            return self._archive_model(needs.portable, needs.settings)

        return decompress(
            load_for_archive,
            self.tokenizer,
            Path(file),
            Path(out),
            fingerprint=self.fingerprint,
            note=note,
            progress=progress,
        )

    def check_bits(self, text: str) -> BitsCheck:
        """What `evaluate` and `compress` say of one text, to compare with the sum of `surprise`; leaves no files.

        Args:
            text: The text, read as a file with this content would be.
        """
        settings = live_values(self.model)
        return check_bits(self.subject, text, fingerprint=self.fingerprint, settings=settings)

    def _check_settings(self, file: str | Path, recorded: Mapping[str, Any]) -> None:
        """Refuse options that were set to other values than an archive records."""
        for name, value in self.adjusted.items():
            if recorded.get(name, value) != value:
                raise ConfigError(
                    f"{file} was compressed with model.{name} = {recorded[name]!r}, not {value!r}; leave --set out: "
                    "the file records its settings"
                )

    def _archive_model(self, portable: bool, settings: Mapping[str, Any]) -> SteppingModel:
        """The model to compress with; a portable one is built reproducibly on the CPU, with its tables of positions."""
        if (not portable or native_arrays(self.model) is not None) and live_values(self.model) == settings:
            return cast(SteppingModel, self.model)
        from chainrule.base.reproducible.mode import reproducible  # here: it needs torch

        with reproducible(strict=False) if portable else nullcontext():
            model = load_model(self.folder, self.tokenizer)
        if settings:
            adjust(model, dict(settings))
        return cast(SteppingModel, model if portable else model.to(self.device))
