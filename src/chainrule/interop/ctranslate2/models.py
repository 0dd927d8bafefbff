"""Our Transformers as models of CTranslate2, made with its own specifications.

transformer                 a decoder: Generator
seq2seq-transformer, t5     an encoder and a decoder: Translator
bert                        an encoder with its pooler, without the head that predicts masked words: Encoder
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from chainrule.checkpoint.build import model_options
from chainrule.config import RunConfig
from chainrule.interop.common import Obstacle
from chainrule.interop.ctranslate2.layers import as_array, fill_block, fill_linear, fill_norm, fill_output, fill_stack
from chainrule.interop.ctranslate2.layers import stack_options as options_of
from chainrule.interop.huggingface.output_layers import word_vector_obstacles
from chainrule.layers.encoders.bert import BertEncoder
from chainrule.text.tokenizers import Tokenizer


@dataclass(frozen=True)
class Family:
    """How one of our models becomes one of theirs."""

    reader: str  # the class of CTranslate2 that reads it
    write: Callable[[Any, Tokenizer, Tokenizer | None], Any]  # model, tokeniser, source tokeniser -> specification
    obstacles: Callable[[RunConfig], list[Obstacle]]


def write_decoder(model: Any, tokenizer: Tokenizer, source: Tokenizer | None) -> Any:
    """A `transformer` as a decoder."""
    from ctranslate2.specs import TransformerDecoderModelSpec

    stack, shape = model.features, model.features.block_list[0].shape
    spec = TransformerDecoderModelSpec.from_config(**options_of(shape, stack))
    fill_stack(spec.decoder, stack, model.embedding.weight, model.window)
    fill_output(spec.decoder.projection, model.output)
    pieces = unique_pieces(tokenizer, model.vocab_size)
    spec.register_vocabulary(pieces)
    spec.config.layer_norm_epsilon = shape.eps
    _name_tokens(spec.config, pieces, tokenizer)
    return spec


def write_translator(model: Any, tokenizer: Tokenizer, source: Tokenizer | None) -> Any:
    """A `seq2seq-transformer` or `t5` as an encoder and a decoder."""
    from ctranslate2.specs import TransformerDecoderSpec, TransformerEncoderSpec, TransformerSpec

    shape = model.decoder.block_list[0].shape
    relative = {"relative_attention_bias": True} if shape.scale is not None else {}
    encoder = TransformerEncoderSpec(**options_of(shape, model.encoder), **relative)
    decoder = TransformerDecoderSpec(**options_of(shape, model.decoder), **relative)
    fill_stack(encoder, model.encoder, model.source_embedding.weight, model.window)
    fill_stack(decoder, model.decoder, model.embedding.weight, model.window)
    fill_output(decoder.projection, model.output)
    if relative:
        _fill_relative(encoder, model.encoder, model.config.distance)
        _fill_relative(decoder, model.decoder, model.config.distance)
    spec = TransformerSpec(encoder, decoder)
    pieces = unique_pieces(tokenizer, model.vocab_size)
    spec.register_source_vocabulary(pieces if source is None else unique_pieces(source, source.vocab_size))
    spec.register_target_vocabulary(pieces)
    spec.config.layer_norm_epsilon = shape.eps
    spec.config.add_source_eos = True
    spec.config.decoder_start_token = pieces[tokenizer.eos]
    _name_tokens(spec.config, pieces, tokenizer)
    return spec


def _fill_relative(spec: Any, stack: Any, distance: int) -> None:
    """Every layer has the relative positions that our stack has once."""
    for layer in spec.layer:
        layer.self_attention.relative_attention_bias = as_array(stack.relative.table_UH)
        layer.self_attention.relative_attention_max_distance = np.int32(distance)


def write_encoder(model: Any, tokenizer: Tokenizer, source: Tokenizer | None) -> Any:
    """The encoder of a `bert`."""
    from ctranslate2.specs import TransformerEncoderModelSpec, TransformerEncoderSpec, common_spec

    encoder: BertEncoder = model.encoder
    shape, types = encoder.shape, encoder.type_table
    spec = TransformerEncoderModelSpec(
        TransformerEncoderSpec(
            **options_of(shape.block, encoder),
            num_source_embeddings=1 if types is None else 2,
            embeddings_merge=common_spec.EmbeddingsMerge.ADD,
            layernorm_embedding=True,
        ),
        pooling_layer=encoder.pooler is not None,
    )
    spec.encoder.scale_embeddings = False
    words_VD: Any = encoder.word_table.weight
    spec.encoder.embeddings[0].weight = as_array(words_VD)
    if types is not None:
        spec.encoder.embeddings[1].weight = as_array(types.weight)
    positions_CD: Tensor = encoder.position_table.weight
    spec.encoder.position_encodings.encodings = as_array(positions_CD[shape.offset :])
    fill_norm(spec.encoder.layernorm_embedding, encoder.norm)
    for layer, block in zip(spec.encoder.layer, encoder.block_list, strict=True):
        fill_block(layer, block)
    if encoder.pooler is not None:
        fill_linear(spec.pooler_dense, encoder.pooler)
    pieces = unique_pieces(tokenizer, shape.vocab_size)
    spec.register_vocabulary(pieces)
    spec.config.layer_norm_epsilon = shape.eps
    _name_tokens(spec.config, pieces, tokenizer)
    return spec


def unique_pieces(tokenizer: Tokenizer, size: int) -> list[str]:
    """The token of each id as their vocabulary lists it; where two look the same, the id is added.

    Tokens of the model beyond those of the tokeniser, such as sentinels and a mask token, are named by their number.
    """
    pieces = [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]
    pieces += [f"<extra_id_{number}>" for number in range(size - len(pieces))]
    seen: set[str] = set()
    for token, piece in enumerate(pieces):
        if piece in seen:
            pieces[token] = f"{piece}#{token}"
        seen.add(pieces[token])
    return pieces


def _name_tokens(config: Any, pieces: list[str], tokenizer: Tokenizer) -> None:
    """Our eos also precedes every text; a tokeniser without an unknown token never uses theirs."""
    config.bos_token = config.eos_token = pieces[tokenizer.eos]
    config.unk_token = pieces[tokenizer.eos if tokenizer.unk is None else tokenizer.unk]


# What cannot be represented


def decoder_obstacles(config: RunConfig) -> list[Obstacle]:
    """What a decoder of theirs does not have."""
    return word_vector_obstacles(config)


def translator_obstacles(config: RunConfig) -> list[Obstacle]:
    """What a translator of theirs does not have."""
    found = word_vector_obstacles(config)
    options = model_options(config)
    if config.model.name == "seq2seq-transformer" and options.pretrained is not None:
        reason = f"the source is read with the pretrained encoder {options.pretrained}"
        found.append(Obstacle(reason, "no model.pretrained"))
    return found


FAMILIES = {
    "transformer": Family("Generator", write_decoder, decoder_obstacles),
    "seq2seq-transformer": Family("Translator", write_translator, translator_obstacles),
    "t5": Family("Translator", write_translator, translator_obstacles),
    "bert": Family("Encoder", write_encoder, lambda config: []),
}
"""By the name of our model."""
