"""Translators of Marian as transformers keeps them, as our `seq2seq-transformer`, and back.

Junczys-Dowmunt et al., "Marian: Fast Neural Machine Translation in C++", 2018. They are Transformers as first
published, norms after the sums. Two things are kept otherwise here, and loading makes up for both:

- Their table of positions has all sines before all cosines, ours has them in turn. The order of the components of the
  residual stream means nothing to any layer, so the weights that read or write the stream are loaded in our order.
- Their decoder begins with a token of its own (tables.py); the output layer then needs a table for itself. Embeddings
  that they do not multiply by √D are kept so much smaller, for ours always are.

Legend: V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from chainrule.checkpoint.build import COUNTS, WeightsError, load_weights
from chainrule.errors import ConfigError
from chainrule.interop.huggingface.decoder_start import begin_with, check_ids, start_of
from chainrule.interop.huggingface.folders import Folder, Foreign, Native, Weights
from chainrule.interop.huggingface.read_tokenizers import read_marian_tokenizers
from chainrule.models.seq2seq_transformer import Seq2SeqTransformer
from chainrule.text.tokenizers import Tokenizer

WHOLE = {"scale_embedding": False, "share_encoder_decoder_embeddings": True, "tie_word_embeddings": True}
"""What must be true for one table to serve both sides and the output, and what it is where nothing is said."""

NEEDED = (
    *("d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"),
    *("encoder_ffn_dim", "decoder_ffn_dim", "max_position_embeddings", "vocab_size", "decoder_start_token_id"),
)
EQUAL = ("attention_heads", "ffn_dim")
"""What must be the same in their encoder and decoder."""

ACTIVATIONS = {
    "swish": "swish",
    "silu": "swish",
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
}
THEIRS = {"swish": "swish", "relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new", "relu2": "relu2"}

NEVER = -1e4
"""The bias of a token that is not to be written."""

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
"""Layers of a block, and what they are called there."""

JOINED = {
    "project_in": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "project_memory": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
}
"""Layers that are several there, one below the other here."""

READERS = ("project_in", "project_query", "project_memory", "widen")
"""Layers whose inputs are the residual stream; the outputs of all others are."""


# In


def marian_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the seq2seq-transformer that a config.json of a MarianMTModel describes."""
    for name in EQUAL:
        sides = config[f"encoder_{name}"], config[f"decoder_{name}"]
        if sides[0] != sides[1]:
            raise ConfigError(
                f"encoder_{name} is {sides[0]} and decoder_{name} is {sides[1]}, but only Marian models where both are "
                "the same can be read"
            )
    activation = config.get("activation_function", "gelu")
    if activation not in ACTIVATIONS:
        raise ConfigError(
            f"activation_function is {activation!r}, but only Marian models with one of {', '.join(ACTIVATIONS)} can "
            "be read"
        )
    begins_alike = config["decoder_start_token_id"] == config["eos_token_id"]
    scaled, one_table, tied = (bool(config.get(name, default)) for name, default in WHOLE.items())
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
        "norm": "post",
        "activation": ACTIVATIONS[activation],
        "bias": True,
        "tied": begins_alike and tied and scaled,
        "shared": begins_alike and one_table,
    }


def read_marian(folder: Folder, weights: Weights) -> Native:
    """The model of a folder as a `seq2seq-transformer`."""
    config = {"eos_token_id": 0, "pad_token_id": None, **folder.config}
    folder.need(*NEEDED)
    size, target_size = config["vocab_size"], config.get("decoder_vocab_size") or config["vocab_size"]
    target, source = read_marian_tokenizers(folder, size, target_size)
    check_ids(folder, target, config["decoder_start_token_id"], target_size)
    options = marian_options(config)
    scaled, _, tied = (bool(config.get(name, default)) for name, default in WHOLE.items())
    source_VD, decoder_VD = (
        weights.shaped(_table_of(weights, side), count, options["embedding"])
        for side, count in (("encoder", size), ("decoder", target_size))
    )
    head_VD = decoder_VD if tied else weights.shaped("lm_head.weight", target_size, options["embedding"])
    options["shared"] = options["shared"] and torch.equal(source_VD, decoder_VD)
    order_D, factor = stream_order(options["embedding"]), 1.0 if scaled else options["embedding"] ** -0.5
    found = {"embedding.weight": begin_with(decoder_VD, target.eos, config["decoder_start_token_id"]) * factor}
    if source is not None or not options["shared"]:
        found["source_embedding.weight"] = source_VD * factor
    if not options["tied"]:
        found["output.weight_VD"] = head_VD
    found = {name: table_VD[:, order_D] for name, table_VD in found.items()}
    banned = _banned(folder, target.eos)
    bias_V = weights.get("final_logits_bias", torch.zeros(target_size)).flatten()
    found["output.bias_V"] = bias_V.index_fill(0, torch.tensor(banned, dtype=torch.int64), NEVER)
    for side in ("encoder", "decoder"):
        for number in range(options[f"{side}_layers"]):
            found |= _block(weights, side, number)
    notes = [f"the token {target.piece(token)} is never written, as bad_words_ids says" for token in banned]
    return Native("seq2seq-transformer", options, found, target, source, notes=notes)


def _table_of(weights: Weights, side: str) -> str:
    """The name of a side's embedding: its own if it has one, else that of both."""
    own = f"model.{side}.embed_tokens.weight"
    return own if own in weights else "model.shared.weight"


def _banned(folder: Folder, eos: int) -> list[int]:
    """Tokens that a search is not to write, such as the one that its decoder begins with."""
    told = folder.json("generation_config.json").get("bad_words_ids") or folder.config.get("bad_words_ids") or []
    size = folder.config.get("decoder_vocab_size") or folder.config["vocab_size"]
    return sorted({words[0] for words in told if len(words) == 1 and words[0] != eos and 0 <= words[0] < size})


def load_marian(model: Seq2SeqTransformer, theirs: Mapping[str, Tensor], *, start: int) -> None:
    """Put the tensors of a MarianMTModel, by their names there, into a model with its `marian_options`.

    Its embeddings are one table and scaled; `start` is the token that their decoder begins with.
    """
    try:
        weights = _tables(model, theirs, start)
        for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
            for number in range(len(stack.blocks)):
                weights |= _block(theirs, side, number)
    except KeyError as error:
        raise ConfigError(f"these are not the weights of a MarianMTModel: {error.args[0]} is missing") from None
    try:
        load_weights(model, {**weights, COUNTS: model.unigram_counts})
    except WeightsError:
        raise ConfigError(
            "the weights of the MarianMTModel do not fit the model; make it with the options that its config.json "
            "gives (marian_options)"
        ) from None


def stream_order(width: int) -> Tensor:
    """Which component of their residual stream each of ours is, D."""
    order_D, sines = torch.empty(width, dtype=torch.int64), (width + 1) // 2
    order_D[0::2], order_D[1::2] = torch.arange(sines), torch.arange(sines, width)
    return order_D


def _tables(model: Seq2SeqTransformer, theirs: Mapping[str, Tensor], start: int) -> dict[str, Tensor]:
    """Embeddings and output layer."""
    table_VD = theirs["model.shared.weight"]
    table_VD = table_VD[:, stream_order(table_VD.shape[1])]
    weights = {"embedding.weight": table_VD, "output.bias_V": theirs["final_logits_bias"].flatten()}
    if start == model.eos:
        own = model.state_dict()
        return weights | {name: table_VD for name in ("source_embedding.weight", "output.weight_VD") if name in own}
    if model.output.weight_VD is model.embedding.weight or model.source_embedding is model.embedding:
        raise ConfigError(
            f"their decoder begins with token {start} and ours with {model.eos}, so its embedding must be a table of "
            "its own; set model.tied=false and model.shared=false"
        )
    weights |= {"source_embedding.weight": table_VD, "output.weight_VD": table_VD}
    return weights | {"embedding.weight": begin_with(table_VD, model.eos, start)}


def _layer_names(side: str) -> dict[str, tuple[str, ...]]:
    """Layers of a block of a side, and what they are called there."""
    layers = {**{ours: (name,) for ours, name in BLOCK.items()}, **JOINED}
    return {ours: names for ours, names in layers.items() if side == "decoder" or "encoder_attn" not in names[0]}


def _block(theirs: Mapping[str, Tensor] | Weights, side: str, number: int) -> dict[str, Tensor]:
    """The tensors of a block under our names."""
    weights: dict[str, Tensor] = {}
    for ours, names in _layer_names(side).items():
        for kind in ("weight", "bias"):
            called = [f"model.{side}.layers.{number}.{name}.{kind}" for name in names]
            joined = theirs.joined(called) if isinstance(theirs, Weights) else torch.cat([theirs[n] for n in called])
            weights[f"{side}.blocks.{number}.{ours}.{kind}"] = _reordered(joined, kind, reads=ours in READERS)
    return weights


def _reordered(tensor: Tensor, kind: str, *, reads: bool, back: bool = False) -> Tensor:
    """A tensor of a layer that reads the residual stream, or writes it, in our order of the stream, or in theirs."""
    if reads and kind == "bias":
        return tensor
    order_D = stream_order(tensor.shape[-1] if reads else len(tensor))
    order_D = order_D.argsort() if back else order_D
    return tensor[..., order_D] if reads else tensor[order_D]


# Out


def write_marian(model: Any, tokenizer: Tokenizer) -> Foreign:
    """A `seq2seq-transformer` as a MarianMTModel, if it is one."""
    c = model.config
    wanted = {"positions": ("sinusoidal", "has sinusoidal ones"), "norm": ("post", "norms the sums")}
    for name, (value, does) in wanted.items():
        if (got := getattr(c, name)) != value:
            raise ConfigError(
                f"the run has model.{name} = {got}, but Marian {does}; train with --set model.{name}={value}"
            )
    if not hasattr(model.output, "weight_VD"):
        raise ConfigError(
            f"the run has the output layer {model.output.name}, but Marian has one vector for each word; train with "
            "--output softmax"
        )
    theirs, told = _write_tables(model, tokenizer.eos)
    for side in ("encoder", "decoder"):
        for number in range(getattr(c, f"{side}_layers")):
            theirs |= _write_block(model.state_dict(), side, number)
    begun = {name: told[name] for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id")}
    generation = {**begun, "max_length": c.context, "forced_eos_token_id": None}
    return Foreign(_config(model) | told, theirs, ends=True, generation=generation)


def _write_tables(model: Any, eos: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Embeddings and output under their names, and what config.json is to say of them."""
    back_D = stream_order(model.config.embedding).argsort()
    source_VD, decoder_VD, head_VD = (
        table.detach()[:, back_D]
        for table in (model.source_embedding.weight, model.embedding.weight, model.output.weight_VD)
    )
    start = start_of(decoder_VD, source_VD, eos)
    decoder_VD = decoder_VD if start is None else source_VD
    tied = torch.equal(head_VD, decoder_VD)
    theirs = {} if start is None else {"model.shared.weight": source_VD}
    if start is None or not tied:  # whoever does not tie the output leaves the sides apart too
        theirs |= {"model.encoder.embed_tokens.weight": source_VD, "model.decoder.embed_tokens.weight": decoder_VD}
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
    """The tensors of a block under their names; a layer without bias there has one of noughts."""
    theirs: dict[str, Tensor] = {}
    for ours, names in _layer_names(side).items():
        place = f"{side}.blocks.{number}.{ours}"
        weight = own[f"{place}.weight"]
        bias = own.get(f"{place}.bias", weight.new_zeros(len(weight)))
        for kind, tensor in (("weight", weight), ("bias", bias)):
            parts = _reordered(tensor, kind, reads=ours in READERS, back=True).chunk(len(names))
            theirs |= {
                f"model.{side}.layers.{number}.{name}.{kind}": part for name, part in zip(names, parts, strict=True)
            }
    return theirs


def _config(model: Any) -> dict[str, Any]:
    c = model.config
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("attention_heads", c.heads), ("ffn_dim", c.feedforward or 4 * c.embedding))
    }
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "d_model": c.embedding,
        "encoder_layers": c.encoder_layers,
        "decoder_layers": c.decoder_layers,
        "num_hidden_layers": c.encoder_layers,
        **sides,
        "max_position_embeddings": c.context,
        "activation_function": THEIRS[c.activation],
        "dropout": c.dropout,
        "attention_dropout": c.attention_dropout,
        "scale_embedding": True,
        "is_encoder_decoder": True,
        "forced_eos_token_id": None,
        "dtype": "float32",
    }
