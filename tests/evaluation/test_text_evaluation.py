"""Evaluation of language models against sums computed by hand, on real tokenisers and stores."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from chainrule.data.store import TokenStore, open_store
from chainrule.errors import DataError
from chainrule.evaluation import evaluate, generation_speed
from chainrule.evaluation.text import SCORES_ONLY, protocol, signature
from chainrule.text.readers import text_of
from chainrule.text.tokenizers import Tokenizer, train_tokenizer
from toy import TableModel

TRAIN = " the cat sat on the mat \n a <unk> sat \n\n"
TEST = " the dog sat on a <unk> \n the mat\n"


def measured(kind: str, test: str, tmp_path: Path) -> tuple[TableModel, TokenStore, Tokenizer]:
    tokenizer = train_tokenizer(kind, text_of(TRAIN))
    store = open_store(text_of(test), tokenizer, cache=tmp_path)
    return TableModel(tokenizer.vocab_size, 2, eos=tokenizer.eos), store, tokenizer


def log_probs(model: TableModel, store: TokenStore) -> np.ndarray:
    tokens_1T = torch.from_numpy(np.asarray(store.tokens, np.int64))[None]
    return model.log_probs(tokens_1T)[0].double().numpy()


@pytest.mark.parametrize("kind", ["word", "char", "byte"])
def test_figures_follow_their_definitions(kind: str, tmp_path: Path) -> None:
    model, store, tokenizer = measured(kind, TEST, tmp_path)
    result = evaluate(model, store, tokenizer)
    nats = -log_probs(model, store)
    assert (result.tokens, result.bytes, result.oov) == (len(store.tokens), len(TEST), store.oov)
    assert math.isclose(result.cross_entropy, nats.mean(), rel_tol=1e-9)
    assert math.isclose(result.perplexity, math.exp(nats.mean()), rel_tol=1e-9)
    bits = nats.sum() / math.log(2) + store.residue_bits
    assert math.isclose(result.bits_per_byte, bits / len(TEST), rel_tol=1e-9)


def test_one_perplexity_leaves_out_unknown_words(tmp_path: Path) -> None:
    model, store, tokenizer = measured("word", TEST, tmp_path)
    assert store.oov == 1  # "dog"; the literal <unk> is none
    known = -log_probs(model, store)[np.asarray(store.tokens) != tokenizer.unk]
    result = evaluate(model, store, tokenizer, chunk=3)
    assert math.isclose(result.perplexity_without_oov, math.exp(known.mean()), rel_tol=1e-9)
    assert result.perplexity_without_oov != result.perplexity


def test_a_literal_unk_is_a_token_like_any_other(tmp_path: Path) -> None:
    model, store, tokenizer = measured("word", TRAIN, tmp_path)
    result = evaluate(model, store, tokenizer)
    assert result.oov == 0
    assert result.perplexity_without_oov == result.perplexity


def test_only_unknown_words_leave_no_perplexity(tmp_path: Path) -> None:
    result = evaluate(*measured("word", "dog dog", tmp_path))
    assert math.isnan(result.perplexity_without_oov)
    assert result.to_dict()["perplexity_without_oov"] is None
    assert math.isfinite(result.perplexity)


def test_an_impossible_text_has_infinite_perplexity(tmp_path: Path) -> None:
    _, store, tokenizer = measured("char", TEST, tmp_path)
    model = TableModel(tokenizer.vocab_size, eos=tokenizer.eos, sharpness=1e6)
    assert evaluate(model, store, tokenizer).perplexity == math.inf


def test_the_json_keys_are_stable(tmp_path: Path) -> None:
    found = evaluate(*measured("word", TEST, tmp_path)).to_dict()
    assert list(found) == [
        "tokens",
        "oov",
        "bytes",
        "cross_entropy",
        "perplexity",
        "perplexity_without_oov",
        "bits_per_byte",
        "signature",
        "protocol",
    ]


def test_signature_and_protocol_describe_the_evaluation(tmp_path: Path) -> None:
    model, store, tokenizer = measured("word", TEST, tmp_path)
    result = evaluate(model, store, tokenizer)
    fields = dict(field.split(":", 1) for field in result.signature.split("|"))
    assert fields.pop("chainrule")
    assert fields == {
        "tokens": "10",
        "oov": "1",
        "bytes": str(len(TEST)),
        "eos": "predicted",
        "unk": "spelled",
        "tracks": "1",
        "context": "carried",
        "data": store.fingerprint[:8],
        "tokenizer": f"word#{tokenizer.fingerprint[:8]}",
    }
    assert result.protocol == (
        "10 tokens are predicted one by one, including the <eos> that ends each line; "
        "<unk> is predicted like any other token, bits per byte includes the spelling of unknown words (1), and "
        "perplexity without OOV leaves out every <unk>; state is carried from the first token to the last; "
        "bits per byte is the length of a code for the 34 bytes of the text."
    )


def test_signature_and_protocol_state_the_tracks(tmp_path: Path) -> None:
    model, store, tokenizer = measured("byte", "abc\n" * 10000, tmp_path)
    assert "|unk:none|tracks:2|" in signature(store, tokenizer, model)
    assert protocol(store, tokenizer, model) == (
        "40000 tokens are predicted one by one, including the <eos> that ends each line; the tokeniser has no <unk>; "
        "state is carried through each of 2 contiguous tracks; bits per byte is the length of a code for the "
        "40000 bytes of the text."
    )


def test_texts_without_unknown_words_and_models_of_single_lines_are_described(tmp_path: Path) -> None:
    model, store, tokenizer = measured("word", TRAIN, tmp_path)
    model.across_lines = False
    assert "; no unknown words; each line is scored separately; " in protocol(store, tokenizer, model)
    assert "|context:line|" in signature(store, tokenizer, model)


def test_a_model_without_probabilities_has_no_figures(tmp_path: Path) -> None:
    model, store, tokenizer = measured("word", TEST, tmp_path)
    model.normalised = False
    result = evaluate(model, store, tokenizer)
    assert result.protocol == SCORES_ONLY
    names = ("cross_entropy", "perplexity", "perplexity_without_oov", "bits_per_byte")
    assert [result.to_dict()[name] for name in names] == [None] * 4
    assert result.show().splitlines()[3:7] == [
        "cross entropy           none",
        "perplexity              none",
        "perplexity without oov  none",
        "bits per byte           none",
    ]


def test_an_empty_text_is_an_error(tmp_path: Path) -> None:
    model, store, tokenizer = measured("byte", TEST, tmp_path)
    store.tokens = store.tokens[:0]
    with pytest.raises(DataError) as caught:
        evaluate(model, store, tokenizer)
    assert str(caught.value) == (
        "the text has no tokens, so there is nothing to measure; give a text with at least one line."
    )


def test_speed_counts_the_steps_of_all_rows() -> None:
    model = TableModel(9)
    speed = generation_speed(model, eos=0, tokens=20, batch=3, warm_up=5)
    assert speed > 0
    assert model.steps == 20 + 5
    assert model.rows == 1 + 19 * 3 + 1 + 4 * 3  # the first step of each run is shared by its rows
