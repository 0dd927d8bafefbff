"""Continuous batching: texts that join and leave a batch at every step, each with the numbers it would have alone.

    batch = ContinuousBatch(model)
    row, other = batch.open(log_probs_1V, state), ...      # after a prefill of one prompt
    batch.advance([(row, token), (other, token)])           # row.log_probs_V is now that after the token
    batch.close(row)

Rows whose states have the same form are computed in one pass. A matrix product may round a row differently in a larger
batch, and a sampled token may then differ. Therefore every pass has the same number of rows, PASS_ROWS, whether they
are in use or not, and before the first pass the model is tested: if the numbers of a row depend on its place or on its
neighbours, every row is computed alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from chainrule.base.devices import device_of
from chainrule.base.lazy import torch
from chainrule.base.modes import evaluating
from chainrule.base.states import join_states, separate_rows, state_form
from chainrule.types import State, Stepper

if TYPE_CHECKING:
    from torch import Tensor

PASS_ROWS = 8
"""Rows of every pass."""

TEST_STEPS = 4
"""Steps on which a model is tested."""


class Row:
    """One text of a batch: the distribution of its next token, and the place of its state."""

    __slots__ = ("group", "log_probs_V", "place")

    def __init__(self, log_probs_V: Tensor, group: _Group, place: int) -> None:
        self.log_probs_V, self.group, self.place = log_probs_V, group, place


class _Group:
    """Rows that are computed in one pass; a place without a row has a copy of another row's state."""

    def __init__(self, state: State, places: int) -> None:
        self.state = state
        self.rows: list[Row | None] = [None] * places
        self.form: Hashable = state_form(state)

    @property
    def used(self) -> list[Row]:
        """The rows, in the order of their places."""
        return [row for row in self.rows if row is not None]


class ContinuousBatch:
    """The texts that one model is continuing."""

    def __init__(self, stepper: Stepper, pass_rows: int | None = None) -> None:
        """`pass_rows` None: PASS_ROWS if the model passes the test, else one."""
        self.stepper = stepper
        self.device = device_of(stepper)
        self._pass_rows = pass_rows
        self._groups: list[_Group] = []

    def __len__(self) -> int:
        return sum(len(group.used) for group in self._groups)

    @property
    def pass_rows(self) -> int:
        """Rows of every pass."""
        if self._pass_rows is None:
            self._pass_rows = PASS_ROWS if rows_are_independent(self.stepper, PASS_ROWS) else 1
        return self._pass_rows

    @property
    def passes(self) -> int:
        """Passes of the model that a step of all rows takes."""
        return len(self._groups)

    def open(self, log_probs_1V: Tensor, state: State) -> Row:
        """A new text, whose prefix was read into the state of one row."""
        places = self.pass_rows
        with evaluating(self.stepper):
            group = _Group(self._spread(state, [0] * places), places)
        row = Row(log_probs_1V[0], group, 0)
        group.rows[0] = row
        self._groups.append(group)
        self._merge(group)
        return row

    def close(self, row: Row) -> None:
        """Remove a text; its place is free for another."""
        row.group.rows[row.place] = None
        if not row.group.used:
            self._groups.remove(row.group)

    def advance(self, moves: Iterable[tuple[Row, int]]) -> None:
        """Append a token to each of some texts; the others stay as they are."""
        tokens = dict(moves)
        for group in dict.fromkeys(row.group for row in tokens):
            waiting = [row for row in group.used if row not in tokens]
            if waiting:
                group = self._split(group, [row for row in group.used if row in tokens])
            self._step(group, tokens)
        for group in list(self._groups):
            if group in self._groups:
                self._merge(group)

    def _step(self, group: _Group, tokens: dict[Row, int]) -> None:
        spare = tokens[group.used[0]]
        chosen = [spare if row is None else tokens[row] for row in group.rows]
        with evaluating(self.stepper):
            log_probs_BV, group.state = self.stepper.step(group.state, torch.tensor(chosen, device=self.device))
        group.form = state_form(group.state)
        for row, log_probs_V in zip(group.rows, log_probs_BV, strict=True):
            if row is not None:
                row.log_probs_V = log_probs_V

    def _split(self, group: _Group, rows: list[Row]) -> _Group:
        """Move some rows of a group into one of their own."""
        kept = [row for row in group.used if row not in rows]
        self._groups.remove(group)
        self._regroup(group.state, kept, [row.place for row in kept])
        return self._regroup(group.state, rows, [row.place for row in rows])

    def _merge(self, group: _Group) -> None:
        """Join a group with another of the same form, if their rows fit into one pass."""
        for other in self._groups:
            fits = len(group.used) + len(other.used) <= self.pass_rows
            if other is not group and fits and other.form == group.form:
                rows = [*other.used, *group.used]
                places = [row.place + (self.pass_rows if row.group is group else 0) for row in rows]
                self._groups.remove(other)
                self._groups.remove(group)
                with evaluating(self.stepper):
                    self._regroup(join_states([other.state, group.state]), rows, places)
                return

    def _regroup(self, state: State, rows: list[Row], places: list[int]) -> _Group:
        """A group of rows, which are at these places of a state."""
        spare = self.pass_rows - len(rows)
        with evaluating(self.stepper):
            group = _Group(self._spread(state, places + places[:1] * spare), self.pass_rows)
        for place, row in enumerate(rows):
            group.rows[place], row.group, row.place = row, group, place
        self._groups.append(group)
        return group

    def _spread(self, state: State, places: list[int]) -> State:
        """The rows at these places, each stored separately.

        Copies of one row may share what they have read, as the beams of a sentence do, and attention then adds in
        another order than for rows of different texts.
        """
        return separate_rows(self.stepper.select(state, torch.tensor(places, device=self.device)))


def rows_are_independent(stepper: Stepper, rows: int) -> bool:
    """Whether the numbers of a row are the same, bit by bit, at any place of a batch and beside any neighbours."""
    device, V = device_of(stepper), stepper.vocab_size
    random = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(V, (rows, TEST_STEPS), generator=random).to(device)
    with evaluating(stepper):
        alone = [_steps(stepper, tokens_BT[:1].expand(rows, -1))[:, :1]]  # a row beside copies of itself
        alone += [_steps(stepper, tokens_BT[row : row + 1].expand(rows, -1))[:, :1] for row in range(1, rows)]
        together_TBV = _steps(stepper, tokens_BT)
        turned_TBV = _steps(stepper, tokens_BT.flip(0)).flip(1)
    alone_TBV = torch.cat(alone, 1)
    return torch.equal(alone_TBV, together_TBV) and torch.equal(alone_TBV, turned_TBV)


def _steps(stepper: Stepper, tokens_BT: Tensor) -> Tensor:
    """log p(. | prefix) after each token -> TBV."""
    state, found = stepper.start(len(tokens_BT)), []
    for token_B in tokens_BT.unbind(1):
        log_probs_BV, state = stepper.step(state, token_B)
        found.append(log_probs_BV)
    return torch.stack(found)
