"""A translator measured on pairs: how probable it finds the targets, and what it makes of the sources.

Legend: B batch, T time, S source time, V vocabulary, N target tokens, C of a chunk, P pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.base.devices import device_of
from chainrule.base.modes import evaluating
from chainrule.data.batches import to_device
from chainrule.data.pairs import PairStore, pair_batch
from chainrule.decoding import beam_search
from chainrule.errors import DataError
from chainrule.evaluation.perplexity import total
from chainrule.evaluation.text import package_version, perplexity_of
from chainrule.evaluation.translation import Measures, measure
from chainrule.text.tokenizers import Tokenizer
from chainrule.types import Batch, Source

CHUNK = 512
"""Positions whose whole distributions are held at once."""

BATCH_TOKENS, ROWS = 4096, 64
"""Of a batch that is scored in order: rows times the longest, and rows, at most."""


def loss_of_batches(model: Any, batches: Iterable[Batch]) -> float:
    """-log p of the targets in nats a token, each row's `eos` counted."""
    nats, count = 0.0, 0
    device = device_of(model)
    with evaluating(model):
        for batch in batches:
            batch = to_device(batch, device)
            assert batch.source is not None
            log_probs_BT = model.log_probs(batch.targets_BT, batch.source)
            kept = log_probs_BT if batch.weights_BT is None else log_probs_BT[batch.weights_BT > 0]
            nats, count = nats - total(kept.flatten()), count + kept.numel()
    return nats / count


@dataclass(frozen=True)
class PairEvaluation(Measures):
    """A translator measured on pairs: its translations, and how probable it finds the references."""

    tokens: int
    oov: int  # words or characters of the references that the vocabulary lacks
    bytes: int  # of the references
    cross_entropy: float  # nats a token of the references
    perplexity: float
    perplexity_without_oov: float
    bits_per_byte: float
    token_accuracy: float  # share of reference tokens that are the most probable one, given those before
    signature: str
    protocol: str


def evaluate_pairs(
    model: Any,
    store: PairStore,
    tokenizer: Tokenizer,
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    bleu_tokenizer: str | None = None,
    found_by: str,
) -> PairEvaluation:
    """Measure translations of the sources of a store, and the model on its targets."""
    measures = measure(outputs, references, lowercase=lowercase, tokenizer=bleu_tokenizer)
    target, unscored_P = store.target, beyond(model, store)
    if len(unscored_P) == len(store):
        raise DataError(
            f"every reference is longer than the {model.window - 1} tokens that the model can write; give shorter "
            "pairs, or train with a larger model.context"
        )
    forced = force(model, store, tokenizer.unk if target.oov else None)
    scored_bytes = target.bytes - sum(len(references[0][number].encode()) + 1 for number in unscored_P.tolist())
    unscored = f" ({len(unscored_P)} references are longer than the model can write, and not scored)"
    return PairEvaluation(
        **measures.to_dict(),
        tokens=forced.tokens,
        oov=target.oov,
        bytes=scored_bytes,
        cross_entropy=forced.nats / forced.tokens,
        perplexity=perplexity_of(forced.nats / forced.tokens),
        perplexity_without_oov=perplexity_of(forced.known_nats / forced.known) if forced.known else math.nan,
        bits_per_byte=(forced.nats / math.log(2) + target.residue_bits) / scored_bytes,
        token_accuracy=forced.right / forced.tokens,
        signature=pair_signature(store, tokenizer),
        protocol=(
            f"{len(store)} sources translated by {found_by}; {forced.tokens} reference tokens, the <eos> of each line "
            f"among them, scored given their source and those before{unscored if len(unscored_P) else ''}; bits per "
            "byte is of the references."
        ),
    )


class Forced(NamedTuple):
    """Sums over the target tokens of some pairs, all of them and those that are known words."""

    nats: float
    tokens: int
    known_nats: float
    known: int
    right: int


def beyond(model: Any, store: PairStore) -> NDArray[np.int64]:
    """The numbers of the pairs whose targets are longer than a model can write."""
    longest = np.inf if model.window is None else model.window - 1  # `eos` comes on top
    return np.flatnonzero(store.target_rows.lengths_P > longest)


def force(model: Any, store: PairStore, unk: int | None) -> Forced:
    """Score the targets of all pairs that a model can write, given their sources as far as it can read them."""
    sums = np.zeros(5)
    with evaluating(model):
        for batch in _ordered_batches(model, store):
            log_probs_N, targets_N, right_N = _force_batch(model, batch)
            known_N = torch.ones_like(right_N) if unk is None else targets_N != unk
            sums += [
                -total(log_probs_N),
                len(targets_N),
                -total(log_probs_N[known_N]),
                int(known_N.sum()),
                int(right_N.sum()),
            ]
    nats, tokens, known_nats, known, right = sums.tolist()
    return Forced(nats, int(tokens), known_nats, int(known), int(right))


def _force_batch(model: Any, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """log p of the targets that are no padding, the targets, and whether each is the most probable token -> N each."""
    assert batch.weights_BT is not None
    held_BT = batch.weights_BT > 0
    hidden_ND, targets_N = model(batch).hidden_BTD[held_BT], batch.targets_BT[held_BT]
    parts = []
    for hidden_CD, targets_C in zip(hidden_ND.split(CHUNK), targets_N.split(CHUNK), strict=True):
        log_probs_CV = model.output.log_probs(hidden_CD)
        parts.append((log_probs_CV.gather(1, targets_C[:, None])[:, 0], log_probs_CV.argmax(1) == targets_C))
    log_probs, right = zip(*parts, strict=True)
    return torch.cat(log_probs), targets_N, torch.cat(right)


def scored_rows(model: Any, store: PairStore) -> Iterator[tuple[list[int], list[float]]]:
    """The target tokens of each pair, `eos` among them, with log p of each, in order."""
    for batch in _ordered_batches(model, store):
        assert batch.weights_BT is not None
        with evaluating(model):  # not around what is yielded: between two rows the caller's own mode holds
            log_probs_BT = model.log_probs(batch.targets_BT, batch.source).cpu().double()
        for targets_T, log_probs_T, weights_T in zip(batch.targets_BT, log_probs_BT, batch.weights_BT, strict=True):
            length = int(weights_T.sum())
            yield targets_T[:length].tolist(), log_probs_T[:length].tolist()


def _ordered_batches(model: Any, store: PairStore) -> Iterator[Batch]:
    """The pairs that a model can write, in order, as many at once as have some thousand tokens together."""
    longest_P = np.maximum(store.source_rows.lengths_P, store.target_rows.lengths_P) + 1
    numbers_P = np.delete(np.arange(len(store)), beyond(model, store))
    while len(numbers_P):
        sizes_P = np.maximum.accumulate(longest_P[numbers_P[:ROWS]])
        sizes_P = sizes_P * np.arange(1, len(sizes_P) + 1)
        rows = max(1, int(np.searchsorted(sizes_P, BATCH_TOKENS, "right")))
        yield to_device(pair_batch(store, numbers_P[:rows], model.window), device_of(model))
        numbers_P = numbers_P[rows:]


def pair_signature(store: PairStore, tokenizer: Tokenizer) -> str:
    """What the figures were measured on and with."""
    fields = {
        "data": f"{store.source.fingerprint[:8]}+{store.target.fingerprint[:8]}",
        "tokenizer": f"{tokenizer.kind}#{tokenizer.fingerprint[:8]}",
        "chainrule": package_version(),
    }
    return "|".join(f"{name}:{value}" for name, value in fields.items())


def source_of(rows: Sequence[Sequence[int]], eos: int, device: torch.device | None = None) -> Source:
    """Token rows, without `eos`, as one padded source."""
    longest = max(map(len, rows)) + 1
    tokens_BS = torch.full((len(rows), longest), eos)
    for number, row in enumerate(rows):
        tokens_BS[number, : len(row)] = torch.tensor(row, dtype=torch.int64)
    lengths_B = torch.tensor([len(row) + 1 for row in rows])
    mask_BS = torch.arange(longest) < lengths_B[:, None]
    return Source(tokens_BS.to(device), mask_BS.to(device))


def length_limit(source: int, window: int | None) -> int:
    """The most tokens that a translation of so many may have: twice as many and some, as far as the model can write."""
    limit = 2 * source + 20
    return limit if window is None else max(1, min(limit, window - 1))


def translate_greedily(
    model: Any, sources: Sequence[Sequence[int]], *, source_eos: int, eos: int, rows: int = 64
) -> list[list[int]]:
    """The greedy translations of token rows, without `eos`, in the order given."""
    outputs: dict[int, list[int]] = {}
    device = device_of(model)
    with evaluating(model):
        for numbers in _by_length(sources, rows):
            source = source_of([sources[number] for number in numbers], source_eos, device)
            limits = [length_limit(len(sources[number]), model.window) for number in numbers]
            first_B1 = torch.full((len(numbers), 1), eos, device=device)
            found = beam_search(model, model.start(source), first_B1, eos=eos, beams=1, max_new_tokens=limits)
            for number, best in zip(numbers, found, strict=True):
                outputs[number] = [token for token in best[0].tokens if token != eos]
    return [outputs[number] for number in range(len(sources))]


def _by_length(rows: Sequence[Sequence[int]], most: int) -> Iterator[list[int]]:
    """The numbers of the rows, in groups of about equal length."""
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    for begin in range(0, len(order), most):
        yield order[begin : begin + most]
