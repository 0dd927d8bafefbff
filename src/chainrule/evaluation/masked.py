"""Evaluation of a masked language model: accuracy on masked words, and the pseudo-perplexity of a text.

Salazar et al., "Masked Language Model Scoring", 2020: every token is masked alone and predicted from all others around
it. The product of these probabilities is not the probability of the text, since each factor has seen the words that the
others predict. So its perplexity is called pseudo, and compares only with others of its kind.

A text is cut into consecutive windows of as many tokens as the model was trained to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainrule.base.devices import device_of
from chainrule.base.modes import evaluating
from chainrule.base.processes import ALONE, Processes
from chainrule.base.progress import Progress
from chainrule.data.batches import Tokens, to_device
from chainrule.data.masks import Draws, MaskedBatches, Masking, batch_of, masked_batch, word_boundaries
from chainrule.errors import DataError
from chainrule.evaluation.measurement import Measurement, format_signature
from chainrule.evaluation.perplexity import perplexity, precise_sum
from chainrule.evaluation.validation_budget import affordable_items
from chainrule.models.bert import Bert
from chainrule.types import Batch

if TYPE_CHECKING:
    from chainrule.data.store import TokenStore
    from chainrule.text.tokenizers import Tokenizer

CHUNK = 512
"""Positions whose whole distributions are held at once."""

BATCH_TOKENS = 4096
"""Tokens read at once."""

TOP = 5
"""A word among this many most probable ones counts in the top-5 accuracy."""

SEED = 0
"""Seed of the masks: the same words are masked for every model with the same tokens and windows."""

MAX_PSEUDO_TOKENS = 8192
"""Tokens that are masked one by one unless more are requested: each of them requires a window to be read."""


def make_masking(
    tokenizer: Tokenizer, *, mask: int | None, first: int | None = None, whole_word: bool = False, **shares: float
) -> Masking:
    """Return how the words of a tokeniser are masked; `shares` are rate, mask_share and random_share."""
    size, special = tokenizer.vocab_size, (tokenizer.eos,) if first is None else (tokenizer.eos, first)
    boundaries = word_boundaries(tokenizer) if whole_word else None
    return Masking(size if mask is None else mask, size, special, boundaries=boundaries, **shares)


# Predictions of masked words


class MaskedSums(NamedTuple):
    """Sums over masked positions: -log p of the true word in nats, and how often it was the best, or in the top 5."""

    nats: float = 0.0
    tokens: int = 0
    correct: int = 0
    in_top: int = 0

    def plus(self, other: MaskedSums) -> MaskedSums:
        """Add the sums over other positions."""
        nats, tokens, correct, in_top = (mine + its for mine, its in zip(self, other, strict=True))
        return MaskedSums(nats, int(tokens), int(correct), int(in_top))


def sum_masked(model: Bert, batches: Iterable[Batch], progress: Progress | None = None, total: int = 0) -> MaskedSums:
    """Let a model predict the masked positions of some batches; `total` tokens are reported to `progress`."""
    sums, read = MaskedSums(), 0
    with evaluating(model):
        for batch in batches:
            sums = sums.plus(_sum_batch(model, to_device(batch, device_of(model))))
            read += batch.inputs_BT.numel()
            if progress:
                progress(read, total)
    return sums


def _sum_batch(model: Bert, batch: Batch) -> MaskedSums:
    assert batch.weights_BT is not None
    hidden_ND, targets_N = model(batch).hidden_BTD.flatten(0, 1), batch.targets_BT[batch.weights_BT > 0]
    sums = MaskedSums()
    for hidden_MD, targets_M in zip(hidden_ND.split(CHUNK), targets_N.split(CHUNK), strict=True):
        log_probs_MV = model.output.log_probs(hidden_MD)
        own_M1, best_MK = log_probs_MV.gather(1, targets_M[:, None]), log_probs_MV.topk(min(TOP, model.vocab_size), 1)
        hit_MK = best_MK.indices == targets_M[:, None]
        sums = sums.plus(
            MaskedSums(-precise_sum(own_M1.cpu().numpy()), len(targets_M), int(hit_MK[:, 0].sum()), int(hit_MK.sum()))
        )
    return sums


def masked_validator(
    batches: MaskedBatches, tokens: int, seconds: float | None, processes: Processes = ALONE
) -> Callable[[Any], dict[str, float]]:
    """Return a validation for training: the same masks every time, at most `tokens` tokens, in about `seconds`.

    The processes share the batches.
    """
    count: int | None = None

    def sum_first(model: Bert, number: int) -> MaskedSums:
        sums = sum_masked(model, (batches.batch(index)[0] for index in processes.own(range(number))))
        return MaskedSums().plus(MaskedSums(*processes.sum(list(map(float, sums)))))  # type: ignore[arg-type]

    def validate(model: Bert) -> dict[str, float]:
        nonlocal count
        if count is None:
            available = max(1, min(batches.per_epoch, tokens // batches.batch(0)[0].targets_BT.numel()))
            count = affordable_items(
                lambda number: sum_first(model, number),
                available,
                least=1,
                seconds=seconds,
                warm_up=1,
                processes=processes,
            )
        sums = sum_first(model, count)
        return {"loss": sums.nats / max(1, sums.tokens), "accuracy": sums.correct / max(1, sums.tokens)}

    return validate


# Masks


def mask_windows(tokens: Tokens, masking: Masking, length: int, first: int | None = None) -> Iterator[Batch]:
    """Yield the windows of a text with some words masked in each, always the same ones."""
    rng = np.random.default_rng(SEED)
    for rows_BT in _windows(tokens, length):
        yield masked_batch(rows_BT, masking, Draws.of(rng, *rows_BT.shape), first)


def _windows(tokens: Tokens, length: int) -> Iterator[Tokens]:
    """The windows of a text, some rows at a time, BT; the rest of the text comes last as a shorter window."""
    whole, rows = len(tokens) // length, max(1, BATCH_TOKENS // length)
    for begin in range(0, whole, rows):
        end = min(begin + rows, whole)
        yield np.asarray(tokens[begin * length : end * length]).reshape(end - begin, length)
    if len(tokens) % length:
        yield np.asarray(tokens[whole * length :])[None]


def mask_one_by_one(
    tokens: Tokens, positions_M: NDArray[np.int64], masking: Masking, length: int, first: int | None = None
) -> Iterator[Batch]:
    """Yield, for each of some positions, its window with only that position masked, some rows at a time."""
    rows, tail = max(1, BATCH_TOKENS // length), len(tokens) // length * length  # where the shorter window begins
    in_tail_M = positions_M >= tail
    for part_M, size in ((positions_M[~in_tail_M], length), (positions_M[in_tail_M], len(tokens) - tail)):
        for begin in range(0, len(part_M), rows):
            positions_B = part_M[begin : begin + rows]
            rows_BT = np.asarray(tokens[(positions_B // length * length)[:, None] + np.arange(size)])
            chosen_BT = np.arange(size) == (positions_B % length)[:, None]
            yield batch_of(rows_BT, np.where(chosen_BT, masking.mask, rows_BT), chosen_BT, first)


def maskable_positions(tokens: Tokens, masking: Masking, most: int | None = None) -> NDArray[np.int64]:
    """Return the positions of a text that can be masked, at most `most` of them, evenly spread -> M."""
    positions_M = np.flatnonzero(~np.isin(tokens, [*masking.special, masking.mask]))
    if most is None or most >= len(positions_M):
        return positions_M
    return positions_M[np.arange(most) * len(positions_M) // most]


# Results


@dataclass(frozen=True)
class MaskedAccuracy(Measurement):
    """How well a model predicts masked words."""

    tokens: int  # of the text
    masked_tokens: int
    masked_cross_entropy: float  # nats per masked token
    masked_accuracy: float
    masked_accuracy_top5: float


@dataclass(frozen=True)
class MaskedValidation(MaskedAccuracy):
    """Results on a validation text."""

    protocol: str


@dataclass(frozen=True)
class MaskedEvaluation(MaskedAccuracy):
    """Results on a text, with its pseudo-perplexity."""

    pseudo_tokens: int  # number of tokens that were masked one by one
    pseudo_cross_entropy: float  # nats per token
    pseudo_perplexity: float
    signature: str
    protocol: str

    @property
    def caution(self) -> str:
        return "pseudo-perplexity does not compare with the perplexity of a language model"


@dataclass(frozen=True)
class MaskedProtocol:
    """How a model is evaluated: which words are masked, the length of a window, and the token before each window."""

    masking: Masking
    length: int
    first: int | None = None

    def __post_init__(self) -> None:
        # Every chosen word becomes the mask: a model would see words that are kept.
        object.__setattr__(self, "masking", replace(self.masking, mask_share=1.0, random_share=0.0))

    @property
    def description(self) -> str:
        """The protocol of the masked accuracy, in words."""
        return f"{self.masking.rate:.0%} of the tokens are masked in windows of {self.length}, always the same ones"


def validate_masked(model: Bert, tokens: Tokens, protocol: MaskedProtocol) -> MaskedValidation:
    """Return how well a model predicts words masked in a text."""
    sums = sum_masked(model, mask_windows(tokens, protocol.masking, protocol.length, protocol.first))
    return MaskedValidation(**_accuracy(len(tokens), sums), protocol=f"{protocol.description}; <eos> is never masked.")


def evaluate_masked(
    model: Bert,
    store: TokenStore,
    tokenizer: Tokenizer,
    protocol: MaskedProtocol,
    *,
    most: int | None = MAX_PSEUDO_TOKENS,
    progress: Progress | None = None,
) -> MaskedEvaluation:
    """Evaluate a model on a tokenised text; at most `most` tokens, evenly spread, are masked one by one (None: all)."""
    tokens, masking, length, first = store.tokens, protocol.masking, protocol.length, protocol.first
    positions_M = maskable_positions(tokens, masking, most)
    total = len(tokens) + len(positions_M) * min(length, len(tokens))
    together = sum_masked(model, mask_windows(tokens, masking, length, first), progress, total)

    def second_pass(done: int, total: int) -> None:
        if progress:
            progress(len(tokens) + done, total)

    alone = sum_masked(model, mask_one_by_one(tokens, positions_M, masking, length, first), second_pass, total)
    accuracy = _accuracy(len(tokens), together)
    mean = alone.nats / alone.tokens
    which = "every token is" if most is None or len(positions_M) < most else f"{most} tokens, evenly spread, are each"
    return MaskedEvaluation(
        **accuracy,
        pseudo_tokens=alone.tokens,
        pseudo_cross_entropy=mean,
        pseudo_perplexity=perplexity(mean),
        signature=_signature(store, tokenizer, protocol),
        protocol=(
            f"masked accuracy: {protocol.description}; pseudo-perplexity: {which} masked alone and predicted from the "
            "rest of the window, which is not a probability of the text and does not compare with the perplexity of a "
            "language model; <eos> is never masked."
        ),
    )


def _accuracy(tokens: int, sums: MaskedSums) -> dict[str, Any]:
    if not sums.tokens:
        raise DataError("the text has no word to mask, so there is nothing to measure; give a text with words.")
    return {
        "tokens": tokens,
        "masked_tokens": sums.tokens,
        "masked_cross_entropy": sums.nats / sums.tokens,
        "masked_accuracy": sums.correct / sums.tokens,
        "masked_accuracy_top5": sums.in_top / sums.tokens,
    }


def _signature(store: TokenStore, tokenizer: Tokenizer, protocol: MaskedProtocol) -> str:
    """What the figures depend on, in one line: equal signatures make comparable figures."""
    return format_signature(
        {
            "tokens": len(store),
            "masks": f"{protocol.masking.rate:g}#{SEED}",
            "words": "tokens" if protocol.masking.boundaries is None else "whole",
            "window": protocol.length,
            "data": store.fingerprint[:8],
            "tokenizer": f"{tokenizer.kind}#{tokenizer.fingerprint[:8]}",
        }
    )
