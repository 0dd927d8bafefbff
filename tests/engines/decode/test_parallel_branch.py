"""The compiled parallel branch and the words of an output layer, against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from chainrule.base.kernels import kernels_suspended
from chainrule.engines.decode import output as compiled_output
from chainrule.engines.decode.linear import Packer
from chainrule.engines.decode.output import CompiledOutput
from chainrule.layers.nonautoregressive.parallel_branch import KnownTokens, ParallelBranch

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
LENGTHS, SOURCES = [6, 1, 4, 4, 7, 2], [6, 4, 9]  # two targets of each source


def branch_and_inputs(score: str, hidden: int, rows: int) -> tuple[ParallelBranch, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    branch = ParallelBranch(hidden, 7, hidden, 2, 0.0, score).eval()
    lengths_R = torch.tensor(LENGTHS[: rows * len(SOURCES)])
    encoded_ASE = torch.randn(len(SOURCES), max(SOURCES), hidden)
    return branch, torch.randn(len(lengths_R), int(lengths_R.max()), 7), encoded_ASE, lengths_R


def mask_of(counts: list[int]) -> Tensor:
    return torch.arange(max(counts)) < torch.tensor(counts)[:, None]


@pytest.mark.parametrize("score", ["dot", "general", "additive"])
@pytest.mark.parametrize("hidden", [12, 32])
@pytest.mark.parametrize("rows", [1, 2])
def test_the_branch_is_that_of_torch(score: str, hidden: int, rows: int) -> None:
    with torch.no_grad():
        branch, inputs_RTD, encoded_ASE, lengths_R = branch_and_inputs(score, hidden, rows)
        mask_AS = mask_of(SOURCES)
        known = KnownTokens(torch.randn_like(inputs_RTD), torch.rand(inputs_RTD.shape[:2]) < 0.5)
        for shown in (None, known):
            found_RTD = branch(inputs_RTD, branch.memory(encoded_ASE, mask_AS), lengths_R, shown)
            with kernels_suspended():
                expected_RTD = branch(inputs_RTD, branch.memory(encoded_ASE, mask_AS), lengths_R, shown)
            for row, length in enumerate(lengths_R.tolist()):
                torch.testing.assert_close(found_RTD[row, :length], expected_RTD[row, :length], **CLOSE)


def test_a_target_has_the_same_features_alone() -> None:
    with torch.no_grad():
        branch, inputs_RTD, encoded_ASE, lengths_R = branch_and_inputs("general", 12, 1)
        together_RTD = branch(inputs_RTD, branch.memory(encoded_ASE, mask_of(SOURCES)), lengths_R)
        for row, (length, count) in enumerate(zip(lengths_R.tolist(), SOURCES, strict=True)):
            own = branch.memory(encoded_ASE[row : row + 1, :count], None)
            alone_1TD = branch(inputs_RTD[row : row + 1, :length], own, None)
            assert torch.equal(alone_1TD[0], together_RTD[row, :length])


@pytest.mark.parametrize(("words", "screened"), [(37, False), (3000, True)])
@pytest.mark.parametrize("int8", [False, True])
def test_words_are_those_of_all_scores(words: int, screened: bool, int8: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_output, "ROWS_PER_CALL", 7)
    draw, width = np.random.default_rng(0), 200
    weight_VD, bias_V = (draw.normal(size=size).astype(np.float32) for size in ((words, width), words))
    features_ND = draw.normal(size=(17, width)).astype(np.float32)
    features_ND[3] = 0  # the bias alone decides
    packer = Packer(int8=int8)
    number = packer.linear(weight_VD, bias_V)
    output = CompiledOutput(packer.weights(), number, words)
    assert bool(len(output.screen.lost)) == (screened and not int8)
    log_probs_NV = output.log_probs(features_ND)
    assert (output.best(features_ND) == log_probs_NV.argmax(1)).all()
    word_N, log_prob_N = output.best_with_log_probs(features_ND)
    assert (word_N == log_probs_NV.argmax(1)).all()
    np.testing.assert_allclose(log_prob_N, log_probs_NV.max(1), atol=1e-5)
    assert (output.best(features_ND[4:5]) == word_N[4]).all()
    second_N, gap_N = output.second_best(features_ND)
    assert (second_N == log_probs_NV.argsort(1)[:, -2]).all()
    np.testing.assert_allclose(gap_N, log_prob_N - log_probs_NV[np.arange(17), second_N], atol=1e-5)
    if not int8:
        expected = torch.from_numpy(features_ND @ weight_VD.T + bias_V).log_softmax(1).numpy()
        np.testing.assert_allclose(log_probs_NV, expected, rtol=1e-4, atol=1e-4)
