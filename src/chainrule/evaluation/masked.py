"""A model that tells hidden words, measured: how often it is right, and its pseudo-likelihood of a text.

Salazar et al., "Masked Language Model Scoring", 2020: every token is hidden by itself and told from all the others
around it. The product of these is no probability of the text, since each factor has seen the words that the others are
about; so its perplexity is called pseudo, and compares with others of its kind alone.

A text is cut into windows of as many tokens as the model was trained to read, one after the other, without overlap.
Legend: B batch, T time, N places, C places of a chunk, V vocabulary, D width, K candidates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.base.devices import device_of
from chainrule.base.modes import evaluating
from chainrule.base.progress import Progress
from chainrule.data.batches import Tokens, to_device
from chainrule.data.masks import Draws, MaskedBatches, Masking, batch_of, masked_batch, word_edges
from chainrule.errors import DataError
from chainrule.evaluation.perplexity import total
from chainrule.evaluation.text import package_version, perplexity_of
from chainrule.types import Batch

if TYPE_CHECKING:
    from chainrule.data.store import TokenStore
    from chainrule.text.tokenizers import Tokenizer

CHUNK = 512
"""Places whose whole distributions are held at once."""

BATCH_TOKENS = 4096
"""Tokens read at once."""

TOP = 5
"""A word among so many first ones counts as nearly right."""

SEED = 0
"""Of the words that are hidden to measure: the same for every model with the same tokens and windows."""

MOST = 8192
"""Tokens that are hidden one by one, unless more are asked for: each of them takes a window to be read."""


def masking_of(
    tokenizer: Tokenizer, *, mask: int | None, first: int | None = None, whole_word: bool = False, **shares: float
) -> Masking:
    """How words of a tokeniser are hidden; `shares` are rate, mask_share and random_share."""
    size, special = tokenizer.vocab_size, (tokenizer.eos,) if first is None else (tokenizer.eos, first)
    edges = word_edges(tokenizer) if whole_word else None
    return Masking(size if mask is None else mask, size, special, edges=edges, **shares)


# Hidden words told


class MaskedSums(NamedTuple):
    """Sums over chosen places: -log p of the true word in nats, and where that was the first, or among the first."""

    nats: float = 0.0
    tokens: int = 0
    right: int = 0
    near: int = 0

    def plus(self, other: MaskedSums) -> MaskedSums:
        nats, tokens, right, near = (mine + its for mine, its in zip(self, other, strict=True))
        return MaskedSums(nats, int(tokens), int(right), int(near))


def masked_figures(model: Any, batches: MaskedBatches, count: int) -> MaskedSums:
    """The chosen places of the first so many batches, told by a model."""
    return tell(model, (batches.batch(index)[0] for index in range(count)))


def masked_validator(batches: MaskedBatches, tokens: int, seconds: float | None) -> Callable[[Any], dict[str, float]]:
    """A measure for the training: the same words hidden every time, of at most so many tokens, in about so long."""
    count: int | None = None

    def validate(model: Any) -> dict[str, float]:
        nonlocal count
        if count is None:
            count = max(1, min(batches.per_epoch, tokens // batches.batch(0)[0].targets_BT.numel()))
            count = count if seconds is None else min(count, _affordable(model, batches, seconds))
        found = masked_figures(model, batches, count)
        return {"loss": found.nats / max(1, found.tokens), "accuracy": found.right / max(1, found.tokens)}

    return validate


def _affordable(model: Any, batches: MaskedBatches, seconds: float) -> int:
    """How many batches can be told in so long: a power of two, so that a run taken up again mostly finds the same."""
    masked_figures(model, batches, 1)  # what is done for the first time takes longer
    began = time.perf_counter()
    masked_figures(model, batches, 1)
    return 1 << int(math.log2(max(1.0, seconds / (time.perf_counter() - began))))


def tell(model: Any, batches: Iterable[Batch], done: Progress | None = None, whole: int = 0) -> MaskedSums:
    """The chosen places of some batches, told by a model; `done` hears how many tokens were read, of how many."""
    sums, read = MaskedSums(), 0
    with evaluating(model):
        for batch in batches:
            sums = sums.plus(_tell(model, to_device(batch, device_of(model))))
            read += batch.inputs_BT.numel()
            if done:
                done(read, whole)
    return sums


def _tell(model: Any, batch: Batch) -> MaskedSums:
    assert batch.weights_BT is not None
    hidden_ND, targets_N = model(batch).hidden_BTD.flatten(0, 1), batch.targets_BT[batch.weights_BT > 0]
    sums = MaskedSums()
    for hidden_CD, targets_C in zip(hidden_ND.split(CHUNK), targets_N.split(CHUNK), strict=True):
        log_probs_CV = model.output.log_probs(hidden_CD)
        own_C1, best_CK = log_probs_CV.gather(1, targets_C[:, None]), log_probs_CV.topk(min(TOP, model.vocab_size), 1)
        hit_CK = best_CK.indices == targets_C[:, None]
        sums = sums.plus(MaskedSums(-total(own_C1), len(targets_C), int(hit_CK[:, 0].sum()), int(hit_CK.sum())))
    return sums


# What is hidden


def hidden_at_once(tokens: Tokens, masking: Masking, length: int, first: int | None = None) -> Iterator[Batch]:
    """The windows of a text with some words hidden in each, always the same ones."""
    rng = np.random.default_rng(SEED)
    for rows_BT in _windows(tokens, length):
        yield masked_batch(rows_BT, masking, Draws.of(rng, *rows_BT.shape), first)


def _windows(tokens: Tokens, length: int) -> Iterator[Tokens]:
    """The windows of a text, some rows of them at a time, BT; what is left over comes last as a shorter one."""
    whole, rows = len(tokens) // length, max(1, BATCH_TOKENS // length)
    for begin in range(0, whole, rows):
        end = min(begin + rows, whole)
        yield np.asarray(tokens[begin * length : end * length]).reshape(end - begin, length)
    if len(tokens) % length:
        yield np.asarray(tokens[whole * length :])[None]


def hidden_one_by_one(
    tokens: Tokens, places_N: NDArray[np.int64], masking: Masking, length: int, first: int | None = None
) -> Iterator[Batch]:
    """For each of some places its window with nothing but that place hidden, some rows at a time."""
    rows, tail = max(1, BATCH_TOKENS // length), len(tokens) // length * length  # where a shorter window begins
    for part_N, size in ((places_N[places_N < tail], length), (places_N[places_N >= tail], len(tokens) - tail)):
        for begin in range(0, len(part_N), rows):
            places_B = part_N[begin : begin + rows]
            rows_BT = np.asarray(tokens[(places_B // length * length)[:, None] + np.arange(size)])
            chosen_BT = np.arange(size) == (places_B % length)[:, None]
            yield batch_of(rows_BT, np.where(chosen_BT, masking.mask, rows_BT), chosen_BT, first)


def words_of(tokens: Tokens, masking: Masking, most: int | None = None) -> NDArray[np.int64]:
    """The places of a text that can be hidden, at most so many, evenly spread -> N."""
    places_N = np.flatnonzero(~np.isin(tokens, [*masking.special, masking.mask]))
    if most is None or most >= len(places_N):
        return places_N
    return places_N[np.arange(most) * len(places_N) // most]


# The measures


@dataclass(frozen=True)
class MaskedAccuracy:
    """How often a model tells words that are hidden from it."""

    tokens: int  # of the text
    masked_tokens: int
    masked_cross_entropy: float  # nats a hidden token
    masked_accuracy: float
    masked_accuracy_top5: float

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class MaskedValidation(MaskedAccuracy):
    """The same, of a validation text."""

    protocol: str


@dataclass(frozen=True)
class MaskedEvaluation(MaskedAccuracy):
    """The same with the pseudo-likelihood of the text."""

    pseudo_tokens: int  # that were hidden one by one
    pseudo_cross_entropy: float  # nats each
    pseudo_perplexity: float
    signature: str
    protocol: str


@dataclass(frozen=True)
class Measure:
    """How a model is measured: which words are hidden, in windows of how many tokens, behind which token."""

    masking: Masking
    length: int
    first: int | None = None

    def __post_init__(self) -> None:
        # What is chosen is hidden, all of it: words that stay would tell themselves.
        object.__setattr__(self, "masking", replace(self.masking, mask_share=1.0, random_share=0.0))

    @property
    def told(self) -> str:
        """In words, as a part of a protocol."""
        return f"{self.masking.rate:.0%} of the tokens are hidden in windows of {self.length}, always the same ones"


def validate_masked(model: Any, tokens: Tokens, measure: Measure) -> MaskedValidation:
    """How often a model tells words hidden in a text."""
    sums = tell(model, hidden_at_once(tokens, measure.masking, measure.length, measure.first))
    return MaskedValidation(**_accuracy(len(tokens), sums), protocol=f"{measure.told}; <eos> is never hidden.")


def evaluate_masked(
    model: Any,
    store: TokenStore,
    tokenizer: Tokenizer,
    measure: Measure,
    *,
    most: int | None = MOST,
    progress: Progress | None = None,
) -> MaskedEvaluation:
    """Measure a model on a tokenised text; at most `most` tokens are hidden one by one, evenly spread."""
    tokens, masking, length, first = store.tokens, measure.masking, measure.length, measure.first
    places_N = words_of(tokens, masking, most)
    whole = len(tokens) + len(places_N) * min(length, len(tokens))
    at_once = tell(model, hidden_at_once(tokens, masking, length, first), progress, whole)

    def after(done: int, of: int) -> None:
        if progress:
            progress(len(tokens) + done, of)

    alone = tell(model, hidden_one_by_one(tokens, places_N, masking, length, first), after, whole)
    accuracy = _accuracy(len(tokens), at_once)
    mean = alone.nats / alone.tokens
    which = "every token is" if most is None or len(places_N) < most else f"{most} tokens, evenly spread, are each"
    return MaskedEvaluation(
        **accuracy,
        pseudo_tokens=alone.tokens,
        pseudo_cross_entropy=mean,
        pseudo_perplexity=perplexity_of(mean),
        signature=_signature(store, tokenizer, measure),
        protocol=(
            f"masked accuracy: {measure.told}; pseudo-perplexity: {which} hidden alone and told from the rest of "
            "the window, which is no probability of the text and does not compare with the perplexity of a language "
            "model; <eos> is never hidden."
        ),
    )


def _accuracy(tokens: int, sums: MaskedSums) -> dict[str, Any]:
    if not sums.tokens:
        raise DataError("the text has no word to hide, so there is nothing to measure; give a text with words.")
    return {
        "tokens": tokens,
        "masked_tokens": sums.tokens,
        "masked_cross_entropy": sums.nats / sums.tokens,
        "masked_accuracy": sums.right / sums.tokens,
        "masked_accuracy_top5": sums.near / sums.tokens,
    }


def _signature(store: TokenStore, tokenizer: Tokenizer, measure: Measure) -> str:
    """What the figures were made of, in one line: equal signatures make comparable figures."""
    fields = {
        "tokens": len(store),
        "masks": f"{measure.masking.rate:g}#{SEED}",
        "words": "tokens" if measure.masking.edges is None else "whole",
        "window": measure.length,
        "data": store.fingerprint[:8],
        "tokenizer": f"{tokenizer.kind}#{tokenizer.fingerprint[:8]}",
        "chainrule": package_version(),
    }
    return "|".join(f"{name}:{value}" for name, value in fields.items())


# What a language model of three words would guess


class Guesses(NamedTuple):
    """The tokens guessed for some places, N each: from the two before them, and from the two on either side."""

    after_N: Tensor
    between_N: Tensor


def guess(model: Any, tokens: Tokens, places_N: NDArray[np.int64], masking: Masking, *, candidates: int) -> Guesses:
    """What a language model that sees two tokens back, such as a trigram, takes to be hidden at some places of a text.

    `after` is the most probable token w after a b; `between` is the one of the `candidates` best of those for which
    p(w | a b) p(c | b w) p(d | w c) is largest. The neighbours a b and c d are the true ones, be they hidden or not.
    """
    edge = np.full(2, model.eos)
    padded = np.concatenate([edge, tokens, edge])
    parts = []
    for places_C in np.split(places_N, range(CHUNK, len(places_N), CHUNK)):
        around_C5 = torch.from_numpy(padded[places_C[:, None] + np.arange(5)].astype(np.int64))
        parts.append(_guess(model, around_C5, masking, min(candidates, model.vocab_size - len(masking.special))))
    after, between = zip(*parts, strict=True)
    return Guesses(torch.cat(after), torch.cat(between))


def _guess(model: Any, around_C5: Tensor, masking: Masking, candidates: int) -> tuple[Tensor, Tensor]:
    """The guesses for the middle one of five tokens, C each."""
    log_probs_CV, state = model.prefill(model.start(len(around_C5)), around_C5[:, :2])
    log_probs_CV[:, list(masking.special)] = -torch.inf  # which are never hidden
    best_CK = log_probs_CV.topk(candidates, 1).indices
    rows_N = torch.arange(len(around_C5)).repeat_interleave(candidates)
    tried_N3 = torch.cat([best_CK.view(-1, 1), around_C5[rows_N, 3:]], 1)
    scores_CK = model.score(tried_N3, model.select(state, rows_N))[0].sum(1).view(best_CK.shape)
    return best_CK[:, 0], best_CK.gather(1, scores_CK.argmax(1, keepdim=True))[:, 0]
