"""GPT-2 in the format of Hugging Face, read as our `transformer` and written from it.

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019: learned positions, pre-norm blocks and a
final norm, biases everywhere except in the output. Its linear layers store their matrices transposed.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from chainrule.interop.huggingface.decoder_form import (
    ACTIVATIONS,
    BIAS_KEY,
    PARTS,
    THEIR_ACTIVATIONS,
    DecoderForm,
    imported_parts,
)
from chainrule.interop.huggingface.folders import ExportedModel, FolderWeights, HuggingFaceFolder, ImportedModel
from chainrule.interop.huggingface.read_tokenizers import read_text_tokenizer
from chainrule.text.tokenizers import Tokenizer

NORMS = {"norm_attention": "ln_1", "norm_feedforward": "ln_2"}
LINEARS = {"project_in": "attn.c_attn", "project_out": "attn.c_proj", "widen": "mlp.c_fc", "narrow": "mlp.c_proj"}
"""The layers of a block: our names and theirs."""


# Import


def read_gpt2(folder: HuggingFaceFolder, weights: FolderWeights) -> ImportedModel:
    """The model of a folder as a `transformer`."""
    config = folder.config
    size, _, layers, heads, context = folder.require("vocab_size", "n_embd", "n_layer", "n_head", "n_positions")
    folder.require_default("scale_attn_weights", True)
    folder.require_default("scale_attn_by_inverse_layer_idx", False)
    folder.require_default("add_cross_attention", False)
    tokenizer = read_text_tokenizer(folder, size)
    tied = bool(config.get("tie_word_embeddings", True))
    theirs = weights.strip_prefix(("transformer.", ""), "wte.weight")
    table_VD = theirs["wte.weight"]
    form = DecoderForm(
        embedding_VD=table_VD,
        head_VD=table_VD if tied else weights["lm_head.weight"],
        blocks=[_read_block(theirs, number) for number in range(layers)],
        norm={part: theirs[f"ln_f.{part}"] for part in PARTS},
        positions_CD=theirs["wpe.weight"],
        heads=heads,
        eps=config.get("layer_norm_epsilon", 1e-5),
        rotated=0,
        holds_output_bias=bool(config.get(BIAS_KEY)),
    )
    options, found, output = imported_parts(form)
    options |= {
        "feedforward": config.get("n_inner") or 4 * form.width,
        "context": context,
        "activation": folder.map_option("activation_function", ACTIVATIONS, "gelu_new"),
        "dropout": config.get("resid_pdrop", 0.1),
    }
    return ImportedModel("transformer", options, found, tokenizer, output=output, notes=start_notes(folder, tokenizer))


def _read_block(theirs: FolderWeights, number: int) -> dict[str, Tensor]:
    """The tensors of a block by our names."""
    found = {}
    for ours, name in {**NORMS, **LINEARS}.items():
        for part in PARTS:
            tensor = theirs[f"h.{number}.{name}.{part}"]
            found[f"{ours}.{part}"] = tensor.T if tensor.dim() == 2 else tensor
    return found


def start_notes(folder: HuggingFaceFolder, tokenizer: Tokenizer) -> list[str]:
    """Differences between the folder and the run in how a text begins."""
    first = folder.config.get("bos_token_id")
    if isinstance(first, int) and first != tokenizer.eos and first < tokenizer.vocab_size:
        return [
            f"a text begins with {tokenizer.piece(tokenizer.eos)!r} here, but {folder.path} begins it with "
            f"{tokenizer.piece(first)!r}"
        ]
    return []


# Export


def write_gpt2(form: DecoderForm, model: Any, tokenizer: Tokenizer) -> ExportedModel:
    """A form with added positions as a GPT2LMHeadModel."""
    c = model.config
    assert form.positions_CD is not None
    theirs = {"transformer.wte.weight": form.embedding_VD, "transformer.wpe.weight": form.positions_CD}
    theirs |= {f"transformer.ln_f.{part}": form.norm[part] for part in PARTS}
    for number, block in enumerate(form.blocks):
        for ours, name in {**NORMS, **LINEARS}.items():
            for part in PARTS:
                tensor = block[f"{ours}.{part}"]
                theirs[f"transformer.h.{number}.{name}.{part}"] = tensor.T if tensor.dim() == 2 else tensor
    if not form.tied:
        theirs["lm_head.weight"] = form.head_VD
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": model.vocab_size,
        "n_embd": form.width,
        "n_layer": c.layers,
        "n_head": c.heads,
        "n_inner": c.feedforward or 4 * c.embedding,
        "n_positions": c.context,
        "activation_function": THEIR_ACTIVATIONS[c.activation],
        "layer_norm_epsilon": form.eps,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), c.dropout),
    }
    return finish_decoder(config, theirs, form, tokenizer)


def finish_decoder(
    config: dict[str, Any], weights: dict[str, Tensor], form: DecoderForm, tokenizer: Tokenizer
) -> ExportedModel:
    """The folder of a decoder, with the values that all of them have."""
    generation = {"bos_token_id": tokenizer.eos, "eos_token_id": tokenizer.eos, "pad_token_id": tokenizer.eos}
    config |= {"tie_word_embeddings": form.tied, "dtype": "float32", **generation}
    config |= {BIAS_KEY: True} if form.holds_output_bias else {}
    return ExportedModel(config, weights, generation=generation)
