"""Time that skipping rare words saves the encoder of `fat`, and the speed of its greedy search.

192 wide, 6 heads, 4 + 1 layers, feed-forward width 512, 4,000 words, random weights. Sources are random words with the
lengths of image captions: 6 to 36 words, 16 on average. A share of the words is rare. The same sources are encoded with
these skipped and with all of them read, at batch 1 and in batches of 32 of about equal length. Then each source is
translated by greedy search, including encoding, against seq2seq-transformer of the same width with 3 + 3 layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from harness import Figure, Times, alternate, arguments, begin, report, speed, speed_up

from chainrule.base.devices import threads
from chainrule.checkpoint.build import build_model
from chainrule.config import RunConfig, parse
from chainrule.decoding.choosers import Greedy
from chainrule.decoding.generate import generate
from chainrule.models.translator import ConditionedModel
from chainrule.types import Source, Vocabulary

VOCABULARY, EOS, RARE = 4000, 0, 1000
"""Words with an id of at least RARE are rare."""
SHAPE = {"embedding": 192, "heads": 6, "feedforward": 512}
DEPTHS = {"fat": (4, 1), "seq2seq-transformer": (3, 3)}
SHARES = (0.0, 0.1, 0.2, 0.3)
SENTENCES, BATCHES, TRANSLATED, TARGET = 64, (1, 32), 16, 16


def build(name: str, **options: Any) -> Any:
    """Build a model of the benchmark's shape."""
    encoder, decoder = DEPTHS[name]
    values = {"name": name, **SHAPE, "encoder_layers": encoder, "decoder_layers": decoder, **options}
    counts_V = np.where(np.arange(VOCABULARY) < RARE, 100, 1)
    torch.manual_seed(1)
    return build_model(parse(RunConfig, {"model": values}), Vocabulary(VOCABULARY, EOS, counts_V)).eval()


def sentences(count: int, share: float, seed: int = 0) -> list[list[int]]:
    """Return sentences of random words, a given share of them rare, each ending with eos."""
    rng = np.random.default_rng(seed)
    texts = []
    for length in np.clip(rng.normal(16, 5, count).round().astype(int), 6, 36):
        rare = rng.permutation(length) < round(share * length + rng.random() - 0.5)
        words = np.where(rare, rng.integers(RARE, VOCABULARY, length), rng.integers(1, RARE, length))
        texts.append([*words.tolist(), EOS])
    return texts


def sources(texts: list[list[int]], batch: int) -> list[Source]:
    """Group sentences of about equal length into batches, as `translate` does."""
    ordered = sorted(texts, key=len)
    batches = []
    for rows in (ordered[at : at + batch] for at in range(0, len(ordered), batch)):
        lengths_B1 = torch.tensor([[len(row)] for row in rows])
        tokens_BS = torch.full((len(rows), int(lengths_B1.max())), EOS)
        for tokens_S, row in zip(tokens_BS, rows, strict=True):
            tokens_S[: len(row)] = torch.tensor(row)
        batches.append(Source(tokens_BS, torch.arange(tokens_BS.shape[1]) < lengths_B1))
    return batches


@torch.inference_mode()
def encode(model: Any, batches: list[Source]) -> None:
    for source in batches:
        model.encode_for_steps(source, model.select_positions(source))


def translate(model: Any, texts: list[Source], length: int) -> None:
    """Translate each source alone into `length` words, ignoring eos."""
    for source in texts:
        generate(ConditionedModel(model, source), eos=None, bos=EOS, max_new_tokens=length, choose=Greedy())


def skipping(count: int, repeats: int) -> list[Figure]:
    """Compare encoding with rare words skipped and encoding all words."""
    fat, whole = build("fat", skip="always", threshold=10), build("fat")
    texts = {share: sentences(count, share) for share in SHARES}
    figures = []
    for batch in BATCHES:
        contestants: dict[str, Callable[[], object]] = {}
        for share in SHARES:
            batches = sources(texts[share], batch)
            contestants[f"skipping {share}"] = partial(encode, fat, batches)
            contestants[f"reading {share}"] = partial(encode, whole, batches)
        times = alternate(contestants, repeats)
        figures += [_saving(times, share, batch, sum(map(len, texts[share]))) for share in SHARES]
    return figures


def _saving(times: Times, share: float, batch: int, tokens: int) -> Figure:
    return Figure(
        f"{share:.0%} skipped, batch {batch}",
        speed(times, f"skipping {share}", tokens),
        "source tokens/s",
        speed(times, f"reading {share}", tokens),
        1 / speed_up(times, f"skipping {share}", f"reading {share}"),
        at_most=0.88 if share == 0.2 else None,
        note="ratio of times",
    )


def stepping(count: int, length: int, repeats: int) -> Figure:
    """Compare greedy translation, one sentence at a time; a single row is fastest on one thread."""
    texts = sources(sentences(count, 0.0), 1)
    models = {name: build(name, context=128) for name in DEPTHS}
    with threads(1):
        times = alternate({name: partial(translate, model, texts, length) for name, model in models.items()}, repeats)
    words = count * length
    return Figure(
        "greedy, batch 1",
        speed(times, "fat", words),
        "target tokens/s",
        speed(times, "seq2seq-transformer", words),
        speed_up(times, "fat", "seq2seq-transformer"),
        at_least=1.5,
        note="including encoding",
    )


def main() -> None:
    options = begin(arguments(__doc__, repeats=9))
    count = 32 if options.quick else SENTENCES
    few = (4, 4) if options.quick else (TRANSLATED, TARGET)
    figures = [*skipping(count, options.repeats), stepping(*few, options.repeats)]
    report(figures, options, peer="the whole source; seq2seq-transformer of 3 + 3 layers", sentences=count)


if __name__ == "__main__":
    main()
