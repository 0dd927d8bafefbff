"""Runs of n-gram models: counted, saved, evaluated, scored and compressed with, and their error messages."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chainrule as cr
from builders import header_bytes, pairs_text
from chainrule.data.store import open_store
from chainrule.errors import ChainruleError, ConfigError, DataError, RunError
from chainrule.evaluation.text import SCORES_ONLY
from chainrule.experiments.mix import mix
from chainrule.reports import leaderboard
from chainrule.tasks.text_corpus import training_texts
from chainrule.text.readers import Texts, open_texts
from chainrule.text.samples.texts import english_text
from chainrule.training.fitting.fitting import TrainingListener
from engines.ngram.naive import Stream, reference

EVERY_WORD = {"tokenizer": {"min_count": 1}}
CHINESE = "床前明月光疑是地上霜\n举头望明月低头思故乡\n" * 20 + "明月几时有把酒问青天\n" * 3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """English as words, characters and bytes, and some Chinese."""
    folder = tmp_path_factory.mktemp("ngrams")
    lines = english_text().splitlines(keepends=True)
    (folder / "text.txt").write_text("".join(lines[:1500]))
    (folder / "valid.txt").write_text("".join(lines[1500:1700]))
    (folder / "test.txt").write_text("".join(lines[1700:2300]))
    (folder / "pairs.txt").write_text(pairs_text(200))
    (folder / "chinese.txt").write_text(CHINESE)
    return folder


@pytest.fixture(scope="module")
def words(place: Path) -> cr.Run:
    return cr.train(place / "text.txt", model="ngram", tokenizer="word", valid=place / "valid.txt", out=place / "words")


@pytest.fixture(scope="module")
def scores(place: Path) -> cr.Run:
    """Stupid back-off, which gives scores, not probabilities."""
    options: dict[str, Any] = {"smoothing": "stupid-backoff", "order": 3}
    return cr.train(place / "text.txt", model="ngram", tokenizer="word", out=place / "scores", **options)


def message_of(call: Any, kind: type[ChainruleError]) -> str:
    """The message of the error that a call raises."""
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


# The folder


def test_the_folder_has_no_sections_of_gradient_training(words: cr.Run, place: Path) -> None:
    folder = words.folder.path
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.toml", "tokenizer.json", "model.safetensors", "result.json", "signature", "training"}
    assert {path.name for path in (folder / "training").iterdir()} == {"request.json", "lock"}
    config = (folder / "config.toml").read_text()
    sections = [line for line in config.splitlines() if line.startswith("[")]
    assert sections == ["[data]", "[tokenizer]", "[model]"]
    options = words.config.model.options
    assert options == {
        "order": 5,
        "smoothing": "modified-kneser-ney",
        "delta": 1.0,
        "prune": [],
        "across_lines": False,
        "quantize": False,
    }


def test_the_result_reports_the_counts(words: cr.Run, place: Path) -> None:
    result = json.loads((words.folder.path / "result.json").read_text())
    assert set(result) == {
        "steps",
        "seconds",
        "train_seconds",
        "tokens",
        "parameters",
        "tokens_per_second",
        "ngrams",
        "budget",
        "peak_memory",
        "stopped",
        "validation",
    }
    tokens = words.open(place / "text.txt").tokens.tolist()
    eos, vocab_size = words.tokenizer.eos, words.tokenizer.vocab_size
    bigrams = {*zip([eos, *tokens], tokens, strict=False)}
    assert (result["steps"], result["tokens"], result["ngrams"][:2]) == (0, len(tokens), [vocab_size, len(bigrams)])
    assert result["parameters"] == sum(result["ngrams"]) + sum(result["ngrams"][:-1])
    assert result["budget"] == {"minutes": None, "steps": None, "epochs": None}


def test_the_same_command_finds_a_finished_run(words: cr.Run, place: Path) -> None:
    before, notes = (words.folder.path / "model.safetensors").stat(), []
    options: dict[str, Any] = {"model": "ngram", "tokenizer": "word", "valid": place / "valid.txt"}
    again = cr.train(place / "text.txt", **options, minutes=1, memory="1M", out=place / "words", listener=note(notes))
    assert notes == [f"{place / 'words'} is already finished; choose another --out"]
    assert again.result == words.result
    assert (words.folder.path / "model.safetensors").stat().st_mtime_ns == before.st_mtime_ns
    message = message_of(
        lambda: cr.train(place / "text.txt", **options, order=4, out=place / "words"),
        ConfigError,
    )
    assert message == (
        f"{place / 'words'} was made with other options (model.order was the default, now 4); "
        "rerun the command it was made with to resume, or choose another --out"
    )


def note(notes: list[str]) -> TrainingListener:
    return TrainingListener(note=notes.append)


@pytest.mark.parametrize("kept", [(), ("result.json",)], ids=["killed while counting", "the model deleted"])
def test_an_interrupted_run_is_finished_by_the_same_command(place: Path, tmp_path: Path, kept: tuple[str]) -> None:
    def again() -> cr.Run:
        return cr.train(place / "pairs.txt", model="ngram", tokenizer="char", order=3, out=tmp_path / "run")

    whole = (again().folder.path / "model.safetensors").read_bytes()
    for name in {"model.safetensors", "result.json"} - set(kept):
        (tmp_path / "run" / name).unlink()
    run = cr.load(tmp_path / "run")
    message = f"{tmp_path / 'run'} has no model yet; rerun the same train command to finish its training"
    assert message_of(lambda: run.model, RunError) == message
    assert again().result["ngrams"][0] == 12
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == whole


def test_without_valid_all_of_the_text_is_counted_and_the_figures_are_of_held_out_text(tmp_path: Path) -> None:
    text, options = tmp_path / "text.txt", {"model": "ngram", "tokenizer": "char", "order": 3}
    text.write_text(pairs_text(200) + "§ zz\n" * 4)
    notes: list[str] = []
    run = cr.train(text, **options, out=tmp_path / "run", listener=note(notes))
    rest = cr.train(text, **options, out=tmp_path / "rest", settings={"training": {"count_all": False}})
    whole = cr.train(text, **options, valid=text, out=tmp_path / "whole")
    assert run.evaluate(text).perplexity == whole.evaluate(text).perplexity != rest.evaluate(text).perplexity
    assert "§" in run.tokenizer.parts
    assert "§" not in rest.tokenizer.parts
    for one in (run, cr.load(tmp_path / "run")):
        assert one.evaluate_held_out() == one.validation() == rest.evaluate_held_out()
    assert any(
        line.endswith("are measured with the counts of the rest, then all of the text is counted") for line in notes
    )
    with pytest.raises(ConfigError, match="counts all of its text, so none of it is held out"):
        run.open_held_out()


def test_a_smoothing_that_is_fitted_on_held_out_text_does_not_count_it(tmp_path: Path) -> None:
    text, notes = tmp_path / "text.txt", list[str]()
    text.write_text(pairs_text(200))
    options: dict[str, Any] = {"model": "ngram", "tokenizer": "char", "smoothing": "jelinek-mercer"}
    run = cr.train(text, **options, out=tmp_path / "run", listener=note(notes))
    assert run.result["tokens"] == len(open_store(training_texts(run.config.data)[0], run.tokenizer))
    assert any("are not counted: the weights of the smoothing are fitted on them" in line for line in notes)


def test_an_interrupted_run_needs_the_same_text(tmp_path: Path) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "run"
    text.write_text(pairs_text(50))
    cr.train(text, model="ngram", tokenizer="char", out=out)
    (out / "result.json").unlink()
    text.write_text(pairs_text(50, seed=1))
    assert message_of(lambda: cr.train(text, model="ngram", tokenizer="char", out=out), DataError) == (
        f"the training text has changed since {out} was begun; restore the old text to resume, or choose another --out"
    )


def test_a_truncated_model_is_an_error_and_is_estimated_again(place: Path, tmp_path: Path) -> None:
    def again() -> cr.Run:
        return cr.train(place / "pairs.txt", model="ngram", tokenizer="char", order=3, out=tmp_path / "run")

    path = again().folder.path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert message_of(lambda: again().model, RunError) == (
        f"{path} is damaged or of another run; restore the file, or train again into another --out"
    )
    path.unlink()
    assert again().model.vocab_size == 12
    assert path.read_bytes() == whole


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "adaptive"}, "ngram is counted and has no output; leave --output out"),
        (
            {"objective": "scheduled-sampling"},
            "ngram is counted and has no objective; leave --objective out",
        ),
        (
            {"memory": "4K"},
            "training.memory = '4K': counting needs at least 64K; choose a larger value",
        ),
        (
            {"delta": 0.5},
            "delta is 0.5, but modified-kneser-ney does not use it; add --smoothing additive",
        ),
        (
            {"memory": "nonsense"},
            "training.memory is 'nonsense'; expected a number of bytes, for example 1G, 500M or 65536",
        ),
        (
            {"memory": "1G", "model": "lstm"},
            "training.memory bounds the counting of n-grams; lstm reads its text in a stream",
        ),
        (
            {"smoothing": "imported"},
            "the smoothing 'imported' marks a model that another program estimated; choose one that can be estimated, "
            "such as modified-kneser-ney",
        ),
        ({"order": 9}, "model.order = 9: input should be less than or equal to 8"),
        (
            {"ordre": 3},
            "unknown option 'model.ordre': did you mean 'model.order'? Known: model.across_lines, model.delta, "
            "model.order, model.prune, model.quantize, model.smoothing",
        ),
    ],
    ids=str,
)
def test_wrong_options_are_refused_and_leave_no_folder(
    place: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    values = {"model": "ngram", **options}
    assert message_of(lambda: cr.train(place / "pairs.txt", **values, out=tmp_path / "run"), ConfigError) == message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "options", [{"order": 5}, {"order": 3, "prune": [0, 0, 1], "quantize": True}, {"smoothing": "katz"}], ids=str
)
def test_bounded_memory_gives_the_same_file(place: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    files = []
    for number, memory in enumerate((None, "200K")):
        out = tmp_path / str(number)
        cr.train(place / "text.txt", model="ngram", tokenizer="word", memory=memory, out=out, **options)
        files.append((out / "model.safetensors").read_bytes())
        assert not list(out.glob("chainrule-*"))  # scratch files are deleted
    assert files[0] == files[1]


def test_a_budget_is_ignored_with_a_note(place: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    cr.train(place / "text.txt", model="ngram", minutes=1, out=tmp_path / "run", listener=note(notes))
    assert "ignoring --minutes: n-grams are counted in one pass" in notes


def test_discounts_that_cannot_be_estimated_are_noted(tmp_path: Path) -> None:
    notes: list[str] = []
    (tmp_path / "text.txt").write_text("one two three\n")
    run = cr.train(
        tmp_path / "text.txt",
        model="ngram",
        tokenizer="word",
        order=2,
        out=tmp_path / "run",
        settings=EVERY_WORD,
        listener=note(notes),
    )
    text = tmp_path / "text.txt"
    assert notes == [
        f"{text} is a single line and cannot be split: validating on the training text itself",
        "tokeniser: word, split at white space",
        "order 1: the counts (4 of 1, 0 of 2, 0 of 3, 0 of 4) do not allow an estimate of the discounts; using 0.5, 1 "
        "and 1.5",
        "order 2: the counts (4 of 1, 0 of 2, 0 of 3, 0 of 4) do not allow an estimate of the discounts; using 0.5, 1 "
        "and 1.5",
    ]
    # <eos>, <unk> and three words: 0.5 / 4 + 0.5 / 5 each but <unk>, then half of it and half of the whole
    [score] = run.score(["one two three"])
    assert score.log_prob == pytest.approx(4 * math.log(0.5 + 0.5 * (0.125 + 0.1)), rel=1e-5)


# Texts and tokenisers


@pytest.mark.parametrize("smoothing", ["modified-kneser-ney", "katz", "mle", "additive"])
@pytest.mark.parametrize("text", ["word\n", "a\n\n\n", "one line without an end", "x\n" * 300])
def test_the_smallest_texts_are_counted(tmp_path: Path, text: str, smoothing: str) -> None:
    (tmp_path / "text.txt").write_text(text)
    options: dict[str, Any] = {"smoothing": smoothing, "order": 8, "settings": EVERY_WORD}
    run = cr.train(tmp_path / "text.txt", model="ngram", tokenizer="word", out=tmp_path / "run", **options)
    counted = run.open(tmp_path / "text.txt").tokens.tolist()
    formula = reference(smoothing, Stream(counted, run.tokenizer.vocab_size, run.tokenizer.eos, False), 8)
    tokens = run.open(tmp_path / "text.txt").tokens.tolist()[:20]
    found_T = run.model.log_probs(torch.tensor([tokens]))[0].exp().tolist()
    want_T = [float(formula.row_after(tokens[:place])[token]) for place, token in enumerate(tokens)]
    assert found_T == pytest.approx(want_T, abs=1e-5)


def test_one_line_fits_interpolation_weights_to_itself(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one two one two one two one three")
    options: dict[str, Any] = {"smoothing": "jelinek-mercer", "order": 3, "settings": EVERY_WORD}
    run = cr.train(tmp_path / "text.txt", model="ngram", tokenizer="word", out=tmp_path / "run", **options)
    [score] = run.score(["one two one two one two one three"])
    assert math.exp(-sum(score.log_probs[:8]) / 8) < 1.7  # close to the value from the counts alone


def test_a_single_token_is_too_little(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n")
    message = message_of(
        lambda: cr.train(tmp_path / "text.txt", model="ngram", tokenizer="word", out=tmp_path / "run"), DataError
    )
    assert (
        message == f"{tmp_path / 'text.txt'} has blank lines only: expected text; give a file with at least one word."
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("tokenizer", "text", "across_lines"),
    [
        ("char", "chinese.txt", True),
        ("jieba", "chinese.txt", False),
        ("byte", "chinese.txt", True),
        ("bpe", "text.txt", True),
        ("unigram", "text.txt", True),
        ("word", "text.txt", False),
    ],
)
def test_every_tokenizer_does(place: Path, tokenizer: str, text: str, across_lines: bool) -> None:
    size = {"vocab_size": 300} if tokenizer in ("bpe", "unigram") else {}
    run = cr.train(place / text, model="ngram", tokenizer=tokenizer, out=place / f"by-{tokenizer}", **size)
    assert run.config.model.options["across_lines"] == run.model.across_lines == across_lines
    measured = run.evaluate(place / text)
    signature = dict(part.split(":") for part in measured.signature.split("|"))
    assert (signature["tracks"], signature["context"]) == ("1", "carried" if across_lines else "line")
    counts_V = np.bincount(run.open(place / text).tokens, minlength=run.tokenizer.vocab_size)
    shares = counts_V[counts_V > 0] / counts_V.sum()
    assert measured.cross_entropy < -(shares * np.log(shares)).sum()  # context helps
    lines = (place / text).read_text().splitlines()[:20]
    found = [pair for part in run.score_text(place / text) for pair in zip(*part, strict=True)][:20]
    want = [(pytest.approx(one.log_prob, rel=1e-5), one.tokens) for one in run.score(lines)]
    assert found == want


def test_a_cut_vocabulary_counts_the_rest_as_unknown(place: Path, tmp_path: Path) -> None:
    runs = [
        cr.train(place / "text.txt", model="ngram", tokenizer="word", order=2, out=tmp_path / "cut", vocab_size=200),
        cr.train(
            place / "text.txt",
            model="ngram",
            tokenizer="word",
            order=2,
            out=tmp_path / "rare",
            settings={"tokenizer": {"min_count": 3}},
        ),
    ]
    assert runs[0].tokenizer.vocab_size == 200
    for run in runs:
        unk, store = run.tokenizer.unk, run.open(place / "test.txt")
        assert unk is not None
        assert store.oov == (store.tokens == unk).sum() > 0
        assert run.model.unigram_counts[unk] > 100
        [score] = run.score(["zzzz"])
        assert (score.pieces, score.tokens) == (["<unk>", "<eos>"], 2)
        assert score.log_prob > -20  # seen in training
        assert math.isfinite(run.evaluate(place / "test.txt").perplexity_without_oov)


def test_without_smoothing_unknown_words_have_no_probability(tmp_path: Path) -> None:
    """Without smoothing, <unk> has no probability where every word of the training text is known."""
    (tmp_path / "text.txt").write_text("a b\na c\n" * 10)
    (tmp_path / "test.txt").write_text("a z\na c\n")
    options: dict[str, Any] = {"tokenizer": "word", "order": 1, "smoothing": "mle", "valid": tmp_path / "text.txt"}
    run = cr.train(tmp_path / "text.txt", model="ngram", out=tmp_path / "run", **options)
    measured = run.evaluate(tmp_path / "test.txt")
    assert measured.perplexity == measured.bits_per_byte == math.inf
    # a and </s> are a third each, c is a sixth: five words without z
    assert measured.perplexity_without_oov == pytest.approx((3**4 * 6) ** (1 / 5), rel=1e-5)


# Scoring a text


@pytest.mark.parametrize(("tokenizer", "megabytes"), [("word", 3), ("byte", 1.1)])
def test_a_text_is_scored_line_by_line(
    words: cr.Run, place: Path, tmp_path: Path, tokenizer: str, megabytes: float
) -> None:
    """Empty lines, carriage returns, a line longer than a block, and no newline at the end."""
    long = "a module of the " * int(megabytes * 65536)
    text = f"the value\r\n\n\nof  the \ttype\n{long}\nlast of\n\nno end"
    run = words
    if tokenizer == "byte":
        run = cr.train(place / "text.txt", model="ngram", tokenizer="byte", order=3, out=tmp_path / "run")
    path = tmp_path / "awkward.txt"
    path.write_bytes(text.encode())
    found = [pair for part in run.score_text(path) for pair in zip(*part, strict=True)]
    scored = list(run.score(text.split("\n")))
    assert [tokens for _, tokens in found] == [one.tokens for one in scored]
    assert [nats for nats, _ in found] == pytest.approx([one.log_prob for one in scored], rel=1e-5)
    for threads in (1, 2):
        again = [pair for part in run.score_text(path, threads=threads) for pair in zip(*part, strict=True)]
        assert again == found


def test_many_small_blocks_are_scored_in_order_by_any_number_of_threads(
    words: cr.Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = list(words.score_text(place / "test.txt", threads=1))
    assert len(whole) == 1
    monkeypatch.setattr("chainrule.runs.scoring.open_texts", small_blocks)
    for threads in (1, 2, 5):
        parts = list(words.score_text(place / "test.txt", threads=threads))
        assert len(parts) > 50
        assert [nats for part in parts for nats in part[0]] == whole[0][0]
        assert [tokens for part in parts for tokens in part[1]] == whole[0][1]


def small_blocks(*args: Any, **options: Any) -> Texts:
    return Texts(open_texts(*args, **options).sources, block=100)


def test_a_tokenizer_with_a_memo_is_used_by_one_thread(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The BPE tokeniser keeps a memo of words, which two threads must not change at once."""
    options: dict[str, Any] = {"tokenizer": "bpe", "vocab_size": 300, "order": 3}
    run = cr.train(place / "text.txt", model="ngram", out=tmp_path / "run", **options)
    whole = [nats for part in run.score_text(place / "test.txt", threads=1) for nats in part[0]]
    assert not run.tokenizer.concurrent
    encode_block, threads = run.tokenizer.encode_block, set()

    def encode(block: str) -> Any:
        threads.add(threading.current_thread())
        return encode_block(block)

    monkeypatch.setattr(run.tokenizer, "encode_block", encode)
    monkeypatch.setattr("chainrule.runs.scoring.open_texts", small_blocks)
    assert [nats for part in run.score_text(place / "test.txt", threads=4) for nats in part[0]] == whole
    assert threads == {threading.current_thread()}


def test_a_run_over_bytes_scores_any_bytes(place: Path, tmp_path: Path) -> None:
    run = cr.train(place / "text.txt", model="ngram", tokenizer="byte", order=2, out=tmp_path / "run")
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9\n\0\n")
    [(nats, tokens)] = run.score_text(tmp_path / "latin1.txt")
    assert tokens == [5, 2]
    assert all(-100 < score < 0 for score in nats)


# Scores that are not probabilities


def test_scores_have_no_perplexity(scores: cr.Run, place: Path) -> None:
    measured = scores.evaluate(place / "test.txt").to_dict()
    none = ("cross_entropy", "perplexity", "perplexity_without_oov", "bits_per_byte")
    assert [measured[name] for name in none] == [None] * 4
    assert measured["protocol"] == SCORES_ONLY
    assert measured["tokens"] == len(scores.open(place / "test.txt"))


def test_scores_cannot_compress_or_be_mixed(scores: cr.Run, words: cr.Run, place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert message_of(lambda: scores.compress(place / "test.txt", out), ConfigError) == (
        "this model gives scores, which are not probabilities, so it cannot compress; use another model"
    )
    options: dict[str, Any] = {"valid": place / "valid.txt", "out": out, "caches": ["unigram"]}
    assert message_of(lambda: mix([scores], **options), RunError) == (
        f"{scores.folder.path} gives scores, which are not probabilities, so it cannot be mixed; leave it out"
    )
    assert not out.exists()


def test_scores_generate(scores: cr.Run, place: Path) -> None:
    seen = {"<unk>", *(place / "text.txt").read_text().split()}
    greedy, again = (scores.generate("The", max_new_tokens=12)[0].text for _ in range(2))
    assert greedy == again
    sampled = {scores.generate("The", max_new_tokens=12, temperature=1.0, seed=seed)[0].text for seed in range(4)}
    assert len(sampled) > 1
    for text in (greedy, *sampled):
        assert text.startswith("The ")
        assert set(text.split()) <= seen
    best = scores.generate("The", max_new_tokens=6, num_beams=4)[0].text
    assert best.startswith("The ")


def test_a_leaderboard_puts_scores_last(place: Path, tmp_path: Path) -> None:
    models = "ngram(smoothing=stupid-backoff), ngram(order=1), ngram(smoothing=mle), ngram(order=2)"
    rows = cr.compare(place / "text.txt", models=models, tokenizer="word", test=place / "test.txt", out=tmp_path)
    assert [row.model for row in rows] == [
        "ngram(order=2)",
        "ngram(order=1)",
        "ngram(smoothing=mle)",
        "ngram(smoothing=stupid-backoff)",
    ]
    cells = {column.heading: [column.cell(row) for row in rows[2:]] for column in leaderboard.columns_of(rows)}
    assert (cells["perplexity"], cells["bits/byte"]) == (["inf", "none"], ["inf", "none"])
    assert [row.perplexity for row in rows[2:]] == [math.inf, pytest.approx(math.nan, nan_ok=True)]
    assert [(row.to_dict()["perplexity"], row.to_dict()["bits_per_byte"]) for row in rows[2:]] == [(None, None)] * 2
    assert "| ngram(smoothing=stupid-backoff) |" in leaderboard.markdown(rows).splitlines()[-1]


# Compressing


@pytest.mark.parametrize("tokenizer", ["word", "byte"])
def test_a_text_is_compressed_to_the_evaluated_size(words: cr.Run, place: Path, tmp_path: Path, tokenizer: str) -> None:
    run, text = words, place / "test.txt"
    if tokenizer == "byte":
        run, text = cr.train(place / "text.txt", model="ngram", tokenizer="byte", out=tmp_path / "run"), tmp_path / "t"
        text.write_text((place / "test.txt").read_text()[:5000])
    done = run.compress(text, tmp_path / "small")
    run.decompress(tmp_path / "small", tmp_path / "back.txt")
    assert (tmp_path / "back.txt").read_bytes() == text.read_bytes()
    expected = run.evaluate(text).bits_per_byte * done.bytes / 8
    overhead = header_bytes(tmp_path / "small")
    assert expected < done.compressed_bytes - overhead < 1.01 * expected + 40  # checksums and the last words of codes
