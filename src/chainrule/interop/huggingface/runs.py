"""Models in Hugging Face folders as runs, and runs as such folders: which family it is, and the files around it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as save_bytes
from torch import Tensor, nn

from chainrule.base.devices import PeakMemory
from chainrule.base.files import folder_atomically, write_atomically
from chainrule.base.progress import Progress
from chainrule.checkpoint.build import COUNTS, build_model, load_model, load_weights, save_model, weights_of
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import NamedSection, RunConfig, TokenizerConfig, parse
from chainrule.errors import ConfigError
from chainrule.interop.common import Exported, figures, find_finished
from chainrule.interop.huggingface.bert import read_bert, write_bert
from chainrule.interop.huggingface.folders import CONFIG, WEIGHTS, Folder, Foreign, Native, Weights, find_folder
from chainrule.interop.huggingface.gpt2 import read_gpt2, write_gpt2
from chainrule.interop.huggingface.marian import read_marian, write_marian
from chainrule.interop.huggingface.read_tokenizers import as_json
from chainrule.interop.huggingface.t5 import read_t5, write_t5
from chainrule.interop.huggingface.write_tokenizers import tokenizer_files
from chainrule.registry import MODELS
from chainrule.text.tokenizers import Tokenizer
from chainrule.types import Vocabulary

READERS: dict[str, Callable[[Folder, Weights], Native]] = {
    "gpt2": read_gpt2,
    "bert": read_bert,
    "roberta": read_bert,
    "distilbert": read_bert,
    "t5": read_t5,
    "marian": read_marian,
}
WRITERS: dict[str, Callable[[Any, Tokenizer], Foreign]] = {
    "transformer": write_gpt2,
    "bert": write_bert,
    "t5": write_t5,
    "seq2seq-transformer": write_marian,
}


# In


def import_folder(
    path: str | Path,
    out: str | Path,
    *,
    note: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
) -> RunFolder:
    """Make a run of the model in a folder, or in a package of that name. The same call again finds it done."""
    place = find_folder(str(path))
    if place is None:
        raise ConfigError(f"{path} has no {CONFIG}; give a folder that transformers saved a model to")
    folder = Folder(place)
    if folder.kind not in READERS:
        raise ConfigError(
            f"{path} holds a model of the type {folder.kind!r}, but only those of {', '.join(READERS)} can be read"
        )
    request = {"import": folder.fingerprint()}
    if (finished := find_finished(Path(out), request, note)) is not None:
        return finished
    began, memory = time.perf_counter(), PeakMemory()
    weights = folder.weights(progress)
    native = READERS[str(folder.kind)](folder, weights)
    for text in native.notes:
        note(text)
    config = _config(native)
    model = _model(config, native, weights)
    with folder_atomically(Path(out)) as beside:
        _write_run(RunFolder(beside), config, native, model, request)
        told = {"source": folder.kind, "notes": list(native.notes)}
        RunFolder(beside).write_result(figures(model, time.perf_counter() - began, memory.bytes) | told)
    return RunFolder(out)


def _config(native: Native) -> RunConfig:
    """Everything resolved."""
    entry = MODELS.get(native.model)
    options = parse(entry.make.Config, native.options, "model").model_dump(mode="json")
    kind = native.tokenizer.kind
    tokenizer = TokenizerConfig(kind=kind, vocab_size=native.tokenizer.vocab_size, joint=native.source is None)
    return RunConfig(
        model=NamedSection(name=native.model, **options),
        output=NamedSection(name="softmax", **native.output),
        objective=NamedSection(name=entry.objective or "likelihood"),
        tokenizer=tokenizer,
    )


def _model(config: RunConfig, native: Native, weights: Weights) -> nn.Module:
    """The model with the weights of the folder."""
    target, source = native.tokenizer, native.source
    counts_V = np.zeros(target.vocab_size, np.int64)  # a folder does not tell how often its tokens came
    read = None if source is None else Vocabulary(source.vocab_size, source.eos, np.zeros(source.vocab_size, np.int64))
    torch.manual_seed(config.seed)  # what the folder does not have begins as a model of this seed does
    model = build_model(config, Vocabulary(target.vocab_size, target.eos, counts_V, read))
    own, needed = model.state_dict(), weights_of(model)
    found = {COUNTS: own[COUNTS], **native.weights}
    found |= {name: own[name] for name in needed if name.startswith(tuple(native.fresh))}
    for name in needed:
        if name not in found:
            raise ConfigError(f"{weights.file} has no weights for {name}, which {CONFIG} calls for")
        if found[name].shape != own[name].shape:
            raise ConfigError(
                f"{weights.file} does not fit its {CONFIG}: {name} is {list(found[name].shape)}, expected "
                f"{list(own[name].shape)}; restore the files that belong together"
            )
    load_weights(model, {name: tensor for name, tensor in found.items() if name in own})
    return model.eval()


def _write_run(folder: RunFolder, config: RunConfig, native: Native, model: nn.Module, request: dict[str, Any]) -> None:
    signature = {"data": request["import"]}
    for name, tokenizer, place in (
        ("tokenizer", native.tokenizer, folder.path),
        ("source_tokenizer", native.source, folder.path / "source"),
    ):
        if tokenizer is not None:
            tokenizer.save(place)
            signature[name] = f"{tokenizer.kind}#{tokenizer.fingerprint}"
    save_model(folder, model)
    folder.write_signature(signature)
    folder.write_request(request)
    folder.write_config(config, without=("objective", "training"))


# Out


def export_folder(run: str | Path, path: str | Path, *, progress: Progress | None = None) -> Exported:
    """Write a run as a folder that transformers loads, its tokeniser too."""
    folder, target = RunFolder(run), Path(path)
    name = folder.read_config().model.name
    if name not in WRITERS:
        raise ConfigError(
            f"{folder.path} is of the model {name}, for which Hugging Face has no counterpart; give a run of "
            f"--model {', '.join(WRITERS)}"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} exists already; choose another PATH, or remove it")
    tokenizer = folder.read_tokenizer()
    foreign = WRITERS[name](load_model(folder, tokenizer), tokenizer)
    files = tokenizer_files(tokenizer, folder.read_source_tokenizer(), foreign)
    files[CONFIG] = as_json(foreign.config)
    if foreign.generation:
        files["generation_config.json"] = as_json(foreign.generation)
    files[WEIGHTS] = save_bytes(_apart(foreign.weights), metadata={"format": "pt"})
    with folder_atomically(target) as beside:
        for number, (file, content) in enumerate(files.items(), 1):
            write_atomically(beside / file, content)
            if progress:
                progress(number, len(files))
    return Exported(target, sum(map(len, files.values())))


def _apart(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share no memory, as the file wants them."""
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in weights.items()
    }
