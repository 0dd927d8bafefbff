"""Our models in CTranslate2, with the same weights, as a peer of the benchmarks of decoding."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any, cast

import ctranslate2

from chainrule.interop.ctranslate2.models import write_decoder, write_translator
from chainrule.text.tokenizers import Tokenizer


@dataclass(frozen=True)
class Tokens:
    """The part of a tokeniser that an export asks for: token 17 is written "17"."""

    vocab_size: int
    eos: int
    unk: None = None

    def piece(self, token: int) -> str:
        return str(token)


def generator(model: Any, precision: str, threads: int = 1) -> Any:
    """A language model as a Generator with weights of this precision."""
    return ctranslate2.Generator(_saved(model, write_decoder, precision), **_options(precision, 1, threads))


def translator(model: Any, precision: str, workers: int, threads: int) -> Any:
    """A translator as a Translator."""
    return ctranslate2.Translator(_saved(model, write_translator, precision), **_options(precision, workers, threads))


def _saved(model: Any, write: Any, precision: str) -> str:
    spec = write(model, cast(Tokenizer, Tokens(model.vocab_size, model.eos)), None)
    spec.validate()
    spec.optimize(quantization=None if precision == "float32" else precision)
    folder = tempfile.mkdtemp(prefix="chainrule-bench-")
    spec.save(folder)
    return folder


def _options(precision: str, workers: int, threads: int) -> dict[str, Any]:
    return {"device": "cpu", "compute_type": precision, "inter_threads": workers, "intra_threads": threads}


def generate(peer: Any, bos: int, length: int) -> list[int]:
    """The tokens that a Generator writes greedily, without an end."""
    (found,) = peer.generate_batch(
        [[str(bos)]],
        max_length=length,
        min_length=length,
        end_token=[],
        include_prompt_in_result=False,
        sampling_topk=1,
    )
    return [int(piece) for piece in found.sequences[0]]


def translate(peer: Any, sources: list[list[int]], *, beams: int, length: int, batch: int) -> list[list[int]]:
    """The best translations of sources, which end with eos."""
    found = peer.translate_batch(
        [[str(token) for token in source[:-1]] for source in sources],  # it appends eos itself
        beam_size=beams,
        max_decoding_length=length,
        length_penalty=1.0,
        max_batch_size=batch,
        batch_type="examples",
    )
    return [[int(piece) for piece in one.hypotheses[0]] for one in found]
