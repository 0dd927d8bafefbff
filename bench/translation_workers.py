"""Translation of many sentences on all cores against CTranslate2 or transformers, on the same weights.

A Transformer with random weights translates sentences of 3 to 30 tokens, 12 on average, by beam search with 5 beams and
batches of up to 32 sentences. The score of the end is shifted until translations have about as many tokens as those of
image captions, 15. The project computes as `chainrule translate FILE` does, with a process of one thread per core.
CTranslate2 computes with one worker of all threads, and with a worker of one thread per core; both in float32 and int8.
The fastest setting of each side counts.

`--large`: 512 wide, 6 + 6 layers, 32,000 words instead of 256 wide, 3 + 3 layers, 8,000 words.
`--transformers`: against `generate` of transformers with all threads instead, on the same batches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from ctranslate2_peers import translate, translator
from harness import Figure, alternate, arguments, begin, report
from translation_decoding import BEAMS, EOS, LAYERS, VOCABULARY, WIDTH, peer_model, project_model

from chainrule.checkpoint.build import round_weights
from chainrule.data.grouping import by_length, map_batches
from chainrule.data.pairs import pad_sources
from chainrule.decoding import beam_search

LENGTH, BATCH, MEAN = 40, 32, 15
"""Most tokens of a translation, sentences of a batch, and the tokens of a translation on average."""

SAMPLE, HALVINGS, SHIFTS = 24, 7, (-8.0, 12.0)
"""How the score of the end is found: sentences, steps of a bisection, and the bounds of what is added to the score."""

PRECISIONS = ("float32", "int8")


def sentences(count: int, words: int, seed: int = 1) -> list[list[int]]:
    """Random sources with lengths like those of image captions, each ending with eos."""
    draw = np.random.default_rng(seed)
    lengths = np.clip(draw.lognormal(2.4, 0.5, count), 3, 30).astype(int)
    return [[*draw.integers(1, words, length).tolist(), EOS] for length in lengths]


def project_texts(model: Any, sources: list[list[int]]) -> list[list[int]]:
    """The best translations, in batches that processes share."""

    def search(batch: list[int]) -> list[list[int]]:
        with torch.inference_mode():
            state = model.start(pad_sources([sources[index] for index in batch], EOS, torch.device("cpu")))
        prompt_B1 = torch.full((len(batch), 1), EOS)
        found = beam_search(model, state, prompt_B1, eos=EOS, beams=BEAMS, max_new_tokens=LENGTH)
        return [[token for token in best.tokens if token != EOS] for best, *_ in found]

    batches = by_length([len(source) for source in sources], max_tokens=10**6, max_rows=BATCH)
    return map_batches(batches, search, model)


@torch.no_grad()
def shift_end(model: Any, sources: list[list[int]]) -> float:
    """Shift the score of the end so that translations have about MEAN tokens -> the shift."""
    low, high = SHIFTS
    before = float(model.output.bias_V[EOS])
    for _ in range(HALVINGS):
        shift = (low + high) / 2
        model.output.bias_V[EOS] = before + shift
        short = sum(map(len, project_texts(model, sources))) < MEAN * len(sources)
        low, high = (low, shift) if short else (shift, high)
    return shift


def peer_texts(peer: Any, sources: list[list[int]]) -> list[list[int]]:
    """The same by transformers."""

    def search(batch: list[int]) -> list[list[int]]:
        source = pad_sources([sources[index] for index in batch], EOS, torch.device("cpu"))
        with torch.inference_mode():
            written = peer.generate(
                input_ids=source.tokens_BS,
                attention_mask=source.mask_BS.long(),
                num_beams=BEAMS,
                do_sample=False,
                max_new_tokens=LENGTH,
            )
        return [[token for token in row if token != EOS] for row in written.tolist()]

    return map_batches(by_length([len(source) for source in sources], max_tokens=10**6, max_rows=BATCH), search)


def against_ctranslate2(model: Any, sources: list[list[int]], cores: int) -> dict[str, Callable[[], list[list[int]]]]:
    """The settings of CTranslate2."""
    return {
        f"CTranslate2 {precision}, {workers} × {threads}": partial(
            translate,
            translator(model, precision, workers, threads),
            sources,
            beams=BEAMS,
            length=LENGTH,
            batch=BATCH,
        )
        for precision in PRECISIONS
        for workers, threads in {(cores, 1), (1, cores)}
    }


def _note(texts: list[list[int]], others: list[list[int]]) -> str:
    same = sum(one == other for one, other in zip(texts, others, strict=True)) / len(texts)
    return f"{sum(map(len, texts)):,} target tokens, {same:.0%} of the texts those of the peer"


def main() -> None:
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("--large", action="store_true", help="512 wide, 6 + 6 layers, 32,000 words")
    parser.add_argument("--sentences", type=int, default=1000, help="number of sentences (default: 1000)")
    parser.add_argument("--transformers", action="store_true", help="compare with transformers")
    options = begin(parser)
    width, layers, words = (512, 6, 32_000) if options.large else (WIDTH, LAYERS, VOCABULARY)
    peer = peer_model(width, layers, words)
    model = project_model(peer)
    shift = shift_end(model, sentences(SAMPLE, words, seed=2))
    peer.final_logits_bias[0, EOS] += shift
    rounded = copy.deepcopy(model)
    round_weights(rounded)
    sources = sentences(64 if options.quick else options.sentences, words)
    contestants: dict[str, Callable[[], list[list[int]]]] = {
        f"project {precision}": partial(project_texts, one, sources)
        for precision, one in zip(PRECISIONS, (model, rounded), strict=True)
    }
    if options.transformers:
        contestants["transformers"] = partial(peer_texts, peer, sources)
    else:
        contestants |= against_ctranslate2(model, sources, options.threads)
    texts: dict[str, list[list[int]]] = {}

    def compute(name: str, run: Callable[[], list[list[int]]]) -> None:
        texts[name] = run()

    times = alternate({name: partial(compute, name, run) for name, run in contestants.items()}, options.repeats)
    speeds = {name: [len(sources) / one for one in times[name]] for name in contestants}
    best, chosen = (
        max((name for name in speeds if name.startswith("project") == own), key=lambda name: median(speeds[name]))
        for own in (False, True)
    )
    figures = [
        Figure(
            name,
            median(mine),
            "sentences/s",
            median(speeds[best]),
            median(own / other for own, other in zip(mine, speeds[best], strict=True)),
            at_least=(3.0 if options.transformers else 1.0) if name == chosen else None,
            note=_note(texts[name], texts[best]),
        )
        for name, mine in speeds.items()
    ]
    report(figures, options, peer=best, sentences=len(sources), width=width)


if __name__ == "__main__":
    main()
