"""The laws of every model that predicts token by token, whatever is inside.

The cases come from the registries, so a new model or output layer is held to the laws by being registered. A translator
is tested here with a fixed source; `test_translator_laws.py` tests what depends on its source. Laws that do not depend
on the output layer are tested with the softmax only.
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
    one_output,
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
from chainrule.types import Vocabulary

EOS, V = 0, 13
LONG = 17  # more than two windows of the small models
CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-4}
every_output = pytest.mark.parametrize("case", CASES, ids=case_id)
every_model = pytest.mark.parametrize("case", one_output(CASES), ids=case_id)
every_text_model = pytest.mark.parametrize("case", one_output(TEXT_CASES), ids=case_id)


def small(case: Case) -> Any:
    model, output, options = case
    return make(model, output, **options)


def entries_of(rows_BTV: Tensor, tokens_BT: Tensor) -> Tensor:
    """The entry of each token in the row before it -> BT."""
    return rows_BTV[:, :-1].gather(2, tokens_BT[:, :, None])[:, :, 0]


@pytest.fixture(autouse=True)
def _no_gradients(request: pytest.FixtureRequest) -> Any:
    with torch.set_grad_enabled("learns" in request.node.name or "training" in request.node.name):
        yield


# 1. Probabilities sum to one


@every_output
def test_1_probabilities_sum_to_one(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(2, LONG)
    rows = rows_by_steps(model, tokens_BT)
    assert rows.shape == (2, LONG + 1, V)
    torch.testing.assert_close(rows.double().exp().sum(2), torch.ones(2, LONG + 1, dtype=torch.float64), **CLOSE)
    # So do those of the parallel scorer, over all possible last tokens of a text.
    endings_VT = torch.cat([tokens_BT[:1].expand(V, -1), torch.arange(V)[:, None]], 1)
    assert float(model.log_probs(endings_VT)[:, -1].double().exp().sum()) == pytest.approx(1, abs=2e-5)


# 2. Causality


@every_model
def test_2_a_later_token_never_changes_an_earlier_probability(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(2, LONG)
    before = model.log_probs(tokens_BT)
    for place in (1, 4, 9, LONG - 1):
        changed_BT = tokens_BT.clone()
        changed_BT[:, place:] = (changed_BT[:, place:] + 1 + some_tokens(2, LONG - place, 1) % (V - 1)) % V
        torch.testing.assert_close(model.log_probs(changed_BT)[:, :place], before[:, :place], **CLOSE)


@every_model
def test_2_an_earlier_token_changes_a_later_probability(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(1, 5)
    changed_BT = tokens_BT.clone()
    changed_BT[:, 3] = (changed_BT[:, 3] + 1) % V
    before_V, after_V = (rows_by_steps(model, rows_BT)[0, 4].exp() for rows_BT in (tokens_BT, changed_BT))
    assert float((before_V - after_V).abs().max()) > 1e-4


# 3. Steps equal parallel scores


@every_output
def test_3_chained_steps_are_log_probs(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(3, LONG)
    stepped_BT = entries_of(rows_by_steps(model, tokens_BT), tokens_BT)
    torch.testing.assert_close(stepped_BT, model.log_probs(tokens_BT), **CLOSE)


@every_text_model
def test_3_scoring_in_unequal_chunks_is_log_probs(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(2, LONG)
    whole_BT = model.log_probs(tokens_BT)
    for sizes in ([1, 4, 2, 7, 3], [5, 1, 1, 10], [9, 8]):
        state, parts = model.start(2), []
        for piece_BT in tokens_BT.split(sizes, 1):
            part_BT, state = model.score(piece_BT, state)
            parts.append(part_BT)
        torch.testing.assert_close(torch.cat(parts, 1), whole_BT, **CLOSE)


@every_text_model
def test_3_steps_continue_after_scored_tokens(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(2, LONG)
    rows = rows_by_steps(model, tokens_BT)
    _, state = model.score(tokens_BT[:, :8], model.start(2))
    row_BV, _ = model.step(state, tokens_BT[:, 8])
    torch.testing.assert_close(row_BV, rows[:, 9], **CLOSE)


@every_model
def test_3_a_state_can_be_stepped_from_repeatedly(case: Case) -> None:
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


# 4. Padding and the other rows of a batch change nothing


@every_model
def test_4_other_rows_of_the_batch_change_nothing(case: Case) -> None:
    model, tokens_BT = small(case), some_tokens(4, LONG)
    alone = torch.cat([model.log_probs(row_1T) for row_1T in tokens_BT.split(1)])
    torch.testing.assert_close(model.log_probs(tokens_BT), alone, **CLOSE)
    rows_alone = torch.cat([rows_by_steps(model, row_1T) for row_1T in tokens_BT.split(1)])
    torch.testing.assert_close(rows_by_steps(model, tokens_BT), rows_alone, **CLOSE)


@every_model
def test_4_padding_on_the_right_changes_nothing(case: Case) -> None:
    model = small(case)
    for length in (1, 5, 11):
        tokens_BT = some_tokens(2, length)
        padded_BT = torch.cat([tokens_BT, torch.full((2, LONG - length), EOS)], 1)
        torch.testing.assert_close(model.log_probs(padded_BT)[:, :length], model.log_probs(tokens_BT), **CLOSE)


# 5. `select` permutes


@every_model
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


@every_text_model
def test_5_select_permutes_scored_prefixes(case: Case) -> None:
    model, tokens_BT, rows_K = small(case), some_tokens(3, LONG), torch.tensor([1, 1, 2])
    _, state = model.score(tokens_BT[:, :8], model.start(3))
    scored, _ = model.score(tokens_BT[rows_K, 8:], model.select(state, rows_K))
    torch.testing.assert_close(scored, model.log_probs(tokens_BT)[rows_K, 8:], **CLOSE)


# 6. Saving and loading


@pytest.mark.parametrize("case", [*TRAINED_CASES, *COUNTED_CASES], ids=case_id)  # mixtures: experiments/test_mixing.py
def test_6_a_loaded_model_gives_identical_numbers(case: Case, tmp_path: Path) -> None:
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
    assert loaded.parameter_count == model.parameter_count


# 7. The same seed gives the same model


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


EVERY_LEARNER: list[Case] = [
    *((model, "softmax", {}) for model in TRAINED),
    *((model, output, {}) for model in ("lstm", "transformer") for output in OUTPUT_LAYERS if output != "softmax"),
]
"""Every model, and every output layer on a model with a carried state and on one with a window."""


@pytest.mark.parametrize("case", EVERY_LEARNER, ids=case_id)
def test_7_training_twice_gives_identical_weights(case: Case, text: Path, tmp_path: Path) -> None:
    model, output, _ = case
    runs = [fitted(text, tmp_path / name, model, output, 3, dropout=0.3) for name in ("one", "other")]
    one, other = (run.read_weights() for run in runs)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


# 8. It learns


def unigram_entropy(tokens: np.ndarray) -> float:
    """Entropy of the token frequencies in nats: no model without context has a lower cross-entropy on the tokens."""
    counts = Counter(tokens.tolist())
    return -sum(n / len(tokens) * math.log(n / len(tokens)) for n in counts.values())


def check_learned(run: RunFolder) -> None:
    """The model of a run is much better than the best model without context."""
    tokenizer = run.read_tokenizer()
    held_out = open_store(text_of(pairs_text(60, seed=9)), tokenizer).tokens
    nats, count = evaluate_tokens(load_model(run, tokenizer), held_out, eos=tokenizer.eos)
    assert nats / count < 0.75 * unigram_entropy(held_out)


@pytest.mark.parametrize(
    "case", [*EVERY_LEARNER, *((model, "softmax", options) for model, options in VARIANTS)], ids=case_id
)
def test_8_it_learns(case: Case, text: Path, tmp_path: Path) -> None:
    name, output, options = case
    check_learned(fitted(text, tmp_path / "run", name, output, 80, **options))


@pytest.mark.parametrize(  # mle gives unseen n-grams no probability
    "case", [case for case in COUNTED_CASES if case[2].get("smoothing") != "mle"], ids=case_id
)
def test_8_it_learns_by_counting(case: Case, text: Path, tmp_path: Path) -> None:
    values = {"data": {"train": [str(text)]}, "tokenizer": {"kind": "char"}, "model": {"name": case[0], **case[2]}}
    check_learned(fit(RunConfig.model_validate(values), tmp_path / "run").folder)


# 9. Search


@every_model
def test_9_a_beam_of_one_is_greedy_search(case: Case) -> None:
    model = small(case)
    for prompt in ([], [3], [5, 1, 7, 2, 2, 9, 4]):
        fed_1T = torch.tensor([[EOS, *prompt]])
        greedy = generate(model, torch.tensor(prompt), eos=EOS, bos=EOS, max_new_tokens=12, choose=Greedy())
        beam = beam_search(model, model.start(1), fed_1T, eos=EOS, beams=1, max_new_tokens=12)
        assert beam[0][0].tokens == greedy[0].tolist()


def exhaustive(model: Any, prompt: list[int], limit: int) -> list[tuple[float, list[int]]]:
    """Every continuation that ends or reaches the limit, with its log p from the parallel scorer, best first."""
    found = []
    for length in range(1, limit + 1):
        all_rows = itertools.product(range(model.vocab_size), repeat=length)
        rows = [row for row in all_rows if EOS not in row[:-1] and (length == limit or row[-1] == EOS)]
        for some_BT in torch.tensor([[*prompt, *row] for row in rows]).split(16):  # a fixed source has 16 rows
            totals_B = model.log_probs(some_BT)[:, len(prompt) :].double().sum(1)
            found += zip(totals_B.tolist(), some_BT[:, len(prompt) :].tolist(), strict=True)
    return sorted(found, reverse=True)


@every_model
def test_9_a_full_beam_is_exhaustive_search(case: Case) -> None:
    name, output, shape = case
    model = make(name, output, some_vocabulary(4), **shape)
    prompt, limit = [2, 1, 3, 3, 1], 3
    best = exhaustive(model, prompt, limit)[:8]
    fed_1T = torch.tensor([[EOS, *prompt]])
    options: dict[str, Any] = {"beams": 64, "length_penalty": 0.0, "num_return_sequences": 8}
    (found,) = beam_search(model, model.start(1), fed_1T, eos=EOS, max_new_tokens=limit, **options)
    assert [one.tokens for one in found] == [tokens for _, tokens in best]
    assert [one.log_prob for one in found] == pytest.approx([log_prob for log_prob, _ in best], abs=1e-4)
