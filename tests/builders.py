"""Small models of every kind, the cases of the laws, and small texts with something to learn."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chainrule.checkpoint.build import build_model
from chainrule.config import RunConfig
from chainrule.engines.ngram.smoothing import SMOOTHINGS
from chainrule.engines.word2vec.kernels import Word2VecWeights
from chainrule.inference.archive import Reader
from chainrule.models.mixture import Mixture, MixtureConfig
from chainrule.models.ngram import Ngram, NgramConfig
from chainrule.models.translator import ConditionedModel
from chainrule.models.word2vec import Word2Vec, Word2VecConfig
from chainrule.registry import MODELS, OUTPUTS
from chainrule.types import Source, Vocabulary

SMALL = {
    "embedding": 8,
    "hidden": 8,
    "layers": 1,
    "heads": 2,
    "context": 6,
    "order": 4,
    "convolutions": 2,
    "kernel": 2,
    "feedforward": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "buckets": 8,
    "distance": 12,
    "sentinels": 0,
    "block": 4,
    "width": 8,
    "positions": 24,
    "labels": ["a", "b", "c"],
}
"""Options that make any registered model small; a model takes those that it has."""

OF_TASKS: dict[str, dict[str, Any]] = {
    "translation": {"context": 24, "positions": None},  # `positions` is a kind of position encoding here
    "lm": {"positions": None},
}
"""Options that differ by task; None: leave the default."""


# The cases of the laws, from the registries: a registered model is held to the laws without being listed here

Case = tuple[str, str, dict[str, Any]]
"""Model, output layer and options."""


def models_of(task: str) -> list[str]:
    """The registered models of a task."""
    return [entry.name for entry in MODELS.entries() if entry.task == task]


def trained_models() -> list[str]:
    """The language models that are trained by gradient steps."""
    return [name for name in models_of("lm") if MODELS.get(name).fitting == "gradients"]


def trained_cases() -> list[Case]:
    """Language models that are trained by gradient steps: each with each output layer, and the variants."""
    return [
        *((model, output, {}) for model in trained_models() for output in OUTPUTS.names()),
        *((model, "softmax", options) for model, options in VARIANTS),
    ]


def translator_cases() -> list[Case]:
    """Translators: each with each output layer, and the variants."""
    return [
        *((model, output, {}) for model in models_of("translation") for output in OUTPUTS.names()),
        *((model, "softmax", options) for model, options in TRANSLATOR_VARIANTS),
    ]


def text_cases() -> list[Case]:
    """All language models."""
    return [*trained_cases(), *COUNTED_CASES, *MIXED_CASES]


def one_output(cases: Iterable[Case]) -> list[Case]:
    """The cases with the softmax, for laws that do not depend on the output layer."""
    return [case for case in cases if case[1] == "softmax"]


def case_id(case: Case) -> str:
    """The name of a case in the list of tests."""
    model, output, options = case
    return "-".join([model, output, *(f"{key}={value}" for key, value in options.items())])


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("average", {"weights": "attention"}),
    ("feedforward", {"layers": 2, "activation": "relu"}),
    ("feedforward", {"order": 2, "skip": False}),
    ("rnn", {"activation": "relu", "layers": 2}),
    ("lstm", {"tied": False, "layers": 2}),
    ("lstm", {"hidden": 12}),  # tied, with a bridge between the widths
    ("gru", {"layers": 2}),
    ("elmo", {"layers": 2, "hidden": 12, "variational": True}),
    ("elmo", {"characters": True, "kernels": [1, 3], "filters": 4, "spelling": 6}),
    ("transformer", {"tied": False, "bias": True, "layers": 2}),
    ("hybrid-lm", {"mixing": "gated", "cell": "lstm", "nar_layers": 2}),
    ("hybrid-lm", {"mixing": "learned", "gamma": 0.5, "context": 3, "block": 5}),
    ("hybrid-lm", {"gamma": 0.0, "tied": False, "hidden": 12, "context": 30}),
    ("at", {"decay": False, "layers": 2}),
    ("at", {"tied": False, "bias": True, "layers": 2}),
    *(
        ("transformer", {"positions": positions, "norm": norm, "context": 7})
        for positions in ("rotary", "sinusoidal", "learned", "none")
        for norm in ("pre", "post")
    ),
]
PROPER = [name for name in SMOOTHINGS if name != "stupid-backoff"]  # it gives scores, not probabilities
COUNTED_CASES: list[Case] = [
    # Additive smoothing with a longer context gives the same row after every unseen context.
    *(("ngram", "softmax", {"smoothing": name, "order": 2 if name == "additive" else 3}) for name in PROPER),
    *(("ngram", "softmax", {"order": order, "across_lines": True}) for order in (2, 5)),
    ("ngram", "softmax", {"order": 4, "prune": [0, 0, 1]}),
    ("ngram", "softmax", {"order": 4, "quantize": True}),
]
MIXED_CASES: list[Case] = [
    ("mixture", "softmax", {}),
    ("mixture", "softmax", {"caches": [{"kind": "unigram"}, {"kind": "continuous", "part": 1}], "buckets": True}),
    ("mixture", "softmax", {"caches": [{"kind": "unigram"}], "buckets": True, "temperature": 0.7}),
]
TRANSLATOR_VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("seq2seq-rnn", {"cell": "gru", "reversed_source": False}),
    ("seq2seq-rnn", {"layers": 2, "tied": False, "shared": False}),
    ("seq2seq-rnn", {"hidden": 12, "separate": True}),  # tied, with a bridge between the widths
    *(
        ("seq2seq-attention", {"score": score, "input_feeding": feeding, "cell": cell})
        for score in ("dot", "general", "additive")
        for feeding in (True, False)
        for cell in ("lstm", "gru")
    ),
    ("seq2seq-attention", {"encoder_layers": 2, "decoder_layers": 2, "tied": False}),
    ("seq2seq-attention", {"hidden": 12, "separate": True}),
    ("seq2seq-attention", {"shared": False}),
    *(
        ("seq2seq-transformer", {"positions": positions, "norm": norm})
        for positions in ("rotary", "sinusoidal", "learned", "none")
        for norm in ("pre", "post")
    ),
    ("seq2seq-transformer", {"encoder_layers": 2, "decoder_layers": 3, "bias": True, "tied": False}),
    ("seq2seq-transformer", {"shared": False}),
    ("seq2seq-transformer", {"separate": True}),
    ("t5", {"gated": True, "activation": "gelu-tanh", "tied": False}),
    ("t5", {"gated": True, "decoder_layers": 2}),
    ("t5", {"head_width": 6, "shared": False}),
    *(("seq2seq-at", {"positions": positions, "decay": False}) for positions in ("sinusoidal", "learned", "none")),
    ("seq2seq-at", {"decoder_layers": 2, "norm": "post", "bias": True, "tied": False}),
    ("seq2seq-at", {"separate": True}),
    *(("fat", {"direction": direction, "encoder_layers": 2}) for direction in ("left-to-right", "right-to-left")),
    ("fat", {"decoder_layers": 2, "tied": False, "skip": "always", "threshold": 100}),
    ("fat", {"separate": True, "skip": "always", "threshold_share": 6.0}),
    ("fat", {"shared": False}),
    *(("hybrid", {"mixing": mixing, "gamma": 0.4}) for mixing in ("fixed", "learned", "gated")),
    ("hybrid", {"gamma": 0.0, "cell": "lstm", "encoder_layers": 2, "tied": False}),
    ("hybrid", {"nar": "ctc", "gamma": 0.0, "score": "additive"}),
    ("hybrid", {"hidden": 12, "nar_layers": 2, "allocation_threshold": 0.2, "separate": True}),
    ("hybrid", {"shared": False, "score": "dot", "length_range": 2}),
]
LANGUAGE_MODELS, TRANSLATORS, TRAINED = models_of("lm"), models_of("translation"), trained_models()
OUTPUT_LAYERS = OUTPUTS.names()
TRAINED_CASES, TRANSLATED_CASES, TEXT_CASES = trained_cases(), translator_cases(), text_cases()
CASES = [*TEXT_CASES, *TRANSLATED_CASES]


# Small models


def small_options(model: str, **options: Any) -> dict[str, Any]:
    """Options of a small model; `options` replace them."""
    entry = MODELS.get(model)
    small = {**SMALL, **OF_TASKS.get(entry.task, {})}
    known = {name: value for name, value in small.items() if name in entry.make.Config.model_fields}
    chosen = {**{name: value for name, value in known.items() if value is not None}, **options}
    return {name: value for name, value in chosen.items() if name != "separate"}  # an option of `small_translator`


def small_config(model: str, output: str = "softmax", **options: Any) -> RunConfig:
    """A configuration of a small model."""
    return RunConfig.model_validate(
        {"model": {"name": model, **small_options(model, **options)}, "output": {"name": output}}
    )


def some_vocabulary(size: int = 13, eos: int = 0) -> Vocabulary:
    """A vocabulary of words with very unequal frequencies, spelled a, b, c and so on."""
    pieces = tuple(chr(ord("a") + token) for token in range(size))
    return Vocabulary(size, eos, (1000 / np.arange(1, size + 1) ** 2).astype(np.int64), pieces=pieces)


def small_model(
    model: str, output: str = "softmax", vocabulary: Vocabulary | None = None, seed: int = 0, **options: Any
) -> Any:
    """A small model of any task in which every weight matters: initial weights near zero would hide mistakes.

    A translator gets a fixed source, the same for every row, and is then a language model.
    """
    vocabulary = vocabulary or some_vocabulary()
    entry = MODELS.get(model)
    if entry.task == "translation":
        source = Source(*(part_1S.expand(16, -1) for part_1S in some_source([5], padding=3)))
        return ConditionedModel(small_translator(model, output, vocabulary, seed, **options), source)
    if entry.fitting == "counting":
        return counted_model(vocabulary, seed, **options)
    if entry.fitting == "mix":
        return mixed_model(vocabulary, seed, **options)
    if entry.fitting == "sweeps":
        return vector_model(vocabulary, seed)
    return stirred_model(model, output, vocabulary, seed, **options)


def small_translator(
    model: str, output: str = "softmax", vocabulary: Vocabulary | None = None, seed: int = 0, **options: Any
) -> Any:
    """A small translator in which every weight matters; `separate`: the source has its own vocabulary."""
    vocabulary = vocabulary or some_vocabulary()
    if options.get("separate") and vocabulary.source is None:
        vocabulary = replace(vocabulary, source=some_vocabulary(vocabulary.size + 2))
    return stirred_model(model, output, vocabulary, seed, **options)


def stirred_model(model: str, output: str, vocabulary: Vocabulary, seed: int, **options: Any) -> Any:
    """A small network with weights far from their initial values."""
    torch.manual_seed(seed)
    made = build_model(small_config(model, output, **options), vocabulary)
    stir(made)
    return made.eval()


def some_source(lengths: list[int], *, padding: int = 0, seed: int = 0, size: int = 4, eos: int = 0) -> Source:
    """Random rows of the given lengths, each ended by `eos`, with `padding` positions more than the longest needs."""
    longest = max(lengths) + 1 + padding
    tokens_BS = torch.randint(1, size, (len(lengths), longest), generator=torch.Generator().manual_seed(seed))
    places_S, lengths_B1 = torch.arange(longest), torch.tensor(lengths)[:, None]
    return Source(tokens_BS.masked_fill(places_S >= lengths_B1, eos), places_S <= lengths_B1)


def counted_model(vocabulary: Vocabulary, seed: int = 0, **options: Any) -> Any:
    """An n-gram model of random tokens in which small tokens are more frequent than large ones."""
    rng = np.random.default_rng(seed)
    tokens, valid = (rng.integers(0, vocabulary.size, (400, 2)).min(1) for _ in range(2))
    return Ngram.estimate(NgramConfig(**options), vocabulary, tokens, valid)


def mixed_model(vocabulary: Vocabulary, seed: int = 0, **options: Any) -> Any:
    """An n-gram model, a network and caches, with unequal weights."""
    parts = [counted_model(vocabulary, seed, order=3), small_model("lstm", vocabulary=vocabulary, seed=seed)]
    config = MixtureConfig(parts=2, **options)
    weights_ZK = torch.rand(Mixture(config, vocabulary, parts).weights.shape) + 0.1
    return Mixture(config, vocabulary, parts, weights_ZK / weights_ZK.sum(1, keepdim=True)).eval()


def vector_model(vocabulary: Vocabulary, seed: int = 0) -> Any:
    """Random vectors of all words but the first two."""
    ids_V, rng = np.arange(2, vocabulary.size), np.random.default_rng(seed)
    rows = (rng.normal(size=(len(ids_V), 3)).astype(np.float32) for _ in range(3))
    config = Word2VecConfig(vector_size=3)
    return Word2Vec(config, Word2VecWeights(*rows), ids_V, vocabulary.counts_V[2:], vocabulary.size).eval()


@torch.no_grad()
def stir(model: torch.nn.Module) -> None:
    """Change every weight considerably."""
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.4)


# Texts


def pairs_text(lines: int = 250, seed: int = 0) -> str:
    """Lines that each repeat one pair of letters: the next letter depends on the last letters and their order."""
    rng = random.Random(seed)
    return "".join(rng.choice(("ab", "cd", "ef", "gh", "ij")) * rng.randint(2, 6) + "\n" for _ in range(lines))


def letter_pairs(count: int = 300, seed: int = 0, longest: int = 5) -> list[tuple[str, str]]:
    """Strings of letters, and the same reversed in upper case: only the source determines the target."""
    rng = random.Random(seed)
    sources = ["".join(rng.choices("abcd", k=rng.randint(1, longest))) for _ in range(count)]
    return [(source, source.upper()[::-1]) for source in sources]


def write_pairs(folder: Path, pairs: Iterable[tuple[str, str]], name: str = "pairs") -> tuple[Path, Path]:
    """Write two parallel files."""
    paths = folder / f"{name}.src", folder / f"{name}.tgt"
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(line + "\n" for line in lines))
    return paths


# Tokens


def rows_by_steps(model: Any, tokens_BT: torch.Tensor, eos: int = 0) -> torch.Tensor:
    """log p(. | eos, x_<t) for t = 0 to T, one step at a time -> (B, T + 1, V)."""
    state, rows = model.start(len(tokens_BT)), []
    for token_B in [tokens_BT.new_full((len(tokens_BT),), eos), *tokens_BT.unbind(1)]:
        row_BV, state = model.step(state, token_B)
        rows.append(row_BV)
    return torch.stack(rows, 1)


def some_tokens(batch: int, length: int, seed: int = 0, size: int = 13) -> torch.Tensor:
    """Random tokens of `some_vocabulary` -> BT."""
    return torch.randint(0, size, (batch, length), generator=torch.Generator().manual_seed(seed))


def header_bytes(archive: Path) -> int:
    """The size of what precedes the codes of a compressed file: header and needs."""
    with archive.open("rb") as file:
        Reader(file, archive).header()
        return file.tell()
