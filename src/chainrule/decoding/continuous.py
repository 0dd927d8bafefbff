"""Continuous batching: texts that join and leave a batch at every step, each with the numbers it would have alone.

    batch = ContinuousBatch(model)
    batch.open_all([Opening(prompt, [sampler]), ...])       # reads prompts; each opening then has its rows
    row = batch.open(log_probs_V, state)                    # after a prefill of one prompt
    batch.advance([(row, token), (other, token)])           # row.log_probs_V is now that after the token
    batch.close(row)

Rows whose states have the same form are computed in one pass. Where the numbers of a row never depend on the others
(`independent_rows`: the decoding engine, n-grams), a pass has the rows that move, and no others. Elsewhere a matrix
product may round a row differently in a larger batch, and a sampled token may then differ. Therefore every pass has the
same number of rows, PASS_ROWS, whether they are in use or not, and before the first pass the model is tested: if the
numbers of a row depend on its place or on its neighbours, every row is computed alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.devices import device_of
from chainrule.base.lazy import torch
from chainrule.base.modes import evaluating
from chainrule.base.over_arrays import over_arrays
from chainrule.base.states import join_states, separate_rows, state_form
from chainrule.decoding.row_sampling import RowSampler, choose_rows
from chainrule.types import State, Stepper

if TYPE_CHECKING:
    from torch import Tensor

PASS_ROWS = 8
"""Rows of every pass of a model whose rows might depend on one another."""

TEST_STEPS = 4
"""Steps on which a model is tested."""


class Row:
    """One text of a batch: the distribution of its next token, and the place of its state."""

    __slots__ = ("group", "log_probs_V", "place", "sampler", "token")

    group: _Group
    place: int

    def __init__(self, log_probs_V: Array, sampler: RowSampler | None) -> None:
        self.log_probs_V, self.sampler = log_probs_V, sampler
        self.token: int | None = None  # the next one, if it was chosen


class Opening:
    """A prompt that is to be read, and the texts that begin with it: one for each sampler."""

    __slots__ = ("rows", "samplers", "tokens")

    def __init__(self, tokens: Sequence[int], samplers: Sequence[RowSampler | None]) -> None:
        self.tokens, self.samplers = tokens, samplers
        self.rows: list[Row] = []  # once it was read


class _Group:
    """Rows that are computed in one pass; a place may have no row."""

    __slots__ = ("form", "rows", "state")

    def __init__(self, state: State, rows: list[Row | None]) -> None:
        self.state, self.rows = state, rows
        self.form: Hashable = state_form(state)
        for place, row in enumerate(rows):
            if row is not None:
                row.group, row.place = self, place

    @property
    def used(self) -> list[Row]:
        """The rows, in the order of their places."""
        return [row for row in self.rows if row is not None]


class ContinuousBatch:
    """The texts that one model is continuing."""

    def __init__(self, stepper: Stepper, pass_rows: int | None = None) -> None:
        """`pass_rows` None: as many as move if they are independent, PASS_ROWS if the model passes the test, or one."""
        self.stepper: Any = stepper
        self.model = over_arrays(stepper)
        self.needs_company = True  # whether texts must begin together to share a pass; unknown before the first
        self._pass_rows = pass_rows
        self._groups: list[_Group] = []

    def __len__(self) -> int:
        return sum(len(group.used) for group in self._groups)

    @property
    def passes(self) -> int:
        """Passes of the model that a step of all rows takes."""
        return len(self._groups)

    def pass_rows(self, state: State) -> int | None:
        """Rows of every pass over states like this one; None: any number."""
        if self._pass_rows is None:
            if self.stepper.independent_rows(state):
                self.needs_company = False
                return None
            self._pass_rows = PASS_ROWS if rows_are_independent(self.stepper, PASS_ROWS) else 1
        return self._pass_rows

    def open(self, log_probs_V: Array, state: State, sampler: RowSampler | None = None) -> Row:
        """A new text, whose prefix was read into the state of one row; `sampler` is for `choose`."""
        row = Row(log_probs_V, sampler)
        with evaluating(self.stepper):
            places = self.pass_rows(state)
            spread = state if places is None else self._spread(state, [0] * places)
            self._groups.append(_Group(spread, [row, *[None] * ((places or 1) - 1)]))
        return row

    def open_all(self, openings: Iterable[Opening]) -> None:
        """Read prompts and open their texts. Prompts of one length are read in one pass if rows are independent."""
        by_length: dict[int, list[Opening]] = {}
        for one in openings:
            by_length.setdefault(len(one.tokens), []).append(one)
        with evaluating(self.stepper):
            for alike in by_length.values():
                state = self.model.start(len(alike))
                if self.pass_rows(state) is None:
                    self._open_together(alike, state)
                    continue
                for one in alike:
                    log_probs_1V, state = self.model.prefill(self.model.start(1), np.array([one.tokens]))
                    one.rows = [self.open(log_probs_1V[0], state, sampler) for sampler in one.samplers]

    def _open_together(self, alike: list[Opening], state: State) -> None:
        """Read prompts of one length into their empty state; all their texts are one group."""
        log_probs_BV, state = self.model.prefill(state, np.array([one.tokens for one in alike]))
        places = [place for place, one in enumerate(alike) for _ in one.samplers]
        if len(places) > len(alike):
            state = self._spread(state, places)
        for one, log_probs_V in zip(alike, log_probs_BV, strict=True):
            one.rows = [Row(log_probs_V, sampler) for sampler in one.samplers]
        self._groups.append(_Group(state, [row for one in alike for row in one.rows]))

    def close(self, row: Row) -> None:
        """Remove a text; its place is free for another."""
        row.group.rows[row.place] = None
        if not row.group.used:
            self._groups.remove(row.group)

    def choose(self, row: Row) -> int:
        """The next token of a text by its sampler; texts with equal options are chosen for together."""
        if row.token is None:
            assert row.sampler is not None
            options = row.sampler.options
            alike = [
                (other, other.sampler)
                for other in row.group.used
                if other.token is None and other.sampler is not None and other.sampler.options == options
            ]
            log_probs_BV = np.stack([other.log_probs_V for other, _ in alike])
            for (other, _), token in zip(
                alike, choose_rows(log_probs_BV, [sampler for _, sampler in alike]), strict=True
            ):
                other.token = token
        assert row.token is not None
        return row.token

    def advance(self, moves: Iterable[tuple[Row, int]]) -> None:
        """Append a token to each of some texts; the others stay as they are."""
        tokens = dict(moves)
        with evaluating(self.stepper):
            for group in self._gather(tokens):
                self._step(group, tokens)

    def _gather(self, tokens: dict[Row, int]) -> list[_Group]:
        """Groups of the rows that move, as few as possible."""
        groups = list(dict.fromkeys(row.group for row in tokens))
        if len(groups) == 1 and len(self._groups) == 1 and len(groups[0].rows) == len(tokens):
            return groups  # the usual case: all texts go on together
        moving = [self._split(group, tokens) for group in groups]
        by_form: dict[Hashable, list[_Group]] = {}
        for group in moving:
            by_form.setdefault(group.form, []).append(group)
        return [joined for alike in by_form.values() for joined in self._join(alike)]

    def _step(self, group: _Group, tokens: dict[Row, int]) -> None:
        spare = tokens[next(row for row in group.rows if row is not None)]
        chosen_B = np.array([spare if row is None else tokens[row] for row in group.rows], np.int64)
        log_probs_BV, group.state = self.model.step(group.state, chosen_B)
        group.form = state_form(group.state)
        for row, log_probs_V in zip(group.rows, log_probs_BV, strict=True):
            if row is not None:
                row.log_probs_V, row.token = log_probs_V, None

    def _split(self, group: _Group, tokens: dict[Row, int]) -> _Group:
        """The rows of a group that move; those that wait, and places without a row if any number will do, leave it."""
        used = group.used
        moving = [row for row in used if row in tokens]
        places = self.pass_rows(group.state)
        if len(moving) == len(used) and (places is not None or len(used) == len(group.rows)):
            return group
        self._groups.remove(group)
        waiting = [row for row in used if row not in tokens]
        if waiting:
            self._regroup(group.state, waiting, [row.place for row in waiting], places)
        return self._regroup(group.state, moving, [row.place for row in moving], places)

    def _join(self, groups: list[_Group]) -> list[_Group]:
        """Join groups of the same form, as many as fit into one pass."""
        places = self.pass_rows(groups[0].state)
        packs: list[list[_Group]] = []
        for group in sorted(groups, key=lambda one: -len(one.used)):
            fits = (
                pack
                for pack in packs
                if places is None or sum(len(one.used) for one in pack) + len(group.used) <= places
            )
            pack = next(fits, None)
            if pack is None:
                packs.append([group])
            else:
                pack.append(group)
        return [pack[0] if len(pack) == 1 else self._merge(pack, places) for pack in packs]

    def _merge(self, pack: list[_Group], places: int | None) -> _Group:
        """One group of the rows of several."""
        rows, at, first = list[Row](), list[int](), 0
        for group in pack:
            rows += group.used
            at += [first + row.place for row in group.used]
            first += len(group.rows)
            self._groups.remove(group)
        state = join_states([group.state for group in pack])
        if places is not None:
            return self._regroup(state, rows, at, places)
        self._groups.append(_Group(state, list(rows)))  # each place has a row
        return self._groups[-1]

    def _regroup(self, state: State, rows: list[Row], at: list[int], places: int | None) -> _Group:
        """A group of rows, which are at these places of a state."""
        free = 0 if places is None else places - len(rows)
        state = self._spread(state, at + at[:1] * free)
        self._groups.append(_Group(state, [*rows, *[None] * free]))
        return self._groups[-1]

    def _spread(self, state: State, places: list[int]) -> State:
        """The rows at these places, each stored separately.

        Copies of one row may share what they have read, as the beams of a sentence do, and attention then adds in
        another order than for rows of different texts.
        """
        return separate_rows(self.model.select(state, np.array(places, np.int64)))


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
