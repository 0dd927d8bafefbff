"""Models from configurations, and models from run folders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chainrule.base.grammar import with_article
from chainrule.base.modes import without_gradients
from chainrule.checkpoint.checkpoints import contiguous
from chainrule.checkpoint.eight_bits import dequantise, is_matrix, quantise
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig, parse
from chainrule.errors import ConfigError, RunError
from chainrule.models.options import live_options
from chainrule.registry import MODELS, OUTPUTS
from chainrule.text.tokenizers import Tokenizer
from chainrule.types import Model, OutputChoice, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor, nn

COUNTS = "unigram_counts"


class WeightsError(RunError):
    """The weights belong to another model."""


def model_options(config: RunConfig) -> Any:
    """The options of the configured model, as its own record."""
    return parse(MODELS.get(config.model.name).make.Config, config.model.options, "model")


def build_model(config: RunConfig, vocabulary: Vocabulary) -> nn.Module:
    """The configured model, freshly initialised."""
    entry = MODELS.get(config.model.name)
    if entry.make.stores_arrays:
        raise ConfigError(f"{entry.name} has no weights to initialise; it is estimated from tokens")
    if entry.make.has_parts:
        raise ConfigError(
            f"{with_article(entry.name)} combines trained runs; use: chainrule mix RUN RUN --valid TEXT --out RUN"
        )
    output = OUTPUTS.get(config.output.name).make
    choice = OutputChoice(output, parse(output.Config, config.output.options, "output"))
    model: nn.Module = entry.make(model_options(config), vocabulary, choice)
    return model


def load_model(folder: RunFolder, tokenizer: Tokenizer) -> Any:
    """The trained model of a run, in evaluation mode."""
    config = folder.read_config()
    make = MODELS.get(config.model.name).make
    if make.stores_arrays:
        folder.check_model()
        arrays_model = make.load(model_options(config), folder.model_path)
        _check_vocabulary(folder, tokenizer, arrays_model.vocab_size)
        return arrays_model.eval()
    weights = folder.read_weights()
    if (counts_V := weights.get(COUNTS)) is None:
        raise RunError(f"{folder.model_path} is not a model of this package; restore the run's own file")
    _check_vocabulary(folder, tokenizer, len(counts_V))
    vocabulary = _vocabulary(tokenizer, counts_V, folder.read_source_tokenizer())
    if make.has_parts:
        return _load_mixture(folder, config, vocabulary, weights, tokenizer)
    model = build_model(config, vocabulary)
    load_weights(model, weights)
    return model.eval()


def save_model(folder: RunFolder, model: Any) -> None:
    """Write the model of a run to its folder."""
    if model.stores_arrays:
        folder.write_model(model.save)
    else:
        folder.write_weights(weights_of(model))


def adjust(model: Any, options: dict[str, Any]) -> None:
    """Change options of a trained model that its configuration marks as live: no weight depends on them."""
    live = [option.name for option in live_options(type(model.config))]
    for name in options:
        if name not in live:
            known = f"options that can be set now: {', '.join(live)}" if live else "none of its options can be set now"
            raise ConfigError(f"model.{name} is fixed once a model is trained; {known}")
    model.config = parse(type(model.config), {**model.config.model_dump(), **options}, "model")


def check_precision(precision: str, model: str, run: str) -> None:
    """Refuse a precision that does not exist, or that a model of this name cannot have."""
    check_precision_name(precision)
    if precision != "float32" and MODELS.get(model).make.stores_arrays:
        raise ConfigError(f"--precision {precision} is for networks, and {run} has no matrices; leave it out")


def check_precision_name(precision: str) -> None:
    """Refuse a precision that does not exist."""
    if precision not in ("float32", "int8"):
        raise ConfigError(f"--precision is {precision!r}; expected float32 or int8")


@without_gradients
def round_weights(model: Any) -> None:
    """Round every matrix of a network to 8-bit numbers times one scale per row, and let it predict with these."""
    for part in model.modules():
        if isinstance(part, Model):  # the model itself, and the parts of a mixture
            part.precision = "int8"
    for matrix in model.parameters():
        if is_matrix(matrix):
            matrix.copy_(dequantise(*quantise(matrix)))


def live_values(model: Any) -> dict[str, Any]:
    """The values of the live options of a model by name, as JSON has them."""
    values = model.config.model_dump(mode="json")
    return {option.name: values[option.name] for option in live_options(type(model.config))}


# Weights


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A model's tensors by name; a tensor used in two places (a tied matrix) is named once."""
    seen: dict[int, str] = {}
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if tensor.numel() and seen.setdefault(tensor.data_ptr(), name) != name:
            continue
        weights[name] = tensor
    return contiguous(weights)


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Put named tensors into a model; tied matrices need their first name only."""
    if isinstance(model, Model) and (reason := model.outdated(weights)):
        raise WeightsError(reason)
    own = model.state_dict()
    needed = set(weights_of(model))
    fits = needed <= set(weights) <= set(own) and all(weights[name].shape == own[name].shape for name in weights)
    if not fits:
        raise WeightsError("the weights do not fit the model of config.toml; the run's files come from different runs")
    model.load_state_dict(weights, strict=False)


def _vocabulary(tokenizer: Tokenizer, counts_V: Tensor, source: Tokenizer | None) -> Vocabulary:
    read = None if source is None else Vocabulary(source.vocab_size, source.eos, np.zeros(source.vocab_size, np.int64))
    return Vocabulary(tokenizer.vocab_size, tokenizer.eos, counts_V.numpy(), read)


def _check_vocabulary(folder: RunFolder, tokenizer: Tokenizer, size: int) -> None:
    if size != tokenizer.vocab_size:
        raise RunError(
            f"{folder.path}: the tokeniser has {tokenizer.vocab_size} tokens but the model was trained with {size}; "
            "restore the tokenizer files that were saved with the run"
        )


def _load_mixture(
    folder: RunFolder, config: RunConfig, vocabulary: Vocabulary, weights: dict[str, Tensor], tokenizer: Tokenizer
) -> nn.Module:
    """A mixture from the runs in its folder `parts`."""
    if "weights" not in weights:
        raise RunError(f"{folder.model_path} is not a mixture; restore the run's own file")
    options = model_options(config)
    folders = folder.parts(options.parts)
    parts = [load_model(part, tokenizer) for part in folders]
    model: nn.Module = MODELS.get(config.model.name).make(options, vocabulary, parts, weights["weights"])
    return model.eval()
