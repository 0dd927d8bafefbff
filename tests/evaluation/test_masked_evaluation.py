"""Pseudo-perplexity and masked accuracy against loops over single tokens, and guesses against enumeration."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builders import counted_model, pairs_text, some_vocabulary, stir
from chainrule.checkpoint.build import build_model
from chainrule.config import RunConfig
from chainrule.data.masks import Masking
from chainrule.data.store import TokenStore, open_store
from chainrule.errors import DataError
from chainrule.evaluation.masked import (
    MaskedProtocol,
    evaluate_masked,
    make_masking,
    mask_windows,
    maskable_positions,
    sum_masked,
    validate_masked,
)
from chainrule.evaluation.masked_baseline import guess
from chainrule.text import text_of, train_tokenizer
from chainrule.text.tokenizers import Tokenizer
from chainrule.types import Vocabulary

LENGTH = 10


def desk(lines: int = 12, **options: Any) -> tuple[Any, TokenStore, Tokenizer]:
    """A small bert whose weights all affect its output, a text, and its tokeniser."""
    tokenizer = train_tokenizer("char", text_of(pairs_text(50)))
    store = open_store(text_of(pairs_text(lines, seed=4)), tokenizer)
    torch.manual_seed(0)
    values = {"model": {"name": "bert", "width": 8, "layers": 1, "heads": 2, "positions": 16, **options}}
    model = build_model(
        RunConfig.model_validate(values), Vocabulary(tokenizer.vocab_size, tokenizer.eos, np.asarray(store.counts_V))
    )
    stir(model)
    return model.eval(), store, tokenizer


def protocol_of(tokenizer: Tokenizer, first: int | None = None, **options: Any) -> MaskedProtocol:
    return MaskedProtocol(make_masking(tokenizer, mask=None, first=first, **options), LENGTH, first)


@torch.no_grad()
def naive_log_prob(model: Any, tokens: list[int], place: int, first: int | None) -> float:
    """log p of one token of a text given the rest of its window."""
    begin = place // LENGTH * LENGTH
    window = tokens[begin : begin + LENGTH]
    window[place - begin] = model.mask
    row_1S = torch.tensor([[*([] if first is None else [first]), *window]])
    logits_V = model.logits(row_1S, torch.ones_like(row_1S, dtype=torch.bool))[0, place - begin + (first is not None)]
    return float(logits_V.double().log_softmax(0)[tokens[place]])


@pytest.mark.parametrize("first", [None, 5])
@pytest.mark.parametrize("most", [None, 17])
def test_pseudo_likelihood_is_one_mask_at_a_time(first: int | None, most: int | None) -> None:
    model, store, tokenizer = desk(first=first)
    tokens = store.tokens.tolist()
    assert len(tokens) % LENGTH, "the last window should be shorter"
    protocol = protocol_of(tokenizer, first)
    found = evaluate_masked(model, store, tokenizer, protocol, most=most)
    places = [place for place, token in enumerate(tokens) if token not in (tokenizer.eos, first)]
    if most:
        places = [places[number * len(places) // most] for number in range(most)]
    nats = -sum(naive_log_prob(model, tokens, place, first) for place in places)
    assert found.pseudo_tokens == len(places)
    assert found.pseudo_cross_entropy == pytest.approx(nats / len(places), rel=1e-5)
    assert found.pseudo_perplexity == pytest.approx(math.exp(nats / len(places)), rel=1e-4)
    assert found.tokens == len(tokens)


@torch.no_grad()
def test_masked_accuracy_counts_where_the_true_word_is_among_the_best() -> None:
    model, store, tokenizer = desk(40)
    protocol = protocol_of(tokenizer, rate=0.3)
    found = validate_masked(model, store.tokens, protocol)
    nats, right, near, count = 0.0, 0, 0, 0
    for batch in mask_windows(store.tokens, protocol.masking, LENGTH):
        assert batch.weights_BT is not None
        logits_BSV = model.logits(batch.inputs_BT, torch.ones_like(batch.inputs_BT, dtype=torch.bool))
        for row, place in (batch.weights_BT > 0).nonzero().tolist():
            assert int(batch.inputs_BT[row, place]) == model.mask  # no target is visible
            target, order = int(batch.targets_BT[row, place]), logits_BSV[row, place].argsort(descending=True).tolist()
            nats -= float(logits_BSV[row, place].log_softmax(0)[target])
            right, near, count = right + (order[0] == target), near + (target in order[:5]), count + 1
    assert 0 < right < near < count
    assert (found.masked_tokens, found.masked_accuracy, found.masked_accuracy_top5) == (
        count,
        right / count,
        near / count,
    )
    assert found.masked_cross_entropy == pytest.approx(nats / count, rel=1e-5)
    assert found.tokens == len(store)


def test_the_same_words_are_masked_every_time_and_all_windows_are_read() -> None:
    _, store, tokenizer = desk(30)
    protocol = protocol_of(tokenizer)
    one, other = ([*mask_windows(store.tokens, protocol.masking, LENGTH)] for _ in range(2))
    assert all(torch.equal(a.inputs_BT, b.inputs_BT) for a, b in zip(one, other, strict=True))
    assert np.array_equal(np.concatenate([batch.targets_BT.numpy().ravel() for batch in one]), store.tokens)


def test_figures_do_not_depend_on_chunk_and_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model, store, tokenizer = desk(20)
    protocol = protocol_of(tokenizer)
    batches = [*mask_windows(store.tokens, protocol.masking, LENGTH)]
    whole = sum_masked(model, batches)
    monkeypatch.setattr("chainrule.evaluation.masked.CHUNK", 3)
    parts = sum_masked(model, batches)
    assert parts[1:] == whole[1:]
    assert parts.nats == pytest.approx(whole.nats, rel=1e-6)
    before = evaluate_masked(model, store, tokenizer, protocol).pseudo_cross_entropy
    monkeypatch.setattr("chainrule.evaluation.masked.BATCH_TOKENS", 1)
    assert evaluate_masked(model, store, tokenizer, protocol).pseudo_cross_entropy == pytest.approx(before, rel=1e-5)


def test_progress_counts_every_token_that_is_read() -> None:
    model, store, tokenizer = desk()
    reports: list[tuple[int, int]] = []
    evaluate_masked(
        model, store, tokenizer, protocol_of(tokenizer), most=9, progress=lambda *numbers: reports.append(numbers)
    )
    assert reports[-1][0] <= reports[-1][1] == len(store) + 9 * LENGTH
    assert reports == sorted(reports)


def test_the_protocol_states_that_it_is_not_a_probability() -> None:
    model, store, tokenizer = desk()
    found = evaluate_masked(model, store, tokenizer, protocol_of(tokenizer), most=20)
    assert found.protocol == (
        "masked accuracy: 15% of the tokens are masked in windows of 10, always the same ones; pseudo-perplexity: 20 "
        "tokens, evenly spread, are each masked alone and predicted from the rest of the window, which is not a "
        "probability of the text and does not compare with the perplexity of a language model; <eos> is never masked."
    )
    assert "every token is masked alone" in evaluate_masked(model, store, tokenizer, protocol_of(tokenizer)).protocol
    values = found.to_dict()
    assert {name for name in values if "perplexity" in name or "entropy" in name} == {
        "pseudo_perplexity",
        "pseudo_cross_entropy",
        "masked_cross_entropy",
    }
    assert "bits_per_byte" not in values
    assert found.signature.startswith(f"tokens:{len(store)}|masks:0.15#0|words:tokens|window:10|data:")


def test_a_text_without_words_is_an_error(tmp_path: Path) -> None:
    model, _, tokenizer = desk()
    with pytest.raises(DataError) as caught:
        evaluate_masked(model, open_store(text_of("\n\n\n"), tokenizer), tokenizer, protocol_of(tokenizer))
    assert str(caught.value) == (
        "the text has no word to mask, so there is nothing to measure; give a text with words."
    )


# Guesses


def test_guesses_are_the_best_of_all_words() -> None:
    vocabulary = some_vocabulary()
    model = counted_model(vocabulary, order=3)
    tokens = np.random.default_rng(2).integers(0, 13, 40)
    masking = Masking(mask=13, vocab_size=13, special=(0,))
    places = maskable_positions(tokens, masking)
    found = guess(model, tokens, places, masking, candidates=13)
    padded = [0, 0, *tokens.tolist(), 0, 0]
    for number, place in enumerate(places.tolist()):
        a, b, _, c, d = padded[place : place + 5]
        row_V, state = model.prefill(model.start(1), torch.tensor([[a, b]]))
        scores = []
        for word in range(1, 13):
            after_V, then = model.step(state, torch.tensor([word]))
            last_V, _ = model.step(then, torch.tensor([c]))
            scores.append(float(row_V[0, word] + after_V[0, c] + last_V[0, d]))
        assert int(found.after_M[number]) == 1 + int(row_V[0, 1:].argmax())
        assert scores[int(found.between_M[number]) - 1] == pytest.approx(max(scores), abs=1e-6)
    few = guess(model, tokens, places, masking, candidates=1)
    assert torch.equal(few.after_M, few.between_M)
