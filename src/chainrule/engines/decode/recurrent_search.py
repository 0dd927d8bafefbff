"""Reading and choosing of a recurrence in one compiled call: many greedy steps of one text, or one step of all beams.

The tokens are those that the general decoders choose from log p, number by number.

Greedy steps of one text read all weights for every token, and these are larger than the cache next to the processor. A
state is multiplied for the next step as soon as it is known, so that in two layers all products of a step can follow
each other in any order; every other step takes them backwards and begins with the weights that were read last.
"""

from __future__ import annotations

from chainrule.engines.decode.candidates import choose_continuations
from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.linear import LINEARS, OUTPUTS, apply_linear
from chainrule.engines.decode.panels import apply_linear_backwards
from chainrule.engines.decode.recurrent_kernel import (
    BLOCKS,
    ENDS,
    GATES,
    HIDDEN,
    INTO,
    LAYERS,
    LOGITS,
    OUTPUT,
    SHIFTS,
    SPARE,
    STATES,
    STATES_OF_ITEMS,
    SUMS,
    UNITS,
    WORK,
    compute,
    embed,
    find_features,
    finish_step,
    gates_at,
)
from chainrule.engines.decode.screening import find_word
from chainrule.engines.decode.stack_kernel import log_total


@compiled
def continue_greedily(model, embedding, token_1, state, screen, screen_room, eos, chosen, room):  # type: ignore[no-untyped-def]
    """Read a token of one row, then each time the most probable next one -> how many were chosen.

    `token_1` changes; `chosen` receives the tokens. The last is not read. The text ends when `chosen` is full or after
    `eos`. There is no attention. The arguments are otherwise those of `read_tokens`.
    """
    shape, _, weights = model
    logits, spare = room[ENDS][LOGITS], room[SPARE]
    for number in range(shape[LAYERS]):
        _multiply_state(model, number, state, False, room)
    for count in range(len(chosen)):
        embed(model, embedding, token_1, 0, 1, 1, room)
        _step(model, count, count + 1 < len(chosen), state, room)
        features, width, first, _ = find_features(model, 0, 1, 1, room)
        best = find_word(weights, shape[OUTPUT], screen, features, first * width, logits, spare, screen_room)
        chosen[count] = best
        if best == eos:
            return count + 1
        token_1[0] = best
    return len(chosen)


@compiled
def _step(model, count, more, state, room):  # type: ignore[no-untyped-def]
    """All layers for one token; `more`: another follows. The states of all layers have been multiplied, except the last
    of several layers after the first token."""
    shape = model[0]
    last, G = shape[LAYERS] - 1, shape[UNITS] * shape[BLOCKS]
    backwards = count % 2 == 1
    for number in range(last + 1):
        finish_step(model, number, 1, 1, 0, state, number * G, room)
        late, own = number == 0 < last and count > 0, more and (number < last or last == 0)
        if backwards and own:
            _multiply_state(model, number, state, True, room)
        if late and not backwards:
            _multiply_state(model, last, state, False, room)
        if number < last:
            _multiply_input(model, number + 1, backwards, room)
        if late and backwards:
            _multiply_state(model, last, state, True, room)
        if own and not backwards:
            _multiply_state(model, number, state, False, room)


@compiled
def _multiply_state(model, number, state, backwards, room):  # type: ignore[no-untyped-def]
    """The sums of the state of a layer."""
    shape, layers, weights = model
    U = shape[UNITS]
    at, sums = number * U * shape[BLOCKS] + gates_at(shape), room[WORK][SUMS]
    _multiply(weights, layers[number, HIDDEN], state, number * shape[STATES] * U, sums, at, backwards, room[SPARE])


@compiled
def _multiply_input(model, number, backwards, room):  # type: ignore[no-untyped-def]
    """The sums of the input of a layer, which is the state of the one below."""
    _, layers, weights = model
    states, gates = room[STATES_OF_ITEMS], room[WORK][GATES]
    _multiply(weights, layers[number, INTO], states, 0, gates, 0, backwards, room[SPARE])


@compiled
def _multiply(weights, number, inputs, in_at, outputs, out_at, backwards, spare):  # type: ignore[no-untyped-def]
    if backwards:
        apply_linear_backwards(weights, number, inputs, in_at, outputs, out_at, spare)
    else:
        apply_linear(weights, number, inputs, in_at, 0, outputs, out_at, 0, 1, spare)


@compiled
def read_and_choose(model, embedding, token_R, state, memory, words, beam, room):  # type: ignore[no-untyped-def]
    """Read one token of each of the R rows of a beam, and choose the best continuations; log p is not written out.

    beam      (log_prob_AW, best_AM, cell_AM), as in `choose_continuations`
    """
    R, (log_prob_AW, best_AM, cell_AM) = len(token_R), beam
    compute(model, embedding, token_R, (R, 1, R), state, memory, room)
    logits, shift_M = room[ENDS][LOGITS], room[ENDS][SHIFTS]
    width = model[2][LINEARS][model[0][OUTPUT], OUTPUTS]
    for r in range(R):
        shift_M[r] = log_total(logits, r * width, words)
    choose_continuations(log_prob_AW, logits, width, words, shift_M, best_AM, cell_AM)
