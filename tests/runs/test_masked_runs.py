"""Runs of bert: trained, resumed, measured, and used to fill in masked words."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

from builders import pairs_text, stir
from chainrule.api import load, train
from chainrule.checkpoint.build import build_model, save_model
from chainrule.checkpoint.folder import RunFolder
from chainrule.cli.main import main
from chainrule.config import RunConfig, read_toml
from chainrule.errors import ChainruleError, ConfigError, DataError
from chainrule.runs.base import MissingVerbError
from chainrule.runs.load import load_for
from chainrule.runs.masked import MaskedRun
from chainrule.tasks.task import Listener, task_of
from chainrule.text.tokenizers.huggingface import HuggingFaceTokenizer
from chainrule.training.fitting.fitting import TrainingListener
from chainrule.types import Vocabulary
from commands import chainrule

SHAPE = {"width": 16, "layers": 1, "heads": 2, "positions": 16, "dropout": 0.1}
TRAINING = {"batch_size": 16, "length": 12, "optimizer": "adamw", "lr": 0.01, "validations": 2, "log_steps": 5}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "pairs.txt"
    path.write_text(pairs_text(400))
    return path


def fitted(text: Path, out: Path, steps: int, listener: TrainingListener | None = None, **options: Any) -> MaskedRun:
    settings = {"training": {**TRAINING, **options.pop("training", {})}, "objective": options.pop("objective", {})}
    model = {**SHAPE, **options.pop("model", {})}
    given = {"tokenizer": "char", **options}
    run = train(
        text, model="bert", steps=steps, out=out, settings={**settings, "model": model}, listener=listener, **given
    )
    assert isinstance(run, MaskedRun)
    return run


@pytest.fixture(scope="module")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> MaskedRun:
    out, quick = tmp_path_factory.mktemp("run") / "bert", {"optimizer": "muon", "lr": 0.02, "batch_size": 32}
    return fitted(text, out, 300, training=quick, model={"dropout": 0.0})


def metrics(run: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


# Training


def test_it_learns(trained: MaskedRun) -> None:
    """Lines repeat a pair of letters, so a masked letter follows from those on either side."""
    counts = Counter(pairs_text(400).replace("\n", ""))
    whole = sum(counts.values())
    unigram = -sum(n / whole * math.log(n / whole) for n in counts.values())
    found = trained.validation()
    assert found.masked_cross_entropy < 0.5 * unigram
    assert found.masked_accuracy > 0.7
    losses = [record["valid_loss"] for record in metrics(trained.folder.path) if "valid_loss" in record]
    assert losses[-1] < 0.6 * unigram
    assert trained.config.objective.name == "masked"


def test_training_twice_gives_identical_weights(text: Path, tmp_path: Path) -> None:
    one, same, other = (
        fitted(text, tmp_path / name, 4, seed=seed).folder.read_weights()
        for name, seed in (("one", 1), ("same", 1), ("other", 2))
    )
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["transform.weight"], other["transform.weight"])


class StopError(Exception):
    """Ends a training at some moment."""


def test_an_interrupted_training_ends_like_an_uninterrupted_one(text: Path, tmp_path: Path) -> None:
    """Masks depend on the number of the batch, so they are the same after the interruption."""
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    often = {"save_seconds": 1e-6}

    def stop(update: Any) -> None:
        if update.state.step >= 20:
            raise StopError

    fitted(text, unbroken, 40, training=often)
    with pytest.raises(StopError):
        fitted(text, broken, 40, training=often, listener=TrainingListener(update=stop))
    checkpoint = RunFolder(broken).read_checkpoint()
    assert checkpoint is not None
    assert 10 < checkpoint.values["step"] < 25
    fitted(text, broken, 40, training=often)
    ends = [RunFolder(run).read_checkpoint() for run in (unbroken, broken)]
    for name, tensor in ends[0].tensors.items():  # type: ignore[union-attr]
        assert torch.equal(tensor, ends[1].tensors[name]), name  # type: ignore[union-attr]
    assert metrics(unbroken) == metrics(broken)


def test_open_options_are_chosen(text: Path, tmp_path: Path) -> None:
    run = train(text, model="bert", tokenizer="char", steps=1, out=tmp_path / "run")
    config = run.config
    assert config.model.options == {"width": 128, "positions": 128, "dropout": 0.0}
    training = config.training
    assert (training.batching, training.length) == ("blocks", 128)
    assert training.optimizer == ("muon" if hasattr(torch.optim, "Muon") else "adamw")
    tuned = train(text, init=run.folder.path, steps=1, out=tmp_path / "tuned").config
    assert (tuned.training.optimizer, tuned.training.lr, tuned.training.length) == ("adamw", 1e-4, 128)


@pytest.mark.parametrize(("kind", "first", "length"), [("roberta", None, 13), ("roberta", 4, 12), ("bert", 4, 15)])
def test_the_text_takes_the_positions_that_are_free(
    kind: str, first: int | None, length: int, text: Path, tmp_path: Path
) -> None:
    model = {"kind": kind, "first": first, "pad": 2}
    run = fitted(text, tmp_path / "run", 1, training={"length": None}, model=model)
    assert run.config.training.length == run.model.window == length
    corpus = task_of(run.config).open(run.config, run.folder, Listener())
    assert corpus.batches(run.config).batch(0)[0].inputs_BT.shape[1] == length + (first is not None)
    with pytest.raises(ConfigError) as caught:
        fitted(text, tmp_path / "longer", 1, training={"length": length + 1}, model=model)
    assert str(caught.value) == (
        f"training.length is {length + 1}, but with model.positions = 16 bert reads at most {length} tokens; reduce "
        "the one or increase the other"
    )


def _alone() -> Any:
    from chainrule.base.processes import Processes

    return Processes()


def test_whole_words_are_masked_in_training_and_evaluation(text: Path, tmp_path: Path) -> None:
    run = fitted(text, tmp_path / "run", 1, objective={"whole_word": True, "rate": 0.3})
    corpus = task_of(run.config).open(run.config, run.folder, Listener())
    batch, _ = corpus.batches(run.config).batch(0)
    assert batch.weights_BT is not None
    for row_T, weights_T in zip(batch.targets_BT.tolist(), batch.weights_BT.tolist(), strict=True):
        words: list[set[float]] = [set()]
        for token, weight in zip(row_T, weights_T, strict=True):
            words = [*words, set()] if token == run.tokenizer.eos else [*words[:-1], words[-1] | {weight}]
        assert all(len(word) < 2 for word in words)  # a line is a word here
    assert run.protocol.masking.rate == 0.3
    assert run.protocol.masking.boundaries is not None


def test_other_models_and_objectives_are_refused(text: Path, tmp_path: Path) -> None:
    for model, objective in (("lstm", "masked"), ("bert", "likelihood")):
        with pytest.raises(ConfigError, match="objective"):
            train(text, model=model, objective=objective, steps=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Filling


def test_masked_letters_are_predicted_from_both_sides(trained: MaskedRun) -> None:
    filled = trained.fill("ababab[MASK]babab")
    assert (len(filled), filled[0].word, len(filled[0].guesses)) == (1, "a", 5)
    probabilities = [guess.probability for guess in filled[0].guesses]
    assert probabilities == sorted(probabilities, reverse=True)
    assert [one.word for one in trained.fill("[MASK]hghg[MASK]", top=2)] == ["g", "h"]
    assert sum(guess.probability for guess in trained.fill("a[MASK]", top=1000)[0].guesses) == pytest.approx(1)


@torch.no_grad()
def test_filling_is_the_model_on_the_line_between_two_eos(trained: MaskedRun) -> None:
    """Each of several masks gets its own words, while the others stay masked."""
    eos, mask = trained.tokenizer.eos, trained.model.mask
    ids = {letter: trained.tokenizer.encode(letter)[0] for letter in "abcd"}
    row_1S = torch.tensor([[eos, ids["a"], mask, ids["c"], mask, eos]])
    probs_V = trained.model.logits(row_1S, row_1S >= 0)[0].softmax(1)
    for place, filled in zip((2, 4), trained.fill("a[MASK]c[MASK]", top=3), strict=True):
        best = probs_V[place].topk(3)
        assert [guess.token for guess in filled.guesses] == [trained.tokenizer.piece(i) for i in best.indices.tolist()]
        assert [guess.probability for guess in filled.guesses] == pytest.approx(best.values.tolist())


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_spaces_around_a_mask_belong_to_the_tokeniser(kind: str, tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("the cat sat on the mat\nthe dog ran to the cat\n" * 40)
    size = {"vocab_size": 270} if kind == "bpe" else {}
    run = fitted(words, tmp_path / "run", 2, tokenizer=kind, **size)
    tokens, mask = run._with_masks("the [MASK] sat"), run.model.mask
    the, cat_sat = run.tokenizer.encode("the"), run.tokenizer.encode("x sat")[len(run.tokenizer.encode("x")) :]
    assert tokens == [*the, mask, *cat_sat]
    assert all(
        not guess.word.startswith((" ", "▁")) or len(guess.word) == 1 for guess in run.fill("the [MASK]")[0].guesses
    )


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "play", "##ing", "and", "dog"]


@pytest.fixture
def with_own_mask(tmp_path: Path) -> MaskedRun:
    """A run as an import makes it: the tokeniser knows [CLS], [SEP] and [MASK], and there was no training here."""
    ids = {piece: number for number, piece in enumerate(PIECES)}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(PIECES[:5])
    tokenizer = HuggingFaceTokenizer(made.to_str().encode())
    shape = {**SHAPE, "positions": 12, "types": 2, "mask": ids["[MASK]"], "first": ids["[CLS]"]}
    config, folder = RunConfig.model_validate({"model": {"name": "bert", **shape}}), RunFolder(tmp_path / "imported")
    torch.manual_seed(0)
    model = build_model(config, Vocabulary(len(PIECES), tokenizer.eos, np.zeros(len(PIECES), np.int64)))
    stir(model)
    folder.write_config(config)
    tokenizer.save(folder.path)
    save_model(folder, model)
    return load_for("fill", MaskedRun, folder.path)


@torch.no_grad()
def test_a_tokeniser_with_a_mask_token_reads_a_text_as_in_training(with_own_mask: MaskedRun) -> None:
    run = with_own_mask
    pieces = ["[CLS]", "the", "[MASK]", "and", "dog", "[MASK]", "play", "##ing", "[SEP]"]
    row_1S = torch.tensor([[PIECES.index(piece) for piece in pieces]])
    probs_SV = run.model.logits(row_1S, row_1S >= 0)[0].softmax(1)
    filled = run.fill("the [MASK] and dog [MASK] playing", top=2)
    for place, one in zip((2, 5), filled, strict=True):
        assert [guess.token for guess in one.guesses] == [PIECES[i] for i in probs_SV[place].topk(2).indices.tolist()]
        assert one.guesses[0].probability == pytest.approx(float(probs_SV[place].max()), rel=1e-5)
    with pytest.raises(DataError, match="the text has 11 tokens, but the model reads at most 10; shorten it"):
        run.fill("the " * 10 + "[MASK]")


def test_a_run_without_a_training_is_measured_in_windows_of_the_model(with_own_mask: MaskedRun, tmp_path: Path) -> None:
    path = tmp_path / "test.txt"
    path.write_text("the cats playing and the dog\nthe dogs and the cat playing\n" * 3)
    run = with_own_mask
    assert (run.protocol.length, run.protocol.first, run.protocol.masking.mask) == (11, 2, 4)
    measured = run.evaluate(path)
    assert measured.tokens == len(run.open(path))
    assert measured.pseudo_tokens == measured.tokens - 6  # the ends of six lines
    assert measured.pseudo_perplexity > 1


@pytest.mark.parametrize(
    ("text_given", "top", "error", "message"),
    [
        ("abab", 5, DataError, "the text has no [MASK]; write it in place of a word, for example: the [MASK] sat"),
        (
            "ab" * 20 + "[MASK]",
            5,
            DataError,
            "the text has 41 tokens, but the model reads at most 14; shorten it around the [MASK]",
        ),
        ("[MASK]", 0, ConfigError, "top is 0; ask for at least 1 word"),
    ],
)
def test_texts_that_cannot_be_filled_are_refused(
    trained: MaskedRun, text_given: str, top: int, error: type[ChainruleError], message: str
) -> None:
    with pytest.raises(error) as caught:
        trained.fill(text_given, top)
    assert str(caught.value) == message


def test_a_run_that_predicts_no_masked_words_is_refused(text: Path, tmp_path: Path) -> None:
    train(text, model="ngram", tokenizer="char", out=tmp_path / "ngram")
    with pytest.raises(MissingVerbError) as caught:
        load_for("fill", MaskedRun, tmp_path / "ngram")
    assert str(caught.value) == (
        f"{tmp_path / 'ngram'} (ngram) has no fill; fill works with bert, t5; this run has score, rescore, "
        "tune, generate, compress, decompress, mix, eval, info"
    )


def test_the_name_of_a_file_is_no_text_to_fill(trained: MaskedRun, text: Path) -> None:
    done = chainrule("fill", trained.folder.path, text)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"chainrule: {text} is a file; give the text itself, or the file as standard input: < {text}\n"


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr("sys.argv", ["chainrule", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0


def test_the_verb_prints_words_with_their_probabilities(
    trained: MaskedRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained.folder.path
    command(monkeypatch, "fill", run, "ababab[MASK]babab", "--top", 2)
    first, second = trained.fill("ababab[MASK]babab", 2)[0].guesses
    assert capsys.readouterr().out == (
        f"{first.word} {first.probability:.4f}\t{second.word} {second.probability:.4f}\n"
    )
    monkeypatch.setattr("sys.stdin", iter(["ababab[MASK]babab\n", "cd[MASK]dcd[MASK]\n"]))
    command(monkeypatch, "fill", run, "--json", "--top", 1)
    one, two = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert one["text"] == "ababab[MASK]babab"
    assert one["filled"] == [[{"word": "a", "token": "a", "probability": pytest.approx(first.probability)}]]
    assert [guesses[0]["word"] for guesses in two["filled"]] == [one.word for one in trained.fill("cd[MASK]dcd[MASK]")]


# Measuring


def test_a_loaded_run_measures_the_same(trained: MaskedRun, text: Path) -> None:
    again = load(trained.folder.path)
    assert isinstance(again, MaskedRun)
    assert again.evaluate_held_out(most=50) == trained.evaluate_held_out(most=50)
    held_out = trained.evaluate_held_out()
    assert held_out.pseudo_tokens == sum(token != again.tokenizer.eos for token in again.open_held_out().tokens)
    assert held_out.masked_accuracy == trained.validation().masked_accuracy
    assert trained.evaluate(text, most=30).pseudo_tokens == 30
    assert 1 < trained.evaluate(text, most=30).pseudo_perplexity < 3


def test_eval_labels_pseudo_figures(
    trained: MaskedRun, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "chainrule.runs.masked.MaskedRun.evaluate.__kwdefaults__", {"most": 20, "field": None, "progress": None}
    )
    command(monkeypatch, "eval", trained.folder.path, text, "--json")
    printed_json = json.loads(capsys.readouterr().out)
    assert printed_json["pseudo_perplexity"] == pytest.approx(math.exp(printed_json["pseudo_cross_entropy"]))
    assert "perplexity" not in printed_json
    assert "bits_per_byte" not in printed_json
    command(monkeypatch, "eval", trained.folder.path, text)
    printed = capsys.readouterr()
    assert "pseudo perplexity" in printed.out
    assert "does not compare with the perplexity of a language model" in printed.err


@pytest.mark.parametrize("verb", ["generate", "stream", "score", "compress", "generation_speed"])
def test_missing_verbs_are_refused(trained: MaskedRun, verb: str) -> None:
    message = rf"^{re.escape(trained.name)} has no {verb};.* this run has fill, eval, info, embed, neighbours$"
    with pytest.raises(MissingVerbError, match=message):
        getattr(trained, verb)


def test_the_recipe_fits_its_model() -> None:
    recipe = read_toml(Path(__file__).parents[2] / "recipes" / "tang-bert.toml")
    assert recipe["model"]["name"] == "bert"
    assert recipe["training"]["length"] <= recipe["model"]["positions"]
    assert recipe["training"]["minutes"] <= 20
