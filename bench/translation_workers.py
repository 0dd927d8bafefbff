"""Translation of many sentences on all cores against CTranslate2 in its best setting, on the same weights.

A Transformer with random weights translates sentences of 3 to 30 tokens, 12 on average, by beam search with 5 beams and
batches of up to 32 sentences. The end of a sentence is made so probable that translations have about 15 tokens. The
project computes as `chainrule translate FILE` does, with a process of one thread per core. CTranslate2 computes with
one worker of all threads, and with a worker of one thread per core; both in float32 and int8. The fastest setting of
each side counts.

`--large`: 512 wide, 6 + 6 layers, 32,000 words instead of 256 wide, 3 + 3 layers, 8,000 words.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from functools import partial
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

LENGTH, BATCH, END = 40, 32, 2.0
"""Most tokens of a translation, sentences of a batch, and what is added to the score of the end."""

PRECISIONS = ("float32", "int8")


def sentences(count: int, words: int) -> list[list[int]]:
    """Random sources with lengths like those of image captions, each ending with eos."""
    draw = np.random.default_rng(1)
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


def main() -> None:
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("--large", action="store_true", help="512 wide, 6 + 6 layers, 32,000 words")
    parser.add_argument("--sentences", type=int, default=1000, help="number of sentences (default: 1000)")
    options = begin(parser)
    width, layers, words = (512, 6, 32_000) if options.large else (WIDTH, LAYERS, VOCABULARY)
    model = project_model(peer_model(width, layers, words))
    with torch.no_grad():
        model.output.bias_V[EOS] += END
    rounded = copy.deepcopy(model)
    round_weights(rounded)
    sources = sentences(64 if options.quick else options.sentences, words)
    cores = options.threads
    contestants: dict[str, Callable[[], list[list[int]]]] = {
        f"project {precision}": partial(project_texts, one, sources)
        for precision, one in zip(PRECISIONS, (model, rounded), strict=True)
    }
    for precision in PRECISIONS:
        for workers, threads in {(cores, 1), (1, cores)}:
            peer = translator(model, precision, workers, threads)
            contestants[f"CTranslate2 {precision}, {workers} × {threads}"] = partial(
                translate, peer, sources, beams=BEAMS, length=LENGTH, batch=BATCH
            )
    tokens: dict[str, int] = {}

    def count(name: str, run: Callable[[], list[list[int]]]) -> None:
        tokens[name] = sum(map(len, run()))

    times = alternate({name: partial(count, name, run) for name, run in contestants.items()}, options.repeats)
    speeds = {name: [len(sources) / one for one in times[name]] for name in contestants}
    best = max((name for name in speeds if name.startswith("CT")), key=lambda name: statistics.median(speeds[name]))
    chosen = max((name for name in speeds if name.startswith("pr")), key=lambda name: statistics.median(speeds[name]))
    figures = [
        Figure(
            name,
            statistics.median(mine),
            "sentences/s",
            statistics.median(speeds[best]),
            statistics.median(own / other for own, other in zip(mine, speeds[best], strict=True)),
            at_least=1.0 if name == chosen else None,
            note=f"{tokens[name]:,} target tokens",
        )
        for name, mine in speeds.items()
    ]
    report(figures, options, peer=best, sentences=len(sources), width=width)


if __name__ == "__main__":
    main()
