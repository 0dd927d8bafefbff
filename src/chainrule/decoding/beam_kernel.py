"""One step of the bookkeeping of beam search, compiled: which candidates finish, and which stay open.

A step has few numbers; operations of torch or numpy on them would take longer than the step of a small model.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, error_model="numpy")
def advance(candidates, search, V, eos, divisors, returned, finished, link):  # type: ignore[no-untyped-def]
    """Take one step -> the finished hypotheses, the prompts whose search continues, and the open hypotheses of each.

    candidates    (log_prob_AM, cell_AM, last_A), best first; at the last step of a prompt all of its candidates end
    search        (log_prob_AK, best_AK, prompt_A, limit_A, max_divisor_A), which are moved to the front of the arrays
                  for the prompts that continue; log_prob_AK and `link` receive their open hypotheses without a gap
    divisors      of the scores at this length, and of the best score that an open hypothesis can end with; the second
                  is negative if it depends on the prompt
    finished      (prompt_N, log_prob_N, cell_N, score_N), which receives the hypotheses that ended
    link          (row_N, token_N)
    """
    log_prob_AM, cell_AM, last_A = candidates
    log_prob_AK, best_AK, prompt_A, limit_A, max_divisor_A = search
    A, K = best_AK.shape
    ended, active, widest = 0, 0, 0
    for a in range(A):
        log_probs, cells, last, best = log_prob_AM[a], cell_AM[a], last_A[a], best_AK[a]
        ended = _finish(log_probs, cells, last, V, eos, divisors[0], prompt_A[a], best, finished, ended)
        possible, top = _open(log_probs, cells, last, V, eos, log_prob_AK[active], link[0][active * K : active * K + K])
        bound = top / (divisors[1] if divisors[1] >= 0 else max_divisor_A[a])
        if possible and bound > best[returned - 1] and top / divisors[0] > best[K - 1]:
            prompt_A[active], limit_A[active], max_divisor_A[active] = prompt_A[a], limit_A[a], max_divisor_A[a]
            best_AK[active] = best
            active, widest = active + 1, max(widest, possible)
    _close_gaps(log_prob_AK, link, V, active, widest)
    return ended, active, widest


@njit(cache=True, nogil=True, error_model="numpy")
def _finish(log_probs, cells, last, V, eos, divisor, prompt, best, finished, ended):  # type: ignore[no-untyped-def]
    """Record the hypotheses that ended among the first K candidates -> the number of all that ended."""
    K = len(best)
    for m in range(min(K, len(cells))):
        if last or cells[m] % V == eos:
            score = log_probs[m] / divisor
            if score > best[K - 1]:
                place = K - 1
                while place > 0 and best[place - 1] < score:
                    best[place] = best[place - 1]
                    place -= 1
                best[place] = score
            if score > -np.inf:
                prompts, totals, places, scores = finished
                prompts[ended], totals[ended], places[ended], scores[ended] = prompt, log_probs[m], cells[m], score
                ended += 1
    return ended


@njit(cache=True, nogil=True, error_model="numpy")
def _open(log_probs, cells, last, V, eos, open_K, cell_K):  # type: ignore[no-untyped-def]
    """The best K candidates that do not end -> their number, and log p of the best.

    If there are fewer, the others are a candidate that does not stay open, with probability 0.
    """
    K, count, other = len(open_K), 0, cells[0]
    for m in range(len(cells)):
        if last or cells[m] % V == eos or not log_probs[m] > -np.inf:
            other = cells[m]
        elif count < K:
            open_K[count], cell_K[count] = log_probs[m], cells[m]
            count += 1
    open_K[count:], cell_K[count:] = -np.inf, other
    return count, open_K[0]


@njit(cache=True, nogil=True, error_model="numpy")
def _close_gaps(log_prob_AK, link, V, active, widest):  # type: ignore[no-untyped-def]
    """Keep the first `widest` hypotheses of each prompt, side by side, as rows of the step before and tokens."""
    K, (row_N, token_N), flat = log_prob_AK.shape[1], link, log_prob_AK.reshape(-1)
    for n in range(active * widest):
        at = n // widest * K + n % widest
        cell = row_N[at]
        flat[n], row_N[n], token_N[n] = flat[at], cell // V, cell % V
