"""Export of runs as ONNX graphs, with the tokeniser and a short runner that needs neither torch nor this package.

    step.onnx       one step of the model; for translators also encoder.onnx
    model.json      the names and shapes of the state, the end token, the window
    tokenizer.json  of the tokenizers library, where it can represent the tokeniser
    generate.py     continues a text or translates a line with these files

The graphs are compared with the run at other sizes than those they were traced with, before the folder is left behind.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chainrule.base.files import folder_atomically, write_atomically
from chainrule.base.progress import Progress
from chainrule.base.targets import check_folder
from chainrule.checkpoint.build import load_model, model_options
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig
from chainrule.errors import ConfigError
from chainrule.interop.common import ExportResult, Format, Obstacle, folder_bytes, require_packages
from chainrule.interop.huggingface.write_tokenizers import portable_tokenizer
from chainrule.interop.onnx.graphs import GRAPHS, Graphs
from chainrule.interop.onnx.write import greatest_difference, write_graphs

RUNNER = Path(__file__).with_name("runner.py")

TOLERANCE = 1e-3
"""The greatest difference of log p that single precision may have."""


def run_obstacles(config: RunConfig) -> list[Obstacle]:
    """Models without graphs, and a source that a pretrained encoder reads."""
    name = config.model.name
    if name not in GRAPHS:
        return [Obstacle(f"the model {name} has no step graph ({', '.join(GRAPHS)} have one)", "--model transformer")]
    options = model_options(config)
    if GRAPHS[name].translates and name != "t5" and options.pretrained is not None:
        reason = f"the source is read with the pretrained encoder {options.pretrained}"
        return [Obstacle(reason, "no model.pretrained")]
    return []


def export_run(run: str | Path, path: str | Path, *, progress: Progress | None = None) -> ExportResult:
    """Write a run as ONNX graphs."""
    require_packages("export", "onnx", "onnxscript", "onnxruntime")
    folder, target = RunFolder.open(run), Path(path)
    check_folder(target)
    config, tokenizer, source = folder.read_config(), folder.read_tokenizer(), folder.read_source_tokenizer()
    model = load_model(folder, tokenizer)
    graphs = GRAPHS[config.model.name](model)
    with folder_atomically(target) as beside:
        write_graphs(graphs, beside)
        greatest = greatest_difference(graphs, beside)
        if not greatest <= TOLERANCE:
            raise ConfigError(
                f"{run} differs from its export by {greatest:.2g}, more than the rounding of single precision allows "
                f"({TOLERANCE:g}); nothing was written"
            )
        about = describe(config.model.name, graphs, tokenizer.eos, (source or tokenizer).eos)
        files = {
            "model.json": (json.dumps(about, indent=1) + "\n").encode(),
            "generate.py": RUNNER.read_bytes(),
            **portable_tokenizer(config, tokenizer, source),
        }
        for name, content in files.items():
            write_atomically(beside / name, content)
        if progress:
            progress(1, 1)
        size = folder_bytes(beside)
    return ExportResult(target, size, difference=greatest)


def describe(name: str, graphs: Graphs, eos: int, source_eos: int) -> dict[str, Any]:
    """What a program needs to know to call the graphs."""
    return {
        "model": name,
        "translates": graphs.translates,
        "eos": eos,
        "source_eos": source_eos,
        "window": graphs.model.window,
        "memory": [part.name for part in graphs.memory],
        "state": [{"name": part.name, "shape": list(part.shape)} for part in graphs.state],
    }


ONNX = Format(
    name="onnx",
    summary="ONNX graphs of one step, and of the encoder of a translator, with a runner",
    obstacles=run_obstacles,
    models=tuple(GRAPHS),
    export_run=export_run,
    export_unit="models",
)
