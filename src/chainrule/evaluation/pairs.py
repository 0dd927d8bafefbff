"""Evaluation of a translator on pairs: the probability of the references, and the quality of its translations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.base.arrays import Array
from chainrule.base.devices import device_of
from chainrule.base.modes import evaluating
from chainrule.base.processes import ALONE, Processes
from chainrule.data.batches import to_device
from chainrule.data.grouping import by_length, consecutive, map_batches
from chainrule.data.pairs import PairStore, pad_sources, pair_batch
from chainrule.decoding import beam_search
from chainrule.decoding.limits import length_limit
from chainrule.errors import DataError
from chainrule.evaluation.measurement import format_signature
from chainrule.evaluation.perplexity import Likelihood, bits_per_byte, perplexity, precise_sum
from chainrule.evaluation.translation import TranslationScores, measure
from chainrule.models.translator import Translator
from chainrule.text.tokenizers import Tokenizer
from chainrule.types import Batch

CHUNK = 512
"""Positions whose whole distributions are held at once."""

BATCH_TOKENS, BATCH_ROWS = 4096, 64
"""Limits of a batch of references: rows times the longest row, and rows."""


def mean_loss(model: Translator, batches: Iterable[Batch], processes: Processes = ALONE) -> float:
    """Return -log p of the targets in nats per token, the `eos` of each row included.

    Several processes may have some of the batches each.
    """
    nats, count = 0.0, 0
    device = device_of(model)
    with evaluating(model):
        for batch in batches:
            batch = to_device(batch, device)
            assert batch.source is not None
            log_probs_BT = model.log_probs(batch.targets_BT, batch.source)
            kept = log_probs_BT if batch.weights_BT is None else log_probs_BT[batch.weights_BT > 0]
            nats, count = nats - precise_sum(kept.flatten().cpu().numpy()), count + kept.numel()
    nats, total = processes.sum([nats, float(count)])
    return nats / total


@dataclass(frozen=True)
class PairEvaluation(TranslationScores):
    """Results of a translator on pairs: scores of its translations, and the probability of the references."""

    tokens: int
    oov: int  # words or characters of the references that are not in the vocabulary
    bytes: int  # of the references
    cross_entropy: float  # nats per reference token
    perplexity: float
    perplexity_without_oov: float
    bits_per_byte: float
    token_accuracy: float  # share of reference tokens that are the most probable one, given those before
    signature: str
    protocol: str


def evaluate_pairs(
    model: Translator,
    store: PairStore,
    tokenizer: Tokenizer,
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    bleu_tokenizer: str | None = None,
    decoded_by: str,
) -> PairEvaluation:
    """Score translations of the sources of a store, and the model on its targets.

    `decoded_by` describes, for the protocol, how the translations were found.
    """
    scores = measure(outputs, references, lowercase=lowercase, tokenizer=bleu_tokenizer)
    target, unscored_M = store.target, too_long(model, store)
    if model.window is not None and len(unscored_M) == len(store):
        raise DataError(
            f"every reference is longer than the {model.window - 1} tokens that the model can write; give shorter "
            "pairs, or train with a larger model.context"
        )
    forced = score_targets(model, store, tokenizer.unk if target.oov else None)
    scored_bytes = target.bytes - sum(len(references[0][index].encode()) + 1 for index in unscored_M.tolist())
    unscored = f" ({len(unscored_M)} references are longer than the model can write and are not scored)"
    return PairEvaluation(
        **asdict(scores),
        tokens=forced.every.tokens,
        oov=target.oov,
        bytes=scored_bytes,
        cross_entropy=forced.every.cross_entropy,
        perplexity=perplexity(forced.every.cross_entropy),
        perplexity_without_oov=perplexity(forced.known.cross_entropy),
        bits_per_byte=bits_per_byte(forced.every.nats, target.residue_bits, scored_bytes),
        token_accuracy=forced.correct / forced.every.tokens,
        signature=pair_signature(store, tokenizer),
        protocol=(
            f"{len(store)} sources translated by {decoded_by}; {forced.every.tokens} reference tokens, including the "
            "<eos> of each line, scored given the source and the tokens before"
            f"{unscored if len(unscored_M) else ''}; bits per byte is that of the references."
        ),
    )


class TargetScores(NamedTuple):
    """Sums over the target tokens of pairs (forced decoding)."""

    every: Likelihood
    known: Likelihood  # without <unk>
    correct: int  # tokens that are the most probable one


def too_long(model: Translator, store: PairStore) -> NDArray[np.int64]:
    """Return the indices of the pairs whose targets are longer than the model can write -> M."""
    longest = np.inf if model.window is None else model.window - 1  # one token is `eos`
    return np.flatnonzero(store.target_rows.lengths_P > longest)


def score_targets(model: Translator, store: PairStore, unk: int | None) -> TargetScores:
    """Score the targets of all pairs that the model can write; sources are cut to its window."""
    sums = np.zeros(5)
    with evaluating(model):
        for batch in _ordered_batches(model, store):
            log_probs_N, targets_N, correct_N = _score_batch(model, batch)
            known_N = torch.ones_like(correct_N) if unk is None else targets_N != unk
            sums += [
                -precise_sum(log_probs_N.cpu().numpy()),
                len(targets_N),
                -precise_sum(log_probs_N[known_N].cpu().numpy()),
                int(known_N.sum()),
                int(correct_N.sum()),
            ]
    nats, tokens, known_nats, known, correct = sums.tolist()
    return TargetScores(Likelihood(nats, int(tokens)), Likelihood(known_nats, int(known)), int(correct))


def _score_batch(model: Translator, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """log p of the targets without padding, the targets, and whether each is the most probable token -> N each."""
    parts = [
        (log_probs_MV.gather(1, targets_M[:, None])[:, 0], targets_M, log_probs_MV.argmax(1) == targets_M)
        for log_probs_MV, targets_M in _distributions(model, batch)
    ]
    log_probs, targets, correct = zip(*parts, strict=True)
    return torch.cat(log_probs), torch.cat(targets), torch.cat(correct)


def _distributions(model: Translator, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """The distributions before the targets without padding, some at a time, and the targets -> MV, M."""
    assert batch.weights_BT is not None
    kept_BT = batch.weights_BT > 0
    hidden_ND, targets_N = model(batch).hidden_BTD[kept_BT], batch.targets_BT[kept_BT]
    for hidden_MD, targets_M in zip(hidden_ND.split(CHUNK), targets_N.split(CHUNK), strict=True):
        yield model.output.log_probs(hidden_MD), targets_M


def target_distributions(model: Translator, store: PairStore, most: int) -> Iterator[tuple[Array, Array]]:
    """The probabilities before about the first `most` target tokens of pairs, and the tokens -> MV, M."""
    done = 0
    with evaluating(model):
        for batch in _ordered_batches(model, store):
            for log_probs_MV, targets_M in _distributions(model, batch):
                yield log_probs_MV.double().exp().cpu().numpy(), targets_M.cpu().numpy()
                done += len(targets_M)
            if done >= most:
                return


def score_rows(model: Translator, store: PairStore) -> Iterator[tuple[list[int], list[float]]]:
    """Yield the target tokens of each pair, `eos` included, with log p of each, in order."""
    for batch in _ordered_batches(model, store):
        assert batch.weights_BT is not None
        assert batch.source is not None
        with evaluating(model):  # not around the yield: the caller's mode applies between rows
            log_probs_BT = model.log_probs(batch.targets_BT, batch.source).cpu().double()
        for targets_T, log_probs_T, weights_T in zip(batch.targets_BT, log_probs_BT, batch.weights_BT, strict=True):
            length = int(weights_T.sum())
            yield targets_T[:length].tolist(), log_probs_T[:length].tolist()


def _ordered_batches(model: Translator, store: PairStore) -> Iterator[Batch]:
    """The pairs that the model can write, in order, in batches of limited size."""
    lengths_P = np.maximum(store.source_rows.lengths_P, store.target_rows.lengths_P) + 1
    indices_M = np.delete(np.arange(len(store)), too_long(model, store))
    for part in consecutive(lengths_P[indices_M], max_tokens=BATCH_TOKENS, max_rows=BATCH_ROWS):
        yield to_device(pair_batch(store, indices_M[part], model.window), device_of(model))


def pair_signature(store: PairStore, tokenizer: Tokenizer) -> str:
    """Return what an evaluation on pairs depends on, in one line."""
    return format_signature(
        {
            "data": f"{store.source.fingerprint[:8]}+{store.target.fingerprint[:8]}",
            "tokenizer": f"{tokenizer.kind}#{tokenizer.fingerprint[:8]}",
        }
    )


def translate_greedily(
    model: Translator, sources: Sequence[Sequence[int]], *, source_eos: int, eos: int, rows: int = 64
) -> list[list[int]]:
    """Return the greedy translations of token rows, without `eos`, in the order given."""
    device = device_of(model)

    def translate(batch: list[int]) -> Iterator[list[int]]:
        source = pad_sources([sources[index] for index in batch], source_eos, device)
        limits = [length_limit(len(sources[index]), model.window) for index in batch]
        first_B1 = torch.full((len(batch), 1), eos, device=device)
        for best, *_ in beam_search(model, model.start(source), first_B1, eos=eos, beams=1, max_new_tokens=limits):
            yield [token for token in best.tokens if token != eos]

    with evaluating(model):
        batches = by_length([len(row) for row in sources], max_rows=rows, longest_first=False)
        return map_batches(batches, translate, model)
