"""The measures of a language model on a text, with the protocol that makes them and the signature that names them.

    bits_per_byte = (-log2 p(tokens) + bits for what the tokens do not tell) / bytes of the text

is the length of a real code for the very bytes of the text, so it compares models over different tokens. Perplexity
depends on the tokens, and on what is done about words the vocabulary lacks; the protocol says so in words.

Legend: N tokens.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from chainrule.base.modes import evaluating
from chainrule.base.progress import Progress
from chainrule.errors import DataError
from chainrule.evaluation.perplexity import Likelihood, StreamScorer, score_stream, total
from chainrule.evaluation.tracks import tracks_of

if TYPE_CHECKING:
    from chainrule.data.store import TokenStore
    from chainrule.text.tokenizers import Tokenizer


SCORES_ONLY = "the model gives scores, which are no probabilities: it has no perplexity and no bits per byte."


@dataclass(frozen=True)
class Evaluation:
    """A model measured on a text."""

    tokens: int
    oov: int  # words or characters that the vocabulary lacks
    bytes: int
    cross_entropy: float  # nats a token
    perplexity: float
    perplexity_without_oov: float
    bits_per_byte: float
    signature: str
    protocol: str

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values; JSON has no infinity and no NaN, so these become None."""
        return {name: _json(value) for name, value in asdict(self).items()}


def evaluate(
    model: StreamScorer,
    store: TokenStore,
    tokenizer: Tokenizer,
    *,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure a model on a tokenised text in one pass."""
    if not len(store) or not store.bytes:
        raise DataError("the text has no tokens, so there is nothing to measure; give a text with at least one line.")
    every, known = _likelihoods(model, store, tokenizer, chunk, progress)
    mean = every.nats / every.tokens
    scores_only = not getattr(model, "normalised", True)
    if scores_only:
        every, known, mean = Likelihood(math.nan, every.tokens), Likelihood(math.nan, known.tokens), math.nan
    return Evaluation(
        tokens=every.tokens,
        oov=store.oov,
        bytes=store.bytes,
        cross_entropy=mean,
        perplexity=perplexity_of(mean),
        perplexity_without_oov=perplexity_of(known.nats / known.tokens) if known.tokens else math.nan,
        bits_per_byte=(every.nats / math.log(2) + store.residue_bits) / store.bytes,
        signature=signature(store, tokenizer, model),
        protocol=SCORES_ONLY if scores_only else protocol(store, tokenizer, model),
    )


def _likelihoods(
    model: StreamScorer, store: TokenStore, tokenizer: Tokenizer, chunk: int | None, progress: Progress | None
) -> tuple[Likelihood, Likelihood]:
    """Of all tokens, and of all but the unknown ones (where the text has any that are not literal)."""
    nats, known_nats, known = 0.0, 0.0, 0
    unk = tokenizer.unk if store.oov else None
    with evaluating(model):
        for piece in score_stream(model, store.tokens, eos=tokenizer.eos, chunk=chunk, progress=progress):
            nats -= total(piece.log_probs_N)
            if unk is not None:
                known_N = piece.log_probs_N[piece.tokens_N != unk]
                known += len(known_N)
                known_nats -= total(known_N)  # not a difference: <unk> may be impossible, and the rest is not
    every = Likelihood(nats, len(store))
    return every, every if unk is None else Likelihood(known_nats, known)


def perplexity_of(mean_nats: float) -> float:
    """exp, for any mean: a model that rules out what happened has a perplexity without bound."""
    try:
        return math.exp(mean_nats)
    except OverflowError:
        return math.inf


def _json(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def signature(store: TokenStore, tokenizer: Tokenizer, model: object = None) -> str:
    """What a figure was made of, in one line: equal signatures make comparable figures."""
    fields = {
        "tokens": len(store),
        "oov": store.oov,
        "bytes": store.bytes,
        "eos": "predicted",
        "unk": "none" if tokenizer.unk is None else "spelled",
        "tracks": tracks_of(model, len(store)),
        "context": "carried" if getattr(model, "across_lines", True) else "line",
        "data": store.fingerprint[:8],
        "tokenizer": f"{tokenizer.kind}#{tokenizer.fingerprint[:8]}",
        "chainrule": package_version(),
    }
    return "|".join(f"{name}:{value}" for name, value in fields.items())


def protocol(store: TokenStore, tokenizer: Tokenizer, model: object = None) -> str:
    """How the figures come about, in words."""
    tracks = tracks_of(model, len(store))
    carried = "from the first token to the last" if tracks == 1 else f"through each of {tracks} contiguous tracks"
    context = f"state is carried {carried}" if getattr(model, "across_lines", True) else "every line is by itself"
    ends = ", the <eos> that ends each line among them" if tokenizer.ends_lines else ""
    return (
        f"{len(store)} tokens are predicted one by one{ends}; "
        f"{_about_unk(store, tokenizer)}; {context}; "
        f"bits per byte is the length of a code for the {store.bytes} bytes of the text."
    )


def _about_unk(store: TokenStore, tokenizer: Tokenizer) -> str:
    if tokenizer.unk is None:
        return "there is no <unk>"
    if not store.oov:
        return "<unk> is a token like any other, and none stands for a word the vocabulary lacks"
    return (
        f"<unk> is a token like any other, bits per byte also pays for the spelling of the {store.oov} it hides, and "
        "perplexity without OOV leaves out every <unk>"
    )


def package_version() -> str:
    try:
        return version("chainrule")
    except PackageNotFoundError:  # run from a source tree
        return "source"
