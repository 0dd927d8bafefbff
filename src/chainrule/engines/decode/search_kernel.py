"""Reading and choosing in one compiled call: many greedy steps of one text, or one step of all beams.

The tokens are those that the general decoders choose from log p, number by number.
"""

from __future__ import annotations

from chainrule.engines.decode.candidates import choose_continuations
from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.linear import LINEARS, OUTPUTS
from chainrule.engines.decode.stack_kernel import compute, log_total, read_tokens
from chainrule.engines.decode.stack_layout import LOGITS, OUTPUT, SHIFTS


@compiled
def continue_greedily(model, past, memory, embedding, items, eos, chosen, results, room):  # type: ignore[no-untyped-def]
    """Read a token of one row, then each time the most probable next one -> how many were chosen.

    `items` is that of the first token, and changes; `chosen` receives the tokens. The last is not read. The text ends
    when `chosen` is full or after `eos`. The arguments are otherwise those of `read_tokens`, for one position.
    """
    (pool, capacity, first, places, tokens, positions), sums = past
    row_1, position_1, token_1 = items
    for count in range(len(chosen)):
        cache = pool, capacity, first + count, places, tokens, positions
        read_tokens(model, (cache, sums), memory, embedding, items, row_1, results, room)
        sums = sums[2], row_1, sums[2], sums[3]
        best = 0
        for word in range(1, results.shape[1]):
            if results[0, word] > results[0, best]:
                best = word
        chosen[count] = best
        if best == eos:
            return count + 1
        position_1[0] += 1
        token_1[0] = best
    return len(chosen)


@compiled
def read_and_choose(model, past, memory, embedding, items, words, beam, room):  # type: ignore[no-untyped-def]
    """Read one token of each of the R rows of a beam, and choose the best continuations; log p is not written out.

    beam      (number_R, log_prob_AW, best_AM, cell_AM): 0, 1, …, R - 1, and the others as in `choose_continuations`
    """
    number_R, log_prob_AW, best_AM, cell_AM = beam
    compute(model, past, memory, embedding, items, number_R, room)
    logits, shift_M = room[LOGITS], room[SHIFTS]
    width = model[3][LINEARS][model[0][OUTPUT], OUTPUTS]
    for r in range(len(number_R)):
        shift_M[r] = log_total(logits, r * width, words)
    choose_continuations(log_prob_AW, logits, width, words, shift_M, best_AM, cell_AM)
