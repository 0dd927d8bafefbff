"""Every optional capability of a model gives what the plain one gives: prefill, extend, rewind, propose and others.

The cases come from the registries. A capability is tested on every model that has it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from builders import (
    CASES,
    COUNTED_CASES,
    Case,
    case_id,
    one_output,
    rows_by_steps,
    small_model,
    small_translator,
    some_tokens,
)
from chainrule.registry import MODELS
from chainrule.types import Source, SteppingModel

EOS, V, LONG = 0, 13, 17
CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-4}
every_model = pytest.mark.parametrize("case", one_output(CASES), ids=case_id)


def small(case: Case) -> Any:
    model, output, options = case
    return small_model(model, output, **options)


def having(name: str) -> list[str]:
    """The registered models that define an optional capability."""
    plain = getattr(SteppingModel, name)
    return [entry.name for entry in MODELS.entries() if getattr(entry.make, name, plain) is not plain]


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


def with_eos(tokens_BT: Tensor) -> Tensor:
    """What is fed to predict the tokens: `eos` first."""
    return torch.cat([torch.full((len(tokens_BT), 1), EOS), tokens_BT], 1)


# Several tokens at once


@every_model
def test_prefill_is_steps(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(2, LONG)
    rows, fed_BT = rows_by_steps(model, tokens_BT), with_eos(tokens_BT)
    for read, more in ((1, 3), (5, 8), (6, 1), (7, 2), (13, 4)):
        row_BV, state = model.prefill(model.start(2), fed_BT[:, :read])
        torch.testing.assert_close(row_BV, rows[:, read - 1], **CLOSE)
        row_BV, state = model.prefill(state, fed_BT[:, read : read + more])
        torch.testing.assert_close(row_BV, rows[:, read + more - 1], **CLOSE)
        row_BV, _ = model.step(state, fed_BT[:, read + more])
        torch.testing.assert_close(row_BV, rows[:, read + more], **CLOSE)


@every_model
def test_extend_is_steps(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(2, LONG)
    rows, fed_BT = rows_by_steps(model, tokens_BT), with_eos(tokens_BT)
    for read, more in ((1, 1), (1, 12), (4, 3), (6, 7), (14, 3)):
        rows_BTV, state = model.extend(model.start(2), fed_BT[:, :read])
        torch.testing.assert_close(rows_BTV, rows[:, :read], **CLOSE)
        rows_BTV, state = model.extend(state, fed_BT[:, read : read + more])
        torch.testing.assert_close(rows_BTV, rows[:, read : read + more], **CLOSE)
        row_BV, _ = model.step(state, fed_BT[:, read + more])
        torch.testing.assert_close(row_BV, rows[:, read + more], **CLOSE)


# Removing tokens


def can_rewind(case: Case) -> bool:
    model = small(case)
    return model.rewindable(model.start(1)) is not None


REWINDING = [case for case in one_output(CASES) if case[0] in having("rewind") and can_rewind(case)]


@pytest.mark.parametrize("case", REWINDING, ids=case_id)
def test_rewind_is_the_state_before(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(2, LONG)
    rows, fed_BT = rows_by_steps(model, tokens_BT), with_eos(tokens_BT)
    state, wrong_BT = model.start(2), (fed_BT + 3) % V
    for place in range(12):
        room = model.rewindable(state)
        assert room >= 0
        for count in {1, 2, room} & set(range(1, room + 1)):
            kept = count // 2
            guess_BT = torch.cat([fed_BT[:, place : place + kept], wrong_BT[:, : count - kept]], 1)
            _, after = model.extend(state, guess_BT)
            rewound = model.rewind(after, count - kept)
            row_BV, _ = model.step(rewound, fed_BT[:, place + kept])
            torch.testing.assert_close(row_BV, rows[:, place + kept], **CLOSE)
        _, state = model.step(state, fed_BT[:, place])


def test_models_with_a_cache_of_keys_and_values_can_rewind() -> None:
    assert {"transformer", "seq2seq-transformer", "t5"} <= {case[0] for case in REWINDING}


# Drafts


def greedy(model: Any, tokens: list[int], count: int, threshold: float) -> list[int]:
    """The most probable continuation by single steps, while its log p is at least `threshold`."""
    state, total, draft = model.start(1), 0.0, list[int]()
    for token in tokens:
        row_1V, state = model.step(state, torch.tensor([token]))
    while len(draft) < count:
        best = int(row_1V.argmax())
        total += float(row_1V[0, best])
        if total < threshold:
            break
        draft.append(best)
        row_1V, state = model.step(state, torch.tensor([best]))
    return draft


@every_model
def test_propose_is_greedy_within_the_threshold(case: Case) -> None:
    model, tokens = small(case), with_eos(some_tokens(1, 9))
    whole = greedy(model, tokens[0].tolist(), 5, -math.inf)
    for read in (1, 4):
        _, before = model.prefill(model.start(1), tokens[:, :read]) if read > 1 else (None, model.start(1))
        rest_1T = tokens[:, read:] if read > 1 else tokens
        for count, threshold in ((1, -math.inf), (5, -math.inf), (5, -3.0), (5, -1e-9)):
            draft, after = model.propose(before, rest_1T, count, threshold)
            assert draft == greedy(model, tokens[0].tolist(), count, threshold)
            assert draft == whole[: len(draft)]
            row_1V, _ = model.step(after, torch.tensor([5]))  # the state does not contain the draft
            again_1V, _ = model.prefill(model.start(1), torch.cat([tokens, torch.tensor([[5]])], 1))
            torch.testing.assert_close(row_1V, again_1V, **CLOSE)


# Lines


@pytest.mark.parametrize("across_lines", [False, True])
@pytest.mark.parametrize("name", having("line_scorer"))
def test_lines_are_scored_as_by_log_probs(name: str, across_lines: bool) -> None:
    model = small_model(name, across_lines=across_lines)
    lines = [[3, 1, 4, 1, EOS], [EOS], [5, 9, 2, 6, 5, 3, EOS], [5, EOS], [8, 9]]
    for count in range(1, len(lines) + 1):
        tokens_N = np.array([token for line in lines[:count] for token in line])
        log_probs, lengths = model.line_scorer.score_lines(tokens_N)
        assert lengths.tolist() == [len(line) for line in lines[:count]]
        expected = [float(model.log_probs(torch.tensor([line])).double().sum()) for line in lines[:count]]
        np.testing.assert_allclose(log_probs, expected, rtol=1e-5)
        by_token_N = np.concatenate([model.log_probs(torch.tensor([line]))[0].numpy() for line in lines[:count]])
        np.testing.assert_allclose(model.line_scorer.score_tokens(tokens_N), by_token_N, rtol=1e-6)
    empty, none = model.line_scorer.score_lines(np.zeros(0, np.int64))
    assert len(empty) == len(none) == 0


# Depths of contexts


@pytest.mark.parametrize("case", [case for case in COUNTED_CASES if case[0] in having("context_depths")], ids=case_id)
def test_depths_of_a_text_are_those_of_its_states(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(3, LONG)
    counted = model.context_depths
    depths_BT = counted.depths(tokens_BT, model.start(3))
    assert depths_BT.shape == (3, LONG)
    assert 0 <= int(depths_BT.min()) <= int(depths_BT.max()) <= model.config.order - 1
    assert int(depths_BT.max()) > 0
    state = model.start(3)
    for place, token_B in enumerate(with_eos(tokens_BT).unbind(1)):
        _, state = model.step(state, token_B)
        if place < LONG:
            assert counted.depth_rows(state).tolist() == depths_BT[:, place].tolist()
    _, middle = model.score(tokens_BT[:, :6], model.start(3))
    assert torch.equal(counted.depths(tokens_BT[:, 6:], middle), depths_BT[:, 6:])


def test_every_model_that_counts_contexts_is_tested() -> None:
    assert set(having("context_depths")) == {case[0] for case in COUNTED_CASES}


# Vectors of tokens


def text_model(name: str) -> Any:
    """A small model as it is registered."""
    return small_translator(name) if MODELS.get(name).task == "translation" else small_model(name)


@pytest.mark.parametrize("name", having("text_encoder"))
def test_an_encoder_of_texts_gives_one_vector_per_token(name: str) -> None:
    encoder = text_model(name).text_encoder
    tokens_BS, lengths = some_tokens(3, 7), [7, 2, 5]
    mask_BS = torch.arange(7) < torch.tensor(lengths)[:, None]
    vectors_BSD = encoder.encode_text(Source(tokens_BS, mask_BS))
    assert vectors_BSD.shape[:2] == (3, 7)
    for row, length in enumerate(lengths):  # padding and the other rows have no effect
        alone_1SD = encoder.encode_text(Source(tokens_BS[row : row + 1, :length], mask_BS[row : row + 1, :length]))
        torch.testing.assert_close(vectors_BSD[row, :length], alone_1SD[0], **CLOSE)
    layers = encoder.layers(tokens_BS, mask_BS)
    assert layers is None or {layer.shape[:2] for layer in layers} == {(3, 7)}


@pytest.mark.parametrize("name", having("text_encoder"))
def test_an_encoder_of_texts_states_what_it_reads(name: str) -> None:
    model = text_model(name)
    encoder = model.text_encoder
    assert encoder.first is None or 0 <= encoder.first < model.vocab_size
    assert encoder.reads_eos in (False, True)
    longest = encoder.max_tokens or 50
    tokens_1S = some_tokens(1, longest)
    vectors_1SD = encoder.encode_text(Source(tokens_1S, torch.ones_like(tokens_1S, dtype=torch.bool)))
    assert vectors_1SD.shape[1] == longest
    assert vectors_1SD.isfinite().all()


def test_a_model_without_a_capability_declares_that_it_has_none() -> None:
    for name in ("line_scorer", "context_depths", "text_encoder", "word_vectors"):
        for entry in MODELS.entries():
            if entry.name not in having(name):
                assert getattr(text_model(entry.name), name) is None
