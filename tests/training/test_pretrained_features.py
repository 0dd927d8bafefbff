"""Translators with a pretrained encoder of the source: what is trained, what is frozen, what a run saves."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn

import chainrule as cr
from builders import letter_pairs, write_pairs
from chainrule.checkpoint.build import build_model
from chainrule.config import RunConfig, parse
from chainrule.errors import ChainruleError
from chainrule.interop.huggingface.bert_encoder import load_bert, read_shape
from chainrule.layers.attention.positions import sinusoidal_table
from chainrule.layers.encoders.bert import BertEncoder, BertShape
from chainrule.layers.encoders.pretrained import PretrainedFeatures
from chainrule.models.translator import PretrainedConfig
from chainrule.registry import MODELS
from chainrule.runs.translator import TranslatorRun
from chainrule.text.tokenizers.huggingface import HuggingFaceTokenizer
from chainrule.training.fitting.fitting import TrainingListener
from chainrule.types import Source, Vocabulary

SHAPES: dict[str, dict[str, Any]] = {
    "seq2seq-attention": {"embedding": 8, "hidden": 8},
    "seq2seq-rnn": {"embedding": 8, "hidden": 8, "layers": 1},
    "hybrid": {"embedding": 8, "hidden": 8},
    "seq2seq-transformer": {"embedding": 8, "heads": 2, "decoder_layers": 2},
    "seq2seq-at": {"embedding": 8, "heads": 2, "decoder_layers": 1, "encoder_layers": 1},
    "fat": {"embedding": 8, "heads": 2, "encoder_layers": 2},
}
SMALL: dict[str, Any] = {"vocab_size": 11, "width": 8, "layers": 2, "heads": 2, "inner": 12, "positions": 10}


def save_encoder(folder: Path, positions: int = 16) -> Path:
    """A BERT of random weights that reads letters, as transformers would keep it."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = tokenizers.Tokenizer(WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))  # type: ignore[call-arg]
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()  # type: ignore[assignment]
    tokenizer.add_special_tokens(pieces[:4])
    tokenizer.post_processor = TemplateProcessing(  # type: ignore[assignment]
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_padding(length=positions)
    torch.manual_seed(7)
    config = transformers.BertConfig(
        vocab_size=len(pieces),
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=positions,
    )
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def train(*paths: Path, out: Path, steps: int = 4, model: str = "seq2seq-attention", **given: Any) -> TranslatorRun:
    training = {"max_tokens": 64, "lr": 0.01, "optimizer": "adamw", "validations": 2, **given.pop("training", {})}
    settings = {
        "model": {**SHAPES[model], "dropout": 0.1, **given.pop("options", {})},
        "tokenizer": given.pop("tokenizer_settings", {}),
        "training": training,
    }
    usual = {"tokenizer": "char", "device": "cpu"}
    run = cr.train(*paths, out=out, steps=steps, model=model, settings=settings, **{**usual, **given})
    assert isinstance(run, TranslatorRun)
    return run


def encoder_weights(encoder: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in encoder.state_dict().items()}


def from_folder(folder: Path) -> dict[str, Tensor]:
    encoder = BertEncoder(read_shape(folder))
    load_bert(encoder, folder)
    return encoder_weights(encoder)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, bool]:
    assert one.keys() == other.keys()
    return {name: torch.equal(one[name], other[name]) for name in one}


def fresh_parameters(run: TranslatorRun) -> dict[str, Tensor]:
    """The parameters that its training began with, but for those from the encoder's folder."""
    torch.manual_seed(run.config.seed)
    counts_V, read = run.model.unigram_counts.numpy(), run.source_tokenizer
    source = Vocabulary(read.vocab_size, read.eos, counts_V)
    vocabulary = Vocabulary(run.tokenizer.vocab_size, run.tokenizer.eos, counts_V, source)
    return dict(build_model(run.config, vocabulary).named_parameters())


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pairs(tmp_path_factory.mktemp("pairs"), letter_pairs(60), "train")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_encoder(tmp_path / "encoder")


def message_of(of: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(ChainruleError) as error:
        of(*arguments, **options)
    return str(error.value)


# The features


def test_features_are_the_projected_states_without_that_of_the_first_token() -> None:
    torch.manual_seed(1)
    features = PretrainedFeatures(BertShape(**SMALL, first=9), 5, tuned=False).eval()
    source = Source(torch.tensor([[1, 2, 3, 4], [5, 4, 0, 0]]), torch.tensor([[True] * 4, [True] * 2 + [False] * 2]))
    for row, length in ((0, 4), (1, 2)):
        tokens_1S = torch.cat([torch.tensor([9]), source.tokens_BS[row, :length]])[None]
        states_1SP = features.encoder(tokens_1S, torch.ones_like(tokens_1S, dtype=torch.bool))
        expected_SD = states_1SP[0, 1:] @ features.project.weight.T + features.project.bias
        torch.testing.assert_close(features(source)[row, :length], expected_SD)
    assert features.window == 9
    assert PretrainedFeatures(BertShape(**SMALL), 5, tuned=False).window == 10


@pytest.mark.parametrize("tuned", [False, True])
def test_only_a_tuned_encoder_drops_and_learns(tuned: bool) -> None:
    torch.manual_seed(1)
    shape = BertShape(**{**SMALL, "dropout": 0.5})
    features = PretrainedFeatures(shape, 5, tuned=tuned).train()
    tokens_BS = torch.tensor([[1, 2, 3]])
    source = Source(tokens_BS, torch.ones_like(tokens_BS, dtype=torch.bool))
    assert torch.equal(features(source), features(source)) is not tuned
    features(source).sum().backward()
    assert features.project.weight.grad is not None
    assert {parameter.grad is not None for name, parameter in features.encoder.named_parameters()} == {tuned}
    with torch.no_grad():
        assert not features(source).requires_grad


def test_features_are_whole_where_products_are_not() -> None:
    features = PretrainedFeatures(BertShape(**SMALL), 5, tuned=False).eval()
    tokens_BS = torch.tensor([[1, 2, 3]])
    source = Source(tokens_BS, torch.ones_like(tokens_BS, dtype=torch.bool))
    with torch.autocast("cpu", torch.bfloat16):
        rough_BSD = features(source)
    assert rough_BSD.dtype == torch.float32
    torch.testing.assert_close(rough_BSD, features(source), atol=0.1, rtol=0.1)


@pytest.mark.parametrize("model", list(SHAPES))
@pytest.mark.parametrize("tuned", [False, True])
def test_a_translator_keeps_its_contract(model: str, tuned: bool) -> None:
    """Chained steps equal parallel scores; padding and other rows change nothing."""
    torch.manual_seed(2)
    options = {**SHAPES[model], "pretrained": "encoder", "tuned": tuned, "pretrained_shape": {**SMALL, "first": 9}}
    config = parse(RunConfig, {"model": {"name": model, **options}})
    counts_V = np.ones(11, np.int64)
    translator: Any = build_model(config, Vocabulary(6, 0, counts_V[:6], Vocabulary(11, 1, counts_V))).double().eval()
    mask_BS = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    source = Source(torch.tensor([[2, 3, 4, 5, 1], [6, 7, 1, 1, 1]]), mask_BS)
    tokens_BT = torch.tensor([[2, 3, 0], [4, 5, 0]])
    log_probs_BT = translator.log_probs(tokens_BT, source)
    state = translator.start(source)
    for place, token_B in enumerate(translator.shift_right(tokens_BT).unbind(1)):
        row_BV, state = translator.step(state, token_B)
        torch.testing.assert_close(row_BV.exp().sum(1), torch.ones(2, dtype=torch.float64))
        torch.testing.assert_close(row_BV.gather(1, tokens_BT[:, place, None])[:, 0], log_probs_BT[:, place])
    alone = Source(source.tokens_BS[1:, :3], mask_BS[1:, :3])
    torch.testing.assert_close(translator.log_probs(tokens_BT[1:], alone), log_probs_BT[1:])
    other = Source(torch.tensor([[2, 3, 8, 5, 1]]), mask_BS[:1])
    assert not torch.allclose(translator.log_probs(tokens_BT[:1], other), log_probs_BT[:1])


@pytest.mark.parametrize("model", ["seq2seq-transformer", "fat"])
def test_defaults_of_an_encoder_decoder_follow_the_encoder(model: str) -> None:
    kind = MODELS.get(model).make.Config
    assert kind(pretrained="encoder").encoder_layers == 0
    short = kind(pretrained="encoder", pretrained_shape={**SMALL, "first": 9})
    assert (short.context, short.encoder_layers) == (9, 0)
    assert kind(pretrained="encoder", pretrained_shape={**SMALL, "positions": 9000}).context == 1024
    assert kind(pretrained="encoder", encoder_layers=2, context=4, pretrained_shape=SMALL).encoder_layers == 2
    assert kind.model_validate(short.model_dump()) == short
    assert message_of(kind, encoder_layers=0) == (
        "model.encoder_layers is 0 without a pretrained encoder; give at least 1 block"
    )
    assert message_of(kind, pretrained="encoder", pretrained_shape=SMALL, context=11) == (
        "model.context is 11, but the pretrained encoder reads at most 10 tokens; give 10 or fewer"
    )


def test_the_decoder_attends_to_the_projected_states_with_positions() -> None:
    torch.manual_seed(2)
    options = {**SHAPES["seq2seq-transformer"], "pretrained": "encoder", "pretrained_shape": SMALL}
    config = parse(RunConfig, {"model": {"name": "seq2seq-transformer", **options}})
    vocabulary = Vocabulary(6, 0, np.ones(6, np.int64), Vocabulary(11, 1, np.ones(11, np.int64)))
    translator: Any = build_model(config, vocabulary).eval()
    tokens_BS = torch.tensor([[2, 3, 4, 1]])
    source = Source(tokens_BS, torch.ones_like(tokens_BS, dtype=torch.bool))
    features = translator.pretrained(source) + sinusoidal_table(4, 8)
    torch.testing.assert_close(translator.encode(source), nn.functional.layer_norm(features, (8,)))
    assert not [name for name, _ in translator.named_parameters() if name.startswith("encoder.blocks")]


def test_fat_skips_words_above_its_pretrained_encoder() -> None:
    """A skipped word still changes the states of its neighbours, but the decoder does not attend to it."""
    torch.manual_seed(2)
    options = {**SHAPES["fat"], "pretrained": "encoder", "pretrained_shape": SMALL, "skip": "always", "threshold": 5}
    config = parse(RunConfig, {"model": {"name": "fat", **options}})
    counts_V = np.array([9, 9, 9, 1, 9, 9, 9, 9, 9, 9, 9])
    vocabulary = Vocabulary(6, 0, counts_V[:6], Vocabulary(11, 1, counts_V))
    translator: Any = build_model(config, vocabulary).double().eval()
    tokens_BS, target_BT = torch.tensor([[2, 3, 4, 1], [2, 4, 1, 1]]), torch.tensor([[2, 0], [2, 0]])
    source = Source(tokens_BS, torch.tensor([[True] * 4, [True] * 3 + [False]]))
    weights_BTS = translator.attention(target_BT, source)
    assert not weights_BTS[0, :, 1].any()
    assert not weights_BTS[1, :, 3].any()
    torch.testing.assert_close(weights_BTS.sum(2), torch.ones(2, 2, dtype=torch.float64))
    before, after = translator.log_probs(target_BT, source)
    assert not torch.allclose(before, after)
    alone = translator.log_probs(target_BT[:1], Source(tokens_BS[:1], source.mask_BS[:1]))
    torch.testing.assert_close(alone[0], before)


@pytest.mark.parametrize("width", [None, 5])
def test_token_vectors_are_concatenated_with_the_states(width: int | None) -> None:
    torch.manual_seed(1)
    features = PretrainedFeatures(BertShape(**SMALL, first=9), width, tuned=False, embedding=3).eval()
    tokens_BS = torch.tensor([[1, 2, 3, 4]])
    source = Source(tokens_BS, torch.ones_like(tokens_BS, dtype=torch.bool))
    begun_BS = torch.cat([torch.tensor([[9]]), tokens_BS], 1)
    states_BSE = features.encoder(begun_BS, torch.ones_like(begun_BS, dtype=torch.bool))[:, 1:]
    joined = torch.cat([features.table.weight[tokens_BS], states_BSE], 2)  # type: ignore[union-attr]
    expected = joined if width is None else joined @ features.project.weight.T + features.project.bias  # type: ignore[union-attr]
    torch.testing.assert_close(features(source), expected)
    assert features.width == (11 if width is None else 5)
    features(source).sum().backward()
    assert features.table.weight.grad is not None  # type: ignore[union-attr]


# A training


@pytest.mark.parametrize("model", list(SHAPES))
def test_a_frozen_encoder_stays_as_it_was(model: str, paths: tuple[Path, Path], folder: Path, tmp_path: Path) -> None:
    run = train(*paths, out=tmp_path / "run", model=model, options={"pretrained": str(folder)})
    assert all(same(encoder_weights(run.model.pretrained.encoder), from_folder(folder)).values())
    fresh, trained = fresh_parameters(run), dict(run.model.named_parameters())
    learns = {name for name, parameter in trained.items() if parameter.requires_grad}
    assert learns == {name for name in trained if not name.startswith("pretrained.encoder.")}
    assert not [name for name in learns if torch.equal(trained[name], fresh[name])]
    checkpoint = run.folder.read_checkpoint()
    assert checkpoint is not None
    moments = [name for name in checkpoint.tensors if name.endswith("/exp_avg")]
    assert len(moments) == len(learns)  # the optimiser has no others


def test_a_tuned_encoder_learns(paths: tuple[Path, Path], folder: Path, tmp_path: Path) -> None:
    run = train(*paths, out=tmp_path / "run", options={"pretrained": str(folder), "tuned": True})
    alike = same(encoder_weights(run.model.pretrained.encoder), from_folder(folder))
    assert {name for name, equal in alike.items() if equal} == {"pooler.weight", "pooler.bias"}  # not used here


def test_the_source_is_read_by_the_tokeniser_of_the_encoder(
    paths: tuple[Path, Path], folder: Path, tmp_path: Path
) -> None:
    notes: list[str] = []
    run = train(
        *paths, out=tmp_path / "run", options={"pretrained": str(folder)}, listener=TrainingListener(note=notes.append)
    )
    file = folder / "tokenizer.json"
    assert notes[:2] == [
        f"tokeniser of the source: {file}",
        "tokeniser of the target: char",
    ]
    assert run.source_tokenizer.fingerprint == HuggingFaceTokenizer.from_file(file).fingerprint
    assert run.tokenizer.kind == "char"
    assert (run.config.tokenizer.source, run.config.tokenizer.joint) == (str(file), False)
    options = parse(
        PretrainedConfig, {key: run.config.model.options[key] for key in ("pretrained", "pretrained_shape")}
    )
    assert options.pretrained_shape == read_shape(folder)
    assert options.pretrained_shape.first == 2
    assert (run.model.window, run.model.eos) == (15, run.tokenizer.eos)


def test_a_finished_run_does_not_need_its_encoder(paths: tuple[Path, Path], folder: Path, tmp_path: Path) -> None:
    run = train(*paths, out=tmp_path / "run", options={"pretrained": str(folder), "tuned": True})
    lines = paths[0].read_text().splitlines()[:5]
    written = [run.translate(line) for line in lines]
    loss = run.evaluate(paths, num_beams=1).cross_entropy
    shutil.rmtree(folder)
    again = cr.load(tmp_path / "run")
    assert isinstance(again, TranslatorRun)
    assert [again.translate(line) for line in lines] == written
    assert again.evaluate(paths, num_beams=1).cross_entropy == loss
    further = train(*paths, out=tmp_path / "further", model="seq2seq-attention", init=tmp_path / "run", tokenizer=None)
    assert further.model.pretrained.encoder.shape == again.model.pretrained.encoder.shape
    assert further.source_tokenizer.fingerprint == again.source_tokenizer.fingerprint


@pytest.mark.parametrize("tuned", [False, True])
def test_a_stopped_training_resumes_exactly(
    tuned: bool, paths: tuple[Path, Path], folder: Path, tmp_path: Path
) -> None:
    options, constant = {"pretrained": str(folder), "tuned": tuned}, {"schedule": "constant", "warmup": 0.0}
    unbroken = train(*paths, out=tmp_path / "unbroken", steps=6, options=options, training=constant)
    train(*paths, out=tmp_path / "parts", steps=3, options=options, training=constant)
    shutil.rmtree(folder)
    parts = train(*paths, out=tmp_path / "parts", steps=6, options=options, training=constant)
    saved = [run.folder.read_checkpoint() for run in (unbroken, parts)]
    assert [checkpoint.values["step"] for checkpoint in saved if checkpoint is not None] == [6, 6]
    assert all(same(*(checkpoint.tensors for checkpoint in saved if checkpoint is not None)).values())


def test_a_training_stopped_before_its_first_step_begins_with_the_weights(
    paths: tuple[Path, Path], folder: Path, tmp_path: Path
) -> None:
    run = train(*paths, out=tmp_path / "run", options={"pretrained": str(folder)})
    shutil.rmtree(next(run.folder.path.glob("training/step-*")))
    (run.folder.path / "model.safetensors").unlink()
    (run.folder.path / "result.json").unlink()
    again = train(*paths, out=tmp_path / "run", options={"pretrained": str(folder)})
    assert all(same(encoder_weights(again.model.pretrained.encoder), from_folder(folder)).values())


def test_lines_longer_than_the_encoder_reads(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "encoder", positions=8)
    good = [(source, target) for source, target in letter_pairs(60) if max(len(source), len(target)) <= 6]
    mixed = write_pairs(tmp_path, [("a b c d e f g", "A"), ("a b c d e f", "A"), *good], "mixed")
    notes: list[str] = []
    run = train(
        *mixed, out=tmp_path / "run", options={"pretrained": str(folder)}, listener=TrainingListener(note=notes.append)
    )
    assert [note for note in notes if "left out" in note] == [
        f"{math.floor((len(good) + 2) * 0.95) - 1} pairs; left out: 1 too long"
    ]
    assert run.model.window == 7  # six letters and [SEP], with [CLS] before them
    with pytest.warns(UserWarning, match="has 9 tokens, but the model reads 6"):
        run.translate("a b c d e f g h i")


# Errors


def test_options_that_do_not_fit_together(paths: tuple[Path, Path], folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for name, value in {"tuned": True, "token_embedding": 4}.items():
        assert message_of(train, *paths, out=out, options={name: value}) == (
            f"model.{name} needs a pretrained encoder; give one with model.pretrained"
        )
    assert message_of(
        train, *paths, out=out, options={"pretrained": str(folder)}, tokenizer_settings={"source": "byte"}
    ) == (
        "the source has 256 different tokens, but the pretrained encoder knows 56; leave tokenizer.source out, so that "
        "the source is read by the encoder's own tokeniser"
    )
    assert message_of(train, *paths, out=out, options={"pretrained": "nowhere"}).startswith(
        "there is no pretrained encoder 'nowhere'; "
    )
    assert not out.exists()


# Tokenisers of two sides


def test_each_side_may_have_its_own_tokeniser(paths: tuple[Path, Path], folder: Path, tmp_path: Path) -> None:
    for number, source in enumerate((str(folder), str(folder / "tokenizer.json"), "byte")):
        run = train(*paths, out=tmp_path / f"run{number}", steps=1, tokenizer_settings={"source": source})
        kind = "byte" if source == "byte" else "huggingface"
        assert (run.source_tokenizer.kind, run.tokenizer.kind, run.config.tokenizer.joint) == (kind, "char", False)
        assert run.model.source_embedding.num_embeddings == run.source_tokenizer.vocab_size
