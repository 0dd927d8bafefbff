"""A mixture keeps the laws of a language model whatever its parts are, and its fitted weights are optimal."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from builders import rows_by_steps, small_model, some_tokens, some_vocabulary
from chainrule.checkpoint.build import adjust
from chainrule.engines.decode.recurrent import RecurrentState
from chainrule.errors import ConfigError
from chainrule.evaluation.perplexity import evaluate_tokens
from chainrule.experiments.mix_temperature import fit_temperature
from chainrule.models.adaptive_cache import ContinuousCacheConfig, UnigramCacheConfig
from chainrule.models.context_buckets import CountBuckets
from chainrule.models.mixture import Mixture, MixtureConfig
from chainrule.models.mixture_weights import MIN_BUCKET_TOKENS, em_step, fit_weights
from chainrule.types import Scorer, State, Stepper, SteppingModel
from toy import PrefillingTable, TableModel

EOS, V, LONG = 0, 13, 17
CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-4}
BOTH = (UnigramCacheConfig(decay=0.8), ContinuousCacheConfig(part=0, theta=0.05, window=5))


class Table(SteppingModel, nn.Module):
    """A model without parameters: a `TableModel` as a module, which reads a prompt token by token."""

    def __init__(self, table: TableModel) -> None:
        super().__init__()
        self._table = table

    def start(self, batch: int) -> State:
        return self._table.start(batch)

    def step(self, state: State, token_B: Tensor) -> tuple[Tensor, State]:
        return self._table.step(state, token_B)

    def score(self, tokens_BT: Tensor, state: State) -> tuple[Tensor, State]:
        return self._table.score(tokens_BT, state)


class PrefilledTable(Table):
    """The same, which reads a prompt in one call."""

    def prefill(self, state: State, tokens_BT: Tensor) -> tuple[Tensor, State]:
        return self._table.prefill(state, tokens_BT)


class Known(NamedTuple):
    """The state of a table, with the newest token beside it."""

    hash_B: Tensor
    pending_B: Tensor | None
    newest_B: Tensor


class Counts(Table):
    """A table that counts contexts: the depth of one is half its last token if that is even, else 0."""

    @property
    def context_depths(self) -> Counts:
        return self

    def step(self, state: State, token_B: Tensor) -> tuple[Tensor, Known]:
        row_BV, after = self._table.step(state, token_B)
        return row_BV, Known(*after, token_B)

    def depths(self, tokens_BT: Tensor, state: State) -> Tensor:
        before_B = torch.full_like(tokens_BT[:, 0], EOS) if state.pending_B is None else state.pending_B
        return _depth(torch.cat([before_B[:, None], tokens_BT[:, :-1]], 1))

    def depth_rows(self, state: Known) -> Tensor:
        return _depth(state.newest_B)


def _depth(token: Tensor) -> Tensor:
    return torch.where(token % 2 == 0, token // 2, 0)


def mixture(
    *parts: Any,
    caches: tuple[Any, ...] = (),
    buckets: bool = False,
    temperature: float = 1.0,
    vocabulary: Any = None,
    seed: int = 0,
) -> Mixture:
    """A mixture with weights that differ between components and buckets."""
    config = MixtureConfig(parts=len(parts), caches=caches, buckets=buckets, temperature=temperature)
    vocabulary = vocabulary or some_vocabulary()
    empty = Mixture(config, vocabulary, parts)
    raw_ZE = torch.rand(empty.weights.shape, generator=torch.Generator().manual_seed(seed)) + 0.1
    return Mixture(config, vocabulary, parts, raw_ZE / raw_ZE.sum(1, keepdim=True)).eval()


def nested() -> Mixture:
    inner = mixture(small_model("lstm"), small_model("average"), caches=(UnigramCacheConfig(decay=0.5),))
    return mixture(inner, small_model("feedforward"), caches=(UnigramCacheConfig(decay=0.9),), buckets=True)


CASES: dict[str, Any] = {
    "two": lambda: mixture(small_model("lstm"), small_model("transformer")),
    "unigram": lambda: mixture(small_model("gru"), caches=BOTH[:1]),
    "continuous": lambda: mixture(small_model("lstm", hidden=12), caches=BOTH[1:]),
    "packed": lambda: mixture(small_model("hybrid-lm", gamma=0.3), caches=BOTH[1:]),
    "windowed": lambda: mixture(small_model("transformer"), caches=BOTH),
    "buckets": lambda: mixture(small_model("lstm"), small_model("average"), caches=BOTH, buckets=True),
    "depths": lambda: mixture(small_model("lstm"), Counts(TableModel(V)), caches=BOTH, buckets=True),
    "tables": lambda: mixture(Table(TableModel(V)), Table(TableModel(V, seed=2)), caches=BOTH[:1]),
    "second": lambda: mixture(
        PrefilledTable(PrefillingTable(V)),
        small_model("sr"),
        caches=(ContinuousCacheConfig(part=1, theta=0.1, window=50),),
    ),
    "nested": nested,
    "sharper": lambda: mixture(small_model("lstm"), small_model("transformer"), caches=BOTH, temperature=0.6),
    "flatter": lambda: mixture(small_model("lstm"), Counts(TableModel(V)), caches=BOTH, buckets=True, temperature=1.7),
    "tempered part": lambda: mixture(
        mixture(small_model("lstm"), small_model("average"), caches=BOTH[:1], temperature=0.5),
        small_model("hybrid-lm", gamma=0.3),
        caches=(ContinuousCacheConfig(part=1, theta=0.05, window=5),),
        temperature=0.8,
    ),
}
cases = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


# The laws


@cases
def test_it_sums_to_one_and_steps_are_scores(name: str) -> None:
    model, tokens_BT = CASES[name](), some_tokens(3, LONG)
    assert isinstance(model, Scorer)
    assert isinstance(model, Stepper)
    rows_BTV = rows_by_steps(model, tokens_BT)
    torch.testing.assert_close(rows_BTV.exp().sum(2), torch.ones(3, LONG + 1), **CLOSE)
    stepped_BT = rows_BTV[:, :-1].gather(2, tokens_BT[:, :, None])[:, :, 0]
    torch.testing.assert_close(model.log_probs(tokens_BT), stepped_BT, **CLOSE)


@cases
def test_a_later_token_never_changes_an_earlier_probability(name: str) -> None:
    model, tokens_BT = CASES[name](), some_tokens(2, LONG)
    before = model.log_probs(tokens_BT)
    for place in (1, 4, 9, LONG - 1):
        changed_BT = tokens_BT.clone()
        changed_BT[:, place:] = (changed_BT[:, place:] + 1 + some_tokens(2, LONG - place, 1) % (V - 1)) % V
        torch.testing.assert_close(model.log_probs(changed_BT)[:, :place], before[:, :place], **CLOSE)


@cases
def test_scoring_in_chunks_and_then_stepping_is_scoring_at_once(name: str) -> None:
    model, tokens_BT = CASES[name](), some_tokens(2, LONG)
    whole_BT, rows_BTV = model.log_probs(tokens_BT), rows_by_steps(model, tokens_BT)
    for sizes in ([1, 4, 2, 7, 3], [9, 8]):
        state, pieces = model.start(2), []
        for piece_BT in tokens_BT.split(sizes, 1):
            piece, state = model.score(piece_BT, state)
            pieces.append(piece)
        torch.testing.assert_close(torch.cat(pieces, 1), whole_BT, **CLOSE)
    _, state = model.score(tokens_BT[:, :8], model.start(2))
    for place in (8, 9, 10):
        row_BV, state = model.step(state, tokens_BT[:, place])
        torch.testing.assert_close(row_BV, rows_BTV[:, place + 1], **CLOSE)


@cases
def test_a_prompt_at_once_is_a_prompt_in_steps(name: str) -> None:
    model, tokens_BT = CASES[name](), some_tokens(2, LONG)
    rows_BTV = rows_by_steps(model, tokens_BT)
    fed_BT = torch.cat([torch.full((2, 1), EOS), tokens_BT], 1)
    for read, more in ((1, 3), (5, 8), (13, 4)):
        row_BV, state = model.prefill(model.start(2), fed_BT[:, :read])
        torch.testing.assert_close(row_BV, rows_BTV[:, read - 1], **CLOSE)
        row_BV, state = model.prefill(state, fed_BT[:, read : read + more])
        torch.testing.assert_close(row_BV, rows_BTV[:, read + more - 1], **CLOSE)
    _, state = model.score(tokens_BT[:, :6], model.start(2))
    row_BV, _ = model.prefill(state, tokens_BT[:, 6:11])
    torch.testing.assert_close(row_BV, rows_BTV[:, 11], **CLOSE)


@cases
def test_all_tokens_at_once_are_steps(name: str) -> None:
    model, tokens_BT = CASES[name](), some_tokens(2, LONG)
    rows_BTV = rows_by_steps(model, tokens_BT)
    fed_BT = torch.cat([torch.full((2, 1), EOS), tokens_BT], 1)
    for read, more in ((1, 3), (5, 8), (13, 4)):
        found_BTV, state = model.extend(model.start(2), fed_BT[:, :read])
        torch.testing.assert_close(found_BTV, rows_BTV[:, :read], **CLOSE)
        found_BTV, state = model.extend(state, fed_BT[:, read : read + more])
        torch.testing.assert_close(found_BTV, rows_BTV[:, read : read + more], **CLOSE)
        torch.testing.assert_close(model.step(state, fed_BT[:, read + more])[0], rows_BTV[:, read + more], **CLOSE)
    _, state = model.score(tokens_BT[:, :6], model.start(2))
    found_BTV, _ = model.extend(state, tokens_BT[:, 6:11])
    torch.testing.assert_close(found_BTV, rows_BTV[:, 7:12], **CLOSE)


@cases
def test_a_state_can_be_used_again(name: str) -> None:
    model, tokens_BT = CASES[name](), some_tokens(2, LONG)
    state = model.start(2)
    for token_B in tokens_BT[:, :9].unbind(1):
        other_B = (token_B + 5) % V
        first, after = model.step(state, token_B)
        _, elsewhere = model.step(state, other_B)
        model.step(elsewhere, other_B)
        assert torch.equal(model.step(state, token_B)[0], first)
        state = after
    _, state = model.score(tokens_BT[:, :6], model.start(2))
    first, _ = model.score(tokens_BT[:, 6:], state)
    assert torch.equal(model.score(tokens_BT[:, 6:], state)[0], first)


@cases
def test_batch_mates_and_padding_change_nothing(name: str) -> None:
    model, tokens_BT = CASES[name](), some_tokens(4, LONG)
    alone = torch.cat([model.log_probs(row_1T) for row_1T in tokens_BT.split(1)])
    torch.testing.assert_close(model.log_probs(tokens_BT), alone, **CLOSE)
    padded_BT = torch.cat([tokens_BT[:, :5], torch.full((4, LONG - 5), EOS)], 1)
    torch.testing.assert_close(model.log_probs(padded_BT)[:, :5], alone[:, :5], **CLOSE)


@cases
def test_select_permutes(name: str) -> None:
    model, tokens_BT, rows_K = CASES[name](), some_tokens(3, LONG), torch.tensor([2, 0, 0, 1])
    whole_BTV = rows_by_steps(model, tokens_BT)
    fed_BT = torch.cat([torch.full((3, 1), EOS), tokens_BT], 1)
    state = model.start(3)
    for place in range(9):
        selected = model.select(state, rows_K)
        for later in range(place, place + 2):
            row_KV, selected = model.step(selected, fed_BT[rows_K, later])
            torch.testing.assert_close(row_KV, whole_BTV[rows_K, later], **CLOSE)
        _, state = model.step(state, fed_BT[:, place])
    _, state = model.score(tokens_BT[:, :8], model.start(3))
    scored, _ = model.score(tokens_BT[rows_K, 8:], model.select(state, rows_K))
    torch.testing.assert_close(scored, model.log_probs(tokens_BT)[rows_K, 8:], **CLOSE)


# Temperature


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_a_temperature_is_a_power_of_the_mixed_probabilities(temperature: float) -> None:
    """Each probability by its formula, from the rows of the parts and a cache that counts by hand."""
    parts = [small_model("lstm"), small_model("average")]
    model = mixture(*parts, caches=(UnigramCacheConfig(decay=0.5),), temperature=temperature)
    tokens_BT = some_tokens(2, 6)
    rows = [rows_by_steps(part, tokens_BT).exp().double().numpy() for part in parts]
    weights = model.weights[0].double().numpy()
    scored = model.log_probs(tokens_BT).exp().numpy()
    for b, t in itertools.product(range(2), range(6)):
        past = [int(token) for token in tokens_BT[b, :t]]
        ages = [0.5 ** (t - 1 - i) for i in range(t)]
        cache = [
            sum(a for a, x in zip(ages, past, strict=True) if x == v) / sum(ages) if t else 1 / V for v in range(V)
        ]
        mixed = [
            sum(w * p for w, p in zip(weights, (rows[0][b, t, v], rows[1][b, t, v], cache[v]), strict=True))
            for v in range(V)
        ]
        powers = [value ** (1 / temperature) for value in mixed]
        assert scored[b, t] == pytest.approx(powers[int(tokens_BT[b, t])] / sum(powers), rel=1e-4)


def test_a_temperature_of_one_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole distributions are not computed, and the numbers are those of the weighted sum, bit for bit."""
    model, tokens_BT = mixture(small_model("lstm"), small_model("average"), caches=BOTH), some_tokens(2, LONG)
    monkeypatch.setattr(model, "extend", None)
    components_KBT, _ = model.score_components(tokens_BT, model.start(2))
    expected_BT = torch.logsumexp(components_KBT + model.weights[0].log()[:, None, None], 0)
    assert torch.equal(model.log_probs(tokens_BT), expected_BT)


def test_scoring_with_a_temperature_bounds_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens_BT = CASES["sharper"](), some_tokens(2, LONG)
    whole_BT, sizes = model.log_probs(tokens_BT), []
    extend = model.extend
    monkeypatch.setattr("chainrule.models.mixture.SCORED_VALUES", 3 * 2 * V)
    monkeypatch.setattr(model, "extend", lambda state, BT: sizes.append(BT.shape[1]) or extend(state, BT))
    torch.testing.assert_close(model.log_probs(tokens_BT), whole_BT, **CLOSE)
    assert sizes == [3, 3, 3, 3, 3, 2]


@pytest.mark.parametrize("name", ["sharper", "flatter", "two", "unigram"])
def test_the_fitted_temperature_is_the_best_of_a_fine_grid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chainrule.evaluation.tracks.TOKENS_PER_TRACK", 50)
    monkeypatch.setattr("chainrule.models.mixture.SCORED_VALUES", 7 * V)
    model = CASES[name]()
    tokens_N = np.random.default_rng(0).integers(0, V, (120, 3)).min(1)
    found = fit_temperature(model, tokens_N)

    def loss(temperature: float) -> float:
        adjust(model, {"temperature": temperature})
        return evaluate_tokens(model, tokens_N, eos=EOS).cross_entropy

    own = model.config.temperature
    losses = {round(0.2 * 1.05**step, 4): loss(0.2 * 1.05**step) for step in range(66)}
    assert found.nats_before == pytest.approx(loss(own), rel=1e-5)
    assert found.nats == pytest.approx(loss(found.temperature), rel=1e-5)
    assert found.nats <= min(losses.values()) + 1e-5
    assert 0.2 < found.temperature <= 5
    assert found.passes <= 8


# Components


def test_it_is_the_weighted_sum_of_its_components() -> None:
    parts = [small_model("lstm"), small_model("average")]
    model, tokens_BT = mixture(*parts, caches=BOTH, buckets=True), some_tokens(2, LONG)
    experts_KBT, _ = model.score_components(tokens_BT, model.start(2))
    for part, answer_BT in zip(parts, experts_KBT, strict=False):
        torch.testing.assert_close(answer_BT, part.log_probs(tokens_BT), **CLOSE)
    counts = some_vocabulary().counts_V
    scored_BT = model.log_probs(tokens_BT)
    for b, t in itertools.product(range(2), range(LONG)):
        previous = int(tokens_BT[b, t - 1]) if t else EOS
        bucket = min(11, int(np.floor(np.log2(1 + counts[previous]))))
        expected = float(model.weights[bucket] @ experts_KBT[:, b, t].exp())
        assert float(scored_BT[b, t].exp()) == pytest.approx(expected, rel=1e-4)


def test_the_eos_before_a_text_is_not_counted_and_the_others_are() -> None:
    cache = (UnigramCacheConfig(decay=1.0),)
    tokens_BT = torch.tensor([[3, EOS, 3, 5]])
    model = mixture(small_model("lstm"), caches=cache)
    experts_KBT, _ = model.score_components(tokens_BT, model.start(1))
    torch.testing.assert_close(experts_KBT[1, 0].exp(), torch.tensor([1 / V, 0, 1 / 2, 0]))


def test_the_network_reads_once_for_itself_and_its_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    part, calls = small_model("lstm"), []
    run = RecurrentState._run
    monkeypatch.setattr(RecurrentState, "_run", lambda *given: calls.append(1) or run(*given))
    caches = tuple(ContinuousCacheConfig(part=0, theta=theta) for theta in (0.1, 0.2, 0.3))
    model, tokens_BT = mixture(part, caches=caches), some_tokens(2, LONG)
    model.log_probs(tokens_BT)
    assert len(calls) == 1
    model.step(model.start(2), tokens_BT[:, 0])
    assert len(calls) == 2


def test_impossible_words_of_a_component_give_no_nan() -> None:
    model, tokens_BT = mixture(small_model("lstm"), caches=(UnigramCacheConfig(decay=0.5),)), some_tokens(1, 4)
    only_cache = Mixture(model.config, some_vocabulary(), list(model.parts), torch.tensor([[0.0, 1.0]]))
    rows_BTV = rows_by_steps(only_cache, tokens_BT)
    assert not rows_BTV.isnan().any()
    assert rows_BTV[0, 1].isinf().sum() == V - 1  # after one word the cache has only that word
    only_part = Mixture(model.config, some_vocabulary(), list(model.parts), torch.tensor([[1.0, 0.0]]))
    torch.testing.assert_close(only_part.log_probs(tokens_BT), model.parts[0].log_probs(tokens_BT), **CLOSE)


def test_a_text_is_read_in_one_track_if_a_cache_adapts() -> None:
    static = mixture(small_model("lstm"), small_model("gru"))
    dynamic = mixture(small_model("lstm"), caches=BOTH)
    assert (static.tracks, dynamic.tracks, mixture(static).tracks, mixture(dynamic).tracks) == (None, 1, None, 1)


def test_the_depth_of_counts_is_the_bucket() -> None:
    model = mixture(small_model("lstm"), Counts(TableModel(V)), buckets=True)
    tokens_BT = torch.tensor([[4, 7, 12, 1]])
    assert model.find_buckets(tokens_BT, model.start(1)).tolist() == [[0, 2, 0, 6]]


def test_counts_are_bucketed_by_their_logarithm() -> None:
    counts = [0, 1, 2, 3, 6, 7, 1023, 2046, 2047, 5000, 10**12]
    expected = [min(11, (1 + count).bit_length() - 1) for count in counts]
    assert CountBuckets(torch.tensor(counts)).bucket_V.tolist() == expected


@pytest.mark.parametrize("part", [1, 2])
def test_a_continuous_cache_needs_a_network(part: int) -> None:
    with pytest.raises(ConfigError) as caught:
        mixture(small_model("lstm"), Table(TableModel(V)), caches=(ContinuousCacheConfig(part=part),))
    assert str(caught.value) == (
        f"a continuous cache compares the features of a network, but part {part} has none; "
        "give it the number of a neural model"
    )


def test_weights_of_another_mixture_are_refused() -> None:
    config = MixtureConfig(parts=1, caches=BOTH)
    with pytest.raises(ConfigError) as caught:
        Mixture(config, some_vocabulary(), [small_model("lstm")], torch.ones(1, 2))
    assert str(caught.value) == (
        "the weights have the shape (1, 2), but 1 bucket of 3 components need (1, 3); mix again"
    )


# EM


def some_answers(experts: int, tokens: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.log(rng.dirichlet(np.ones(9), size=(experts, tokens))[:, :, 0]).astype(np.float32)


def nats(log_probs_KN: np.ndarray, weights_K: np.ndarray) -> float:
    """-log p a token, written out."""
    return -float(np.mean(np.log(weights_K @ np.exp(log_probs_KN.astype(np.float64)))))


def test_em_never_loses() -> None:
    probs_KN = np.exp(some_answers(4, 300).astype(np.float64))
    weights_K, before = np.array([0.97, 0.01, 0.01, 0.01]), -np.inf
    for _ in range(50):
        better_K, now = em_step(probs_KN, weights_K)
        assert now == pytest.approx(float(np.log(weights_K @ probs_KN).mean()))
        assert now >= before - 1e-12
        assert better_K.sum() == pytest.approx(1)
        weights_K, before = better_K, now


@pytest.mark.parametrize("seed", range(4))
def test_em_finds_what_a_grid_finds(seed: int) -> None:
    answers_KN = some_answers(3, 200, seed)
    fitted = fit_weights(answers_KN)
    steps = np.linspace(0, 1, 101)
    grid = [np.array([a, b, 1 - a - b]) for a, b in itertools.product(steps, steps) if a + b <= 1]
    best = min(grid, key=lambda weights_K: nats(answers_KN, weights_K))
    assert fitted.nats <= nats(answers_KN, best) + 1e-5
    assert fitted.nats == pytest.approx(nats(answers_KN, fitted.overall_K), abs=1e-6)
    np.testing.assert_allclose(fitted.weights_ZK[0], best, atol=0.02)
    assert fitted.iterations > 1


def test_a_mixture_is_no_worse_than_its_best_part() -> None:
    answers_KN = some_answers(5, 400, seed=7)
    answers_KN[2] += 1.5  # far better than the others
    best = min(-float(row.astype(np.float64).mean()) for row in answers_KN)
    assert fit_weights(answers_KN).nats <= best + 1e-6


def test_impossible_tokens_are_handled() -> None:
    answers_KN = some_answers(2, 60)
    answers_KN[0, :20] = -np.inf
    answers_KN[1, 20:30] = -np.inf
    answers_KN[:, 30] = -np.inf  # impossible in every component: it must not affect the others
    fitted = fit_weights(answers_KN)
    rest = fit_weights(np.delete(answers_KN, 30, 1))
    np.testing.assert_allclose(fitted.weights_ZK, rest.weights_ZK, atol=1e-12)
    assert (fitted.weights_ZK > 0.1).all()
    assert fitted.nats == pytest.approx(nats(np.delete(answers_KN, 30, 1), fitted.overall_K), abs=1e-6)
    nothing = fit_weights(np.full((2, 3), -np.inf, np.float32))
    assert nothing.weights_ZK.tolist() == [[0.5, 0.5]]


def test_a_component_that_never_helps_fades() -> None:
    answers_KN = some_answers(1, 500)
    fitted = fit_weights(np.concatenate([answers_KN, answers_KN - 3]))
    assert fitted.overall_K[1] < 1e-3
    assert fitted.overall_K[1] > 0


def test_buckets_have_their_own_weights_where_they_have_enough_tokens() -> None:
    answers_KN = some_answers(2, 900)
    buckets_N = np.repeat([0, 1, 2], [MIN_BUCKET_TOKENS - 1, 300, 501])
    answers_KN[0, buckets_N == 1] += 2
    fitted = fit_weights(answers_KN, buckets_N, 4)
    assert fitted.weights_ZK.shape == (4, 2)
    np.testing.assert_array_equal(fitted.weights_ZK[0], fitted.overall_K)  # too few
    np.testing.assert_array_equal(fitted.weights_ZK[3], fitted.overall_K)  # none
    for bucket in (1, 2):
        inside_KN = answers_KN[:, buckets_N == bucket]
        alone = fit_weights(inside_KN)
        assert nats(inside_KN, fitted.weights_ZK[bucket]) == pytest.approx(alone.nats, abs=1e-5)
        assert nats(inside_KN, fitted.weights_ZK[bucket]) < nats(inside_KN, fitted.overall_K)
    np.testing.assert_array_equal(fit_weights(answers_KN).overall_K, fitted.overall_K)
