"""A run is a folder; this file is its whole format.

    config.toml          every option, resolved
    tokenizer.*          see text/tokenizers
    model.safetensors    the weights to use: the best on validation
    metrics.jsonl        one object per log line
    result.json          the result of the training, once it has ended
    valid.json           its figures on the validation data, and the checksum of the weights that were measured
    test.json            the same on the test data of `compare`, with their names
    tuning.json          what `tune` changed: options, data and figures, one record per call
    signature            data, tokeniser, seed, versions and checksums, one per line
    training/step-N/     weights, optimiser, random state, carried state: all that resuming needs
    training/request.json  the options as given, to recognise the same command
    training/lock        held by the process that trains the run
    source/tokenizer.*   translators with two vocabularies: the tokeniser of the source
    parts/N/             mixtures: the runs they consist of

Everything is written beside its final place and then moved there, so a kill leaves the last good version.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chainrule.base.files import disk_errors, move, temporary_name, write_atomically
from chainrule.base.processes import Processes
from chainrule.checkpoint.checkpoints import (
    Checkpoint,
    find_checkpoints,
    read_checkpoint,
    read_json,
    read_notes,
    read_tensors,
    reading,
    remove_replaced,
    to_bytes,
    write_checkpoint,
    write_divided,
)
from chainrule.checkpoint.eight_bits import dequantise_weights
from chainrule.checkpoint.integrity import hash_file, hash_options, is_whole, remember
from chainrule.checkpoint.packed import cached_folder, is_packed
from chainrule.checkpoint.signature import BEFORE, Signature
from chainrule.config import RunConfig, parse, read_toml, write_toml
from chainrule.errors import RunError
from chainrule.text.tokenizers import Tokenizer, load_tokenizer, saved_fingerprint

if TYPE_CHECKING:
    from torch import Tensor

TRAINING_SECTIONS = ("output", "objective", "training")
"""Sections of config.toml that do not apply to a model without gradient training."""


class RunFolder:
    """Reads and writes the parts of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.given = self.path  # as the user named it
        self.signature = Signature(self.path)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """A run to read: a folder, or a file of `pack`, whose files are in a folder of the cache."""
        given = Path(path)
        if not is_packed(given):
            return cls(given)
        folder = cls(cached_folder(given))
        folder.given = given
        return folder

    def _check_writable(self) -> None:
        if self.given != self.path:
            raise RunError(
                f"{self.given} is a packed run, which is never changed; unpack it with chainrule unpack first"
            )

    @property
    def model_path(self) -> Path:
        """The file of the weights to use."""
        return self.path / "model.safetensors"

    # Identity

    def exists(self) -> bool:
        """Whether there is a run here, finished or not."""
        return (self.path / "config.toml").exists()

    def begun(self) -> bool:
        """Whether a training began to write here, maybe killed before there was a run."""
        training = self.path / "training"
        if self.exists() or any((training / name).exists() for name in ("request.json", "lock")):
            return True
        return list(self.path.iterdir()) == [training] and not any(training.iterdir())

    @property
    def lock_path(self) -> Path:
        """The file that the process holds that trains the run."""
        return self.path / "training" / "lock"

    def write_config(self, config: RunConfig, without: Collection[str] = ()) -> None:
        """Every option, except for the sections that do not apply to this run."""
        self._check_writable()
        text, before = write_toml(config, without), self.signature.lines().get("configuration")
        earlier = {"configuration_before": before} if before else {}  # what a kill would leave
        self.signature.record({"configuration": hash_options(tomllib.loads(text)), **earlier})
        write_atomically(self.path / "config.toml", text)

    def read_config(self) -> RunConfig:
        """The options of the run."""
        if self.path.is_file():
            raise RunError(f"{self.path} is a file: expected the folder of a run, or a file of chainrule pack")
        if not self.path.exists():
            raise RunError(f"no run at {self.path}; train one with: chainrule train TEXT --out {self.path}")
        if not self.exists():
            raise RunError(f"{self.path} is not a run: it has no config.toml; give a folder that chainrule train made")
        path = self.path / "config.toml"
        values = read_toml(path)
        signature = self.signature.lines()
        accepted = [signature[name] for name in ("configuration", "configuration_before") if name in signature]
        if accepted and hash_options(values) not in accepted:
            raise RunError(
                f"{path} differs from the options that the model was made with; restore the file (to accept the "
                "change, delete the line `configuration` of signature)"
            )
        if "model" not in values:
            raise RunError(f"{path} has no section [model]; restore the file")
        return parse(RunConfig, values)

    def write_signature(self, lines: dict[str, str]) -> None:
        """Data, tokeniser and seed as given, and the versions of the libraries."""
        self.signature.begin(lines)

    def read_signature(self) -> dict[str, str]:
        """The lines of the signature by name."""
        return self.signature.read()

    def read_tokenizer(self) -> Tokenizer:
        """The tokeniser of the run: of the target, in a translator."""
        self.read_config()
        self._check_tokenizer(self.path, "tokenizer")
        return load_tokenizer(self.path)

    def read_source_tokenizer(self) -> Tokenizer | None:
        """The separate tokeniser of the source; None: there is none."""
        folder = self.path / "source"
        if not (folder / "tokenizer.json").exists():
            if "source_tokenizer" in self.signature.lines():
                raise RunError(f"{folder} has no tokenizer.json; restore the files that were saved with the run")
            return None
        self._check_tokenizer(folder, "source_tokenizer")
        return load_tokenizer(folder)

    def _check_tokenizer(self, folder: Path, name: str) -> None:
        """Refuse the tokeniser of another run."""
        lines = self.signature.lines()
        expected, before = (lines.get(key, "").rpartition("#")[2] for key in (name, name + BEFORE))
        if expected and (found := saved_fingerprint(folder)) not in (None, expected, before):
            raise RunError(
                f"the tokeniser in {folder} is not the one that the model was trained with ({found[:8]}, expected "
                f"{expected[:8]}); restore the tokenizer files that were saved with the run"
            )

    def change_config(self, config: RunConfig) -> None:
        """Write changed options; sections that config.toml does not have stay left out."""
        kept = read_toml(self.path / "config.toml")
        self.write_config(config, without=[name for name in TRAINING_SECTIONS if name not in kept])

    def add_tuning(self, record: dict[str, Any]) -> None:
        """Append a record of tuned options."""
        self._check_writable()
        path = self.path / "tuning.json"
        try:
            records: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            records = []
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise RunError(f"{path} is damaged; delete it, it only records what was tuned") from None
        write_atomically(path, json.dumps([*records, record], indent=1, ensure_ascii=False))

    # Weights

    def write_weights(self, weights: dict[str, Tensor], *, precision: str | None = None) -> None:
        """The weights to use, and the precision to use them in, if it is not single."""
        about = {"precision": precision} if precision else None
        self.write_model(lambda path: write_atomically(path, to_bytes(weights, about)))

    def write_model(self, save: Callable[[Path], None]) -> None:
        """Replace the file of the weights by the one that `save` writes, and its checksum.

        The signature comes first and names the old file too, so a kill in between leaves a pair that belongs together.
        """
        self._check_writable()
        with disk_errors(self.model_path):
            beside = temporary_name(self.model_path)
            try:
                save(beside)
                digest, before = hash_file(beside), self.signature.lines().get("weights", "")
                self.signature.record({"weights": digest, **({"weights_before": before} if before else {})})
                move(beside, self.model_path)
            finally:
                beside.unlink(missing_ok=True)
        remember(self.model_path, digest)

    def weights_hash(self) -> str:
        """The checksum of the weights, from the signature if it is there."""
        self.check_model()
        return self.signature.lines().get("weights") or hash_file(self.model_path)

    def check_model(self, *, anew: bool = False) -> bool:
        """Compare the weights with their checksum -> False if a run of an earlier release has none.

        A file that was found whole is not read again before it changes, unless it is to be checked `anew`.
        """
        signature = self.signature.lines()
        accepted = [signature[name] for name in ("weights", "weights_before") if name in signature]
        if not accepted:
            return False
        if not self.has_model():
            raise RunError(f"{self.path} has no model yet; rerun the same train command to finish its training")
        with reading(self.model_path):
            if not is_whole(self.model_path, accepted, anew=anew):
                raise _damaged(self.model_path)
        return True

    def check(self) -> str:
        """Read all that has a checksum, also of the parts of a mixture -> what was compared; damage is an error."""
        self.read_tokenizer()
        self.read_source_tokenizer()
        names: list[str] = [
            name for name in ("tokenizer", "source_tokenizer", "configuration") if name in self.signature.lines()
        ]
        names += ["weights"] if self.check_model(anew=True) else []
        for part in sorted((self.path / "parts").glob("*")):
            names.append(f"part {part.name} ({RunFolder(part).check()})")
        return ", ".join(names)

    def parts(self, count: int) -> list[RunFolder]:
        """The runs of a mixture, which must be those that were mixed."""
        folders = [RunFolder(self.path / "parts" / str(number)) for number in range(count)]
        expected = self.signature.lines().get("part_weights", "").split()
        for folder, digest in zip(folders, expected, strict=False):
            if digest != (found := folder.signature.lines().get("weights", digest)):
                raise RunError(
                    f"{folder.path} is not the run that was mixed (weights {found[:8]}, expected {digest[:8]}); "
                    "restore the files of the mixture"
                )
        return folders

    def has_model(self) -> bool:
        """Whether there are weights to use."""
        return self.model_path.exists()

    def read_weights(self) -> dict[str, Tensor]:
        """The weights to use."""
        if not self.has_model():
            raise RunError(f"{self.path} has no model yet; rerun the same train command to finish its training")
        self.check_model()
        return dequantise_weights(read_tensors(self.model_path, _damaged(self.model_path)), _damaged(self.model_path))

    def stored_precision(self) -> str:
        """The precision of the tensors to use: "float32", or "int8" if the run was exported with 8-bit weights."""
        stored = read_notes(self.model_path, _damaged(self.model_path)) if self.has_model() else {}
        return stored.get("precision", "float32")

    # Training

    def write_request(self, request: dict[str, Any]) -> None:
        """The options as given."""
        write_atomically(self.path / "training" / "request.json", json.dumps(request, indent=1, ensure_ascii=False))

    def read_request(self) -> dict[str, Any] | None:
        """The options as given; None: not known."""
        return read_json(self.path / "training" / "request.json")

    def is_finished(self, request: dict[str, Any]) -> bool:
        """Whether the same request, for example an import, has already made this run."""
        return self.path.is_dir() and self.exists() and self.read_request() == request

    def write_result(self, result: dict[str, Any]) -> None:
        """The result of the training, whose checkpoint is final."""
        remove_replaced(self.path / "training")
        write_atomically(self.path / "result.json", json.dumps(result, indent=1, ensure_ascii=False))

    def remove_result(self) -> None:
        """Mark the training as unfinished."""
        (self.path / "result.json").unlink(missing_ok=True)

    def read_result(self) -> dict[str, Any] | None:
        """The result of the training; None: it is unfinished."""
        result = read_json(self.path / "result.json")
        if result is not None and not isinstance(result.get("budget"), dict):
            raise RunError(f"{self.path / 'result.json'} is not the result of a training; restore or delete the file")
        return result

    def write_figures(self, figures: dict[str, Any], name: str = "valid.json") -> None:
        """The figures of the present weights on the validation data, or others; those of a packed run are not kept."""
        if self.given == self.path:
            record = {"weights": self.signature.lines().get("weights"), "figures": figures}
            write_atomically(self.path / name, json.dumps(record, indent=1, ensure_ascii=False))

    def read_figures(self, name: str = "valid.json") -> dict[str, Any] | None:
        """The figures on the validation data, or others; None: the present weights were not measured."""
        record = read_json(self.path / name) or {}
        figures = record.get("figures")
        same = record.get("weights") == self.signature.lines().get("weights")
        return figures if same and isinstance(figures, dict) else None

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint; older ones are deleted once it is safely written."""
        write_checkpoint(self.path / "training", checkpoint)

    def write_divided(self, checkpoint: Checkpoint, rows: dict[str, Tensor], processes: Processes) -> None:
        """Add a checkpoint of tensors that all processes divide; each calls this with its rows of them."""
        write_divided(self.path / "training", checkpoint, rows, processes)

    def read_checkpoint(self) -> Checkpoint | None:
        """The newest whole checkpoint; None: there is none."""
        return read_checkpoint(self.path / "training")

    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return bool(find_checkpoints(self.path / "training"))

    # Log

    def log(self, record: dict[str, Any]) -> int:
        """Append a line to the metrics -> the length of the file after it."""
        path = self.path / "metrics.jsonl"
        with disk_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            return file.tell()

    def read_log(self) -> list[dict[str, Any]]:
        """Return the lines of the metrics; a model that is counted has none."""
        path = self.path / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    def cut_log(self, length: int) -> None:
        """Remove what was logged after the checkpoint from which training resumes."""
        path = self.path / "metrics.jsonl"
        if path.exists():
            with path.open("r+b") as file:
                file.truncate(length)


def holds_runs(path: Path) -> bool:
    """Whether a folder contains runs, as that of a comparison does."""
    return any(child.is_dir() and RunFolder(child).begun() for child in path.iterdir())


def _damaged(path: Path) -> RunError:
    return RunError(f"{path} is damaged or of another run; restore the file, or train again into another --out")
