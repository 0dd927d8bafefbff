"""The processes of a training share a validation: each scores a part, and the figures are those of one process."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torture.processes import Child
from torture.toys import BLOCK, CLASSIFIER, SIZES, Training, char, with_ranks, write_data

from builders import small_model, some_vocabulary
from chainrule.base.processes import ALONE, Processes
from chainrule.evaluation.perplexity import evaluate_shared, evaluate_tokens

BRIEF: dict[str, Any] = {"steps": 2, "validations": 2}
TRAININGS: dict[str, Training] = {
    "divided language model": char("transformer", "text.txt", BLOCK, {"optimizer": "adamw"}, **BRIEF),
    "translator": char("seq2seq-rnn", "pairs.tsv", SIZES, {"select": "bleu"}, **BRIEF),
    "masked words": char("bert", "text.txt", {"width": 8, "inner": 8, "layers": 1, "heads": 2}, **BRIEF),
    "labels": char("classifier", "labels.tsv", CLASSIFIER, {"select": "f1"}, **BRIEF),
}
DIVIDED = char("transformer", "text.txt", BLOCK, {"optimizer": "adamw", "shard": True}, **BRIEF)


def validations(run: Path) -> list[dict[str, float]]:
    """The figures of all validations."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if k.startswith("valid_")} for record in records if "valid_loss" in record]


@pytest.mark.parametrize("kind", TRAININGS)
def test_three_processes_report_the_figures_of_one(kind: str, tmp_path: Path) -> None:
    write_data(tmp_path)
    alone, shared, log = tmp_path / "alone", tmp_path / "shared", tmp_path / "log"
    together = with_ranks(DIVIDED if kind.startswith("divided") else TRAININGS[kind], ranks=3)
    assert Child(lambda: TRAININGS[kind](tmp_path, alone), log).wait() == 0, log.read_text()
    assert Child(lambda: together(tmp_path, shared), log).wait() == 0, log.read_text()
    ours, theirs = validations(shared), validations(alone)
    assert len(ours) == len(theirs) >= 2
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


@dataclass(frozen=True)
class Rank(Processes):
    """One process of several, which keeps its own sums."""

    sums: list[list[float]] = field(default_factory=list)

    def sum(self, values: list[float]) -> list[float]:
        self.sums.append(values)
        return values


@pytest.mark.parametrize("tokens", [1, 2, 250, 1111])
def test_each_process_scores_its_tracks_alone(tokens: int) -> None:
    model = small_model("lstm", vocabulary=some_vocabulary(9))
    tokens_N, tracks = np.random.default_rng(1).integers(0, 9, tokens), min(7, tokens)
    whole = evaluate_tokens(model, tokens_N, eos=0, tracks=tracks)
    assert evaluate_shared(model, tokens_N, eos=0, tracks=tracks, processes=ALONE) == whole
    ranks = [Rank(rank, 3) for rank in range(3)]
    for rank in ranks:
        evaluate_shared(model, tokens_N, eos=0, tracks=tracks, processes=rank)
    found = np.array([rank.sums[0] for rank in ranks])
    assert found.sum(0) == pytest.approx(whole, rel=1e-6)
    assert found[:, 1].max() <= -(-tracks // 3) * -(-tokens // tracks)


def test_items_belong_to_one_process_each() -> None:
    items = list(range(11))
    parts = [Processes(rank, 4).own(items) for rank in range(4)]
    assert sorted(one for part in parts for one in part) == items
    assert ALONE.own(items) == items
    assert ALONE.join_own([[3], [], [1, 2]], 3) == [[3], [], [1, 2]]
