"""Output layers: the laws that hold for all of them, then the maths of each by a second route."""

from __future__ import annotations

import heapq
import itertools

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from chainrule.base.huffman import huffman_tree
from chainrule.errors import ConfigError
from chainrule.layers.outputs import OutputLayer, fused
from chainrule.layers.outputs.adaptive import default_cutoffs
from chainrule.layers.outputs.fused import linear_cross_entropy
from chainrule.layers.outputs.sampled import Proposal, SamplerConfig
from chainrule.registry import OUTPUTS
from chainrule.types import Vocabulary

WIDTH = 16


def vocabulary(size: int) -> Vocabulary:
    """Zipfian counts in an order that differs from the ids; the last id is unseen."""
    counts = np.random.default_rng(0).permutation(2000 // np.arange(1, size + 1))
    counts[-1] = 0
    return Vocabulary(size, 0, counts.astype(np.int64))


def build(name: str, size: int, **options: object) -> OutputLayer:
    torch.manual_seed(0)
    make = OUTPUTS.get(name).make
    layer = make(make.Config(**options), WIDTH, vocabulary(size))
    for parameter in layer.parameters():  # away from the frequencies, so that every parameter matters
        parameter.data += 0.3 * torch.randn_like(parameter)
    return layer


def positions(size: int, rows: int = 9) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, WIDTH, generator=generator), torch.randint(size, (rows,), generator=generator)


every_layer = pytest.mark.parametrize("name", OUTPUTS.names())
every_size = pytest.mark.parametrize("size", [2, 3, 1000])


@every_layer
@every_size
def test_probabilities_sum_to_one_and_single_ones_agree(name: str, size: int) -> None:
    layer, (hidden, targets) = build(name, size), positions(size)
    log_probs = layer.log_probs(hidden)
    assert log_probs.shape == (9, size)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.logsumexp(1), torch.zeros(9), rtol=0, atol=2e-5)
    torch.testing.assert_close(layer.log_prob(hidden, targets), log_probs.gather(1, targets[:, None])[:, 0])


@every_layer
@every_size
def test_training_lowers_the_exact_loss(name: str, size: int) -> None:
    layer, (hidden, targets) = build(name, size), positions(size)
    before = -layer.log_prob(hidden, targets).sum().item()
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.03)
    for _ in range(20):
        optimiser.zero_grad()
        layer.loss(hidden, targets).backward()
        optimiser.step()
    assert -layer.log_prob(hidden, targets).sum().item() < 0.9 * before


@every_layer
def test_saved_and_loaded_gives_identical_numbers(name: str) -> None:
    layer, (hidden, _) = build(name, 100), positions(100)
    other = Vocabulary(100, 0, np.arange(100))  # everything that depends on the counts is in the checkpoint
    loaded = OUTPUTS.get(name).make(layer.config, WIDTH, other)
    if name == "adaptive":  # the shapes of the bands depend on the counts
        cutoffs = tuple(layer.ends[:-1])
        loaded = OUTPUTS.get(name).make(type(layer).Config(cutoffs=cutoffs), WIDTH, other)
    loaded.load_state_dict(layer.state_dict())
    assert torch.equal(loaded.log_probs(hidden), layer.log_probs(hidden))


@every_layer
def test_weights_count_each_position(name: str) -> None:
    layer, (hidden, targets) = build(name, 50), positions(50)
    weights = torch.tensor([1.0, 0, 2, 0.5, 0, 1, 1, 3, 0])

    def loss(rows: slice, weights: Tensor | None) -> Tensor:
        torch.manual_seed(2)  # the sampled layers see the same words each time
        return layer.loss(hidden[rows], targets[rows], weights)

    one_by_one = sum(weights[n] * loss(slice(n, n + 1), None) for n in range(9))
    torch.testing.assert_close(loss(slice(9), weights), one_by_one, rtol=1e-4, atol=1e-4)


@every_layer
def test_the_same_seed_gives_the_same_loss(name: str) -> None:
    layer, (hidden, targets) = build(name, 50), positions(50)
    losses = []
    for _ in range(2):
        torch.manual_seed(3)
        losses.append(layer.loss(hidden, targets).item())
    assert losses[0] == losses[1]


@every_layer
@pytest.mark.parametrize("stored", [0, 10**6])
def test_mixed_precision_keeps_the_numbers(name: str, stored: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "STORED_ENTRIES", stored)
    layer, (hidden, targets) = build(name, 50), positions(50)
    losses = []
    for enabled in (False, True):
        torch.manual_seed(10)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            losses.append(layer.loss(hidden, targets))
            log_probs = layer.log_probs(hidden)
        assert losses[-1].dtype == log_probs.dtype == torch.float32
        torch.testing.assert_close(log_probs.logsumexp(1), torch.zeros(9), rtol=0, atol=2e-5 if not enabled else 0.02)
    torch.testing.assert_close(losses[1], losses[0], rtol=0.02, atol=0)
    losses[1].backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in layer.parameters())


@every_layer
def test_small_chunks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, (hidden, targets) = build(name, 50), positions(50)
    whole = layer.log_prob(hidden, targets)
    monkeypatch.setattr("chainrule.layers.outputs.base.CHUNK_BYTES", 4 * 50 * 2)
    monkeypatch.setattr("chainrule.layers.outputs.hierarchical.CHUNK_POSITIONS", 2)
    torch.testing.assert_close(layer.log_prob(hidden, targets), whole)


@pytest.mark.parametrize("name", ["softmax", "hierarchical", "adaptive"])
@pytest.mark.parametrize("stored", [0, 10**6])
def test_the_loss_of_likelihood_layers_is_exact(name: str, stored: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "STORED_ENTRIES", stored)
    layer, (hidden, targets) = build(name, 50), positions(50, rows=40)
    loss, exact = layer.loss(hidden, targets), -layer.log_prob(hidden, targets).sum()
    torch.testing.assert_close(loss, exact)
    torch.testing.assert_close(gradient(loss, layer), gradient(exact, layer))


@pytest.mark.parametrize("name", ["softmax", "sampled", "nce"])
def test_tied_weights_take_gradients_from_both_uses(name: str) -> None:
    layer, (_, targets) = build(name, 50), positions(50)
    embedding = torch.nn.Embedding(50, WIDTH)
    layer.tie(embedding.weight)
    assert len({id(p) for p in [*layer.parameters(), *embedding.parameters()]}) == 2
    torch.manual_seed(5)
    layer.loss(embedding(targets), targets).backward()
    untied = build(name, 50)
    untied.weight_VD.data, untied.bias_V.data = embedding.weight.data.clone(), layer.bias_V.data.clone()
    below = embedding.weight.detach().clone().requires_grad_()
    torch.manual_seed(5)
    untied.loss(below[targets], targets).backward()
    torch.testing.assert_close(embedding.weight.grad, untied.weight_VD.grad + below.grad)


def test_wrong_uses_are_named() -> None:
    table = torch.nn.Parameter(torch.zeros(50, 3))
    with pytest.raises(ConfigError) as caught:
        build("hierarchical", 50).tie(table)
    assert str(caught.value) == (
        "the output layer 'hierarchical' has no vector per word, so it cannot share the embedding: "
        "set model.tied=false, or choose softmax, sampled or nce"
    )
    with pytest.raises(ConfigError) as caught:
        build("softmax", 50).tie(table)
    assert str(caught.value) == (
        "cannot tie an embedding of shape (50, 3) to output vectors of shape (50, 16): "
        "make the embedding as wide as the last layer, or set model.tied=false"
    )
    with pytest.raises(ConfigError) as caught:
        build("softmax", 1)
    assert str(caught.value) == (
        "an output layer needs a vocabulary of at least 2 tokens, but this one has 1: "
        "train on a longer text or with another tokenizer"
    )
    with pytest.raises(ConfigError) as caught:
        build("adaptive", 50, cutoffs=(20, 10))
    assert str(caught.value) == (
        "output.cutoffs = [20, 10]: expected increasing ranks between 1 and 49 "
        "for a vocabulary of 50; leave them out to choose them by coverage"
    )
    with pytest.raises(ConfigError) as caught:
        build("adaptive", 50, cutoffs=(10, 20, 30))
    assert str(caught.value) == (
        "the last of 3 adaptive bands would be 16/4^3 < 1 wide: "
        "use a wider model, a lower output.div_value or fewer output.cutoffs"
    )


# --- softmax ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("smoothing", "offset"), [(0.0, False), (0.1, False), (0.0, True)])
@pytest.mark.parametrize(
    ("entries", "stored"), [(100, 0), (10**6, 0), (0, 10**6)], ids=["many chunks", "one chunk", "stored"]
)
def test_fused_cross_entropy_equals_torch(
    smoothing: float,
    weighted: bool,
    bias: bool,
    offset: bool,
    entries: int,
    stored: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fused, "CHUNK_ENTRIES", entries)
    monkeypatch.setattr(fused, "STORED_ENTRIES", stored)
    torch.manual_seed(6)
    hidden = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(30, 5, dtype=torch.float64, requires_grad=True)
    b = torch.randn(30, dtype=torch.float64, requires_grad=True) if bias else None
    targets, weights = torch.randint(30, (11,)), torch.rand(11, dtype=torch.float64) if weighted else None
    leaves = [hidden, weight, *([b] if b is not None else [])]
    shift = torch.randn(30, dtype=torch.float64) if offset else torch.zeros(30, dtype=torch.float64)
    ours = linear_cross_entropy(
        hidden, weight, b, targets, weights, label_smoothing=smoothing, offset_V=shift if offset else None
    )
    scores = functional.linear(hidden, weight, b) + shift * (torch.arange(30) != targets[:, None])
    each = functional.cross_entropy(scores, targets, reduction="none", label_smoothing=smoothing)
    theirs = each.sum() if weights is None else each @ weights
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(3 * ours, leaves), torch.autograd.grad(3 * theirs, leaves))


def test_fused_cross_entropy_computes_only_the_gradients_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "STORED_ENTRIES", 0)
    hidden, weight, targets = torch.randn(4, 5, requires_grad=True), torch.randn(9, 5), torch.arange(4)
    expected = functional.cross_entropy(hidden @ weight.T, targets, reduction="sum")
    loss = linear_cross_entropy(hidden, weight, None, targets)
    torch.testing.assert_close(torch.autograd.grad(loss, hidden), torch.autograd.grad(expected, hidden))
    with torch.no_grad():
        quiet = linear_cross_entropy(hidden, weight.requires_grad_(), None, targets)
    assert not quiet.requires_grad
    torch.testing.assert_close(quiet, expected.detach())


def test_fused_cross_entropy_survives_extreme_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "STORED_ENTRIES", 0)
    hidden, weight = torch.eye(3) * 1e4, torch.eye(3).requires_grad_()
    loss = linear_cross_entropy(hidden, weight, None, torch.tensor([0, 1, 0]))
    loss.backward()
    assert loss.item() == 1e4
    assert torch.isfinite(weight.grad).all()


def test_label_smoothing_applies_only_in_training() -> None:
    layer, (hidden, targets) = build("softmax", 50, label_smoothing=0.2), positions(50)
    exact = -layer.log_prob(hidden, targets).sum()
    assert not torch.isclose(layer.loss(hidden, targets), exact)
    torch.testing.assert_close(layer.eval().loss(hidden, targets), exact)


# --- hierarchical ----------------------------------------------------------------------------------------------------


def code_lengths(children_J2: np.ndarray) -> dict[int, int]:
    lengths, todo = {}, [(0, 0)]
    while todo:
        node, depth = todo.pop()
        for child in children_J2[node].tolist():
            if child < 0:
                lengths[~child] = depth + 1
            else:
                todo.append((child, depth + 1))
    return lengths


def naive_huffman_cost(counts: list[int]) -> int:
    """The minimum of Σ count · length: each merge adds its mass once."""
    heap, cost = list(counts), 0
    heapq.heapify(heap)
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        cost += merged
        heapq.heappush(heap, merged)
    return cost


@pytest.mark.parametrize("seed", range(20))
def test_huffman_codes_are_optimal(seed: int) -> None:
    generator = np.random.default_rng(seed)
    counts = (generator.pareto(1, size=int(generator.integers(2, 200))) * 10).astype(np.int64) + 1
    children, mass = huffman_tree(counts)
    lengths = code_lengths(children)
    assert sorted(lengths) == list(range(len(counts)))
    assert sum(counts[word] * length for word, length in lengths.items()) == naive_huffman_cost(counts.tolist())
    assert mass[0].sum() == counts.sum()


def test_hierarchical_starts_from_the_word_frequencies() -> None:
    words = vocabulary(40)
    make = OUTPUTS.get("hierarchical").make
    layer = make(make.Config(), WIDTH, words)
    start = layer.log_probs(torch.zeros(1, WIDTH))[0].exp()
    expected = torch.from_numpy((words.counts_V + 1) / (words.counts_V + 1).sum()).float()
    torch.testing.assert_close(start, expected)


def test_hierarchical_gradient_equals_that_of_the_product_of_decisions() -> None:
    layer, (hidden, targets) = build("hierarchical", 40), positions(40)
    hidden.requires_grad_()
    above = {}
    for node, sides in enumerate(layer.children_I2.tolist()):
        for child, sign in zip(sides, (1.0, -1.0), strict=True):
            above[("word", ~child) if child < 0 else ("node", child)] = (node, sign)

    def product(h: Tensor, word: int) -> Tensor:
        here, probability = ("word", word), torch.ones(())
        while here != ("node", 0):
            node, sign = above[here]
            probability = probability * torch.sigmoid(sign * (layer.weight_ID[node] @ h + layer.bias_I[node]))
            here = ("node", node)
        return probability

    naive = -sum(product(h, int(word)).log() for h, word in zip(hidden, targets, strict=True))
    loss, leaves = layer.loss(hidden, targets), [hidden, layer.weight_ID, layer.bias_I]
    torch.testing.assert_close(loss, naive)
    torch.testing.assert_close(torch.autograd.grad(loss, leaves), torch.autograd.grad(naive, leaves))


# --- adaptive --------------------------------------------------------------------------------------------------------


def test_adaptive_puts_the_frequent_words_in_the_short_list() -> None:
    words = vocabulary(1000)
    layer = build("adaptive", 1000)
    shortlist = layer.ends[0]
    frequent = set(np.argsort(-words.counts_V, kind="stable")[:shortlist].tolist())
    assert {word for word in range(1000) if layer.rank_V[word] < shortlist} == frequent
    covered = sum(words.counts_V[list(frequent)] + 1) / (words.counts_V + 1).sum()
    assert 0.7 <= covered < 0.71


def make_adaptive() -> OutputLayer:
    make = OUTPUTS.get("adaptive").make
    return make(make.Config(), WIDTH, vocabulary(1000))


def test_adaptive_equals_torch_and_starts_from_the_frequencies() -> None:
    layer, fresh, (hidden, _) = build("adaptive", 1000), make_adaptive(), positions(1000)
    torch.testing.assert_close(
        fresh.log_probs(torch.zeros(1, WIDTH))[0].double(),
        torch.from_numpy(np.log((vocabulary(1000).counts_V + 1) / (vocabulary(1000).counts_V + 1).sum())),
        atol=1e-5,
        rtol=0,
    )
    twin = torch.nn.AdaptiveLogSoftmaxWithLoss(WIDTH, 1000, layer.ends[:-1], head_bias=True)
    with torch.no_grad():
        twin.head.weight.copy_(layer.head.weight)
        twin.head.bias.copy_(layer.head.bias)
        for theirs, project, band in zip(twin.tail, layer.projects, layer.bands, strict=True):
            band.bias.zero_()  # the bands of torch have no biases
            theirs[0].weight.copy_(project.weight)
            theirs[1].weight.copy_(band.weight)
    torch.testing.assert_close(layer.log_probs(hidden), twin.log_prob(hidden)[:, layer.rank_V])


@pytest.mark.parametrize("width", [4, 8, 16, 200])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 100])
def test_default_cutoffs_always_fit(width: int, size: int) -> None:
    for counts in (np.zeros(size), np.arange(size) ** 4, np.eye(1, size)[0] * 10**6):
        cutoffs = default_cutoffs(Vocabulary(size, 0, counts.astype(np.int64)), width, 4.0)
        assert 1 <= cutoffs[0] <= cutoffs[-1] < size
        assert len(set(cutoffs)) == len(cutoffs)
        assert width // 4 ** len(cutoffs) >= 1


# --- sampled and nce -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("proposal", ["log-uniform", "unigram"])
def test_draws_follow_the_formula_of_the_proposal(proposal: str) -> None:
    words, draws = vocabulary(30), 200_000
    config = SamplerConfig(proposal=proposal, power=0.5)
    if proposal == "unigram":
        weight = np.sqrt(np.maximum(words.counts_V, 1))
        expected = weight / weight.sum()
    else:
        rank = {word: r for r, word in enumerate(np.argsort(-words.counts_V, kind="stable").tolist())}
        expected = np.array([np.log((rank[w] + 2) / (rank[w] + 1)) / np.log(31) for w in range(30)])
    assert expected.sum() == pytest.approx(1)
    torch.manual_seed(7)
    seen = torch.bincount(Proposal(config, words).draw(draws), minlength=30).numpy()
    chi_square = ((seen - draws * expected) ** 2 / (draws * expected)).sum()
    assert chi_square < 29 + 5 * np.sqrt(2 * 29)


def gradient(loss: Tensor, layer: OutputLayer) -> Tensor:
    return torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, list(layer.parameters()))])


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


def test_sampled_gradient_is_exact_when_every_word_is_drawn() -> None:
    layer, (hidden, targets) = build("sampled", 20, samples=5000), positions(20)
    exact = gradient(-layer.log_prob(hidden, targets).sum(), layer)
    assert relative(gradient(layer.loss(hidden, targets), layer), exact) < 1e-3


@pytest.mark.parametrize("proposal", ["log-uniform", "unigram"])
def test_sampled_gradient_tends_to_the_exact_one(proposal: str) -> None:
    hidden, targets = positions(300, rows=64)
    errors = []
    for samples in (10, 100, 1000):
        layer = build("sampled", 300, samples=samples, proposal=proposal)
        exact = gradient(-layer.log_prob(hidden, targets).sum(), layer)
        torch.manual_seed(8)
        mean = sum(gradient(layer.loss(hidden, targets), layer) for _ in range(200)) / 200
        errors.append(relative(mean, exact))
    assert errors[0] > errors[1] > errors[2]
    assert errors[1] < 0.1
    assert errors[2] < 0.02


def test_sampled_normaliser_is_unbiased() -> None:
    """The mean of Z̃ over all outcomes of two draws from three words is Z."""
    layer = build("sampled", 3, samples=2)
    hidden, targets = positions(3, rows=1)
    scores = functional.linear(hidden, layer.weight_VD, layer.bias_V)[0].detach()
    chance, expected = layer.proposal.prob_V, 0.0
    for draw in itertools.product(range(3), repeat=2):
        layer.proposal.draw = lambda samples, draw=draw: torch.tensor(draw)
        normaliser = (layer.loss(hidden, targets).detach() + scores[targets[0]]).exp()
        expected += float(chance[draw[0]] * chance[draw[1]] * normaliser)
    assert expected == pytest.approx(float(scores.exp().sum()), rel=1e-5)


def expected_nce_gradient(layer: OutputLayer, h: Tensor, truth_V: Tensor, k: int) -> Tensor:
    """E over data and noise of the NCE gradient, by enumeration, with k noise words of the layer's proposal."""
    scores_V, noise_V = layer.weight_VD @ h + layer.bias_V, layer.proposal.prob_V
    odds_V = scores_V - (k * noise_V).log()
    loss = -(truth_V * functional.logsigmoid(odds_V) + k * noise_V * functional.logsigmoid(-odds_V)).sum()
    return gradient(loss, layer)


def nce_toy() -> tuple[OutputLayer, Tensor, Tensor]:
    """A layer over six words whose exp(scores) sum to one, as NCE assumes, a position and a true distribution."""
    layer, h = build("nce", 6), positions(6)[0][0]
    layer.bias_V.data -= (layer.weight_VD @ h + layer.bias_V).logsumexp(0).item()
    return layer, h, torch.tensor([0.4, 0.3, 0.1, 0.1, 0.05, 0.05])


def test_nce_gradient_tends_to_the_likelihood_gradient_as_k_grows() -> None:
    layer, h, truth_V = nce_toy()
    scores_V = functional.linear(h, layer.weight_VD, layer.bias_V)
    # With Z taken as 1 the model is exp(s), and Σ exp(s) is the penalty for the constraint that it sums to one.
    normalised = gradient(-(truth_V * scores_V.log_softmax(0)).sum(), layer)
    scores_V = functional.linear(h, layer.weight_VD, layer.bias_V)
    assert relative(gradient(-(truth_V * scores_V).sum() + scores_V.exp().sum(), layer), normalised) < 1e-5
    errors = [relative(expected_nce_gradient(layer, h, truth_V, k), normalised) for k in (1, 10, 100, 1000, 10000)]
    assert all(after < before / 3 for before, after in itertools.pairwise(errors[1:]))
    assert errors[-1] < 2e-3


def test_nce_loss_estimates_the_enumerated_gradient() -> None:
    layer, h, truth_V = nce_toy()
    torch.manual_seed(9)
    targets = torch.multinomial(truth_V, 1000, replacement=True)
    seen_V = torch.bincount(targets, minlength=6) / 1000
    k = layer.config.samples
    mean = sum(gradient(layer.loss(h.expand(1000, -1), targets) / 1000, layer) for _ in range(100)) / 100
    assert relative(mean, expected_nce_gradient(layer, h, seen_V, k)) < 0.05
