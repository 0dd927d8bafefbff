"""From runs to a mixture run: it is what its parts are, it is whole, and mistakes have their sentences."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chainrule as cr
from builders import LANGUAGE_MODELS, pairs_text
from chainrule.checkpoint.build import save_model
from chainrule.checkpoint.folder import RunFolder
from chainrule.errors import ChainruleError, ConfigError, DataError, RunError
from chainrule.evaluation.perplexity import evaluate_tokens
from chainrule.experiments import mix_weights
from chainrule.experiments.mix import _vocabulary, mix
from chainrule.experiments.mix_weights import score_components
from chainrule.models.mixture import Mixture
from chainrule.registry import MODELS
from chainrule.runs.base import MissingVerbError

SMALL = {"embedding": 8, "layers": 1, "hidden": 8}
SETTINGS: dict[str, Any] = {
    "training": {"batch_size": 8, "length": 8, "device": "cpu", "validations": 1, "lr": 0.02},
}


def made(place: Path, model: str, tokenizer: str = "char", **options: Any) -> Path:
    """A small run; made once."""
    known = MODELS.get(model).make.Config.model_fields
    settings = {**SETTINGS, "model": {name: value for name, value in SMALL.items() if name in known}}
    out = place / f"{model}-{tokenizer}"
    budget: dict[str, Any] = {} if model == "ngram" else {"steps": 60, "settings": settings}
    cr.train(place / "text.txt", model=model, tokenizer=tokenizer, out=out, **budget, **options)
    return out


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixing")
    (folder / "text.txt").write_text(pairs_text(200))
    (folder / "valid.txt").write_text(pairs_text(60, seed=5))
    (folder / "test.txt").write_text(pairs_text(20, seed=6))
    return folder


@pytest.fixture(scope="module")
def lstm(place: Path) -> Path:
    return made(place, "lstm")


@pytest.fixture(scope="module")
def average(place: Path) -> Path:
    return made(place, "average")


@pytest.fixture(scope="module")
def mixed(place: Path, lstm: Path, average: Path) -> cr.Run:
    caches = ("unigram", "continuous")
    return mix([lstm, average], valid=place / "valid.txt", out=place / "mixed", caches=caches, buckets=True)


def nats(run: cr.Run, text: Path) -> float:
    """-log p a token, read in one track."""
    tokens = run.open(text).tokens
    return evaluate_tokens(run.model, tokens, eos=run.tokenizer.eos, tracks=1).nats / len(tokens)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# What is made


def test_a_mixture_is_no_worse_than_any_part_on_the_text_it_was_fitted_on(
    place: Path, lstm: Path, average: Path
) -> None:
    best = min(nats(cr.load(run), place / "valid.txt") for run in (lstm, average))
    for name, options in {"plain": {}, "bucketed": {"buckets": True}, "cached": {"caches": ("unigram",)}}.items():
        run = mix([lstm, average], valid=place / "valid.txt", out=place / name, **options)
        assert nats(run, place / "valid.txt") <= best + 1e-4


def test_the_text_is_as_likely_as_the_fit_said(place: Path, lstm: Path, average: Path) -> None:
    """Gathered answers, weighed by hand, against the model that the folder gives back."""
    run = mix([lstm, average], valid=place / "valid.txt", out=place / "by-hand", caches=["unigram"])
    experts = score_components(run.model, run.open(place / "valid.txt").tokens)
    weights = np.array(list(run.result["weights"].values()))
    by_hand = -np.mean(np.log(weights @ np.exp(experts.log_probs_KN.astype(np.float64))))
    assert nats(run, place / "valid.txt") == pytest.approx(by_hand, abs=1e-5)
    assert weights.sum() == pytest.approx(1, abs=1e-5)


def test_gathering_takes_each_token_once(
    mixed: cr.Run, lstm: Path, average: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chainrule.evaluation.tracks.TOKENS_PER_TRACK", 100)  # rows of unequal length
    static = Mixture.Config(parts=2)
    tokens = mixed.open(place / "valid.txt").tokens
    model = Mixture(static, _vocabulary(mixed), list(mixed.model.parts))
    progress: list[tuple[int, int]] = []
    experts = score_components(model, tokens, lambda *done: progress.append(done))
    assert experts.log_probs_KN.shape == (2, len(tokens))
    assert progress[-1] == (len(tokens), len(tokens))
    for row, run in zip(experts.log_probs_KN, (lstm, average), strict=True):
        expected = evaluate_tokens(cr.load(run).model, tokens, eos=mixed.tokenizer.eos).nats
        assert -row.astype(np.float64).sum() == pytest.approx(expected, rel=1e-5)


def test_it_is_a_run(mixed: cr.Run, place: Path, tmp_path: Path) -> None:
    assert math.isfinite(mixed.evaluate(place / "test.txt").perplexity)
    assert len(mixed.generate("ab", max_new_tokens=10)[0].text) > 2
    assert len(mixed.generate("ab", max_new_tokens=4, num_beams=3, num_return_sequences=2)) == 2
    [score] = mixed.score(["abab"])
    assert score.tokens == 5
    mixed.compress(place / "test.txt", tmp_path / "small")
    mixed.decompress(tmp_path / "small", tmp_path / "back.txt")
    assert (tmp_path / "back.txt").read_bytes() == (place / "test.txt").read_bytes()
    info = mixed.info()
    assert info["model"] == "mixture"
    assert info["parameters"] == sum(cr.load(mixed.folder.path / "parts" / str(n)).parameters for n in (0, 1))
    assert list(info["weights"]) == [
        "0:lstm",
        "1:average",
        "unigram cache",
        "continuous cache of 0:lstm",
        "continuous cache of 1:average",
    ]


def test_the_folder_is_whole(mixed: cr.Run, lstm: Path, average: Path, tmp_path: Path) -> None:
    """Nothing of the runs it was made of is needed any more, and loading gives the same numbers."""
    part = {"config.toml", "model.safetensors", "result.json", "signature", "tokenizer.json"}
    expected = {f"parts/{number}/{name}" for number in (0, 1) for name in part} | part | {"training/request.json"}
    assert files(mixed.folder.path) == expected
    moved = tmp_path / "elsewhere"
    shutil.copytree(mixed.folder.path, moved)
    for run in (lstm, average):
        assert (run / "training").exists()
    tokens_BT = torch.randint(0, mixed.tokenizer.vocab_size, (2, 30), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(cr.load(moved).model.log_probs(tokens_BT), mixed.model.log_probs(tokens_BT))


def test_the_fingerprint_changes_with_the_parts_and_the_caches(place: Path, lstm: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(lstm, other)
    folder = RunFolder(other)
    model = cr.load(other).model
    with torch.no_grad():
        model.output.bias_V += 1  # the same distribution from other weights
    save_model(folder, model)
    runs = [
        mix([one, one], valid=place / "valid.txt", out=tmp_path / name, caches=["unigram"], settings=settings)
        for name, one, settings in (
            ("a", lstm, {"cache": {"decay": 0.9}}),
            ("b", other, {"cache": {"decay": 0.9}}),
            ("c", lstm, {"cache": {"decay": 0.900001}}),
        )
    ]
    assert len({run.fingerprint for run in runs}) == 3


def test_a_mixture_can_be_mixed(mixed: cr.Run, lstm: Path, place: Path, tmp_path: Path) -> None:
    run = mix([mixed, lstm], valid=place / "valid.txt", out=tmp_path / "again", caches=["unigram"])
    assert (tmp_path / "again" / "parts" / "0" / "parts" / "1" / "model.safetensors").exists()
    assert nats(run, place / "valid.txt") <= nats(mixed, place / "valid.txt") + 1e-4
    assert run.parameters == mixed.parameters + cr.load(lstm).parameters
    assert run.model.tracks == 1


# Caches


def test_the_best_options_are_chosen_and_reported(place: Path, lstm: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Each possible choice mixed separately: none is better than the chosen one."""
    monkeypatch.setattr(mix_weights, "DECAYS", (0.5, 0.9, 0.99))
    notes: list[str] = []
    run = mix([lstm], valid=place / "valid.txt", out=tmp_path / "tuned", caches=["unigram"], note=notes.append)
    chosen = run.model.config.caches[0].decay
    assert notes == [f"unigram cache: decay {chosen}"]
    every = {
        decay: mix(
            [lstm],
            valid=place / "valid.txt",
            out=tmp_path / str(decay),
            caches=["unigram"],
            settings={"cache": {"decay": decay}},
        )
        for decay in (0.5, 0.9, 0.99)
    }
    costs = {decay: nats(one, place / "valid.txt") for decay, one in every.items()}
    assert chosen == min(costs, key=lambda decay: costs[decay])
    assert every[chosen].result["weights"] == run.result["weights"]


def test_what_is_set_is_taken(place: Path, lstm: Path, average: Path, tmp_path: Path) -> None:
    run = mix(
        [average, lstm],
        valid=place / "valid.txt",
        out=tmp_path / "set",
        caches=["continuous", "unigram", "unigram"],
        settings={"cache": {"decay": 0.9, "theta": 0.25, "window": 30}},
    )
    assert [cache.model_dump() for cache in run.model.config.caches] == [
        {"kind": "unigram", "decay": 0.9},
        {"kind": "continuous", "part": 0, "theta": 0.25, "window": 30},
        {"kind": "continuous", "part": 1, "theta": 0.25, "window": 30},
    ]


def test_a_long_text_is_cut_and_it_is_said(place: Path, lstm: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(mix_weights, "MAX_TOKENS_TO_FIT", 100)
    notes: list[str] = []
    settings = {"cache": {"decay": 0.9}}
    run = mix(
        [lstm],
        valid=place / "valid.txt",
        out=tmp_path / "cut",
        caches=["unigram"],
        settings=settings,
        note=notes.append,
    )
    tokens = len(run.open(place / "valid.txt"))
    assert notes[0] == f"the validation text has {tokens} tokens; the weights are fitted on the first 100"
    assert run.result["tokens"] == 100


# Again, and wrong


def test_the_same_again_is_found_done(mixed: cr.Run, lstm: Path, average: Path, place: Path) -> None:
    before = (place / "mixed" / "model.safetensors").stat().st_mtime_ns
    notes: list[str] = []
    mix(
        [lstm, average],
        valid=place / "valid.txt",
        out=place / "mixed",
        caches=("unigram", "continuous"),
        buckets=True,
        note=notes.append,
    )
    assert notes == [f"{place / 'mixed'} is already finished; choose another --out to mix again"]
    assert (place / "mixed" / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("out", ["mixed", "lstm-char", "text.txt"])
def test_what_exists_is_not_lost(mixed: cr.Run, lstm: Path, average: Path, place: Path, out: str) -> None:
    before = (place / out).stat().st_mtime_ns
    with pytest.raises(ConfigError) as caught:
        mix([lstm, average], valid=place / "valid.txt", out=place / out)
    reason = (
        "is a file: expected a new or empty folder"
        if out == "text.txt"
        else "is not empty and was not made by this command"
    )
    assert str(caught.value) == f"{place / out} {reason}; choose another place"
    assert (place / out).stat().st_mtime_ns == before


def message_of(*runs: Path, valid: Path, out: Path, kind: type[ChainruleError] = ConfigError, **options: Any) -> str:
    """The message of a refused mixture, which leaves no folder."""
    with pytest.raises(kind) as caught:
        mix(runs, valid=valid, out=out, **options)
    assert not out.exists()
    return str(caught.value)


def test_mistakes_have_their_sentences(place: Path, lstm: Path, tmp_path: Path) -> None:
    common = {"valid": place / "valid.txt", "out": tmp_path / "out"}
    alone = (
        "mixing needs two runs, or one run and a cache, but got {} and no cache; name another run, or add "
        "--cache unigram"
    )
    assert message_of(lstm, **common) == alone.format("1 run")
    assert message_of(**common) == alone.format("0 runs")
    assert message_of(lstm, **common, caches=["unigrm"]) == (
        "unknown cache 'unigrm': did you mean 'unigram'? Known: continuous, unigram"
    )
    assert message_of(lstm, **common, caches=["unigram"], settings={"cache": {"theta": 1}}) == (
        "cache.theta has no effect without a continuous cache; add --cache continuous"
    )
    assert message_of(lstm, **common, caches=["unigram"], settings={"cache": {"decay": 2}}) == (
        "cache.decay = 2: input should be less than or equal to 1"
    )
    assert message_of(lstm, **common, caches=["unigram"], settings={"cache": {"deca": 2}}) == (
        "unknown option 'cache.deca': did you mean 'cache.decay'? Known: cache.decay, cache.theta, cache.window"
    )


def test_one_vocabulary_is_needed(place: Path, lstm: Path, tmp_path: Path) -> None:
    other = made(place, "average", "byte")
    one, two = cr.load(lstm).tokenizer, cr.load(other).tokenizer
    assert message_of(lstm, other, valid=place / "valid.txt", out=tmp_path / "out") == (
        f"{lstm} and {other} have different vocabularies (char#{one.fingerprint[:8]} of {one.vocab_size} tokens, "
        f"byte#{two.fingerprint[:8]} of {two.vocab_size}); mix runs of one tokeniser: train with --tokenizer "
        f"{lstm / 'tokenizer.json'}"
    )


def test_a_text_that_one_run_counted_and_another_held_out(tmp_path: Path) -> None:
    """Words of the held-out part are known to the first run only; each of the two remedies works."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"the cat number w{number} sat\n" for number in range(400)), encoding="utf-8")
    common: dict[str, Any] = {"tokenizer": "word", "settings": {"tokenizer": {"min_count": 1}}}
    counted = cr.train(text, model="ngram", order=2, out=tmp_path / "counted", **common)
    small = {"embedding": 4, "hidden": 4}
    network = cr.train(text, model="rnn", steps=2, out=tmp_path / "rnn", **common, **small)
    for runs in ([counted, network], [network, counted]):
        found = message_of(*(run.folder.path for run in runs), valid=text, out=tmp_path / "out")
        assert "have different vocabularies" in found
        assert found.endswith(
            f"{tmp_path}/counted counted all of its text, of which {tmp_path}/rnn held a part out: train "
            f"{tmp_path}/counted with --set training.count_all=false, or {tmp_path}/rnn with --tokenizer "
            f"{tmp_path}/counted/tokenizer.json"
        )
    apart = {**common["settings"], "training": {"count_all": False}}
    held = cr.train(text, model="ngram", order=2, out=tmp_path / "held", tokenizer="word", settings=apart)
    assert cr.mix([held, network], valid=text, out=tmp_path / "first").result["weights"]
    same = cr.train(
        text, model="rnn", steps=2, out=tmp_path / "same", tokenizer=str(tmp_path / "counted/tokenizer.json"), **small
    )
    assert cr.mix([counted, same], valid=text, out=tmp_path / "second").result["weights"]


def test_only_finished_language_models_are_mixed(place: Path, lstm: Path, tmp_path: Path) -> None:
    unfinished = tmp_path / "unfinished"
    shutil.copytree(lstm, unfinished)
    (unfinished / "result.json").unlink()
    common = {"valid": place / "valid.txt", "out": tmp_path / "out", "kind": RunError}
    assert message_of(lstm, unfinished, **common) == (
        f"{unfinished} was stopped before it was finished; rerun its train command, then mix"
    )
    vectors = tmp_path / "vectors"
    cr.train(place / "text.txt", model="word2vec", tokenizer="char", vector_size=4, epochs=1, out=vectors)
    assert message_of(lstm, vectors, **{**common, "kind": MissingVerbError}) == (
        f"{vectors} (word2vec) has no mix; mix works with {', '.join(LANGUAGE_MODELS)}; this run has eval, info, "
        "embed, neighbours"
    )


def test_an_n_gram_model_mixes_with_a_network(place: Path, lstm: Path, tmp_path: Path) -> None:
    counted = made(place, "ngram")
    run = mix([counted, lstm], valid=place / "valid.txt", out=tmp_path / "mixed", buckets=True, caches=["unigram"])
    best = min(nats(cr.load(part), place / "valid.txt") for part in (counted, lstm))
    assert nats(run, place / "valid.txt") <= best + 1e-4
    assert run.parameters == sum(cr.load(part).parameters for part in (counted, lstm))
    tokens = run.open(place / "valid.txt").tokens
    depths_N = score_components(run.model, tokens).buckets_N
    assert set(depths_N.tolist()) <= set(range(5))  # words of context that a model of order 5 can find
    assert len(set(depths_N.tolist())) > 2


def test_scores_that_are_no_probabilities_are_not_mixed(place: Path, lstm: Path, tmp_path: Path) -> None:
    scores = tmp_path / "scores"
    cr.train(place / "text.txt", model="ngram", tokenizer="char", out=scores, smoothing="stupid-backoff")
    assert message_of(lstm, scores, valid=place / "valid.txt", out=tmp_path / "out", kind=RunError) == (
        f"{scores} gives scores, which are not probabilities, so it cannot be mixed; leave it out"
    )


def test_a_continuous_cache_wants_a_network(mixed: cr.Run, place: Path, tmp_path: Path) -> None:
    options = {"valid": place / "valid.txt", "out": tmp_path / "out", "caches": ["continuous"]}
    assert message_of(mixed.folder.path, **options) == (
        "a continuous cache compares the features of a network, but none of these runs has features; add a neural "
        "model, or use --cache unigram"
    )


def test_an_empty_validation_text_is_refused(place: Path, lstm: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    assert message_of(lstm, lstm, valid=empty, out=tmp_path / "out", kind=DataError) == (
        f"{empty} is empty: expected text; give a file with at least one line."
    )
    empty.write_text(" ")  # a text, but not one word
    words = made(place, "average", "word")
    assert message_of(words, words, valid=empty, out=tmp_path / "out", kind=DataError) == (
        "the validation text has no tokens; give a text with at least one line"
    )


def test_a_mixture_is_not_trained(place: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        cr.train(place / "text.txt", model="mixture", steps=1, out=tmp_path / "out")
    assert str(caught.value) == ("a mixture combines trained runs; use: chainrule mix RUN RUN --valid TEXT --out RUN")
    assert not (tmp_path / "out").exists()


def test_a_damaged_mixture_is_an_error(mixed: cr.Run, lstm: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(mixed.folder.path, damaged)
    (damaged / "model.safetensors").write_bytes((lstm / "model.safetensors").read_bytes())
    with pytest.raises(RunError) as caught:
        _ = cr.load(damaged).model
    assert str(caught.value) == (
        f"{damaged / 'model.safetensors'} is damaged or of another run; restore the file, or train again into another "
        "--out"
    )
