"""What leaving words unread saves the encoder of `fat`, and how quickly its decoder steps.

192 wide, 6 heads, 4 + 1 layers, 512 inside, 4,000 words, random weights; sources of random words with the lengths of
image captions, 6 to 36 words, 16 on average. A share of them is rare, and the same sources are encoded with these left
out and with all of them read, one by one and 32 of about equal length at a time. Then each is translated by greedy
search, word by word, against seq2seq-transformer of the same width with 3 + 3 layers, encoding included.
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
"""Words from RARE on are rare."""
SHAPE = {"embedding": 192, "heads": 6, "feedforward": 512}
DEPTHS = {"fat": (4, 1), "seq2seq-transformer": (3, 3)}
SHARES = (0.0, 0.1, 0.2, 0.3)
SENTENCES, BATCHES, TRANSLATED, TARGET = 64, (1, 32), 16, 16


def made(name: str, **options: Any) -> Any:
    """A model of the benchmark's shape."""
    encoder, decoder = DEPTHS[name]
    values = {"name": name, **SHAPE, "encoder_layers": encoder, "decoder_layers": decoder, **options}
    counts_V = np.where(np.arange(VOCABULARY) < RARE, 100, 1)
    torch.manual_seed(1)
    return build_model(parse(RunConfig, {"model": values}), Vocabulary(VOCABULARY, EOS, counts_V)).eval()


def sentences(count: int, share: float, seed: int = 0) -> list[list[int]]:
    """Random words, that share of them rare, each sentence ended by eos."""
    rng = np.random.default_rng(seed)
    made = []
    for length in np.clip(rng.normal(16, 5, count).round().astype(int), 6, 36):
        rare = rng.permutation(length) < round(share * length + rng.random() - 0.5)
        words = np.where(rare, rng.integers(RARE, VOCABULARY, length), rng.integers(1, RARE, length))
        made.append([*words.tolist(), EOS])
    return made


def sources(texts: list[list[int]], batch: int) -> list[Source]:
    """Batches of about equal length, as `translate` makes them."""
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
        model.encode(source, model.select_positions(source))


def translate(model: Any, texts: list[Source], length: int) -> None:
    """Each by itself, so many words, whether or not there is an end among them."""
    for source in texts:
        generate(ConditionedModel(model, source), eos=None, bos=EOS, max_new_tokens=length, choose=Greedy())


def skipping(count: int, repeats: int) -> list[Figure]:
    """Encoding with words left out against encoding all of them."""
    fat, whole = made("fat", skip="always", threshold=10), made("fat")
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
        f"{share:.0%} unread, batch {batch}",
        speed(times, f"skipping {share}", tokens),
        "source tokens/s",
        speed(times, f"reading {share}", tokens),
        1 / speed_up(times, f"skipping {share}", f"reading {share}"),
        at_most=0.88 if share == 0.2 else None,
        note="time to time",
    )


def stepping(count: int, length: int, repeats: int) -> Figure:
    """Greedy translation, one sentence at a time; a single row is quickest on one thread."""
    texts = sources(sentences(count, 0.0), 1)
    models = {name: made(name, context=128) for name in DEPTHS}
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
        note="encoding included",
    )


def main() -> None:
    options = begin(arguments(__doc__, repeats=9))
    count = 32 if options.quick else SENTENCES
    few = (4, 4) if options.quick else (TRANSLATED, TARGET)
    figures = [*skipping(count, options.repeats), stepping(*few, options.repeats)]
    report(figures, options, peer="all of the source; seq2seq-transformer of 3 + 3 layers", sentences=count)


if __name__ == "__main__":
    main()
