"""Runs of translators: translations in order, their scores, attention, evaluation, and error messages."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import chainrule as cr
from builders import LANGUAGE_MODELS, TRANSLATORS, letter_pairs, write_pairs
from chainrule.data.pairs import pad_sources
from chainrule.errors import ChainruleError, ConfigError, DataError
from chainrule.inference.subject import TranslationModel
from chainrule.inference.translate import FIRST_WINDOW
from chainrule.runs.base import MissingVerbError
from chainrule.runs.load import load_for
from chainrule.runs.translator import TranslatorRun

CONTEXT = 24
SMALL: dict[str, Any] = {
    "embedding": 16,
    "heads": 2,
    "positions": "rotary",  # the fastest to learn at this width
    "encoder_layers": 1,
    "decoder_layers": 1,
    "feedforward": 32,
    "context": CONTEXT,
    "dropout": 0.0,
}
TRAINING: dict[str, Any] = {"max_tokens": 128, "optimizer": "adamw", "lr": 0.02, "validations": 1}
WORDS = ["the cat sat .", "a dog ran (far)", "the dog sat , far", "a cat ran .", "the cat ran", "a dog sat ."] * 4
LINES = ["ab", "", "dcba", "a", "   ", "bbbbb", "c", "abcd", "dd", "", "cab", "d", "ba"]  # more than a first window


def train(paths: tuple[Path, ...], out: Path, *, steps: int, **options: Any) -> TranslatorRun:
    options = {"model": "seq2seq-transformer", "tokenizer": "char", **options}
    shape = SMALL if options["model"] == "seq2seq-transformer" else {"embedding": 8, "hidden": 8}
    run = cr.train(
        *paths, out=out, steps=steps, device="cpu", settings={"model": shape, "training": TRAINING}, **options
    )
    assert isinstance(run, TranslatorRun)
    return run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translation")
    write_pairs(folder, letter_pairs(300, longest=5), "train")
    write_pairs(folder, letter_pairs(30, seed=5), "test")
    write_pairs(folder, [(line, line) for line in WORDS], "words")
    (folder / "text.txt").write_text("some text\nof some lines\n" * 20)
    return folder


@pytest.fixture(scope="module")
def run(place: Path) -> TranslatorRun:
    """A translator of letters, trained well enough to be useful."""
    return train((place / "train.src", place / "train.tgt"), place / "run", steps=120)


@pytest.fixture(scope="module")
def word_run(place: Path) -> TranslatorRun:
    """An almost untrained translator of words."""
    run = train((place / "words.src", place / "words.tgt"), place / "word-run", steps=1, tokenizer="word")
    return run


@pytest.fixture(scope="module")
def rnn_run(place: Path) -> TranslatorRun:
    """An almost untrained translator without attention."""
    options: dict[str, Any] = {"model": "seq2seq-rnn", "reversed_source": False}
    return train((place / "train.src", place / "train.tgt"), place / "rnn", steps=1, **options)


@pytest.fixture(scope="module")
def language_model(place: Path) -> cr.Run:
    return cr.train(place / "text.txt", model="ngram", order=2, tokenizer="char", out=place / "ngram")


def texts(found: Iterator[list[Any]]) -> list[str]:
    return [best.text for best, *_ in found]


def forced(run: TranslatorRun, line: str, tokens: list[int]) -> list[float]:
    """log p of each target token given a line, by the model itself."""
    source = pad_sources([run.source_tokenizer.encode(line)], run.source_tokenizer.eos)
    with torch.no_grad():
        found: list[float] = run.model.log_probs(torch.tensor([tokens]), source)[0].tolist()
    return found


# Lines in, lines out


def test_what_is_trained_on_pairs_translates(run: TranslatorRun, place: Path) -> None:
    assert isinstance(cr.load(place / "run"), TranslatorRun)
    assert run.result["steps"] == 120
    pairs = letter_pairs(30, seed=5)
    right = sum(run.translate(source) == target for source, target in pairs)
    assert right > 3  # by chance about one, of a single letter


def test_order_is_kept_and_empty_lines_stay_empty(run: TranslatorRun) -> None:
    together = texts(run.translate_lines(LINES))
    assert together == [run.translate(line) for line in LINES]
    assert [number for number, text in enumerate(together) if not text] == [1, 4, 9]
    assert texts(run.translate_lines(LINES, batch_size=2, num_beams=3)) == [
        run.translate(line, num_beams=3) for line in LINES
    ]
    assert texts(run.translate_lines([])) == []


def test_a_line_of_which_the_tokeniser_keeps_nothing_is_empty(
    run: TranslatorRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = TranslationModel.encode_source
    monkeypatch.setattr(TranslationModel, "encode_source", lambda *given: encode(*given) if given[1] != "?" else [])
    assert texts(run.translate_lines(["?"])) == [""]
    assert texts(run.translate_lines(["?", "ab", "?"])) == ["", run.translate("ab"), ""]


def test_the_first_translations_come_before_the_last_lines_are_read(run: TranslatorRun) -> None:
    read: list[int] = []

    def lines() -> Iterator[str]:
        for number in range(100):
            read.append(number)
            yield "ab"

    found = run.translate_lines(lines(), num_beams=1)
    assert not read
    next(found)
    assert len(read) == FIRST_WINDOW
    for _ in range(FIRST_WINDOW):
        next(found)
    assert len(read) == 3 * FIRST_WINDOW  # windows double
    assert len(list(found)) == 100 - FIRST_WINDOW - 1


def test_line_by_line_none_is_read_before_the_last_is_answered(run: TranslatorRun) -> None:
    read: list[int] = []

    def lines() -> Iterator[str]:
        for number in range(5):
            read.append(number)
            yield "abc"

    for number, _ in enumerate(run.translate_lines(lines(), num_beams=1, batch_size=1)):
        assert read == list(range(number + 1))


def test_the_n_best_are_ranked_by_their_scores(run: TranslatorRun) -> None:
    ((first, *others),) = run.translate_lines(["abc"], num_beams=4, num_return_sequences=4, length_penalty=0.5)
    found = [first, *others]
    assert len({one.text for one in found}) == len(found) == 4
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    for one in found:
        tokens = [*run.tokenizer.encode(one.text), run.tokenizer.eos]
        assert one.tokens == len(tokens)
        assert one.log_prob == pytest.approx(sum(forced(run, "abc", tokens)), abs=1e-4)
        assert one.score == pytest.approx(one.log_prob / len(tokens) ** 0.5, abs=1e-4)


def test_every_translation_begins_with_the_prefix(run: TranslatorRun) -> None:
    for best, *_ in run.translate_lines(["abc", "d", "abcd"], prefix="DA"):
        assert best.text.startswith("DA")
    ((best,),) = run.translate_lines(["abc"], prefix="DA")
    tokens = [*run.tokenizer.encode(best.text), run.tokenizer.eos]
    assert best.log_prob == pytest.approx(sum(forced(run, "abc", tokens)[2:]), abs=1e-4)  # without the prefix
    unprefixed = run.translate("abc")
    assert run.translate("abc", prefix=unprefixed[:1]) == unprefixed


def test_a_translation_has_no_more_tokens_than_asked_for(run: TranslatorRun) -> None:
    ((best,),) = run.translate_lines(["abcd"], max_new_tokens=2)
    assert best.tokens == 2
    assert len(run.translate("abcd", max_new_tokens=1, prefix="A" * 22)) <= 23  # the limit of the model
    with pytest.raises(ConfigError) as error:
        run.translate("abcd", prefix="A" * 23)
    assert str(error.value) == "the prefix has 23 tokens, but the model writes at most 23; give a shorter prefix"


@pytest.mark.parametrize(
    ("option", "message_of"),
    [
        ("max_new_tokens", "max_new_tokens is 0; expected at least 1"),
        ("batch_size", "batch_size is 0; expected at least 1"),
        ("num_beams", "num_beams is 0; expected at least 1"),
        (
            "num_return_sequences",
            "num_return_sequences is 0; expected 1 to 5, the width of the beam: widen the beam for more",
        ),
    ],
)
def test_counts_below_one_are_refused(option: str, message_of: str, run: TranslatorRun) -> None:
    with pytest.raises(ConfigError) as error:
        run.translate("ab", **{option: 0})
    assert str(error.value) == message_of


# Ensembles


def test_a_run_in_an_ensemble_with_itself_is_the_run(run: TranslatorRun) -> None:
    alone = [best for best, *_ in run.translate_lines(LINES)]
    both = [best for best, *_ in run.translate_lines(LINES, together=[run])]
    assert [one.text for one in both] == [one.text for one in alone]
    assert [one.log_prob for one in both] == pytest.approx([one.log_prob for one in alone], abs=1e-4)


def test_runs_with_different_tokens_cannot_form_an_ensemble(run: TranslatorRun, word_run: TranslatorRun) -> None:
    with pytest.raises(ConfigError) as error:
        next(run.translate_lines(["ab"], together=[word_run]))
    assert str(error.value) == (
        f"{run.name} and {word_run.name} write different tokens, so they cannot form an ensemble; train them with one "
        "tokenizer (--tokenizer FOLDER)"
    )


# Attention


def test_attention_is_returned_for_every_piece(run: TranslatorRun) -> None:
    ((best,), (empty,)) = run.translate_lines(["abca", ""], attention=True)
    assert empty.attention is None
    assert best.attention is not None
    assert best.attention.source == ["a", "b", "c", "a", "<eos>"]
    assert best.attention.target == [*best.text, "<eos>"]
    weights_TS = torch.tensor(best.attention.weights)
    assert weights_TS.shape == (len(best.text) + 1, 5)
    torch.testing.assert_close(weights_TS.sum(1), torch.ones(len(weights_TS)))
    tokens_BT = torch.tensor([[*run.tokenizer.encode(best.text), run.tokenizer.eos]])
    source = pad_sources([run.tokenizer.encode("abca")], run.tokenizer.eos)
    with torch.no_grad():
        torch.testing.assert_close(weights_TS, run.model.attention(tokens_BT, source)[0])
    assert next(run.translate_lines(["abca"]))[0].attention is None  # only on request


def test_an_unknown_word_is_copied_from_the_largest_attention_weight(word_run: TranslatorRun) -> None:
    line, unk = "the zebra sat , far", word_run.tokenizer.unk
    assert unk in word_run.tokenizer.encode(line)
    options: dict[str, Any] = {"prefix": "a gnu ran", "max_new_tokens": 1, "attention": True}
    ((best,),) = word_run.translate_lines([line], **options)
    assert best.attention is not None
    assert best.attention.source == [*line.split(), "<eos>"]  # the exact words, not <unk>
    weights = best.attention.weights[1][:-1]
    copied = line.split()[weights.index(max(weights))]
    assert best.text.split()[:3] == ["a", copied, "ran"]
    assert word_run.translate(line, **options, copy_unknown=False).startswith("a <unk> ran")


def test_words_are_copied_without_their_marks(place: Path) -> None:
    folder = place / "unicode"
    settings = {"model": SMALL, "training": TRAINING, "tokenizer": {"split": "unicode"}}
    run = cr.train(
        *(place / "words.src", place / "words.tgt"),
        model="seq2seq-transformer",
        tokenizer="word",
        steps=1,
        out=folder,
        settings=settings,
    )
    assert isinstance(run, TranslatorRun)
    line = "a (zebra) sat."
    tokens = run.subject.encode_source(line)
    assert run.source_tokenizer.piece(tokens[1]) == "␣("
    assert run.subject.source_pieces(line, tokens) == ["a", "(", "zebra", ")", "sat", "."]


def test_a_model_without_attention_shows_none(rnn_run: TranslatorRun) -> None:
    with pytest.raises(ConfigError) as error:
        rnn_run.translate("ab", attention=True)
    assert str(error.value) == (f"{rnn_run.folder.path} (seq2seq-rnn) has no attention to show; leave --attention out")
    assert rnn_run.translate("ab", prefix="x", max_new_tokens=1).startswith("<unk>")  # it cannot copy


# Long lines


def test_a_line_beyond_the_context_is_cut_with_a_warning(run: TranslatorRun) -> None:
    long = "abcd" * 10
    with pytest.warns(UserWarning, match="the rest is missing") as warned:
        found = texts(run.translate_lines(["a", "", long, "b"], num_beams=2))
    assert [str(one.message) for one in warned] == [
        "line 3 has 40 tokens, but the model reads 23: the rest is missing from the translation"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found[2] == run.translate(long[: CONTEXT - 1], num_beams=2)  # it fits the context


def test_a_line_of_a_hundred_thousand_characters_is_translated(run: TranslatorRun) -> None:
    with pytest.warns(UserWarning, match="line 2 has 100000 tokens, but the model reads 23"):
        found = texts(run.translate_lines(["a", "ab" * 50_000, "b"], num_beams=2))
    assert found[0] == run.translate("a", num_beams=2)
    assert found[2] == run.translate("b", num_beams=2)
    assert 0 < len(found[1]) < CONTEXT


def test_recurrent_models_read_lines_of_any_length(rnn_run: TranslatorRun) -> None:
    long, options = "ab" * 1000, {"max_new_tokens": 3, "num_beams": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (whole,), (other,) = rnn_run.translate_lines([long + "c", long + "d"], **options)
    assert whole.log_prob != other.log_prob  # it is read to its end


# Scores and measures


def test_scores_of_pairs_are_the_log_probs_of_the_model(run: TranslatorRun, tmp_path: Path) -> None:
    pairs = [("ab", "BA"), ("abcd", ""), ("", "A"), ("d", "D"), ("ab", "AB")]
    found = list(run.score_pairs(write_pairs(tmp_path, pairs)))
    for one, (source, target) in zip(found, pairs, strict=True):
        expected = forced(run, source, [*run.tokenizer.encode(target), run.tokenizer.eos])
        assert one.log_probs == pytest.approx(expected, abs=1e-4)
        assert one.log_prob == pytest.approx(sum(expected), abs=1e-4)
        assert one.pieces == [*target, "<eos>"]
        assert one.tokens == len(target) + 1


def test_pairs_too_long_to_be_scored_are_cut_or_refused(run: TranslatorRun, tmp_path: Path) -> None:
    paths = write_pairs(tmp_path, [("a", "A"), ("a" * 30, "A")])
    with pytest.warns(UserWarning, match="line 2 has 30 tokens, but the model reads 23"):
        found = list(run.score_pairs(paths))
    assert found[1].log_probs == pytest.approx(
        forced(run, "a" * 23, [*run.tokenizer.encode("A"), run.tokenizer.eos]), abs=1e-4
    )
    paths = write_pairs(tmp_path, [("a", "A"), ("b", "B" * 24)])
    with pytest.raises(DataError) as error:
        list(run.score_pairs(paths))
    assert str(error.value) == (
        f"line 2 of {paths[1]} has 24 tokens, but the model writes at most 23; leave the pair out, or train with a "
        "larger model.context"
    )


def test_an_evaluation_measures_the_translations(run: TranslatorRun, place: Path) -> None:
    paths = [place / "test.src", place / "test.tgt"]
    measured = run.evaluate(paths, num_beams=2)
    references = paths[1].read_text().splitlines()
    outputs = run.outputs_of(paths, num_beams=2)
    assert outputs == texts(run.translate_lines(paths[0].read_text().splitlines(), num_beams=2))
    equal = [output == reference for output, reference in zip(outputs, references, strict=True)]
    assert measured.exact_match == pytest.approx(sum(equal) / 30)
    assert measured == run.evaluate(paths, num_beams=2, outputs=outputs)
    scores = list(run.score_pairs(paths))
    assert measured.tokens == sum(one.tokens for one in scores)
    assert measured.cross_entropy == pytest.approx(-sum(one.log_prob for one in scores) / measured.tokens, rel=1e-5)
    assert "translated by beam search, 2 beams, length penalty 1;" in measured.protocol
    keys = {"tokens", "oov", "bytes", "cross_entropy", "perplexity", "perplexity_without_oov", "bits_per_byte"}
    keys |= {"signature", "bleu", "chrf", "rouge1", "rouge2", "rougeL", "exact_match", "token_accuracy"}
    assert keys <= set(json.loads(json.dumps(measured.to_dict())))
    second = place / "second.tgt"
    second.write_text("".join(output + "\n" for output in outputs))
    assert run.evaluate(paths, num_beams=2, references=[second]).exact_match == 1
    folded = run.evaluate(paths, outputs=[output.lower() for output in outputs], lowercase=True)
    assert folded.exact_match == measured.exact_match


def test_two_runs_are_compared_pair_by_pair(run: TranslatorRun, place: Path) -> None:
    paths = [place / "test.src", place / "test.tgt"]
    references = paths[1].read_text().splitlines()
    outputs = run.outputs_of(paths, num_beams=1)
    better = run.compare_with(paths, (outputs, references), metric="chrf")
    assert better.b == pytest.approx(100)
    assert better.difference == pytest.approx(100 - better.a)
    assert better.p_value < 0.05
    assert run.compare_with(paths, (outputs, outputs), metric="chrf").difference == 0


# Errors


def message_of(call: Any, *arguments: Any, **options: Any) -> str:
    """The message of the error that a call raises, at the latest with its first result."""
    with pytest.raises(ChainruleError) as error:
        _first(call(*arguments, **options))
    return str(error.value)


def _first(result: Any) -> Any:
    return next(result) if isinstance(result, Iterator) else result


def test_a_run_without_the_verb_is_refused(language_model: cr.Run) -> None:
    with pytest.raises(MissingVerbError) as error:
        load_for("translate", TranslatorRun, language_model.folder.path)
    assert str(error.value) == (
        f"{language_model.folder.path} (ngram) has no translate; translate works with {', '.join(TRANSLATORS)}; this "
        "run has score, rescore, tune, generate, compress, decompress, mix, eval, info"
    )


@pytest.mark.parametrize("verb", ["generate", "stream", "score_text", "compress", "open"])
def test_a_translator_does_not_continue_texts(verb: str, run: TranslatorRun) -> None:
    with pytest.raises(MissingVerbError) as error:
        getattr(run, verb)
    usable = f"{verb} works with {', '.join(LANGUAGE_MODELS)}; " if verb in ("generate", "compress") else ""
    verbs = "translate, score, tune, distill, eval, info, embed, neighbours"
    assert str(error.value) == f"{run.name} has no {verb}; {usable}this run has {verbs}"


def test_a_verb_with_another_name_in_python_is_explained(run: TranslatorRun) -> None:
    with pytest.raises(MissingVerbError) as error:
        _ = run.score  # score_pairs
    assert str(error.value) == f"{run.name} has no method score; use score_pairs"


def test_a_language_model_reads_no_pairs(place: Path, language_model: cr.Run, tmp_path: Path) -> None:
    for name, lines in (("p.en", "a\n"), ("p.de", "b\n"), ("p.tsv", "a\tb\n")):
        (tmp_path / name).write_text(lines)
    for paths in ([tmp_path / "p.en", tmp_path / "p.de"], [tmp_path / "p.tsv"]):
        expected = (
            f"{' and '.join(map(str, paths))} look like pairs, but {{}} reads one text; choose a translator "
            "(--model seq2seq-attention), or give one side, or both joined in one .txt file"
        )
        assert message_of(cr.train, *paths, model="lstm", out=tmp_path / "run") == expected.format("lstm")
        assert message_of(language_model.evaluate, paths) == expected.format("ngram")
    assert not (tmp_path / "run").exists()
    assert language_model.evaluate([tmp_path / "p.en"]).tokens == 2  # one side is an ordinary text


def test_a_translator_reads_no_single_text(place: Path, run: TranslatorRun, tmp_path: Path) -> None:
    expected = (
        "got 1 file for pairs of lines: expected two, source then target, or one .tsv, .csv, .jsonl or hf:NAME:SPLIT "
        "with both; name them."
    )
    assert message_of(cr.train, place / "text.txt", model="seq2seq-rnn", out=tmp_path / "run") == expected
    assert message_of(run.evaluate, place / "text.txt") == expected
    assert message_of(run.score_pairs, place / "text.txt") == expected
    assert not (tmp_path / "run").exists()


def test_files_of_unequal_length_are_refused_everywhere(place: Path, run: TranslatorRun, tmp_path: Path) -> None:
    shorter = tmp_path / "shorter.tgt"
    shorter.write_text("A\nB\n")
    paths = [place / "test.src", shorter]
    expected = (
        f"{paths[0]} has 30 lines and {paths[1]} has 2: line 3 of {paths[0]} has no partner; expected two files "
        "that match line by line."
    )
    assert message_of(cr.train, *paths, model="seq2seq-rnn", tokenizer="char", out=tmp_path / "run") == expected
    assert message_of(run.evaluate, paths) == expected
    assert message_of(run.score_pairs, paths) == expected
    assert not (tmp_path / "run").exists()


def test_empty_files_are_refused(place: Path, run: TranslatorRun, tmp_path: Path) -> None:
    empty = tmp_path / "empty.tgt"
    empty.write_text("")
    expected = f"{empty} is empty: expected text; give a file with at least one line."
    assert message_of(cr.train, place / "test.src", empty, model="seq2seq-rnn", out=tmp_path / "run") == expected
    assert message_of(run.evaluate, [place / "test.src", empty]) == expected
