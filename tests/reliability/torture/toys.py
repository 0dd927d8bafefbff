"""Tiny data and trainings of every task, each a fraction of a second long."""

from __future__ import annotations

import os
import random
import select
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import preloaded  # noqa: F401  # children are forked from this process
from chainrule import train
from chainrule.cli.failures import describe
from chainrule.errors import RunError
from torture.processes import Child, die_with_parent, last_line

Training = Callable[[Path, Path], object]
"""A function of the folders of data and run."""

SIZES: dict[str, Any] = {"embedding": 8, "hidden": 8, "layers": 1}
BLOCK: dict[str, Any] = {"embedding": 8, "layers": 1, "heads": 2}
SPANS: dict[str, Any] = {"embedding": 8, "encoder_layers": 1, "decoder_layers": 1, "heads": 2, "sentinels": 5}
VECTORS = {"model": {"vector_size": 8, "min_count": 1}}
STEPS = 8
SECONDS = 10.0
"""Time in which a rank must end after another one has ended; then it is killed, as torchrun does."""

REFUSED = 2
"""Exit code of a rank that ends with a message."""


def write_data(folder: Path) -> None:
    """Small files of every format for training."""
    draw = random.Random(1)
    words = ["ab", "ba", "abba", "baab", "cab", "cb"]
    sentences = [" ".join(draw.choices(words, k=draw.randint(2, 6))) for _ in range(60)]
    (folder / "text.txt").write_text("\n".join(sentences) + "\n")
    (folder / "pairs.tsv").write_text("".join(f"{line}\t{line[::-1]}\n" for line in sentences))
    (folder / "labels.tsv").write_text("".join(f"{'xy'[line.count('c') % 2]}\t{line}\n" for line in sentences))
    tagged = ("\n".join(f"{word}\t{'C' if 'c' in word else 'O'}" for word in line.split()) for line in sentences)
    (folder / "tags.tsv").write_text("\n\n".join(tagged) + "\n")


def training(
    model: str,
    data: str,
    sizes: dict[str, Any],
    further: dict[str, Any] | None = None,
    steps: int = STEPS,
    validations: int = STEPS // 2,
    **options: Any,
) -> Training:
    """A training that saves a checkpoint at every second step."""
    batch = {"max_tokens": 60} if data == "pairs.tsv" else {"batch_size": 4}
    values = {"device": "cpu", "validations": validations, "log_steps": 1, **batch}

    def run(folder: Path, out: Path) -> object:
        settings = {"model": sizes, "training": {**values, **(further or {})}}
        given = {"steps": steps, "settings": settings, "progress": False, **options}
        return train(folder / data, model=model, out=out, **given)

    return run


def counting(model: str, **options: Any) -> Training:
    """A training without gradients."""
    return lambda folder, out: train(folder / "text.txt", model=model, out=out, progress=False, **options)


def with_ranks(run: Training, ranks: int = 2) -> Training:
    """The same training by several processes with the environment that torchrun sets; the first to fail ends all."""

    def launch(folder: Path, out: Path) -> None:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(ranks)}
        children = []
        for rank in range(ranks):
            numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            log = out.with_name(f"{out.name}-{rank}.log")
            children.append(Child(partial(_run_rank, run, folder, out, place | numbers), log))
        select.select([child.handle for child in children], [], [])
        ended = [child.wait(SECONDS) for child in children]
        for child in (one for one, status in zip(children, ended, strict=True) if status is None):
            child.kill()
        words = "; ".join(last_line(child.log) for child in children)
        for status in ended:
            known = status is None or status == 0 or os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == REFUSED
            assert known, words
        if any(ended):
            raise RunError(f"processes of the training failed: {ended} {words}")

    return launch


def _run_rank(run: Training, folder: Path, out: Path, environment: dict[str, str]) -> None:
    die_with_parent()
    os.environ.update(environment)
    try:
        run(folder, out)
    except Exception as error:
        if (found := describe(error)) is None:
            raise
        os.write(1, found[0].encode())
        os._exit(REFUSED)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


CLASSIFIER: dict[str, Any] = {"encoder": "bag", "embedding": 8}
char = partial(training, tokenizer="char")
classifier = partial(char, "classifier", "labels.tsv", CLASSIFIER)


def trainings(steps: int) -> dict[str, Training]:
    """One training per task, and two per task where checkpoints or processes differ."""
    brief = partial(training, steps=steps, validations=steps // 2)
    char = partial(brief, tokenizer="char")
    return {
        "lm lstm": char("lstm", "text.txt", SIZES),
        "lm transformer": char("transformer", "text.txt", BLOCK),
        "lm, 2 workers": char("lstm", "text.txt", SIZES, {"workers": 2}),
        "lm, 2 ranks": with_ranks(char("lstm", "text.txt", SIZES)),
        "lm, 2 sharded ranks": with_ranks(
            char("transformer", "text.txt", BLOCK, {"shard": True, "optimizer": "adamw"})
        ),
        "ngram": counting("ngram", tokenizer="char", order=3),
        "ngram --memory": counting("ngram", tokenizer="word", order=3, memory="1M"),
        "word2vec": counting("word2vec", tokenizer="word", epochs=2, settings=VECTORS),
        "translator": char("seq2seq-rnn", "pairs.tsv", SIZES),
        "spans t5": char("t5", "text.txt", SPANS, objective="spans"),
        "masked bert": char("bert", "text.txt", {"width": 8, "inner": 8, "layers": 1, "heads": 2}),
        "classifier": char("classifier", "labels.tsv", CLASSIFIER),
        "tagger": brief("tagger", "tags.tsv", {"embedding": 8, "hidden": 8}, tokenizer="word"),
    }


TRAININGS = trainings(STEPS)
