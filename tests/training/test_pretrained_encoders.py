"""Pretrained encoders of every kind, trained here or elsewhere, inside other models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

import chainrule as cr
from builders import letter_pairs, write_pairs
from chainrule.errors import ChainruleError, ConfigError, RunError
from chainrule.interop.word2vec import import_vectors
from chainrule.layers.encoders.build import make_encoder
from chainrule.runs.translator import TranslatorRun
from chainrule.text import text_of, train_tokenizer
from chainrule.text.tokenizers import load_tokenizer
from chainrule.training.fitting.fitting import TrainingListener
from chainrule.training.init.pretrained import open_pretrained
from chainrule.types import Source

SMALL: dict[str, dict[str, Any]] = {
    "elmo": {"embedding": 6, "hidden": 6, "layers": 2},
    "elmo-characters": {"embedding": 6, "hidden": 5, "layers": 1, "characters": True, "filters": 3},
    "bert": {"width": 8, "layers": 1, "heads": 2, "positions": 16},
    "transformer": {"embedding": 8, "layers": 2, "heads": 2, "context": 16},
    "word2vec": {},
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of letters as words, pairs whose sources are such lines, and a cache."""
    folder = tmp_path_factory.mktemp("desk")
    pairs = [(" ".join(source), target) for source, target in letter_pairs(80)]
    write_pairs(folder, pairs, "train")
    (folder / "text.txt").write_text("".join(f"{source}\n" for source, _ in pairs * 3))
    return folder


@pytest.fixture(scope="module")
def runs(desk: Path) -> Callable[[str], Path]:
    """Encoders after a few steps, made when first asked for."""

    def make(name: str) -> Path:
        out = desk / "runs" / name
        if name == "word2vec" and not out.exists():
            rows = ("".join(f" {place + number / 8}" for number in range(10)) for place in range(4))
            lines = [f"{word}{row}\n" for word, row in zip("bdac", rows, strict=True)]
            (desk / "vectors.txt").write_text("4 10\n" + "".join(lines))
            import_vectors(desk / "vectors.txt", out)
        elif not out.exists():
            training = {"batch_size": 4, "length": 8, "lr": 0.01, "validations": 1, "threads": 1}
            cr.train(
                desk / "text.txt",
                out=out,
                model=name.split("-")[0],
                tokenizer="word",
                steps=3,
                device="cpu",
                settings={"model": SMALL[name], "training": training},
            )
        return out

    return make


def save_gpt2(folder: Path) -> Path:
    """A GPT-2 of random weights whose tokens are bytes, as transformers would keep it."""
    letters = {sign: number for number, sign in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = tokenizers.Tokenizer(BPE({**letters, "<|endoftext|>": 256}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()  # type: ignore[assignment]
    tokenizer.add_special_tokens(["<|endoftext|>"])
    torch.manual_seed(7)
    config = transformers.GPT2Config(vocab_size=257, n_embd=8, n_layer=2, n_head=2, n_positions=20, eos_token_id=256)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def train(desk: Path, out: Path, pretrained: Path | str, steps: int = 3, **given: Any) -> TranslatorRun:
    small = {"embedding": 8, "hidden": 8, "dropout": 0.1}
    settings = {
        "model": {**small, "pretrained": str(pretrained), **given.pop("options", {})},
        "training": {"max_tokens": 64, "lr": 0.01, "validations": 1, "schedule": "constant", "warmup": 0.0},
    }
    paths = desk / "train.src", desk / "train.tgt"
    usual = {"model": "hybrid", "tokenizer": "char", "device": "cpu"}
    run = cr.train(*paths, out=out, steps=steps, settings=settings, **{**usual, **given})
    assert isinstance(run, TranslatorRun)
    return run


def filled(name: Path | str) -> Any:
    """The encoder of a folder with its weights."""
    pretrained = open_pretrained(str(name))
    encoder = make_encoder(pretrained.shape).eval()
    pretrained.fill(encoder)
    return encoder


def message_of(attempt: Callable[[], Any]) -> str:
    with pytest.raises(ChainruleError) as caught:
        attempt()
    return str(caught.value)


def source_of(run: Any, line: str) -> Source:
    tokens_1S = torch.tensor([[*run.tokenizer.encode(line), run.tokenizer.eos]])
    return Source(tokens_1S, torch.ones_like(tokens_1S, dtype=torch.bool))


# An encoder computes what its run computes


def states(encoder: Any, source: Source) -> list[Tensor]:
    """Every layer after the token that belongs before a text."""
    first = encoder.shape.first
    assert first is not None
    tokens_1S = torch.cat([torch.tensor([[first]]), source.tokens_BS], 1)
    return [layer_1SP[:, 1:] for layer_1SP in encoder.layers(tokens_1S, torch.ones_like(tokens_1S, dtype=torch.bool))]


@pytest.mark.parametrize("name", ["elmo", "elmo-characters"])
def test_an_elmo_computes_what_its_run_computes(name: str, runs: Callable[[str], Path]) -> None:
    run, encoder = cr.load(runs(name), device="cpu"), filled(runs(name))
    source = source_of(run, "a b c")
    with torch.no_grad():
        for ours, its in zip(states(encoder, source), run.model.layers(*source), strict=True):
            torch.testing.assert_close(ours, its)


def test_a_transformer_computes_what_its_run_computes(runs: Callable[[str], Path]) -> None:
    run, encoder = cr.load(runs("transformer"), device="cpu"), filled(runs("transformer"))
    source = source_of(run, "a b c")
    with torch.no_grad():
        torch.testing.assert_close(states(encoder, source)[-1], run.model.encode_text(source))


def test_a_bert_computes_what_its_run_computes(runs: Callable[[str], Path]) -> None:
    run, encoder = cr.load(runs("bert"), device="cpu"), filled(runs("bert"))
    assert encoder.word_table.num_embeddings == run.tokenizer.vocab_size + 1  # one more row for the mask
    source = source_of(run, "a b c")
    with torch.no_grad():
        torch.testing.assert_close(encoder(*source), run.model.encode_text(source))


def test_a_bag_has_the_vectors_of_word2vec(runs: Callable[[str], Path]) -> None:
    run: Any = cr.load(runs("word2vec"), device="cpu")
    encoder = filled(runs("word2vec"))
    source = source_of(run, "a b c d")
    found_SP = encoder(*source)[0].detach()
    for place, word in enumerate("abcd"):
        assert found_SP[place].tolist() == run.vector(word).tolist()
        assert float(found_SP[place][0]) == "bdac".index(word)
    assert not found_SP[4].any()  # `eos` has no vector
    assert encoder.shape.width == 10


def test_a_gpt2_computes_what_transformers_computes(tmp_path: Path) -> None:
    folder = save_gpt2(tmp_path / "gpt2")
    theirs: Any = transformers.GPT2Model.from_pretrained(folder).eval()
    tokens_1S = torch.tensor([[256, 64, 65, 66, 67]])
    with torch.no_grad():
        expected = theirs(tokens_1S, output_hidden_states=True).hidden_states
        found = filled(folder).layers(tokens_1S, torch.ones_like(tokens_1S, dtype=torch.bool))
    for ours, its in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, its, atol=1e-5, rtol=1e-4)


# Trainings


@pytest.mark.parametrize("name", list(SMALL))
def test_a_hybrid_reads_with_a_run(name: str, desk: Path, runs: Callable[[str], Path], tmp_path: Path) -> None:
    place = runs(name)
    notes: list[str] = []
    run = train(desk, tmp_path / "run", place, listener=TrainingListener(note=notes.append))
    assert notes[:2] == [
        f"tokeniser of the source: {place / 'tokenizer.json'}",
        "tokeniser of the target: char",
    ]
    assert run.source_tokenizer.fingerprint == load_tokenizer(place).fingerprint
    own, theirs = run.model.pretrained.encoder.state_dict(), filled(place).state_dict()
    assert own.keys() == theirs.keys()
    assert all(torch.equal(own[key], theirs[key]) for key in own)
    learned = {key for key, parameter in run.model.named_parameters() if parameter.requires_grad}
    assert not any(key.startswith("pretrained.encoder.") for key in learned)
    assert ("pretrained.mix.weights" in learned) is name.startswith("elmo")
    checkpoint = run.folder.read_checkpoint()
    assert checkpoint is not None
    if name.startswith("elmo"):
        assert checkpoint.tensors["model/pretrained.mix.weights"].any()  # they are 0 at first


def test_a_finished_run_does_not_need_the_folder_of_its_encoder(
    desk: Path, runs: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(runs("elmo-characters"), tmp_path / "elmo")
    options = {"tuned": True}
    whole = train(desk, tmp_path / "whole", tmp_path / "elmo", 6, options=options)
    train(desk, tmp_path / "parts", tmp_path / "elmo", 3, options=options)
    written = whole.translate("a b c")
    shutil.rmtree(tmp_path / "elmo")
    parts = train(desk, tmp_path / "parts", tmp_path / "elmo", 6, options=options)
    saved = [run.folder.read_checkpoint() for run in (whole, parts)]
    tensors = [checkpoint.tensors for checkpoint in saved if checkpoint is not None]
    assert tensors[0].keys() == tensors[1].keys()
    assert all(torch.equal(tensors[0][key], tensors[1][key]) for key in tensors[0])
    again = cr.load(tmp_path / "whole", device="cpu")
    assert isinstance(again, TranslatorRun)
    assert again.translate("a b c") == written


def test_a_tuned_encoder_learns_and_its_spellings_stay(desk: Path, runs: Callable[[str], Path], tmp_path: Path) -> None:
    run = train(desk, tmp_path / "run", runs("elmo-characters"), options={"tuned": True})
    own, before = run.model.pretrained.encoder.state_dict(), filled(runs("elmo-characters")).state_dict()
    same = {key for key in own if torch.equal(own[key], before[key])}
    assert same == {"word_table.spellings_VL"}


def test_a_gpt2_reads_lines(desk: Path, tmp_path: Path) -> None:
    """From its folder, and from a run of it, whose own tokeniser has newlines as tokens."""
    folder = save_gpt2(tmp_path / "gpt2")
    cr.import_model(folder, tmp_path / "imported")
    shapes = []
    for place, file in ((folder, "tokenizer.json"), (tmp_path / "imported", "tokenizer.hf.json")):
        assert open_pretrained(str(place)).tokenizer == str(place / file)
        run = train(desk, tmp_path / f"run-{place.name}", place, steps=1)
        assert run.source_tokenizer.eos == 256
        assert len(run.source_tokenizer.encode("a b")) == 3
        shapes.append(run.model.pretrained.encoder.shape)
        assert run.model.window == 19
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("name", ["elmo", "word2vec", "bert"])
def test_a_classifier_reads_with_a_run(name: str, runs: Callable[[str], Path], tmp_path: Path) -> None:
    data = tmp_path / "lines.tsv"
    data.write_text(
        "".join(f"{'x' if number % 2 else 'y'}\t{'a b' if number % 2 else 'c d'}\n" for number in range(40))
    )
    run = cr.train(
        data,
        out=tmp_path / "run",
        model="classifier",
        steps=3,
        device="cpu",
        settings={"model": {"pretrained": str(runs(name)), "hidden": 4}, "training": {"validations": 1}},
    )
    assert run.tokenizer.fingerprint == load_tokenizer(runs(name)).fingerprint
    own, theirs = run.model.pretrained.encoder.state_dict(), filled(runs(name)).state_dict()
    assert all(torch.equal(own[key], theirs[key]) for key in theirs)


def test_a_classifier_concatenates_its_own_vectors_with_an_elmo(runs: Callable[[str], Path], tmp_path: Path) -> None:
    data = tmp_path / "lines.tsv"
    data.write_text("".join(f"{'xy'[number % 2]}\t{('a b', 'c d')[number % 2]}\n" for number in range(40)))
    run = cr.train(
        data,
        out=tmp_path / "run",
        model="classifier",
        steps=3,
        device="cpu",
        settings={"model": {"pretrained": str(runs("elmo")), "hidden": 4, "token_embedding": 5}},
    )
    table = run.model.pretrained.table
    assert tuple(table.weight.shape) == (run.tokenizer.vocab_size, 5)
    source = source_of(run, "a b")
    with torch.no_grad():
        features_SD = run.model.eval().reader(source)[0]
    assert torch.equal(features_SD[:, :5], table.weight[source.tokens_BS[0]])
    again: Any = cr.load(tmp_path / "run", device="cpu")
    assert [best[0] for best in again.classify(["a b"])] == [best[0] for best in run.classify(["a b"])]


# Tokenisers in folders


def test_a_folder_is_a_tokeniser(runs: Callable[[str], Path], tmp_path: Path) -> None:
    text = text_of("a b\n")
    assert train_tokenizer(runs("elmo"), text).fingerprint == load_tokenizer(runs("elmo")).fingerprint
    folder = save_gpt2(tmp_path / "gpt2")
    assert train_tokenizer(folder, text).fingerprint == train_tokenizer(folder / "tokenizer.json", text).fingerprint
    (tmp_path / "empty").mkdir()
    assert message_of(lambda: train_tokenizer(tmp_path / "empty", text)) == (
        f"there is no '{tmp_path / 'empty' / 'tokenizer.json'}': expected a folder with a tokeniser; train one or "
        "check the name."
    )


def test_a_language_model_takes_the_tokeniser_of_a_run(desk: Path, runs: Callable[[str], Path], tmp_path: Path) -> None:
    run = cr.train(
        desk / "text.txt",
        out=tmp_path / "run",
        model="lstm",
        tokenizer=str(runs("elmo")),
        steps=1,
        device="cpu",
        settings={"model": {"embedding": 4, "hidden": 4}},
    )
    assert run.tokenizer.fingerprint == load_tokenizer(runs("elmo")).fingerprint


# Errors


def test_other_runs_are_no_encoders(desk: Path, tmp_path: Path) -> None:
    cr.train(desk / "text.txt", out=tmp_path / "ngram", model="ngram", tokenizer="word")
    assert message_of(lambda: open_pretrained(str(tmp_path / "ngram"))) == (
        f"{tmp_path / 'ngram'} is a run of ngram, which is not an encoder; give a run of bert, elmo, "
        "transformer, word2vec, or a folder in the layout of Hugging Face"
    )
    with pytest.raises(ConfigError):
        open_pretrained("nowhere-at-all")


def test_weights_of_another_run_are_refused(runs: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(runs("elmo"), tmp_path / "mixed")
    shutil.copy(runs("transformer") / "model.safetensors", tmp_path / "mixed" / "model.safetensors")
    with pytest.raises(RunError) as caught:
        filled(tmp_path / "mixed")
    assert str(caught.value) == (
        f"{tmp_path / 'mixed' / 'model.safetensors'} is damaged or of another run; restore the file, or train again "
        "into another --out"
    )


def test_a_decoder_folder_of_the_wrong_size_is_refused(tmp_path: Path) -> None:
    folder = save_gpt2(tmp_path / "gpt2")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "n_positions": 8}))
    assert message_of(lambda: filled(folder)) == (
        f"the weights of {folder} do not fit its configuration; restore the files that belong together"
    )
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    weights.pop("transformer.ln_f.bias")
    save_file(weights, folder / "model.safetensors")
    assert message_of(lambda: filled(folder)).startswith(f"{folder / 'model.safetensors'} has no tensor ln_f.bias")


# Language models


@pytest.mark.parametrize(("name", "tuned"), [("bert", False), ("transformer", True), ("gpt2", False)])
def test_a_hybrid_language_model_reads_with_an_encoder(
    name: str, tuned: bool, runs: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = save_gpt2(tmp_path / "gpt2") if name == "gpt2" else runs(name)
    text = tmp_path / "text.txt"
    text.write_text("a b c d e f\nb d a c f e\n" * 30, encoding="utf-8")
    run: Any = cr.train(
        text,
        model="hybrid-lm",
        out=tmp_path / "run",
        steps=2,
        settings={"training": {"threads": 1, "batch_size": 2, "length": 8}},
        **{"pretrained": str(folder), "tuned": tuned, "embedding": 8, "hidden": 8, "block": 4, "context": 6},
    )
    before, after = (encoder.state_dict() for encoder in (filled(folder), run.model.pretrained.encoder))
    assert all(torch.equal(before[key], after[key]) for key in before) != tuned
    again: Any = cr.load(tmp_path / "run")
    assert again.evaluate_held_out().cross_entropy == pytest.approx(run.evaluate_held_out().cross_entropy, rel=1e-6)
    (drafted,) = again.generate("a b", max_new_tokens=6, mode="draft", stop_at_eos=False)
    assert drafted.text == again.generate("a b", max_new_tokens=6, stop_at_eos=False)[0].text
