"""Gaps of a text, filled by t5: against enumeration, from a trained run, and errors."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import chainrule as cr
from chainrule.errors import ChainruleError
from chainrule.inference.fill import split_at_masks
from chainrule.runs.translator import TranslatorRun
from chainrule.types import Source
from commands import chainrule
from hf_folders import perturbed, saved, unigram

LINES = ["the cat sat on the mat", "the dog ran in the park", "a bird sang in a tree"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TranslatorRun:
    folder = tmp_path_factory.mktemp("t5")
    (folder / "text.txt").write_text("\n".join(LINES * 60) + "\n")
    small = {"embedding": 32, "encoder_layers": 1, "decoder_layers": 1, "heads": 2, "context": 40, "sentinels": 8}
    trained = cr.train(
        folder / "text.txt",
        out=folder / "run",
        model="t5",
        objective="spans",
        tokenizer="word",
        steps=150,
        device="cpu",
        settings={
            "model": {**small, "dropout": 0.0},
            "objective": {"noise": 0.3},
            "training": {
                "batch_size": 16,
                "length": 14,
                "validations": 1,
                "threads": 1,
                "lr": 0.01,
                "optimizer": "adamw",
            },
        },
    )
    assert isinstance(trained, TranslatorRun)
    return trained


def message_of(of: Any, *arguments: Any) -> str:
    with pytest.raises(ChainruleError) as error:
        of(*arguments)
    return str(error.value)


def log_prob(run: TranslatorRun, text: list[int], target: list[int]) -> Any:
    """log p of each token of a target given a source, by forced decoding."""
    source_1S = torch.tensor([[*text, run.tokenizer.eos]])
    with torch.no_grad():
        return run.model.log_probs(torch.tensor([target]), Source(source_1S, torch.ones_like(source_1S).bool()))[0]


def test_probabilities_follow_the_chain_rule(run: TranslatorRun) -> None:
    """p of a filling is that of its tokens and of the end of the gap, given the best filling before it."""
    first, second = run.fill("the [MASK] sat on [MASK] mat", top=3)
    encode, eos, sentinels = run.tokenizer.encode, run.tokenizer.eos, list(run.model.sentinels)
    source = [*encode("the"), sentinels[0], *encode("sat on"), sentinels[1], *encode("mat")]
    before = [sentinels[0]]
    for gap, filled in enumerate((first, second)):
        for guess in filled.guesses:
            tokens = list(encode(guess.word))
            nats_T = log_prob(run, source, [*before, *tokens, sentinels[gap + 1]])[len(before) :]
            ended = log_prob(run, source, [*before, *tokens, eos])[-1]
            total = nats_T[:-1].sum() + torch.logaddexp(nats_T[-1], ended)
            assert guess.probability == pytest.approx(float(total.exp()), rel=1e-4)
        before += [*encode(filled.word), sentinels[gap + 1]]


def test_a_wide_beam_finds_the_best_fillings_of_all(run: TranslatorRun) -> None:
    """Against all fillings of one or two words."""
    found = run.fill("the cat [MASK] on the mat", top=40)[0].guesses
    encode, sentinels = run.tokenizer.encode, list(run.model.sentinels)
    source = [*encode("the cat"), sentinels[0], *encode("on the mat")]
    words = [token for token in range(run.tokenizer.vocab_size) if token != run.tokenizer.eos]
    best, eos = (-math.inf, [0]), run.tokenizer.eos
    for tokens in (*([word] for word in words), *map(list, itertools.product(words, words))):
        nats_T = log_prob(run, source, [sentinels[0], *tokens, sentinels[1]])[1:]
        ended = log_prob(run, source, [sentinels[0], *tokens, eos])[-1]
        best = max(best, (float(nats_T[:-1].sum() + torch.logaddexp(nats_T[-1], ended)), tokens))
    short = next(guess for guess in found if len(encode(guess.word)) <= 2)
    assert short.word == run.tokenizer.decode(best[1])
    assert short.probability == pytest.approx(math.exp(best[0]), rel=1e-4)


def test_fillings_are_ordered_and_their_probabilities_sum_to_at_most_one(run: TranslatorRun) -> None:
    guesses = run.fill("the dog ran in [MASK] park")[0].guesses
    assert len(guesses) == 5
    assert [guess.probability for guess in guesses] == sorted((g.probability for g in guesses), reverse=True)
    assert len({guess.word for guess in guesses}) == 5
    assert sum(guess.probability for guess in guesses) <= 1 + 1e-6


def test_the_command(run: TranslatorRun) -> None:
    result = chainrule("fill", run.folder.path, "the cat sat [MASK] mat", "--top", "2", "--json")
    assert result.code == 0, result.err
    printed = json.loads(result.out)
    assert printed["text"] == "the cat sat [MASK] mat"
    expected = run.fill("the cat sat [MASK] mat", top=2)[0].guesses
    assert [guess["word"] for guess in printed["filled"][0]] == [guess.word for guess in expected]


def test_an_imported_t5_uses_the_sentinels_of_its_tokeniser(tmp_path: Path) -> None:
    tokenizer = unigram()
    tokenizer.add_special_tokens([f"<extra_id_{number}>" for number in range(4)])
    size = {"vocab_size": tokenizer.get_vocab_size(), "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1}
    torch.manual_seed(0)
    theirs: Any = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**size, num_heads=2, feed_forward_proj="relu")
    )
    folder = saved(perturbed(theirs, 0.05), tokenizer, tmp_path / "folder", eos_token="</s>", pad_token="<pad>")
    run: Any = cr.import_model(folder, tmp_path / "run")
    filled = run.fill("the [MASK] dog and [MASK] fox", top=1)
    assert len(filled) == 2
    ids = tokenizer.encode("the <extra_id_0> dog and <extra_id_1> fox").ids
    first = [theirs.config.pad_token_id, tokenizer.token_to_id("<extra_id_0>")]
    with torch.no_grad():
        logits_V = theirs(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([first])).logits[0, -1]
    tokens = [tokenizer.token_to_id(piece) for piece in filled[0].guesses[0].token.split(" ")]
    assert filled[0].guesses[0].probability <= float(logits_V.softmax(0)[tokens[0]]) + 1e-6


def test_errors(run: TranslatorRun, tmp_path: Path) -> None:
    assert message_of(run.fill, "no gap") == (
        "the text has no [MASK]; write it in place of a word, for example: the [MASK] sat"
    )
    assert message_of(run.fill, "[MASK]", 0) == "top is 0; ask for at least 1 word"
    assert message_of(run.fill, " ".join(["[MASK] the"] * 8)) == (
        "the text has 8 [MASK], which need 9 sentinels, but the model has 8; fill fewer at a time"
    )
    assert message_of(run.fill, "the cat " * 30 + "[MASK]") == (
        "the text has 61 tokens, but the model reads at most 39; shorten it around the [MASK]"
    )
    assert "fill" in run.available_verbs


def test_other_translators_have_no_gaps(tmp_path: Path) -> None:
    (tmp_path / "a.src").write_text("a b\nb a\n" * 20)
    (tmp_path / "a.tgt").write_text("x y\ny x\n" * 20)
    other: Any = cr.train(
        tmp_path / "a.src",
        tmp_path / "a.tgt",
        out=tmp_path / "run",
        model="seq2seq-rnn",
        tokenizer="char",
        steps=1,
        device="cpu",
        settings={"model": {"embedding": 4, "hidden": 4, "layers": 1}},
    )
    said = message_of(other.fill, "a [MASK]")
    assert "has no fill; fill works with bert, t5; this run has translate, score, tune, distill" in said
    assert "fill" not in other.available_verbs


def test_a_mask_covers_the_space_before_its_word() -> None:
    assert split_at_masks("a [MASK] b[MASK]", joins_spaces=True) == ["a", " b", ""]
    assert split_at_masks("a [MASK] b", joins_spaces=False) == ["a ", " b"]
