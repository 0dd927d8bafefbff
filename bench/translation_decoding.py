"""Translation speed of beam and greedy search against transformers' `generate` on a Marian model with the same weights.

256 wide, 3 + 3 layers, 4 heads, feed-forward width 1,024, 8,000 words, random weights. 32 sources of 20 words are
translated into 25 words each, since such a model rarely predicts eos. Both use their caches, and must give the same
texts.

`--ctranslate2` compares with CTranslate2 instead, on the same weights in float32 and int8, one thread each, by the time
of the process: several workers of one thread are the fastest setting of both. `--large` measures a model of 512 wide,
6 + 6 layers and 32,000 words.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from ctranslate2_peers import translate, translator
from harness import Figure, alternate, arguments, begin, parameter_count, report, speed, speed_up
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from chainrule.checkpoint.build import build_model, round_weights
from chainrule.config import RunConfig, parse
from chainrule.decoding import beam_search
from chainrule.interop.huggingface.marian import load_marian, marian_options
from chainrule.types import Source, Vocabulary

VOCABULARY, EOS, WIDTH, HEADS, LAYERS, INNER = 8000, 0, 256, 4, 3, 1024
SENTENCES, SOURCE, TARGET, BEAMS = 32, 20, 25, 5
DEVIATIONS = {"shared": 0.1, "out_proj": 0.02, "fc": 0.2}
OTHER_DEVIATION = 0.12
"""Standard deviations of the random weights. Others give one repeated word, which would prove nothing."""


def peer_model(width: int = WIDTH, layers: int = LAYERS, words: int = VOCABULARY) -> Any:
    """Build a MarianMTModel of the benchmark's shape with random weights."""
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in
             {"layers": layers, "attention_heads": width // 64, "ffn_dim": 4 * width}.items()}  # fmt: skip
    config = MarianConfig(
        vocab_size=words, d_model=width, max_position_embeddings=128, scale_embedding=True,
        activation_function="relu", eos_token_id=EOS, pad_token_id=EOS, decoder_start_token_id=EOS,
        forced_eos_token_id=None, **sides,
    )  # fmt: skip
    torch.manual_seed(1)
    peer = MarianMTModel(config).eval()
    peer.generation_config.bos_token_id = None
    for name, parameter in peer.model.named_parameters():
        if parameter.requires_grad and parameter.dim() == 2:  # the positions are fixed
            deviation = next((DEVIATIONS[part] for part in DEVIATIONS if part in name), OTHER_DEVIATION)
            torch.nn.init.normal_(parameter, std=deviation * (WIDTH / width) ** 0.5)
    even_out(peer)
    return peer


@torch.no_grad()
def even_out(peer: Any) -> None:
    """Subtract the mean logits of random texts, so that no word is always the best."""
    source_BS, target_BT = some_words(8), some_words(8)
    logits_BTV = peer(
        input_ids=source_BS, attention_mask=torch.ones_like(source_BS), decoder_input_ids=target_BT
    ).logits
    peer.final_logits_bias -= logits_BTV.mean((0, 1))


def some_words(rows: int) -> Tensor:
    """Return random sources, each ending with eos."""
    words_BS = torch.randint(1, VOCABULARY, (rows, SOURCE))
    words_BS[:, -1] = EOS
    return words_BS


def project_model(peer: Any) -> Any:
    """Build the project's Transformer with the peer's weights."""
    options = marian_options(peer.config.to_dict())
    config = parse(RunConfig, {"model": {"name": "seq2seq-transformer", **options}})
    model: Any = build_model(config, Vocabulary(peer.config.vocab_size, EOS, np.ones(peer.config.vocab_size, np.int64)))
    load_marian(model, peer.state_dict(), start=EOS)
    return model.eval()


def peer_texts(peer: Any, source_BS: Tensor, beams: int, length: int) -> list[list[int]]:
    with torch.inference_mode():
        written = peer.generate(
            input_ids=source_BS,
            attention_mask=torch.ones_like(source_BS),
            num_beams=beams,
            do_sample=False,
            max_new_tokens=length,
        )
    return [_until_eos(tokens[1:]) for tokens in written.tolist()]


def project_texts(model: Any, source_BS: Tensor, beams: int, length: int) -> list[list[int]]:
    with torch.inference_mode():
        state = model.start(Source(source_BS, torch.ones_like(source_BS, dtype=torch.bool)))
    found = beam_search(
        model,
        state,
        torch.full((len(source_BS), 1), EOS),
        eos=EOS,
        beams=beams,
        max_new_tokens=length,
        length_penalty=1.0,
    )
    return [best.tokens for best, *_ in found]


def _until_eos(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


def check(model: Any, peer: Any, source_BS: Tensor, beams: int, length: int) -> int:
    """Check that both give the same texts -> number of words."""
    expected, found = peer_texts(peer, source_BS, beams, length), project_texts(model, source_BS, beams, length)
    different = sum(one != other for one, other in zip(expected, found, strict=True))
    if different:
        raise SystemExit(f"{beams} beam(s): {different} of {len(expected)} texts differ from those of transformers")
    return sum(map(len, expected))


def against_ctranslate2(model: Any, length: int, repeats: int, words: int) -> list[Figure]:
    """Compare one thread of each, in float32 and int8."""
    source_BS = torch.randint(1, words, (SENTENCES, SOURCE))
    source_BS[:, -1] = EOS
    rounded = copy.deepcopy(model)
    round_weights(rounded)
    contestants: dict[str, Callable[[], object]] = {}
    written = {}
    for precision, ours in (("float32", model), ("int8", rounded)):
        peer = translator(model, precision, 1, 1)
        options = {"beams": BEAMS, "length": length, "batch": SENTENCES}
        contestants[f"project {precision}"] = partial(project_texts, ours, source_BS, BEAMS, length)
        contestants[f"CTranslate2 {precision}"] = partial(translate, peer, source_BS.tolist(), **options)
        written |= {name: sum(map(len, run())) for name, run in contestants.items() if name.endswith(precision)}  # type: ignore[call-overload, misc]
    times = alternate(contestants, repeats, time.process_time)
    return [
        Figure(
            f"{BEAMS} beams, {precision}",
            speed(times, f"project {precision}", written[f"project {precision}"]),
            "target tokens/s",
            speed(times, f"CTranslate2 {precision}", written[f"CTranslate2 {precision}"]),
            speed_up(times, f"project {precision}", f"CTranslate2 {precision}")
            * written[f"project {precision}"]
            / written[f"CTranslate2 {precision}"],
            at_least=1.0,
        )
        for precision in ("float32", "int8")
    ]


def main() -> None:
    parser = arguments(__doc__, repeats=7)
    parser.add_argument("--ctranslate2", action="store_true", help="compare with CTranslate2")
    parser.add_argument("--large", action="store_true", help="with --ctranslate2: 512 wide, 6 + 6 layers")
    options = begin(parser)
    length = 5 if options.quick else TARGET
    if options.ctranslate2:
        width, layers, words = (512, 6, 32_000) if options.large else (WIDTH, LAYERS, VOCABULARY)
        torch.set_num_threads(1)
        figures = against_ctranslate2(project_model(peer_model(width, layers, words)), length, options.repeats, words)
        report(figures, options, peer="CTranslate2, one thread", sentences=SENTENCES, width=width)
        return
    peer = peer_model()
    model = project_model(peer)
    source_BS = some_words(SENTENCES)
    words = {beams: check(model, peer, source_BS, beams, length) for beams in (BEAMS, 1)}
    contestants: dict[str, Callable[[], object]] = {}
    for beams in words:
        contestants[f"project {beams}"] = partial(project_texts, model, source_BS, beams, length)
        contestants[f"peer {beams}"] = partial(peer_texts, peer, source_BS, beams, length)
    times = alternate(contestants, options.repeats)
    figures = [
        Figure(
            f"{beams} beams" if beams > 1 else "greedy",
            speed(times, f"project {beams}", count),
            "target tokens/s",
            speed(times, f"peer {beams}", count),
            speed_up(times, f"project {beams}", f"peer {beams}"),
            at_least=3.0 if beams > 1 else None,
            note="same texts",
        )
        for beams, count in words.items()
    ]
    about = f"MarianMTModel.generate, {parameter_count(peer):,} parameters"
    report(figures, options, peer=about, sentences=SENTENCES)


if __name__ == "__main__":
    main()
