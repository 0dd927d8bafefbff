"""Ranks, accuracies and whole distributions against steps, for every language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chainrule as cr
from builders import Case, case_id, one_output, pairs_text, rows_by_steps, small_model, some_tokens, text_cases
from chainrule.evaluation import distributions
from chainrule.evaluation.distributions import DistributionReader, rank_stream, ranks
from commands import chainrule


@pytest.mark.parametrize("case", one_output(text_cases()), ids=case_id)
@torch.no_grad()
def test_distributions_are_those_of_steps(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributions, "CELLS", 60)
    name, output, options = case
    model = small_model(name, output, **options)
    tokens_BT = some_tokens(2, 9)
    reader = DistributionReader(model, 2)
    found = [part[0] for piece_BT in tokens_BT.split(5, 1) for part in reader.read(piece_BT)]
    assert len(found) > 2
    expected_BTV = rows_by_steps(model, tokens_BT)[:, :-1]
    torch.testing.assert_close(torch.cat(found, 1).double(), expected_BTV.double(), atol=2e-4, rtol=1e-3)


def test_ranks_by_hand() -> None:
    log_probs_BTV = torch.tensor([[[0.5, 0.2, 0.3], [0.4, 0.4, 0.2], [0.1, 0.2, 0.7]]]).log()
    own_BT, ranks_BT = ranks(log_probs_BTV, torch.tensor([[0, 1, 0]]))
    assert ranks_BT.tolist() == [[1, 1, 3]]  # equal probabilities share a rank
    assert own_BT.exp().tolist() == [pytest.approx([0.5, 0.4, 0.1])]


@pytest.mark.parametrize("tokens", [40, 41])
@torch.no_grad()
def test_a_stream_is_ranked_in_its_tracks(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracks of unequal length: no token is lost and none counted twice."""
    monkeypatch.setattr(distributions, "choose_tracks", lambda model, count: 3)
    model = small_model("lstm")
    stream_N = some_tokens(1, tokens)[0].numpy()
    pieces = list(rank_stream(model, stream_N, eos=0, chunk=4))
    assert sum(len(piece.tokens_N) for piece in pieces) == tokens
    assert sorted(np.concatenate([piece.tokens_N for piece in pieces]).tolist()) == sorted(stream_N.tolist())
    expected = []
    for track_N in np.array_split(stream_N, 3):
        rows_TV = rows_by_steps(model, torch.from_numpy(track_N)[None])[0, :-1]
        own_T = rows_TV[torch.arange(len(track_N)), torch.from_numpy(track_N)]
        expected += (1 + (rows_TV > own_T[:, None]).sum(1)).tolist()
    assert sorted(np.concatenate([piece.ranks_N for piece in pieces]).tolist()) == sorted(expected)  # type: ignore[misc]


@pytest.mark.parametrize("model", ["ngram", "lstm"])
@torch.no_grad()
def test_accuracy_of_a_run(model: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(pairs_text(60))
    options: dict[str, Any] = {} if model == "ngram" else {"steps": 5, "settings": {"model": {"hidden": 8}}}
    with torch.enable_grad():
        run: Any = cr.train(tmp_path / "text.txt", model=model, tokenizer="char", out=tmp_path / "run", **options)
    plain, full = run.evaluate(tmp_path / "text.txt"), run.evaluate(tmp_path / "text.txt", accuracy=True)
    assert full.cross_entropy == pytest.approx(plain.cross_entropy, rel=1e-5)
    assert plain.accuracy is None
    assert "accuracy" not in plain.to_dict()
    assert "accuracy" not in plain.show()
    hits, tops, total = 0, 0, 0
    state, token = run.model.start(1), torch.tensor([run.tokenizer.eos])
    for target in run.open(tmp_path / "text.txt").tokens.tolist():
        log_probs_1V, state = run.model.step(state, token)
        token = torch.tensor([target])
        above = sum(value > float(log_probs_1V[0, target]) for value in log_probs_1V[0].tolist())
        hits, tops, total = hits + (above < 1), tops + (above < 5), total + 1
    assert full.accuracy == pytest.approx(hits / total, abs=1 / total)
    assert full.accuracy_top5 == pytest.approx(tops / total, abs=1 / total)
    assert full.accuracy < full.accuracy_top5 <= 1


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(pairs_text(40))
    cr.train(tmp_path / "text.txt", model="ngram", tokenizer="char", out=tmp_path / "run")
    shown = chainrule("eval", tmp_path / "run", tmp_path / "text.txt", "--accuracy")
    assert shown.code == 0, shown.err
    assert "\naccuracy top5 " in shown.out
    assert "\naccuracy " in shown.out
