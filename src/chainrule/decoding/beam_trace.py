"""What a beam search did: every candidate of every step, the one it continues, and why it was kept or pruned.

    recorder = BeamRecorder(beams=5, length_penalty=1.0)
    beam_search(stepper, state, prompt_BT, beams=5, length_penalty=1.0, observer=recorder, …)
    trace = recorder.traces(len(prompt_BT))[0]      # nodes[k].parent is the index of the node that node k continues

Recording keeps references to the tensors of each step; the nodes are made when the search is over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from chainrule.base.lazy import torch
from chainrule.decoding.beam import BeamStep

Fate = Literal["kept", "finished", "outranked", "ended-late", "stopped"]
"""What became of a candidate.

    kept        it stayed in the beam and was continued
    finished    it ended among the first K candidates, or it reached the length limit there
    outranked   pruned: K candidates that do not end were more probable
    ended-late  pruned: it ended, but K candidates were more probable
    stopped     pruned: it was open when the search stopped, because it could not become one of the best any more
"""

PRUNED = frozenset({"outranked", "ended-late", "stopped"})


@dataclass(frozen=True)
class BeamNode:
    """A candidate: the hypothesis that ends with its token."""

    parent: int | None  # index of the node that it continues; None: the prompt
    length: int  # new tokens
    token: int
    log_prob: float  # of all new tokens, in nats
    score: float  # log p / length ^ length_penalty
    fate: Fate
    rank: int | None = None  # its place among the finished hypotheses, from 1


@dataclass(frozen=True)
class BeamTrace:
    """The search for one prompt, step by step and best first within a step."""

    nodes: list[BeamNode] = field(default_factory=list)


class BeamRecorder:
    """An observer of `beam_search`."""

    def __init__(self, beams: int, length_penalty: float) -> None:
        self._beams, self._penalty = beams, float(length_penalty)
        self._steps: list[BeamStep] = []

    def __call__(self, step: BeamStep) -> None:
        self._steps.append(step)

    def passes(self, prompts: int) -> list[int]:
        """The number of steps of each prompt: the pass that reads the prompt, and one for each further token."""
        if not self._steps:
            return [0] * prompts
        searched_N = torch.cat([step.prompt_A for step in self._steps])
        counts: list[int] = torch.bincount(searched_N, minlength=prompts).tolist()
        return counts

    def traces(self, prompts: int) -> list[BeamTrace]:
        """The search for each prompt."""
        traces = [BeamTrace() for _ in range(prompts)]
        rows: list[int | None] = [None] * prompts  # the node of each row; None: the prompt itself
        for length, step in enumerate(self._steps, start=1):
            rows = self._add(step, length, rows, traces)
        return [replace(trace, nodes=_ranked(trace.nodes)) for trace in traces]

    def _add(self, step: BeamStep, length: int, rows: list[int | None], traces: list[BeamTrace]) -> list[int | None]:
        """Add the nodes of a step -> the node of each row of the next step."""
        V, candidates = step.vocab_size, step.candidates
        score_AM = candidates.log_prob_AM / length**self._penalty
        link = step.link
        kept = [] if link is None else (link.row_R * V + link.token_R).tolist()
        continued = set(kept)
        places: dict[int, int | None] = {}
        columns = (step.prompt_A, candidates.log_prob_AM, score_AM, candidates.cell_AM, step.ended_AM)
        for prompt, log_probs, scores, cells, ended in zip(*(one.tolist() for one in columns), strict=True):
            nodes, fates = traces[prompt].nodes, self._fates(cells, ended, continued)
            for log_prob, score, cell, fate in zip(log_probs, scores, cells, fates, strict=True):
                if log_prob == -math.inf:
                    places[cell] = None  # fills a row of a narrower beam
                    continue
                places[cell] = len(nodes)
                nodes.append(BeamNode(rows[cell // V], length, cell % V, log_prob, score, fate))
        return [places[cell] for cell in kept]

    def _fates(self, cells: list[int], ended: list[bool], continued: set[int]) -> list[Fate]:
        """The fates of the candidates of one prompt, which come best first."""
        fates: list[Fate] = []
        for place, (cell, ends) in enumerate(zip(cells, ended, strict=True)):
            if ends:
                fates.append("finished" if place < self._beams else "ended-late")
            elif cell in continued:
                fates.append("kept")
            else:
                before = place - sum(ended[:place])  # better candidates that do not end
                fates.append("stopped" if before < self._beams else "outranked")
        return fates


def _ranked(nodes: list[BeamNode]) -> list[BeamNode]:
    """The nodes, those of finished hypotheses with their rank; of equal scores the shorter comes first."""
    finished = [place for place, node in enumerate(nodes) if node.fate == "finished"]
    order = sorted(finished, key=lambda place: -nodes[place].score)
    ranks = {place: rank for rank, place in enumerate(order, start=1)}
    return [replace(node, rank=ranks.get(place)) for place, node in enumerate(nodes)]
