"""Marian and Pegasus in the format of Hugging Face, read as our `seq2seq-transformer` and written from it.

Junczys-Dowmunt et al., "Marian: Fast Neural Machine Translation in C++", 2018: the Transformer as first published,
post-norm. Zhang et al., "PEGASUS", 2020, is the same pre-norm, with a final norm on each side: our default form.
Loading compensates for two differences:

- Their table of positions has all sines before all cosines, ours alternates them. No layer depends on the order of the
  components of the residual stream, so the weights that read or write the stream are permuted into our order.
- Their decoder starts with a special token (decoder_start.py); the output layer then needs a separate table. Embeddings
  that they do not multiply by √D are divided by it, because ours are always multiplied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from chainrule.checkpoint.build import COUNTS, WeightsError, load_weights, model_options
from chainrule.config import RunConfig
from chainrule.errors import ConfigError
from chainrule.interop.common import Obstacle
from chainrule.interop.huggingface.decoder_start import check_ids, find_start_token, with_start_row
from chainrule.interop.huggingface.folders import ExportedModel, FolderWeights, HuggingFaceFolder, ImportedModel
from chainrule.interop.huggingface.output_layers import word_vector_obstacles
from chainrule.interop.huggingface.read_tokenizers import read_marian_tokenizers
from chainrule.models.seq2seq_transformer import Seq2SeqTransformer
from chainrule.text.tokenizers import Tokenizer

SHARING = {"scale_embedding": False, "share_encoder_decoder_embeddings": True, "tie_word_embeddings": True}
"""Options that share one table between both sides and the output, with their defaults."""

REQUIRED = (
    *("d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"),
    *("encoder_ffn_dim", "decoder_ffn_dim", "max_position_embeddings", "vocab_size", "decoder_start_token_id"),
)
EQUAL = ("attention_heads", "ffn_dim")
"""Options that must be the same in their encoder and decoder."""

ACTIVATIONS = {
    "swish": "swish",
    "silu": "swish",
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
}
THEIR_ACTIVATIONS = {"swish": "swish", "relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new", "relu2": "relu2"}

BANNED_BIAS = -1e4
"""The output bias of a token that must not be generated."""

BLOCK = {
    "norm_attention": "self_attn_layer_norm",
    "project_out": "self_attn.out_proj",
    "norm_source": "encoder_attn_layer_norm",
    "project_query": "encoder_attn.q_proj",
    "project_source": "encoder_attn.out_proj",
    "norm_feedforward": "final_layer_norm",
    "widen": "fc1",
    "narrow": "fc2",
}
"""The layers of a block: our names and theirs."""

CONCATENATED = {
    "project_in": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "project_memory": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
}
"""Layers that concatenate several of theirs."""

STREAM_READERS = ("project_in", "project_query", "project_memory", "widen")
"""Layers that read the residual stream; all others write to it."""


# Import


def marian_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the seq2seq-transformer that a config.json of Marian or Pegasus describes."""
    for name in EQUAL:
        sides = config[f"encoder_{name}"], config[f"decoder_{name}"]
        if sides[0] != sides[1]:
            raise ConfigError(
                f"encoder_{name} is {sides[0]} and decoder_{name} is {sides[1]}; supported are only models with "
                "the same value for both"
            )
    activation = config.get("activation_function", "gelu")
    if activation not in ACTIVATIONS:
        raise ConfigError(f"activation_function is {activation!r}; supported are {', '.join(ACTIVATIONS)}")
    same_start = config["decoder_start_token_id"] == config["eos_token_id"]
    scaled, one_table, tied = (bool(config.get(name, default)) for name, default in SHARING.items())
    return {
        "embedding": config["d_model"],
        "encoder_layers": config["encoder_layers"],
        "decoder_layers": config["decoder_layers"],
        "heads": config["encoder_attention_heads"],
        "feedforward": config["encoder_ffn_dim"],
        "dropout": config.get("dropout", 0.1),
        "attention_dropout": config.get("attention_dropout", 0.0),
        "context": config["max_position_embeddings"],
        "positions": "sinusoidal",
        "norm": "pre" if config.get("model_type") == "pegasus" else "post",
        "activation": ACTIVATIONS[activation],
        "bias": True,
        "tied": same_start and tied and scaled,
        "shared": same_start and one_table,
    }


def read_translator(folder: HuggingFaceFolder, weights: FolderWeights) -> ImportedModel:
    """The model of a folder as a `seq2seq-transformer`."""
    config = {"eos_token_id": 0, "pad_token_id": None, **folder.config}
    folder.require(*REQUIRED)
    size, target_size = config["vocab_size"], config.get("decoder_vocab_size") or config["vocab_size"]
    target, source = read_marian_tokenizers(folder, size, target_size)
    check_ids(folder, target, config["decoder_start_token_id"], target_size)
    options = marian_options(config)
    scaled, _, tied = (bool(config.get(name, default)) for name, default in SHARING.items())
    source_VD, decoder_VD = (
        weights.with_shape(_table_name(weights, side), count, options["embedding"])
        for side, count in (("encoder", size), ("decoder", target_size))
    )
    head_VD = decoder_VD if tied else weights.with_shape("lm_head.weight", target_size, options["embedding"])
    options["shared"] = options["shared"] and torch.equal(source_VD, decoder_VD)
    order_D, factor = stream_order(options["embedding"]), 1.0 if scaled else options["embedding"] ** -0.5
    found = {"embedding.weight": with_start_row(decoder_VD, target.eos, config["decoder_start_token_id"]) * factor}
    if source is not None or not options["shared"]:
        found["source_embedding.weight"] = source_VD * factor
    if not options["tied"]:
        found["output.weight_VD"] = head_VD
    found = {name: table_VD[:, order_D] for name, table_VD in found.items()}
    banned = _banned_tokens(folder, target.eos)
    bias_V = weights.get("final_logits_bias", torch.zeros(target_size)).flatten()
    found["output.bias_V"] = bias_V.index_fill(0, torch.tensor(banned, dtype=torch.int64), BANNED_BIAS)
    for side in ("encoder", "decoder"):
        for number in range(options[f"{side}_layers"]):
            found |= _read_block(weights, side, number)
        if options["norm"] == "pre":
            found |= {f"{side}.norm.{part}": _reorder(weights[name], part, reads=False) for part, name in _final(side)}
    notes = [f"the token {target.piece(token)} is never generated, because of bad_words_ids" for token in banned]
    return ImportedModel("seq2seq-transformer", options, found, target, source, notes=notes)


def _final(side: str) -> list[tuple[str, str]]:
    """The parts of the final norm of a pre-norm side, with their names."""
    return [(part, f"model.{side}.layer_norm.{part}") for part in ("weight", "bias")]


def _table_name(weights: FolderWeights, side: str) -> str:
    """The name of the embedding of a side: a separate one if it exists, otherwise the shared one."""
    own = f"model.{side}.embed_tokens.weight"
    return own if own in weights else "model.shared.weight"


def _banned_tokens(folder: HuggingFaceFolder, eos: int) -> list[int]:
    """Tokens that must not be generated, such as the start token of the decoder."""
    banned = folder.read_json("generation_config.json").get("bad_words_ids") or folder.config.get("bad_words_ids") or []
    size = folder.config.get("decoder_vocab_size") or folder.config["vocab_size"]
    return sorted({words[0] for words in banned if len(words) == 1 and words[0] != eos and 0 <= words[0] < size})


def load_marian(model: Seq2SeqTransformer, theirs: Mapping[str, Tensor], *, start: int) -> None:
    """Load the tensors of a MarianMTModel, by their names, into a model with its `marian_options`.

    The MarianMTModel must have one embedding that is scaled; `start` is the start token of its decoder.
    """
    try:
        weights = _convert_tables(model, theirs, start)
        for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
            for number in range(len(stack.blocks)):
                weights |= _read_block(theirs, side, number)
    except KeyError as error:
        raise ConfigError(f"the weights are not those of a MarianMTModel: {error.args[0]} is missing") from None
    try:
        load_weights(model, {**weights, COUNTS: model.unigram_counts})
    except WeightsError:
        raise ConfigError(
            "the weights of the MarianMTModel do not match the model; create the model with marian_options of its "
            "config.json"
        ) from None


def stream_order(width: int) -> Tensor:
    """For each component of our residual stream, its index in theirs -> D."""
    order_D, sines = torch.empty(width, dtype=torch.int64), (width + 1) // 2
    order_D[0::2], order_D[1::2] = torch.arange(sines), torch.arange(sines, width)
    return order_D


def _convert_tables(model: Seq2SeqTransformer, theirs: Mapping[str, Tensor], start: int) -> dict[str, Tensor]:
    """The embeddings and the output layer by our names."""
    table_VD = theirs["model.shared.weight"]
    table_VD = table_VD[:, stream_order(table_VD.shape[1])]
    weights = {"embedding.weight": table_VD, "output.bias_V": theirs["final_logits_bias"].flatten()}
    if start == model.eos:
        own = model.state_dict()
        return weights | {name: table_VD for name in ("source_embedding.weight", "output.weight_VD") if name in own}
    if model.output.weight_VD is model.embedding.weight or model.source_embedding is model.embedding:
        raise ConfigError(
            f"their decoder starts with token {start} and ours with {model.eos}, so its embedding must be a separate "
            "table; set model.tied=false and model.shared=false"
        )
    weights |= {"source_embedding.weight": table_VD, "output.weight_VD": table_VD}
    return weights | {"embedding.weight": with_start_row(table_VD, model.eos, start)}


def _layer_names(side: str) -> dict[str, tuple[str, ...]]:
    """The layers of a block of a side: our names and theirs."""
    layers = {**{ours: (name,) for ours, name in BLOCK.items()}, **CONCATENATED}
    return {ours: names for ours, names in layers.items() if side == "decoder" or "encoder_attn" not in names[0]}


def _read_block(theirs: Mapping[str, Tensor] | FolderWeights, side: str, number: int) -> dict[str, Tensor]:
    """The tensors of a block by our names."""
    weights: dict[str, Tensor] = {}
    for ours, names in _layer_names(side).items():
        for kind in ("weight", "bias"):
            full_names = [f"model.{side}.layers.{number}.{name}.{kind}" for name in names]
            if isinstance(theirs, FolderWeights):
                tensor = theirs.concatenate(full_names)
            else:
                tensor = torch.cat([theirs[name] for name in full_names])
            weights[f"{side}.blocks.{number}.{ours}.{kind}"] = _reorder(tensor, kind, reads=ours in STREAM_READERS)
    return weights


def _reorder(tensor: Tensor, kind: str, *, reads: bool, back: bool = False) -> Tensor:
    """Permute a tensor of a layer that reads or writes the residual stream to our order, or `back` to theirs."""
    if reads and kind == "bias":
        return tensor
    order_D = stream_order(tensor.shape[-1] if reads else len(tensor))
    order_D = order_D.argsort() if back else order_D
    return tensor[..., order_D] if reads else tensor[order_D]


# Export


def translator_obstacles(config: RunConfig) -> list[Obstacle]:
    """What neither Marian nor Pegasus has."""
    found, options = [], model_options(config)
    if options.pretrained is not None:
        reason = (
            f"the source is read with the pretrained encoder {options.pretrained}, but Marian and Pegasus have none"
        )
        found.append(Obstacle(reason, "no model.pretrained"))
    if options.positions != "sinusoidal":
        reason = f"model.positions is {options.positions}, but Marian and Pegasus have sinusoidal positions"
        found.append(Obstacle(reason, "--set model.positions=sinusoidal"))
    return found + word_vector_obstacles(config)


def write_translator(model: Any, tokenizer: Tokenizer) -> ExportedModel:
    """A `seq2seq-transformer` as Marian if it is post-norm, and as Pegasus if it is pre-norm."""
    c, own = model.config, model.state_dict()
    theirs, table_config = _write_tables(model, tokenizer.eos)
    for side in ("encoder", "decoder"):
        for number in range(getattr(c, f"{side}_layers")):
            theirs |= _write_block(own, side, number)
        if c.norm == "pre":
            weight = own[f"{side}.norm.weight"]
            norm = {"weight": weight, "bias": own.get(f"{side}.norm.bias", torch.zeros_like(weight))}
            theirs |= {name: _reorder(norm[part], part, reads=False, back=True) for part, name in _final(side)}
            table_CD = getattr(model, side).positions.table_CD  # transformers reports it as missing otherwise
            theirs[f"model.{side}.embed_positions.weight"] = _reorder(table_CD, "weight", reads=True, back=True)
    ids = {name: table_config[name] for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id")}
    generation = {**ids, "max_length": c.context, "forced_eos_token_id": None}
    return ExportedModel(_write_config(model) | table_config, theirs, appends_end=True, generation=generation)


def _write_tables(model: Any, eos: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The embeddings and the output layer by their names, and the values of config.json about them."""
    back_D = stream_order(model.config.embedding).argsort()
    source_VD, decoder_VD, head_VD = (
        table.detach()[:, back_D]
        for table in (model.source_embedding.weight, model.embedding.weight, model.output.weight_VD)
    )
    start = find_start_token(decoder_VD, source_VD, eos)
    decoder_VD = decoder_VD if start is None else source_VD
    tied = torch.equal(head_VD, decoder_VD)
    theirs = {} if start is None else {"model.shared.weight": source_VD}
    if start is None or not tied:  # without tying, transformers separates the tables of the two sides too
        theirs |= {"model.encoder.embed_tokens.weight": source_VD, "model.decoder.embed_tokens.weight": decoder_VD}
    if model.config.norm == "pre":  # Pegasus always has it
        tied = tied and start is not None  # its three tables are one, or none is
        theirs["model.shared.weight"] = source_VD
        theirs |= {} if tied else {"lm_head.weight": head_VD}
    if not tied:
        theirs["lm_head.weight"] = head_VD
    bias_V = model.output.bias_V
    theirs["final_logits_bias"] = (torch.zeros(len(head_VD)) if bias_V is None else bias_V.detach())[None]
    first = eos if start is None else start
    return theirs, {
        "vocab_size": len(source_VD),
        "decoder_vocab_size": len(decoder_VD),
        "share_encoder_decoder_embeddings": start is not None,
        "tie_word_embeddings": tied,
        "decoder_start_token_id": first,
        "pad_token_id": first,
        "eos_token_id": eos,
    }


def _write_block(own: Mapping[str, Tensor], side: str, number: int) -> dict[str, Tensor]:
    """The tensors of a block by their names; a missing bias is written as zeros."""
    theirs: dict[str, Tensor] = {}
    for ours, names in _layer_names(side).items():
        place = f"{side}.blocks.{number}.{ours}"
        weight = own[f"{place}.weight"]
        bias = own.get(f"{place}.bias", weight.new_zeros(len(weight)))
        for kind, tensor in (("weight", weight), ("bias", bias)):
            parts = _reorder(tensor, kind, reads=ours in STREAM_READERS, back=True).chunk(len(names))
            for name, part in zip(names, parts, strict=True):
                theirs[f"model.{side}.layers.{number}.{name}.{kind}"] = part
    return theirs


def _write_config(model: Any) -> dict[str, Any]:
    c = model.config
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("attention_heads", c.heads), ("ffn_dim", c.feedforward or 4 * c.embedding))
    }
    return {
        "architectures": ["MarianMTModel" if c.norm == "post" else "PegasusForConditionalGeneration"],
        "model_type": "marian" if c.norm == "post" else "pegasus",
        "d_model": c.embedding,
        "encoder_layers": c.encoder_layers,
        "decoder_layers": c.decoder_layers,
        "num_hidden_layers": c.encoder_layers,
        **sides,
        "max_position_embeddings": c.context,
        "activation_function": THEIR_ACTIVATIONS[c.activation],
        "dropout": c.dropout,
        "attention_dropout": c.attention_dropout,
        "scale_embedding": True,
        "is_encoder_decoder": True,
        "forced_eos_token_id": None,
        "dtype": "float32",
    }
