"""Models in Hugging Face folders: import of folders as runs, and export of runs as folders that transformers loads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as save_bytes
from torch import Tensor, nn

from chainrule.base.devices import PeakMemory
from chainrule.base.files import folder_atomically, write_atomically
from chainrule.base.progress import Progress
from chainrule.base.targets import check_folder
from chainrule.checkpoint.build import COUNTS, build_model, load_model, load_weights, save_model, weights_of
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import NamedSection, RunConfig, TokenizerConfig, parse
from chainrule.errors import ConfigError
from chainrule.interop.common import ExportResult, Format, Note, Obstacle, find_finished_import, import_result
from chainrule.interop.huggingface.bert import bert_obstacles, read_bert, write_bert
from chainrule.interop.huggingface.decoder_form import decoder_obstacles
from chainrule.interop.huggingface.folders import (
    CONFIG,
    WEIGHTS,
    ExportedModel,
    FolderWeights,
    HuggingFaceFolder,
    ImportedModel,
    find_folder,
    foreign_values,
    shape_error,
)
from chainrule.interop.huggingface.gpt_neox import read_decoder, write_decoder
from chainrule.interop.huggingface.marian import read_translator, translator_obstacles, write_translator
from chainrule.interop.huggingface.read_tokenizers import as_json
from chainrule.interop.huggingface.t5 import read_t5, t5_obstacles, write_t5
from chainrule.interop.huggingface.write_tokenizers import tokenizer_files, tokenizer_obstacles
from chainrule.registry import MODELS
from chainrule.text.tokenizers import Tokenizer
from chainrule.types import Vocabulary


@dataclass(frozen=True)
class ModelFamily:
    """Models of Hugging Face that correspond to one of ours."""

    model: str  # our model
    model_types: tuple[str, ...]  # values of `model_type` in config.json
    read: Callable[[HuggingFaceFolder, FolderWeights], ImportedModel]
    write: Callable[[Any, Tokenizer], ExportedModel]
    obstacles: Callable[[RunConfig], list[Obstacle]]  # options of ours that theirs do not have


FAMILIES = (
    ModelFamily("transformer", ("gpt2", "gpt_neox"), read_decoder, write_decoder, decoder_obstacles),
    ModelFamily("bert", ("bert", "roberta", "distilbert"), read_bert, write_bert, bert_obstacles),
    ModelFamily("t5", ("t5",), read_t5, write_t5, t5_obstacles),
    ModelFamily("seq2seq-transformer", ("marian", "pegasus"), read_translator, write_translator, translator_obstacles),
)
BY_MODEL = {family.model: family for family in FAMILIES}
BY_MODEL_TYPE = {model_type: family for family in FAMILIES for model_type in family.model_types}


# Import


def import_folder(
    path: str | Path, out: str | Path, *, note: Note = lambda text: None, progress: Progress | None = None
) -> RunFolder:
    """Create a run from the model in a folder, or in a package of this name. A repeated call finds the finished run."""
    place = find_folder(str(path))
    if place is None:
        raise ConfigError(f"{path} has no {CONFIG}; give a folder saved by transformers")
    folder = HuggingFaceFolder(place)
    if not isinstance(folder.model_type, str) or folder.model_type not in BY_MODEL_TYPE:
        raise ConfigError(
            f"{path} has a model of the type {folder.model_type!r}; supported are {', '.join(BY_MODEL_TYPE)}"
        )
    request = {"import": folder.fingerprint()}
    if (finished := find_finished_import(Path(out), request, note)) is not None:
        return finished
    began, memory = time.perf_counter(), PeakMemory()
    with foreign_values(folder.path):
        weights = folder.load_weights(progress)
        imported = BY_MODEL_TYPE[folder.model_type].read(folder, weights)
        config = _make_config(imported)
        model = _make_model(config, imported, weights)
    for text in imported.notes:
        note(text)
    with folder_atomically(Path(out)) as beside:
        _write_run(RunFolder(beside), config, imported, model, request)
        about = {"source": folder.model_type, "notes": list(imported.notes)}
        RunFolder(beside).write_result(import_result(model, time.perf_counter() - began, memory.bytes) | about)
    return RunFolder(out)


def _make_config(imported: ImportedModel) -> RunConfig:
    """The complete configuration of the run."""
    entry = MODELS.get(imported.model)
    options = parse(entry.make.Config, imported.options, "model").model_dump(mode="json")
    kind, joint = imported.tokenizer.kind, imported.source_tokenizer is None
    return RunConfig(
        model=NamedSection(name=imported.model, **options),
        output=NamedSection(name="softmax", **imported.output),
        objective=NamedSection(name=entry.objective or "likelihood"),
        tokenizer=TokenizerConfig(kind=kind, vocab_size=imported.tokenizer.vocab_size, joint=joint),
    )


def _make_model(config: RunConfig, imported: ImportedModel, weights: FolderWeights) -> nn.Module:
    """The model with the weights of the folder."""
    _check_vocabulary(imported, weights.file)
    with torch.device("meta"):  # takes no memory, whatever sizes config.json claims
        _check_shapes(build_model(config, _make_vocabulary(imported)), imported.weights, weights.file)
    torch.manual_seed(config.seed)  # for the weights that the folder lacks
    model = build_model(config, _make_vocabulary(imported))
    own, needed = model.state_dict(), weights_of(model)
    found = {COUNTS: own[COUNTS], **imported.weights}
    found |= {name: own[name] for name in needed if name.startswith(tuple(imported.fresh))}
    for name in needed:
        if name not in found:
            raise ConfigError(f"{weights.file} has no weights for {name}, which {CONFIG} requires")
    load_weights(model, {name: tensor for name, tensor in found.items() if name in own})
    return model.eval()


def _check_shapes(model: nn.Module, found: Mapping[str, Tensor], file: Path) -> None:
    """Refuse weights of other shapes than those of the model."""
    for name, own in model.state_dict().items():
        if name in found and found[name].shape != own.shape:
            raise shape_error(file, name, found[name].shape, f"expected {list(own.shape)}")


def _check_vocabulary(imported: ImportedModel, file: Path) -> None:
    """Refuse a vocabulary that no matrix of the file can have, before memory is allocated for it."""
    rows = max((len(tensor) for tensor in imported.weights.values() if tensor.dim()), default=0)
    if (size := imported.tokenizer.vocab_size) > 2 * rows + 1000:
        raise ConfigError(
            f"{CONFIG} has a vocabulary of {size} tokens, but no matrix of {file} has more than {rows} rows"
        )


def _make_vocabulary(imported: ImportedModel) -> Vocabulary:
    """The vocabulary of the model; its counts are zero, since a folder has none."""
    target, source = imported.tokenizer, imported.source_tokenizer
    read = None if source is None else Vocabulary(source.vocab_size, source.eos, np.zeros(source.vocab_size, np.int64))
    return Vocabulary(target.vocab_size, target.eos, np.zeros(target.vocab_size, np.int64), read)


def _write_run(
    folder: RunFolder, config: RunConfig, imported: ImportedModel, model: nn.Module, request: dict[str, Any]
) -> None:
    signature = {"data": request["import"]}
    for name, tokenizer, place in (
        ("tokenizer", imported.tokenizer, folder.path),
        ("source_tokenizer", imported.source_tokenizer, folder.path / "source"),
    ):
        if tokenizer is not None:
            tokenizer.save(place)
            signature[name] = f"{tokenizer.kind}#{tokenizer.fingerprint}"
    save_model(folder, model)
    folder.write_signature(signature)
    folder.write_request(request)
    folder.write_config(config, without=("objective", "training"))


# Export


def folder_obstacles(config: RunConfig) -> list[Obstacle]:
    """What no folder can represent: models without a counterpart, and some options and tokenisers of the others."""
    if config.model.name not in BY_MODEL:
        return [
            Obstacle(
                f"the model {config.model.name} has no counterpart in Hugging Face ({', '.join(BY_MODEL)} have one)",
                "--model transformer",
            )
        ]
    return BY_MODEL[config.model.name].obstacles(config) + tokenizer_obstacles(config)


def export_folder(run: str | Path, path: str | Path, *, progress: Progress | None = None) -> ExportResult:
    """Write a run, with its tokeniser, as a folder that transformers loads."""
    folder, target = RunFolder.open(run), Path(path)
    name = folder.read_config().model.name
    check_folder(target)
    tokenizer = folder.read_tokenizer()
    exported = BY_MODEL[name].write(load_model(folder, tokenizer), tokenizer)
    files = tokenizer_files(tokenizer, folder.read_source_tokenizer(), exported)
    files[CONFIG] = as_json(exported.config)
    if exported.generation:
        files["generation_config.json"] = as_json(exported.generation)
    files[WEIGHTS] = save_bytes(_separate(exported.weights), metadata={"format": "pt"})
    with folder_atomically(target) as beside:
        for number, (file, content) in enumerate(files.items(), 1):
            write_atomically(beside / file, content)
            if progress:
                progress(number, len(files))
    return ExportResult(target, sum(map(len, files.values())))


def _separate(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of the tensors that share no memory, as safetensors requires."""
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in weights.items()
    }


def _is_folder(path: Path) -> bool:
    """Whether a path is a folder, or the name of a package that contains a model."""
    return path.is_dir() or (not path.exists() and find_folder(str(path)) is not None)


HUGGING_FACE = Format(
    name="hf",
    summary="models of Hugging Face transformers: GPT-2, GPT-NeoX, BERT, RoBERTa, DistilBERT, T5, Marian and Pegasus",
    recognise=_is_folder,
    obstacles=folder_obstacles,
    models=tuple(BY_MODEL),
    import_run=import_folder,
    export_run=export_folder,
    import_unit="bytes",
    export_unit="files",
)
