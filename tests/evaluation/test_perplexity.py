"""The formulas, and the sum over a stream against single steps."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chainrule.base import forking
from chainrule.base.modes import evaluating
from chainrule.evaluation import evaluate_tokens
from chainrule.evaluation.perplexity import Likelihood, bits_per_byte, perplexity, score_stream
from chainrule.types import Model
from toy import TableModel, TablePrefix

EOS = 0


def test_perplexity_is_exp_of_the_cross_entropy() -> None:
    assert perplexity(math.log(8)) == pytest.approx(8)
    assert perplexity(1e6) == perplexity(math.inf) == math.inf
    assert math.isnan(perplexity(math.nan))
    assert Likelihood(6.0, 4).cross_entropy == 1.5
    assert math.isnan(Likelihood(0.0, 0).cross_entropy)


def test_bits_per_byte_adds_the_residue() -> None:
    assert bits_per_byte(math.log(2) * 20, 4, 6) == pytest.approx(4)
    assert math.isnan(bits_per_byte(math.nan, 4, 6))


def stepped_nats(model: TableModel, stream: list[int]) -> float:
    """-log p of a stream, one step at a time."""
    state, before, nats = model.start(1), EOS, 0.0
    for token in stream:
        row_1V, state = model.step(state, torch.tensor([before]))
        nats -= float(row_1V[0, token])
        before = token
    return nats


def random_stream(length: int, vocab: int = 7) -> np.ndarray:
    return np.random.default_rng(length).integers(0, vocab, length).astype(np.uint8)


@pytest.mark.parametrize(("length", "tracks"), [(1, 1), (50, 1), (50, 4), (51, 4), (53, 4), (3, 8), (64, 8), (65, 8)])
@pytest.mark.parametrize("chunk", [1, 5, 16, 1000])
def test_every_token_is_scored_once_given_its_track(length: int, tracks: int, chunk: int) -> None:
    model, stream = TableModel(7, 3), random_stream(length)
    rows = np.array_split(stream, min(tracks, length))
    expected = sum(stepped_nats(model, row.tolist()) for row in rows)
    found = evaluate_tokens(model, stream, eos=EOS, tracks=tracks, chunk=chunk)
    assert found.tokens == length
    assert math.isclose(found.nats, expected, rel_tol=1e-6)


def test_the_state_is_carried_through_the_whole_stream() -> None:
    stream = random_stream(400)
    model = TableModel(7, 3)
    whole = float(-model.log_probs(torch.from_numpy(stream.astype(np.int64))[None]).double().sum())
    assert math.isclose(evaluate_tokens(model, stream, eos=EOS, chunk=7).nats, whole, rel_tol=1e-9)


def test_an_empty_stream_has_no_nats() -> None:
    assert evaluate_tokens(TableModel(7), random_stream(0), eos=EOS) == (0.0, 0)


def test_tokens_come_with_their_own_scores() -> None:
    model, stream = TableModel(7, 3), random_stream(23)
    for piece in score_stream(model, stream, eos=EOS, tracks=4, chunk=3):
        assert len(piece.tokens_N) == len(piece.log_probs_N)
    pieces = list(score_stream(model, stream, eos=EOS, tracks=4, chunk=100))
    expected = sorted(
        (token, round(float(log_prob), 5))
        for row in np.array_split(stream.astype(np.int64), 4)
        for token, log_prob in zip(row.tolist(), model.log_probs(torch.from_numpy(row)[None])[0], strict=True)
    )
    found = zip(pieces[0].tokens_N.tolist(), pieces[0].log_probs_N.tolist(), strict=True)
    assert sorted((token, round(log_prob, 5)) for token, log_prob in found) == expected


def test_memory_does_not_grow_with_the_stream(tmp_path: Path) -> None:
    shapes: set[tuple[int, ...]] = set()

    class RecordingModel(TableModel):
        def score(self, tokens_BT: Tensor, state: TablePrefix) -> tuple[Tensor, TablePrefix]:
            shapes.add(tuple(tokens_BT.shape))
            return torch.zeros(tokens_BT.shape), state

    path = tmp_path / "tokens.bin"
    path.write_bytes(bytes(1 << 21))
    stream = np.memmap(path, np.uint8, mode="r")
    evaluate_tokens(RecordingModel(7), stream, eos=EOS)
    assert shapes == {(64, 256)}


def test_progress_counts_tokens() -> None:
    reports: list[tuple[int, int]] = []
    evaluate_tokens(
        TableModel(7), random_stream(23), eos=EOS, tracks=4, chunk=2, progress=lambda *step: reports.append(step)
    )
    assert reports == [(8, 23), (16, 23), (23, 23)]


class DropoutModel(nn.Module, Model):
    """Its scores depend on whether dropout is on; they must need no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def start(self, batch: int) -> None:
        return None

    def score(self, tokens_BT: Tensor, state: None) -> tuple[Tensor, None]:
        log_probs_BT = torch.full(tokens_BT.shape, -1.0 - self.training) * self.weight
        assert not log_probs_BT.requires_grad
        return log_probs_BT, None


def test_dropout_is_off_inside_and_restored_outside() -> None:
    model = DropoutModel().train()
    assert evaluate_tokens(model, random_stream(5), eos=EOS) == (5.0, 5)
    assert model.training
    with pytest.raises(KeyError), evaluating(model):
        raise KeyError
    assert model.training
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_a_submodule_in_training_mode_is_switched_too() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout()).eval()
    model[1].train()  # like a trained model inside a larger one
    with evaluating(model):
        assert not any(module.training for module in model.modules())
        assert torch.is_inference_mode_enabled()


@pytest.mark.parametrize(("length", "tracks"), [(50, 1), (53, 4), (3, 8), (65, 8)])
def test_processes_share_the_tracks(length: int, tracks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, stream = TableModel(7, 3), random_stream(length)
    one = list(score_stream(model, stream, eos=EOS, tracks=tracks, chunk=5))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(forking, "WORTH", -1.0)
    shared = list(score_stream(model, stream, eos=EOS, tracks=tracks, chunk=5))
    for expected, found in zip(one, shared, strict=True):
        assert (expected.tokens_N == found.tokens_N).all()
        assert np.allclose(expected.log_probs_N, found.log_probs_N, atol=1e-6)
