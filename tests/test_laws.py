"""The nine laws that every model keeps with every output layer, whatever is inside.

The names come from the registries, so that a new model or output layer is held to the laws by being registered. A
translator is held to them with a source that is fixed; what it owes to its source is in test_translator_laws.py.
Legend: B batch, T time, V vocabulary, K kept rows, W window.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from builders import (
    CASES,
    COUNTED_CASES,
    OUTPUT_LAYERS,
    TEXT_CASES,
    TRAINED,
    TRAINED_CASES,
    VARIANTS,
    Case,
    case_id,
    pairs_text,
    rows_by_steps,
    small_config,
    small_options,
    some_tokens,
    some_vocabulary,
)
from builders import small_model as make
from chainrule.checkpoint.build import build_model, load_model, save_model
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig
from chainrule.data.store import open_store
from chainrule.decoding import Greedy, beam_search, generate
from chainrule.evaluation.perplexity import evaluate_tokens
from chainrule.text import text_of, train_tokenizer
from chainrule.training.fit import fit
from chainrule.types import Scorer, Stepper, Trainable, Vocabulary

EOS, V = 0, 13
LONG = 17  # more than two windows of the small models
CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-4}
cases = pytest.mark.parametrize("case", CASES, ids=case_id)
text_cases = pytest.mark.parametrize("case", TEXT_CASES, ids=case_id)
WHOLE = ("lstm", "transformer", "seq2seq-attention", "seq2seq-transformer")
searched = pytest.mark.parametrize("case", [c for c in CASES if c[1] == "softmax" or c[0] in WHOLE], ids=case_id)


def small(case: Case) -> Any:
    model, output, options = case
    return make(model, output, **options)


def chosen(rows_BTV: Tensor, tokens_BT: Tensor) -> Tensor:
    """The entries of the tokens in the rows before them -> BT."""
    return rows_BTV[:, :-1].gather(2, tokens_BT[:, :, None])[:, :, 0]


@pytest.fixture(autouse=True)
def _no_gradients(request: pytest.FixtureRequest) -> Any:
    with torch.set_grad_enabled("learns" in request.node.name or "training" in request.node.name):
        yield


@cases
def test_it_keeps_the_protocols(case: Case) -> None:
    model = small(case)
    assert isinstance(model, Scorer)
    assert isinstance(model, Stepper)


@pytest.mark.parametrize("case", TRAINED_CASES, ids=case_id)
def test_it_can_be_trained(case: Case) -> None:
    assert isinstance(small(case), Trainable)


# 1


@cases
def test_1_probabilities_sum_to_one(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(2, LONG)
    rows = rows_by_steps(model, tokens_BT)
    assert rows.shape == (2, LONG + 1, V)
    torch.testing.assert_close(rows.double().exp().sum(2), torch.ones(2, LONG + 1, dtype=torch.float64), **CLOSE)
    # The scorer is as normalised as the stepper: over all ways to end a text, its answers sum to one too.
    endings_VT = torch.cat([tokens_BT[:1].expand(V, -1), torch.arange(V)[:, None]], 1)
    assert float(model.log_probs(endings_VT)[:, -1].double().exp().sum()) == pytest.approx(1, abs=2e-5)


# 2


@cases
def test_2_a_later_token_never_changes_an_earlier_probability(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(2, LONG)
    before = model.log_probs(tokens_BT)
    for place in (1, 4, 9, LONG - 1):
        changed_BT = tokens_BT.clone()
        changed_BT[:, place:] = (changed_BT[:, place:] + 1 + some_tokens(2, LONG - place, 1) % (V - 1)) % V
        torch.testing.assert_close(model.log_probs(changed_BT)[:, :place], before[:, :place], **CLOSE)


@cases
def test_2_an_earlier_token_does_change_a_later_probability(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(1, 5)
    changed_BT = tokens_BT.clone()
    changed_BT[:, 3] = (changed_BT[:, 3] + 1) % V
    before_V, after_V = (rows_by_steps(model, rows_BT)[0, 4].exp() for rows_BT in (tokens_BT, changed_BT))
    assert float((before_V - after_V).abs().max()) > 1e-4


# 3


@cases
def test_3_chained_steps_are_log_probs(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(3, LONG)
    torch.testing.assert_close(chosen(rows_by_steps(model, tokens_BT), tokens_BT), model.log_probs(tokens_BT), **CLOSE)


@text_cases
def test_3_scoring_in_unequal_chunks_is_log_probs(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(2, LONG)
    whole_BT = model.log_probs(tokens_BT)
    for sizes in ([1, 4, 2, 7, 3], [5, 1, 1, 10], [9, 8]):
        state, parts = model.start(2), []
        for piece_BT in tokens_BT.split(sizes, 1):
            part_BT, state = model.score(piece_BT, state)
            parts.append(part_BT)
        torch.testing.assert_close(torch.cat(parts, 1), whole_BT, **CLOSE)


@cases
def test_3_reading_a_prompt_at_once_is_stepping_through_it(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(2, LONG)
    rows = rows_by_steps(model, tokens_BT)
    fed_BT = torch.cat([torch.full((2, 1), EOS), tokens_BT], 1)
    for read, more in ((1, 3), (5, 8), (6, 1), (7, 2), (13, 4)):
        row_BV, state = model.prefill(model.start(2), fed_BT[:, :read])
        torch.testing.assert_close(row_BV, rows[:, read - 1], **CLOSE)
        row_BV, state = model.prefill(state, fed_BT[:, read : read + more])
        torch.testing.assert_close(row_BV, rows[:, read + more - 1], **CLOSE)
        row_BV, state = model.step(state, fed_BT[:, read + more])
        torch.testing.assert_close(row_BV, rows[:, read + more], **CLOSE)


@text_cases
def test_3_steps_go_on_from_what_was_scored(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(2, LONG)
    rows = rows_by_steps(model, tokens_BT)
    _, state = model.score(tokens_BT[:, :8], model.start(2))
    row_BV, _ = model.step(state, tokens_BT[:, 8])
    torch.testing.assert_close(row_BV, rows[:, 9], **CLOSE)


@cases
def test_3_a_state_can_be_stepped_from_again(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(2, LONG)
    state = model.start(2)
    for place, token_B in enumerate(tokens_BT[:, :10].unbind(1)):
        other_B = (token_B + 5) % V
        first, after_one = model.step(state, token_B)
        onward, _ = model.step(after_one, token_B)
        second, after_other = model.step(state, other_B)
        model.step(after_other, other_B)
        assert torch.equal(model.step(state, token_B)[0], first), place
        assert torch.equal(model.step(state, other_B)[0], second), place
        assert torch.equal(model.step(after_one, token_B)[0], onward), place
        assert not torch.equal(first, second)
        state = after_one


# 4


@cases
def test_4_batch_mates_change_nothing(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(4, LONG)
    alone = torch.cat([model.log_probs(row_1T) for row_1T in tokens_BT.split(1)])
    torch.testing.assert_close(model.log_probs(tokens_BT), alone, **CLOSE)
    rows_alone = torch.cat([rows_by_steps(model, row_1T) for row_1T in tokens_BT.split(1)])
    torch.testing.assert_close(rows_by_steps(model, tokens_BT), rows_alone, **CLOSE)


@cases
def test_4_padding_on_the_right_changes_nothing(case: Case) -> None:
    model = small(case)
    for length in (1, 5, 11):
        tokens_BT = some_tokens(2, length)
        padded_BT = torch.cat([tokens_BT, torch.full((2, LONG - length), EOS)], 1)
        torch.testing.assert_close(model.log_probs(padded_BT)[:, :length], model.log_probs(tokens_BT), **CLOSE)


# 5


@cases
def test_5_select_permutes(case: Case) -> None:
    model, tokens_BT, rows_K = small(case), some_tokens(3, LONG), torch.tensor([2, 0, 0, 1])
    whole = rows_by_steps(model, tokens_BT)
    fed_BT = torch.cat([torch.full((3, 1), EOS), tokens_BT], 1)
    state = model.start(3)
    for place in range(9):
        selected = model.select(state, rows_K)
        for later in range(place, place + 2):
            row_KV, selected = model.step(selected, fed_BT[rows_K, later])
            torch.testing.assert_close(row_KV, whole[rows_K, later], **CLOSE)
        _, state = model.step(state, fed_BT[:, place])


@text_cases
def test_5_select_permutes_what_was_scored(case: Case) -> None:
    model, tokens_BT, rows_K = small(case), some_tokens(3, LONG), torch.tensor([1, 1, 2])
    _, state = model.score(tokens_BT[:, :8], model.start(3))
    scored, _ = model.score(tokens_BT[rows_K, 8:], model.select(state, rows_K))
    torch.testing.assert_close(scored, model.log_probs(tokens_BT)[rows_K, 8:], **CLOSE)


# 6


@pytest.mark.parametrize("case", [*TRAINED_CASES, *COUNTED_CASES], ids=case_id)  # mixtures: tests/test_mixing.py
def test_6_what_is_saved_and_loaded_gives_identical_numbers(case: Case, tmp_path: Path) -> None:
    name, output, options = case
    text = text_of(pairs_text(20))
    tokenizer = train_tokenizer("char", text)
    store = open_store(text, tokenizer)
    model = make(name, output, Vocabulary(tokenizer.vocab_size, tokenizer.eos, np.asarray(store.counts_V)), **options)
    folder = RunFolder(tmp_path / "run")
    folder.write_config(small_config(name, output, **options))
    tokenizer.save(folder.path)
    save_model(folder, model)
    loaded: Any = load_model(folder, folder.read_tokenizer())
    tokens_BT = some_tokens(2, LONG) % tokenizer.vocab_size
    assert torch.equal(loaded.log_probs(tokens_BT), model.log_probs(tokens_BT))
    assert torch.equal(rows_by_steps(loaded, tokens_BT), rows_by_steps(model, tokens_BT))
    assert sum(p.numel() for p in loaded.parameters()) == sum(p.numel() for p in model.parameters())


# 7


@pytest.mark.parametrize("case", COUNTED_CASES, ids=case_id)
def test_7_the_same_text_makes_the_same_model(case: Case) -> None:
    for one, other in zip(small(case).table.arrays, small(case).table.arrays, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("case", TRAINED_CASES, ids=case_id)
def test_7_the_same_seed_makes_the_same_model(case: Case) -> None:
    name, output, options = case

    def weights(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        model = build_model(small_config(name, output, **options), some_vocabulary())
        return [p.detach() for p in model.parameters() if p.dim() > 1]

    assert all(map(torch.equal, weights(1), weights(1)))
    assert not any(map(torch.equal, weights(1), weights(2)))


def fitted(
    text: Path, out: Path, model: str, output: str, steps: int, *, lr: float = 0.02, **options: Any
) -> RunFolder:
    """A small model after a short training."""
    wider = {key: value for key, value in small_options(model).items() if key in ("embedding", "hidden")}
    values = {
        "data": {"train": [str(text)], "held_out": 0.2},
        "tokenizer": {"kind": "char"},
        "model": {"name": model, **small_options(model), **{key: 2 * v for key, v in wider.items()}, **options},
        "output": {"name": output},
        "training": {"steps": steps, "batch_size": 16, "length": 6, "optimizer": "adamw", "lr": lr, "validations": 1},
    }
    return fit(RunConfig.model_validate(values), out).folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "pairs.txt"
    path.write_text(pairs_text())
    return path


@pytest.mark.parametrize("output", OUTPUT_LAYERS)
@pytest.mark.parametrize("model", TRAINED)
def test_7_training_twice_gives_identical_weights(model: str, output: str, text: Path, tmp_path: Path) -> None:
    runs = [fitted(text, tmp_path / name, model, output, 3, dropout=0.3) for name in ("one", "other")]
    one, other = (run.read_weights() for run in runs)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


# 8


def unigram_entropy(tokens: np.ndarray) -> float:
    """The entropy of the tokens' own frequencies in nats: no model without context can do better on them."""
    counts = Counter(tokens.tolist())
    return -sum(n / len(tokens) * math.log(n / len(tokens)) for n in counts.values())


LEARNERS: list[Case] = [
    *((model, "softmax", {}) for model in TRAINED),
    *((model, output, {}) for model in ("lstm", "transformer") for output in OUTPUT_LAYERS if output != "softmax"),
    *((model, "softmax", options) for model, options in VARIANTS),
]


@pytest.mark.parametrize("case", LEARNERS, ids=case_id)
def test_8_it_learns(case: Case, text: Path, tmp_path: Path) -> None:
    name, output, options = case
    run = fitted(text, tmp_path / "run", name, output, 80, **options)
    tokenizer = run.read_tokenizer()
    held_out = open_store(text_of(pairs_text(60, seed=9)), tokenizer).tokens
    nats, count = evaluate_tokens(load_model(run, tokenizer), held_out, eos=tokenizer.eos)
    assert nats / count < 0.75 * unigram_entropy(held_out)


@pytest.mark.parametrize(  # for mle what was not seen is impossible
    "case", [case for case in COUNTED_CASES if case[2].get("smoothing") != "mle"], ids=case_id
)
def test_8_it_learns_by_counting(case: Case, text: Path, tmp_path: Path) -> None:
    values = {"data": {"train": [str(text)]}, "tokenizer": {"kind": "char"}, "model": {"name": case[0], **case[2]}}
    run = fit(RunConfig.model_validate(values), tmp_path / "run").folder
    tokenizer = run.read_tokenizer()
    held_out = open_store(text_of(pairs_text(60, seed=9)), tokenizer).tokens
    nats, count = evaluate_tokens(load_model(run, tokenizer), held_out, eos=tokenizer.eos)
    assert nats / count < 0.75 * unigram_entropy(held_out)


# 9


@searched
def test_9_a_beam_of_one_is_greedy_search(case: Case) -> None:
    model = small(case)
    for prompt in ([], [3], [5, 1, 7, 2, 2, 9, 4]):
        fed_1T = torch.tensor([[EOS, *prompt]])
        greedy = generate(model, torch.tensor(prompt), eos=EOS, bos=EOS, max_new_tokens=12, choose=Greedy())
        beam = beam_search(model, model.start(1), fed_1T, eos=EOS, beams=1, max_new_tokens=12)
        assert beam[0][0].tokens == greedy[0].tolist()


def exhaustive(model: Any, prompt: list[int], limit: int) -> list[tuple[float, list[int]]]:
    """Every continuation that ends or reaches the limit, with its log p from the parallel scorer, the best first."""
    found = []
    for length in range(1, limit + 1):
        for tokens in itertools.product(range(model.vocab_size), repeat=length):
            whole = length == limit or tokens[-1] == EOS
            if whole and EOS not in tokens[:-1]:
                log_probs_T = model.log_probs(torch.tensor([[*prompt, *tokens]]))[0, len(prompt) :]
                found.append((float(log_probs_T.double().sum()), list(tokens)))
    return sorted(found, reverse=True)


@searched
def test_9_a_full_beam_is_exhaustive_search(case: Case) -> None:
    name, output, options = case
    model = make(name, output, some_vocabulary(4), **options)
    prompt, limit = [2, 1, 3, 3, 1], 3
    best = exhaustive(model, prompt, limit)[:8]
    fed_1T = torch.tensor([[EOS, *prompt]])
    options = {"beams": 64, "max_new_tokens": limit, "length_penalty": 0.0, "num_return_sequences": 8}
    (found,) = beam_search(model, model.start(1), fed_1T, eos=EOS, **options)
    assert [one.tokens for one in found] == [tokens for _, tokens in best]
    assert [one.log_prob for one in found] == pytest.approx([log_prob for log_prob, _ in best], abs=1e-4)
