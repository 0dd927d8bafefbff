"""Generation speed at batch 1 against transformers' `generate` with its cache and CTranslate2, on the same weights.

A Transformer of 4 layers, 4 heads, 128 wide, 65 tokens generates 500 tokens greedily. Its weights are copied into a
GPT2LMHeadModel, and both must generate the same tokens. GPT-2 has one position per token of the text, 512 here; the
project's model is also measured with windows of 64 and 256, where it continues past the end of the window.

CTranslate2 and the project compute on one thread, in float32 and with 8-bit weights. `--large` measures these two with
random weights of the shape of GPT-2 small: 12 layers, 768 wide, 50,257 tokens. The clock counts the time of the
process, which is that of the one thread, so that other processes disturb it little.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from ctranslate2_peers import generate as peer_generate
from ctranslate2_peers import generator
from harness import Figure, alternate, arguments, begin, parameter_count, report, speed, speed_up
from torch import Tensor, nn
from transformer_training import FORMS, HEADS, LAYERS, VOCABULARY, WIDTH, peer_model

from chainrule.base.devices import threads
from chainrule.checkpoint.build import build_model, round_weights
from chainrule.config import RunConfig, parse
from chainrule.decoding import Greedy, generate
from chainrule.models.language_model import LanguageModel
from chainrule.types import Vocabulary

POSITIONS, WINDOWS, BOS = 512, (64, 256), 0
DEVIATIONS = {"embedding.weight": 0.05, "features.positions.table_CD": 0.2}
OTHER_DEVIATION = 0.3
"""Standard deviations of the random weights. Others give a text of one repeated token, which would prove nothing."""

# The name in GPT-2 of each tensor of a block, and whether GPT-2 stores it transposed.
PLACES = {
    "norm_attention": ("ln_1", False),
    "project_in": ("attn.c_attn", True),
    "project_out": ("attn.c_proj", True),
    "norm_feedforward": ("ln_2", False),
    "widen": ("mlp.c_fc", True),
    "narrow": ("mlp.c_proj", True),
}


def project_model(window: int) -> LanguageModel:
    """Build a Transformer in GPT-2's form; all windows have the same weights, up to the number of positions."""
    shape = {"name": "transformer", "embedding": WIDTH, "layers": LAYERS, "heads": HEADS, "context": window}
    values = {"model": {**shape, **FORMS["GPT-2's form"]}, "output": {"name": "softmax", "bias": False}}
    vocabulary = Vocabulary(VOCABULARY, BOS, np.ones(VOCABULARY, np.int64))
    model = cast(LanguageModel, build_model(parse(RunConfig, values), vocabulary).eval())
    with torch.no_grad():
        for number, (name, parameter) in enumerate(model.named_parameters()):
            if parameter.dim() == 2:
                _draw(parameter, DEVIATIONS.get(name, OTHER_DEVIATION), seed=number)
    return model


def _draw(parameter_RD: Tensor, deviation: float, seed: int) -> None:
    """Fill with normal random numbers; the first rows do not depend on the number of rows."""
    rows = max(POSITIONS, len(parameter_RD))
    drawn_RD = torch.randn(rows, parameter_RD.shape[1], generator=torch.Generator().manual_seed(seed))
    parameter_RD.copy_(deviation * drawn_RD[: len(parameter_RD)])


def as_gpt2(model: nn.Module) -> Any:
    """Copy the project's weights into transformers' GPT2LMHeadModel."""
    peer, ours = peer_model(POSITIONS), dict(model.named_parameters())
    weights: dict[str, Tensor] = {
        "transformer.wte.weight": ours["embedding.weight"],
        "transformer.wpe.weight": ours["features.positions.table_CD"],
        "transformer.ln_f.weight": ours["features.norm.weight"],
        "transformer.ln_f.bias": ours["features.norm.bias"],
    }
    for block in range(LAYERS):
        for place, (theirs, transposed) in PLACES.items():
            weight = ours[f"features.blocks.{block}.{place}.weight"]
            weights[f"transformer.h.{block}.{theirs}.weight"] = weight.T if transposed else weight
            weights[f"transformer.h.{block}.{theirs}.bias"] = ours[f"features.blocks.{block}.{place}.bias"]
    missing, unexpected = peer.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing  # tied to the embedding
    return peer.eval()


def peer_tokens(peer: Any, length: int, count: int) -> list[int]:
    """Return the tokens that transformers generates after the first one, on `count` threads."""
    with threads(count), torch.inference_mode():
        written = peer.generate(
            torch.tensor([[BOS]]),
            attention_mask=torch.ones(1, 1, dtype=torch.int64),
            max_new_tokens=length,
            min_new_tokens=length,
            do_sample=False,
            use_cache=True,
            pad_token_id=BOS,
            eos_token_id=None,
        )
    tokens: list[int] = written[0, 1:].tolist()
    return tokens


def project_tokens(model: LanguageModel, length: int) -> list[int]:
    """Return the tokens that the project generates on one thread, as `chainrule generate` does for a single text."""
    with threads(1):
        (written,) = generate(model, eos=None, bos=BOS, max_new_tokens=length, choose=Greedy())
    tokens: list[int] = written.tolist()
    return tokens


def check(models: dict[int, LanguageModel], peer: Any, length: int) -> int:
    """Check that both generate the same tokens up to the window's end -> number of distinct tokens in the text."""
    expected = peer_tokens(peer, length, 1)
    for window, model in models.items():
        same = min(window, length)
        if project_tokens(model, same) != expected[:same]:
            raise SystemExit(f"window {window}: the first {same} tokens differ from those of transformers")
    return len(set(expected))


def in_8_bits(model: LanguageModel) -> LanguageModel:
    """A copy of a model that predicts with 8-bit weights."""
    rounded = copy.deepcopy(model)
    round_weights(rounded)
    return rounded


def against_ctranslate2(model: LanguageModel, length: int, repeats: int) -> list[Figure]:
    """Compare one thread of each, in float32 and int8."""
    exact = project_tokens(model, length)
    contestants: dict[str, Callable[[], object]] = {}
    for precision, ours in (("float32", model), ("int8", in_8_bits(model))):
        peer = generator(model, precision)
        if precision == "float32" and peer_generate(peer, BOS, length) != exact:
            print("CTranslate2 writes other tokens")
        contestants[f"project {precision}"] = partial(project_tokens, ours, length)
        contestants[f"CTranslate2 {precision}"] = partial(peer_generate, peer, BOS, length)
    times = alternate(contestants, repeats, time.process_time)
    bars = {"float32": 1.3, "int8": 1.2} if model.feature_width == WIDTH else {"int8": 1.0, "float32": None}
    return [
        Figure(
            f"{model.feature_width} wide, {precision}",
            speed(times, f"project {precision}", length),
            "tokens/s",
            speed(times, f"CTranslate2 {precision}", length),
            speed_up(times, f"project {precision}", f"CTranslate2 {precision}"),
            at_least=bars[precision],
            note="CTranslate2",
        )
        for precision in ("float32", "int8")
    ]


def large_model() -> LanguageModel:
    """A model of the shape of GPT-2 small with random weights."""
    shape = {"name": "transformer", "embedding": 768, "layers": 12, "heads": 12, "context": 256}
    values = {"model": {**shape, **FORMS["GPT-2's form"]}, "output": {"name": "softmax", "bias": False}}
    vocabulary = Vocabulary(50257, BOS, np.ones(50257, np.int64))
    return cast(LanguageModel, build_model(parse(RunConfig, values), vocabulary).eval())


def main() -> None:
    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--large", action="store_true", help="measure the shape of GPT-2 small")
    options = begin(parser)
    length = 40 if options.quick else 500
    if options.large:
        figures = against_ctranslate2(large_model(), 10 if options.quick else 50, options.repeats)
        report(figures, options, peer="CTranslate2, one thread", tokens=length)
        return
    models = {window: project_model(window) for window in (POSITIONS, *WINDOWS)}
    peer = as_gpt2(models[POSITIONS])
    kinds = check(models, peer, length)
    contestants: dict[str, Callable[[], object]] = {
        f"{count}": partial(peer_tokens, peer, length, count) for count in sorted({1, options.threads})
    }
    contestants |= {f"window {w}": partial(project_tokens, model, length) for w, model in models.items()}
    times = alternate(contestants, options.repeats)
    best = max(filter(str.isdigit, contestants), key=lambda name: speed(times, name, length))
    figures = [
        Figure(
            f"window {window}",
            speed(times, f"window {window}", length),
            "tokens/s",
            speed(times, best, length),
            speed_up(times, f"window {window}", best),
            at_least=12.0,
            note="same tokens" if window >= length else f"same first {window} tokens",
        )
        for window in models
    ]
    figures += against_ctranslate2(models[POSITIONS], length, 2 * options.repeats)
    about = f"transformers.generate on {best} thread(s), {parameter_count(peer):,} parameters"
    report(figures, options, peer=about, tokens=length, different_tokens=kinds)


if __name__ == "__main__":
    main()
