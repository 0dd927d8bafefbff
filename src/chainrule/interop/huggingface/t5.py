"""T5, versions 1.0 and 1.1, in the format of Hugging Face, read as our `t5` and written from it.

Our embeddings are stored divided by √D and multiplied by it when they are read (models/t5.py). Version 1.0 divides the
output of the decoder by √D before its product with the embeddings; here the output's table is divided instead.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from chainrule.checkpoint.build import model_options
from chainrule.config import RunConfig
from chainrule.errors import ConfigError
from chainrule.interop.common import Obstacle
from chainrule.interop.huggingface.decoder_start import check_ids, find_start_token, with_start_row
from chainrule.interop.huggingface.folders import ExportedModel, FolderWeights, HuggingFaceFolder, ImportedModel
from chainrule.interop.huggingface.output_layers import output_bias_obstacles
from chainrule.interop.huggingface.read_tokenizers import read_t5_tokenizer
from chainrule.text.tokenizers import Tokenizer

FEEDFORWARDS = {
    "relu": "relu",
    "gated-gelu": "gated gelu-tanh",
    "gelu_new": "gelu-tanh",
    "gated-gelu_new": "gated gelu-tanh",
    "gated-relu": "gated relu",
}
"""Values of feed_forward_proj and our counterparts; `gated-gelu` means the tanh approximation of gelu."""

TABLES = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
RELATIVE_BIAS = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def layer_names(*, reads_source: bool, gated: bool) -> dict[str, tuple[str, ...]]:
    """The layers of a block: our names and theirs. Several layers of theirs are concatenated into one of ours."""
    last = 2 if reads_source else 1
    heads = tuple(f"0.SelfAttention.{part}" for part in "qkv")
    names = {"norm_attention": ("0.layer_norm",), "project_in": heads, "project_out": ("0.SelfAttention.o",)}
    if reads_source:
        names |= {
            "norm_source": ("1.layer_norm",),
            "project_query": ("1.EncDecAttention.q",),
            "project_memory": ("1.EncDecAttention.k", "1.EncDecAttention.v"),
            "project_source": ("1.EncDecAttention.o",),
        }
    inner = ("wi_0", "wi_1") if gated else ("wi",)
    return names | {
        "norm_feedforward": (f"{last}.layer_norm",),
        "widen": tuple(f"{last}.DenseReluDense.{part}" for part in inner),
        "narrow": (f"{last}.DenseReluDense.wo",),
    }


# Import


def read_t5(folder: HuggingFaceFolder, weights: FolderWeights) -> ImportedModel:
    """The model of a folder as a `t5`."""
    config = folder.config
    size, width, layers = folder.require("vocab_size", "d_model", "num_layers")
    form = folder.map_option("feed_forward_proj", FEEDFORWARDS, "relu")
    options = {
        "embedding": width,
        "encoder_layers": layers,
        "decoder_layers": config.get("num_decoder_layers") or layers,
        **dict(zip(("heads", "head_width", "feedforward"), folder.require("num_heads", "d_kv", "d_ff"), strict=True)),
        "activation": form.removeprefix("gated "),
        "gated": form.startswith("gated "),
        "buckets": config.get("relative_attention_num_buckets", 32),
        "distance": config.get("relative_attention_max_distance", 128),
        "context": max(1024, config.get("n_positions") or 0),
        "dropout": config.get("dropout_rate", 0.1),
        "sentinels": 0,
        "eps": config.get("layer_norm_epsilon", 1e-6),
    }
    tokenizer = read_t5_tokenizer(folder, size)
    start = config.get("decoder_start_token_id", config.get("pad_token_id", 0))
    check_ids(folder, tokenizer, start, size)
    tables = _read_tables(folder, weights, tokenizer.eos, start)
    options |= {"tied": "output.weight_VD" not in tables, "shared": start == tokenizer.eos}
    found = tables | _read_blocks(weights, options)
    return ImportedModel("t5", options, found, tokenizer, output={"bias": False})


def _read_tables(folder: HuggingFaceFolder, weights: FolderWeights, eos: int, start: int) -> dict[str, Tensor]:
    """The embeddings, and the output's table if it differs."""
    config, shape = folder.config, (folder.config["vocab_size"], folder.config["d_model"])
    shared_VD = weights.with_shape(next((name for name in TABLES if name in weights), TABLES[0]), *shape)
    scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))
    head_VD = weights.get("lm_head.weight", shared_VD)
    small_VD = shared_VD * shared_VD.shape[1] ** -0.5
    tables = {"embedding.weight": with_start_row(small_VD, eos, start)}
    if start != eos:
        tables["source_embedding.weight"] = small_VD
    if start != eos or not scaled or not torch.equal(head_VD, shared_VD):
        tables["output.weight_VD"] = head_VD * head_VD.shape[1] ** -0.5 if scaled else head_VD
    return tables


def _read_blocks(weights: FolderWeights, options: dict[str, Any]) -> dict[str, Tensor]:
    """Their tensors by our names."""
    found: dict[str, Tensor] = {}
    for side in ("encoder", "decoder"):
        found[f"{side}.norm.weight"] = weights[f"{side}.final_layer_norm.weight"]
        found[f"{side}.relative.table_UH"] = weights[f"{side}.{RELATIVE_BIAS}"]
        names = layer_names(reads_source=side == "decoder", gated=options["gated"])
        for number in range(options[f"{side}_layers"]):
            for ours, theirs in names.items():
                full_names = [f"{side}.block.{number}.layer.{name}.weight" for name in theirs]
                found[f"{side}.blocks.{number}.{ours}.weight"] = weights.concatenate(full_names)
    return found


# Export


def t5_obstacles(config: RunConfig) -> list[Obstacle]:
    """What T5 does not have. An imported run has two tables, but they differ in the start token alone."""
    found = output_bias_obstacles(config, "T5")
    if config.data.train and not model_options(config).shared:
        reason = "source and target have separate embeddings (model.shared is false), but T5 has one"
        found.append(Obstacle(reason, "--set model.shared=true"))
    return found


def write_t5(model: Any, tokenizer: Tokenizer) -> ExportedModel:
    """A `t5` as a T5ForConditionalGeneration."""
    c, own = model.config, model.state_dict()
    decoder_VD, source_VD = own["embedding.weight"], model.source_embedding.weight.detach()
    start = find_start_token(decoder_VD, source_VD, tokenizer.eos)
    if start is None:
        raise ConfigError(
            "the run has separate embeddings for source and target (model.shared = false), but T5 has one; train with "
            "--set model.shared=true"
        )
    head_VD = model.output.weight_VD.detach()
    tied = torch.equal(head_VD, source_VD)
    theirs = {"shared.weight": source_VD * math.sqrt(c.embedding)}
    if not tied:
        theirs["lm_head.weight"] = head_VD
    for side in ("encoder", "decoder"):
        theirs[f"{side}.final_layer_norm.weight"] = own[f"{side}.norm.weight"]
        theirs[f"{side}.{RELATIVE_BIAS}"] = own[f"{side}.relative.table_UH"]
        names = layer_names(reads_source=side == "decoder", gated=c.gated)
        for number in range(getattr(c, f"{side}_layers")):
            for ours, their_names in names.items():
                parts = own[f"{side}.blocks.{number}.{ours}.weight"].chunk(len(their_names))
                for name, part in zip(their_names, parts, strict=True):
                    theirs[f"{side}.block.{number}.layer.{name}.weight"] = part
    generation = {"decoder_start_token_id": start, "eos_token_id": tokenizer.eos, "pad_token_id": start}
    return ExportedModel(_write_config(model, tied) | generation, theirs, appends_end=True, generation=generation)


def _write_config(model: Any, tied: bool) -> dict[str, Any]:
    c = model.config
    form = {"relu": "relu", "gelu-tanh": "gelu_new"}[c.activation]
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "vocab_size": model.vocab_size,
        "d_model": c.embedding,
        "d_kv": c.head_width or c.embedding // c.heads,
        "d_ff": c.feedforward or 4 * c.embedding,
        "num_layers": c.encoder_layers,
        "num_decoder_layers": c.decoder_layers,
        "num_heads": c.heads,
        "feed_forward_proj": f"gated-{form}" if c.gated else form,
        "relative_attention_num_buckets": c.buckets,
        "relative_attention_max_distance": c.distance,
        "n_positions": c.context,
        "dropout_rate": c.dropout,
        "layer_norm_epsilon": c.eps,
        "is_encoder_decoder": True,
        "tie_word_embeddings": tied,
        "scale_decoder_outputs": tied,
        "dtype": "float32",
    }
