"""The beam of a translation as a tree of pieces: what was considered at each step, with scores, and what was pruned.

best, *others = next(run.translate_lines("A dog runs.", trace=True))
best.trace.nodes[0].piece, best.trace.nodes[0].fate
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from chainrule.base.results import json_value
from chainrule.decoding.beam_trace import BeamNode, BeamTrace
from chainrule.text.tokenizers import Tokenizer


@dataclass(frozen=True)
class TreeNode(BeamNode):
    """A candidate of a step with the text of its token. `parent` is the index of the node that it continues."""

    piece: str = ""


@dataclass(frozen=True)
class BeamTree:
    """The given prefix, and all candidates in the order of the steps, those of a step best first."""

    prefix: list[str]
    nodes: list[TreeNode]

    def path(self, index: int) -> list[TreeNode]:
        """The nodes from the prefix to a node, that one included."""
        path: list[TreeNode] = []
        place: int | None = index
        while place is not None:
            path.append(self.nodes[place])
            place = self.nodes[place].parent
        return path[::-1]

    @property
    def best(self) -> int:
        """The index of the node at which the best hypothesis ends."""
        return next(index for index, node in enumerate(self.nodes) if node.rank == 1)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: `prefix`, and `nodes` with parent, length, token, log_prob, score, fate, rank and piece."""
        record: dict[str, Any] = json_value(asdict(self))
        return record


def make_tree(trace: BeamTrace, tokenizer: Tokenizer, prefix: Sequence[int]) -> BeamTree:
    """A recorded search with the pieces of its tokens."""
    nodes = [TreeNode(**vars(node), piece=_piece(tokenizer, node.token)) for node in trace.nodes]
    return BeamTree([tokenizer.piece(token) for token in prefix], nodes)


def _piece(tokenizer: Tokenizer, token: int) -> str:
    """The text of a token; an output layer may have a few more than the tokeniser."""
    return tokenizer.piece(token) if token < tokenizer.vocab_size else f"<{token}>"
