"""N-gram models by their formulas: dictionaries of tuples, exact fractions, one loop at a time.

Slow and obvious on purpose: the reference for the arrays and kernels of `chainrule.engines.ngram`.
A text is a list of ids. The stream is `eos` followed by the text; that first `eos` is a context and never predicted.
N-grams and contexts are tuples of ids, oldest first; `context[1:]` is the next shorter context, h' in the formulas.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

Tokens = tuple[int, ...]
Row = list[Fraction]  # one number for each id of the vocabulary
KATZ_CUTOFF = 5


@dataclass(frozen=True)
class Stream:
    """A text, and whether n-grams may cross its lines."""

    text: Sequence[int]
    vocab_size: int
    eos: int
    across_lines: bool

    def pieces(self) -> list[Tokens]:
        """The parts that n-grams do not cross: the whole stream, or each line between two `eos`."""
        if self.across_lines:
            return [(self.eos, *self.text)]
        lines = [[self.eos]]
        for token in self.text:
            lines[-1].append(token)
            if token == self.eos:
                lines.append([self.eos])
        return [tuple(line) for line in lines]

    def occurrences(self, length: int) -> Iterator[tuple[Tokens, int | None]]:
        """Every occurrence of an n-gram of that length, with the token before it: None at the start of a piece."""
        for piece in self.pieces():
            first = 1 if length == 1 else 0  # the leading eos alone is not a unigram: it is never predicted
            for start in range(first, len(piece) - length + 1):
                yield piece[start : start + length], piece[start - 1] if start else None

    def counts(self, length: int) -> Counter[Tokens]:
        """c: how often each n-gram of that length occurs."""
        return Counter(ngram for ngram, _ in self.occurrences(length))

    def adjusted_counts(self, length: int) -> Counter[Tokens]:
        """a: the number of distinct tokens that precede each n-gram; for n-grams that open a line, their count."""
        before: defaultdict[Tokens, set[int | None]] = defaultdict(set)
        opening: Counter[Tokens] = Counter()
        for ngram, token in self.occurrences(length):
            if token is None and not self.across_lines:
                opening[ngram] += 1
            else:
                before[ngram].add(token)
        return opening + Counter({ngram: len(tokens) for ngram, tokens in before.items()})

    def context(self, prefix: Sequence[int], order: int) -> Tokens:
        """The context that a model of that order sees after the tokens of a prefix (without the leading eos)."""
        seen = Stream(prefix, self.vocab_size, self.eos, self.across_lines).pieces()[-1]
        return seen[max(0, len(seen) - order + 1) :]


class Naive(ABC):
    """A model of a given order; subclasses compute the row of a context."""

    def __init__(self, stream: Stream, order: int) -> None:
        self.stream, self.order, self.vocab_size = stream, order, stream.vocab_size
        self.raw = {length: stream.counts(length) for length in range(1, order + 1)}
        self.fallen_back: list[int] = []  # orders whose discounts could not be estimated
        self._rows: dict[Tokens, Row] = {}

    def after(self, context: Tokens, table: Mapping[int, Counter[Tokens]] | None = None) -> dict[int, int]:
        """The tokens seen after a context, each with its count."""
        counts = (table or self.raw)[len(context) + 1]
        every = {word: counts[(*context, word)] for word in range(self.vocab_size)}
        return {word: count for word, count in every.items() if count}

    def row(self, context: Tokens) -> Row:
        """p(. | context), cached."""
        if context not in self._rows:
            self._rows[context] = self._row(context)
        return self._rows[context]

    def row_after(self, prefix: Sequence[int]) -> Row:
        """p(. | eos, prefix)."""
        return self.row(self.stream.context(prefix, self.order))

    def lower(self, context: Tokens) -> Row:
        """p(. | h'), and below the unigrams the uniform distribution."""
        return self.row(context[1:]) if context else [Fraction(1, self.vocab_size)] * self.vocab_size

    @abstractmethod
    def _row(self, context: Tokens) -> Row: ...


class MaximumLikelihood(Naive):
    """c(hw) / c(h.) of the longest context seen."""

    def _row(self, context: Tokens) -> Row:
        seen = self.after(context)
        if not seen:
            return self.lower(context)
        return [Fraction(seen.get(word, 0), sum(seen.values())) for word in range(self.vocab_size)]


class Additive(Naive):
    """(c(hw) + delta) / (c(h.) + delta V) of the complete context; an incomplete context counts as unseen."""

    def __init__(self, stream: Stream, order: int, delta: float) -> None:
        super().__init__(stream, order)
        self.delta = Fraction(delta)

    def _row(self, context: Tokens) -> Row:
        opens_line = not self.stream.across_lines and context[:1] == (self.stream.eos,)
        seen = self.after(context) if opens_line or len(context) == self.order - 1 else {}
        total = sum(seen.values()) + self.delta * self.vocab_size
        return [(seen.get(word, 0) + self.delta) / total for word in range(self.vocab_size)]


class StupidBackoff(Naive):
    """c(hw) / c(h.) of the longest n-gram seen, times 0.4 for each token dropped to see it. Not a distribution."""

    def _row(self, context: Tokens) -> Row:
        seen = self.after(context)
        lower = self.row(context[1:]) if context else [Fraction(0)] * self.vocab_size
        return [
            Fraction(seen[word], sum(seen.values())) if word in seen else Fraction(4, 10) * lower[word]
            for word in range(self.vocab_size)
        ]


class Katz(Naive):
    """Good-Turing discounts of counts up to five; the freed mass goes to unseen words, as the lower order has them."""

    def __init__(self, stream: Stream, order: int) -> None:
        super().__init__(stream, order)
        self.discounts = {length: self._estimate(length) for length in self.raw}

    def _estimate(self, length: int) -> list[Fraction]:
        """D_1 to D_5, the factor of a count r."""
        n = Counter(self.raw[length].values())
        each = range(1, KATZ_CUTOFF + 1)
        if all(n[r] for r in (*each, KATZ_CUTOFF + 1)):
            tail = Fraction((KATZ_CUTOFF + 1) * n[KATZ_CUTOFF + 1], n[1])
            if tail != 1:
                discounts = [(Fraction((r + 1) * n[r + 1], r * n[r]) - tail) / (1 - tail) for r in each]
                if all(0 < discount <= 1 for discount in discounts):
                    return discounts
        self.fallen_back.append(length)
        return [1 - Fraction(1, 2 * r) for r in each]

    def _row(self, context: Tokens) -> Row:
        seen, lower = self.after(context), self.lower(context)
        if not seen:
            return lower
        factors, total = self.discounts[len(context) + 1], sum(seen.values())
        kept = {word: count * (factors[count - 1] if count <= KATZ_CUTOFF else 1) for word, count in seen.items()}
        if sum(kept.values()) == total:  # nothing is freed, so the unseen words get one count
            total += 1
        probs = {word: Fraction(1) * share / total for word, share in kept.items()}
        freed = 1 - sum(probs.values())
        unseen_mass = 1 - sum((lower[word] for word in seen), Fraction(0))
        if unseen_mass <= 1e-9:  # no unseen word can take the freed mass
            return [probs.get(word, Fraction(0)) / (1 - freed) for word in range(self.vocab_size)]
        return [probs[word] if word in probs else freed / unseen_mass * lower[word] for word in range(self.vocab_size)]


class Interpolated(Naive):
    """share(w, h) + (1 - the sum of the shares after h) · p(w | h'). A pruned n-gram loses its share."""

    def __init__(self, stream: Stream, order: int, prune: Sequence[int] = ()) -> None:
        super().__init__(stream, order)
        self.prune = prune or (0,)

    @abstractmethod
    def shares(self, context: Tokens) -> dict[int, Fraction]:
        """The share of each token seen after the context."""

    def kept(self, context: Tokens) -> dict[int, Fraction]:
        """The shares of the n-grams that are not pruned: those with a raw count above the threshold of their order."""
        length = len(context) + 1
        threshold = self.prune[min(length, len(self.prune)) - 1]
        shares = self.shares(context)
        return {word: share for word, share in shares.items() if self.raw[length][(*context, word)] > threshold}

    def _row(self, context: Tokens) -> Row:
        kept, lower = self.kept(context), self.lower(context)
        left = 1 - sum(kept.values())
        return [kept.get(word, Fraction(0)) + left * lower[word] for word in range(self.vocab_size)]


class WittenBell(Interpolated):
    """c(hw) / (c(h.) + T(h)), where T is the number of distinct tokens seen after h."""

    def shares(self, context: Tokens) -> dict[int, Fraction]:
        seen = self.after(context)
        return {word: Fraction(count, sum(seen.values()) + len(seen)) for word, count in seen.items()}


class JelinekMercer(Interpolated):
    """lambda c(hw) / c(h.), with a lambda for each order and size of c(h.), by (order, bucket)."""

    def __init__(
        self, stream: Stream, order: int, lambdas: Mapping[tuple[int, int], float], prune: Sequence[int] = ()
    ) -> None:
        super().__init__(stream, order, prune)
        self.lambdas = {key: Fraction(weight) for key, weight in lambdas.items()}

    def key(self, context: Tokens) -> tuple[int, int] | None:
        """Which lambda a context uses; None if it is unseen. The unigrams have one, in bucket 0."""
        total = sum(self.after(context).values())
        if not total:
            return None
        return len(context) + 1, min(15, total.bit_length() - 1) if context else 0

    def shares(self, context: Tokens) -> dict[int, Fraction]:
        seen, key = self.after(context), self.key(context)
        return {word: self.lambdas[key] * Fraction(seen[word], sum(seen.values())) for word in seen} if key else {}


class Discounted(Interpolated):
    """(a(hw) - D) / a(h.): absolute discounting of raw counts, Kneser-Ney of adjusted ones, with one D or three."""

    def __init__(
        self, stream: Stream, order: int, prune: Sequence[int] = (), *, adjusted: bool, modified: bool
    ) -> None:
        super().__init__(stream, order, prune)
        lower = stream.adjusted_counts if adjusted else stream.counts
        self.table = {length: lower(length) for length in range(1, order)} | {order: self.raw[order]}
        estimate = self._three if modified else self._one
        self.discounts = {length: estimate(length) for length in self.table}

    def _one(self, length: int) -> list[Fraction]:
        """D of counts 0, 1, 2, and 3 or more: all n1 / (n1 + 2 n2)."""
        n = Counter(self.table[length].values())
        if n[1] and n[2]:
            return [Fraction(n[1], n[1] + 2 * n[2])] * 4
        self.fallen_back.append(length)
        return [Fraction(1, 2)] * 4

    def _three(self, length: int) -> list[Fraction]:
        """D of counts 0, 1, 2, and 3 or more, as Chen and Goodman estimate them."""
        n = Counter(self.table[length].values())
        if n[1] and n[2] and n[3]:
            y = Fraction(n[1], n[1] + 2 * n[2])
            estimates = [r - (r + 1) * y * Fraction(n[r + 1], n[r]) for r in (1, 2, 3)]
            if all(0 <= estimate <= r for r, estimate in enumerate(estimates, 1)):
                return [Fraction(0), *estimates]
        self.fallen_back.append(length)
        return [Fraction(0), Fraction(1, 2), Fraction(1), Fraction(3, 2)]

    def shares(self, context: Tokens) -> dict[int, Fraction]:
        seen, discounts = self.after(context, self.table), self.discounts[len(context) + 1]
        total = sum(seen.values())
        return {word: (count - discounts[min(count, 3)]) / total for word, count in seen.items()}


INTERPOLATED: dict[str, Callable[[Stream, int, Sequence[int]], Interpolated]] = {
    "witten-bell": WittenBell,
    "absolute": lambda *args: Discounted(*args, adjusted=False, modified=False),
    "kneser-ney": lambda *args: Discounted(*args, adjusted=True, modified=False),
    "modified-kneser-ney": lambda *args: Discounted(*args, adjusted=True, modified=True),
}
"""The interpolated methods whose weights follow from the counts; they can be pruned."""


def reference(smoothing: str, stream: Stream, order: int, *, delta: float = 1.0, prune: Sequence[int] = ()) -> Naive:
    """The model of that name. Jelinek-Mercer is missing, because its weights come from a second text."""
    if smoothing in INTERPOLATED:
        return INTERPOLATED[smoothing](stream, order, prune)
    if smoothing == "additive":
        return Additive(stream, order, delta)
    others: dict[str, Callable[[Stream, int], Naive]]
    others = {"mle": MaximumLikelihood, "katz": Katz, "stupid-backoff": StupidBackoff}
    return others[smoothing](stream, order)
