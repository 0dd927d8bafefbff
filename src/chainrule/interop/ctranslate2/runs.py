"""Export of runs as folders that CTranslate2 loads.

The folder is compared with the run before it is left behind: an export whose outputs differ is an error.
"""

from __future__ import annotations

from pathlib import Path

from chainrule.base.files import folder_atomically, write_atomically
from chainrule.base.progress import Progress
from chainrule.base.targets import check_folder
from chainrule.checkpoint.build import load_model
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig
from chainrule.errors import ConfigError
from chainrule.interop.common import ExportResult, Format, Obstacle, folder_bytes, require_packages
from chainrule.interop.ctranslate2.check import difference
from chainrule.interop.ctranslate2.models import FAMILIES
from chainrule.interop.huggingface.write_tokenizers import portable_tokenizer

TOLERANCE = 1e-3
"""The greatest difference of log p or of a state that single precision may have."""


def run_obstacles(config: RunConfig) -> list[Obstacle]:
    """Models that CTranslate2 does not have, and options that its models do not have."""
    name = config.model.name
    if name not in FAMILIES:
        reason = f"the model {name} is none of the Transformers that CTranslate2 runs ({', '.join(FAMILIES)})"
        return [Obstacle(reason, "--model transformer")]
    return FAMILIES[name].obstacles(config)


def export_run(
    run: str | Path, path: str | Path, *, quantize: str | None = None, progress: Progress | None = None
) -> ExportResult:
    """Write a run, with its tokeniser where tokenizer.json can represent it, as a folder that CTranslate2 loads."""
    require_packages("export", "ctranslate2")
    folder, target = RunFolder.open(run), Path(path)
    check_folder(target)
    config, tokenizer, source = folder.read_config(), folder.read_tokenizer(), folder.read_source_tokenizer()
    family, model = FAMILIES[config.model.name], load_model(folder, tokenizer)
    spec = family.write(model, tokenizer, source)
    spec.validate()
    spec.optimize(quantization=quantize)
    with folder_atomically(target) as beside:
        spec.save(str(beside))
        greatest = difference(family.reader, beside, model, tokenizer, source, quantize or "float32")
        if quantize is None and not greatest <= TOLERANCE:
            raise ConfigError(
                f"{run} differs from its export by {greatest:.2g}, more than the rounding of single precision allows "
                f"({TOLERANCE:g}); nothing was written"
            )
        for name, content in portable_tokenizer(config, tokenizer, source).items():
            write_atomically(beside / name, content)
        if progress:
            progress(1, 1)
        size = folder_bytes(beside)
    return ExportResult(target, size, difference=greatest)


CTRANSLATE2 = Format(
    name="ctranslate2",
    summary="models for the inference engine CTranslate2: decoders, translators and encoders",
    obstacles=run_obstacles,
    models=tuple(FAMILIES),
    export_run=export_run,
    export_quantized=export_run,
    export_unit="models",
)
