"""Runs as Hugging Face folders: transformers computes the same outputs, and importing them gives the same runs."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from test_bert_runs import assert_equal, masked_model, rows_of
from test_gpt2 import gpt2
from test_marian_folders import folder_of, marian
from test_t5_folders import t5

import chainrule as cr
from chainrule.checkpoint.build import save_model
from chainrule.interop.formats import export
from chainrule.types import Batch, Source
from hf_folders import CHINESE, ENGLISH, LINES, TEXT, byte_level, error_message, max_difference, perturbed, saved
from hf_folders import unigram as t5_tokenizer

SMALL: dict[str, Any] = {"embedding": 16, "layers": 2, "heads": 2, "context": 64}
GPT2: dict[str, Any] = {"model": {**SMALL, "positions": "learned"}, "output": {"bias": False}}
SIDES: dict[str, Any] = {"embedding": 16, "encoder_layers": 2, "decoder_layers": 2, "heads": 2, "context": 64}
KINDS = ["byte", "char", "word", "bpe", "unigram"]
PROBES = (
    *(ENGLISH, CHINESE, "", " ", "  two  spaces ", "a\tb", "<unk> and </s> and <eos> written out", "<0x41>", "▁ ▂1 ▂"),
    *("unseen: Жук ñ 🙃", "no\x1cbreak\u3000space", "don't stop", "\u00a0lead"),
)
TIES = (
    "the unigram tokeniser is exported with its pieces and scores; of two segmentations with equal scores, for example "
    "of a long run of one character, transformers may choose the other; the original model is spiece.model"
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, and pairs of lines."""
    folder = tmp_path_factory.mktemp("texts")
    lines = [line for line in TEXT.split("\n") if line.strip()] * 8
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "pairs.tsv").write_text(
        "".join(f"{ENGLISH[:n]}\t{CHINESE[: n // 3 + 1]}\n" for n in range(2, 40)), "utf-8"
    )
    return folder


def trained(texts: Path, out: Path, model: str, tokenizer: str, settings: dict[str, Any], **options: Any) -> Any:
    """A run of two steps whose weights are then perturbed, so that every one of them matters."""
    data = texts / ("text.txt" if model in ("transformer", "bert") else "pairs.tsv")
    more = {"vocab_size": 400} if tokenizer in ("bpe", "unigram") else {}
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")  # a small text gives fewer subwords than requested
        run = cr.train(data, model=model, tokenizer=tokenizer, steps=2, out=out, settings=settings, **more, **options)
    perturbed(run.model, 0.1)
    save_model(run.folder, run.model)
    return run


def exported(run: Any, path: Path) -> Any:
    """Export a run to a folder -> its tokeniser in transformers."""
    from transformers import AutoTokenizer

    if run.tokenizer.kind == "unigram":
        with pytest.warns(UserWarning, match="^the unigram") as warned:
            done = export(run.folder.path, path, to="hf")
        assert [str(one.message) for one in warned] == [TIES]
        assert (path / "spiece.model").read_bytes() == run.tokenizer.blobs()["tokenizer.model"]
    else:
        done = export(run.folder.path, path, to="hf")
    assert done.path == path
    assert done.bytes == sum(file.stat().st_size for file in path.iterdir())
    return AutoTokenizer.from_pretrained(path)


# Language models


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_language_model_is_exported_and_imported(kind: str, texts: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    run = trained(texts, tmp_path / "run", "transformer", kind, GPT2)
    tokenizer = exported(run, tmp_path / "folder")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "folder", attn_implementation="eager").eval()
    tokens_BT = torch.randint(0, run.tokenizer.vocab_size, (3, 60), generator=torch.Generator().manual_seed(1))
    ours_BTD = run.model(Batch(tokens_BT, tokens_BT)).hidden_BTD
    assert max_difference(ours_BTD @ run.model.output.weight_VD.T, theirs(tokens_BT).logits) < 1e-4
    for line in PROBES:
        assert tokenizer(line, add_special_tokens=False)["input_ids"] == run.tokenizer.encode(line), line
    block = "\n".join(PROBES) + "\n"
    assert tokenizer(block)["input_ids"] == run.tokenizer.encode_block(block).tolist()
    assert len(tokenizer) == run.tokenizer.vocab_size
    assert tokenizer.eos_token_id == run.tokenizer.eos
    back = cr.import_model(tmp_path / "folder", tmp_path / "back")
    assert torch.equal(back.model(Batch(tokens_BT, tokens_BT)).hidden_BTD, ours_BTD)
    for line in (ENGLISH, CHINESE):
        assert back.tokenizer.encode(line) == run.tokenizer.encode(line)
    assert back.tokenizer.encode_block(block).tolist() == run.tokenizer.encode_block(block).tolist()
    first, second = run.score(ENGLISH), back.score(ENGLISH)
    assert second.log_prob == pytest.approx(first.log_prob, rel=1e-5)
    if kind in ("char", "word"):  # an incomplete last character is shown differently there
        assert back.generate("The", max_new_tokens=8)[0].text == run.generate("The", max_new_tokens=8)[0].text


@pytest.mark.parametrize(
    "options",
    [
        {"bias": True, "activation": "gelu", "eps": 0.01},
        {"tied": False, "feedforward": 20, "activation": "gelu-tanh"},
        {"activation": "relu"},
    ],
)
@torch.no_grad()
def test_every_shape_of_a_language_model(options: dict[str, Any], texts: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    run = trained(texts, tmp_path / "run", "transformer", "char", {**GPT2, "model": {**GPT2["model"], **options}})
    exported(run, tmp_path / "folder")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "folder", attn_implementation="eager").eval()
    tokens_BT = torch.randint(0, run.tokenizer.vocab_size, (2, 30), generator=torch.Generator().manual_seed(1))
    ours_BTV = run.model(Batch(tokens_BT, tokens_BT)).hidden_BTD @ run.model.output.weight_VD.T
    assert max_difference(ours_BTV, theirs(tokens_BT).logits) < 1e-4
    back = cr.import_model(tmp_path / "folder", tmp_path / "back").model
    assert max_difference(back(Batch(tokens_BT, tokens_BT)).hidden_BTD @ back.output.weight_VD.T, ours_BTV) < 1e-5


FORMS: list[tuple[dict[str, Any], bool]] = [  # options and whether the output layer has a bias
    ({}, True),  # the default form
    ({}, False),
    ({"bias": True, "eps": 0.01, "activation": "gelu"}, True),
    ({"tied": False, "feedforward": 20}, True),
    ({"positions": "learned"}, True),
    ({"positions": "sinusoidal", "bias": True}, True),
    ({"positions": "none"}, False),
]


@pytest.mark.parametrize(("options", "output_bias"), FORMS)
@torch.no_grad()
def test_every_pre_norm_form_is_exported_and_imported(
    options: dict[str, Any], output_bias: bool, texts: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    settings = {"model": {**SMALL, **options}, "output": {"bias": output_bias}}
    run = trained(texts, tmp_path / "run", "transformer", "char", settings)
    exported(run, tmp_path / "folder")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "folder", attn_implementation="eager").eval()
    assert theirs.config.model_type == ("gpt2" if options.get("positions") else "gpt_neox")
    tokens_BT = torch.randint(0, run.tokenizer.vocab_size, (3, 60), generator=torch.Generator().manual_seed(1))
    ours_BTD = run.model(Batch(tokens_BT, tokens_BT)).hidden_BTD
    bias_V = run.model.output.bias_V if output_bias else torch.zeros(run.tokenizer.vocab_size)
    ours_BTV, theirs_BTV = ours_BTD @ run.model.output.weight_VD.T + bias_V, theirs(tokens_BT).logits
    assert max_difference(ours_BTV, theirs_BTV) < 1e-4
    row_1T = tokens_BT[:1, :20]
    greedy = {"do_sample": False, "max_new_tokens": 20, "eos_token_id": None}
    written_1T = theirs.generate(row_1T, attention_mask=torch.ones_like(row_1T), **greedy)
    for _ in range(20):
        hidden_BTD = run.model(Batch(row_1T, row_1T)).hidden_BTD
        row_1T = torch.cat([row_1T, run.model.output(hidden_BTD[:, -1]).argmax(1, keepdim=True)], 1)
    assert written_1T.tolist() == row_1T.tolist()
    back = cr.import_model(tmp_path / "folder", tmp_path / "back")
    assert back.parameters <= run.parameters + (options.get("positions") is not None) * 10_000
    ours_BT, again_BT = run.model.log_probs(tokens_BT), back.model.log_probs(tokens_BT)
    assert max_difference(again_BT, ours_BT) < 1e-4
    if not options:
        assert back.model.config == run.model.config.model_copy(update={"feedforward": 64})
        assert back.parameters == run.parameters


@torch.no_grad()
def test_gpt_neox_is_imported_and_exported(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM

    sizes = {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = {**sizes, "intermediate_size": 48, "max_position_embeddings": 64, "hidden_act": "gelu"}
    end = {"bos_token_id": 399, "eos_token_id": 399, "attn_implementation": "eager"}

    def folder(name: str, **changes: Any) -> tuple[Any, Path]:
        rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
        values = {"use_parallel_residual": False, "rope_parameters": rope} | changes
        torch.manual_seed(0)
        theirs = perturbed(GPTNeoXForCausalLM(GPTNeoXConfig(**config, **end, **values)))
        return theirs, saved(theirs, byte_level(), tmp_path / name)

    theirs, place = folder("in")
    run = cr.import_model(place, tmp_path / "run")
    tokens_BT = torch.randint(0, 400, (2, 64), generator=torch.Generator().manual_seed(1))
    ours_BTD = run.model(Batch(tokens_BT, tokens_BT)).hidden_BTD
    assert max_difference(ours_BTD @ run.model.output.weight_VD.T, theirs(tokens_BT).logits) < 1e-4
    exported(run, tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    assert torch.equal(again(tokens_BT).logits, theirs(tokens_BT).logits)
    parallel = folder("parallel", use_parallel_residual=True)[1]
    assert error_message(cr.import_model, parallel, tmp_path / "no") == (
        f"{parallel / 'config.json'} has use_parallel_residual = true; supported are only models whose attention and "
        "feed-forward layers are in sequence"
    )
    rope = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25}
    other = folder("other", rope_parameters=rope)[1]
    assert error_message(cr.import_model, other, tmp_path / "no") == (
        f"{other / 'config.json'} has rotary positions of type default and base 500 on 2 of 8 components of a head; "
        "supported are only type default and base 10000 on all of them"
    )


@torch.no_grad()
def test_gpt2_is_imported_and_exported(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    theirs = gpt2(vocab_size=411)
    run = cr.import_model(saved(theirs, byte_level(), tmp_path / "folder"), tmp_path / "run")
    tokenizer = exported(run, tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    tokens_BT = torch.randint(0, 411, (2, 64), generator=torch.Generator().manual_seed(1))
    assert torch.equal(again(tokens_BT).logits, theirs(tokens_BT).logits)
    assert tokenizer(TEXT)["input_ids"] == byte_level().encode(TEXT).ids


# Translators


def source_and_targets(run: Any) -> tuple[Source, torch.Tensor]:
    eos, size = run.tokenizer.eos, run.tokenizer.vocab_size
    read = run.source_tokenizer
    generator = torch.Generator().manual_seed(3)
    tokens_BS = torch.randint(2, read.vocab_size - 1, (3, 9), generator=generator)
    lengths_B = torch.tensor([9, 5, 2])
    tokens_BS[tokens_BS == read.eos] = (read.eos + 1) % read.vocab_size
    tokens_BS[torch.arange(3), lengths_B - 1] = read.eos
    tokens_BT = torch.randint(2, size - 1, (3, 7), generator=generator)
    tokens_BT[tokens_BT == eos] = (eos + 1) % size
    return Source(tokens_BS, torch.arange(9) < lengths_B[:, None]), tokens_BT


@torch.no_grad()
def assert_same_translator(theirs: Any, run: Any) -> None:
    source, tokens_BT = source_and_targets(run)
    start = theirs.config.decoder_start_token_id
    started_BT = torch.cat([torch.full((3, 1), start), tokens_BT[:, :-1]], 1)
    logits_BTV = theirs(
        input_ids=source.tokens_BS, attention_mask=source.mask_BS.long(), decoder_input_ids=started_BT
    ).logits
    expected_BT = logits_BTV.log_softmax(2).gather(2, tokens_BT[:, :, None])[:, :, 0]
    assert max_difference(run.model.log_probs(tokens_BT, source), expected_BT) < 1e-4


@pytest.mark.parametrize(
    ("model", "kind", "options"),
    [
        ("t5", "char", {"sentinels": 5}),
        ("t5", "unigram", {"gated": True, "activation": "gelu-tanh", "tied": False, "eps": 0.01}),
        ("seq2seq-transformer", "bpe", {}),  # the default form
        ("seq2seq-transformer", "char", {"bias": True, "activation": "swish"}),
        ("seq2seq-transformer", "char", {"tied": False}),
        ("seq2seq-transformer", "word", {"shared": False}),
        ("seq2seq-transformer", "bpe", {"norm": "post", "bias": True, "activation": "swish"}),
        ("seq2seq-transformer", "char", {"norm": "post", "activation": "relu", "tied": False}),
        ("seq2seq-transformer", "byte", {"norm": "post", "shared": False, "activation": "gelu"}),
        ("seq2seq-transformer", "word", {"norm": "post", "shared": False, "tied": False}),
    ],
)
def test_a_translator_is_exported_and_imported(
    model: str, kind: str, options: dict[str, Any], texts: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForSeq2SeqLM

    settings = {"model": {**SIDES, **options}, "output": {"bias": model != "t5"}}
    run = trained(texts, tmp_path / "run", model, kind, settings)
    tokenizer = exported(run, tmp_path / "folder")
    theirs = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "folder", attn_implementation="eager").eval()
    assert_same_translator(theirs, run)
    for line in PROBES:
        assert tokenizer(line)["input_ids"] == [*run.tokenizer.encode(line), run.tokenizer.eos], line
    assert len(tokenizer) == run.model.vocab_size
    line = ENGLISH[:40]
    written = theirs.generate(**tokenizer(line, return_tensors="pt"), do_sample=False, num_beams=1, max_new_tokens=9)
    text = [token for token in written[0, 1:].tolist() if token != run.tokenizer.eos]
    shown = run.tokenizer.decode(token for token in text if token < run.tokenizer.vocab_size)
    assert run.translate(line, num_beams=1, max_new_tokens=9) == shown
    back = cr.import_model(tmp_path / "folder", tmp_path / "back")
    source, tokens_BT = source_and_targets(run)
    with torch.no_grad():
        assert max_difference(back.model.log_probs(tokens_BT, source), run.model.log_probs(tokens_BT, source)) < 1e-5
    for line in (ENGLISH, CHINESE):
        assert back.tokenizer.encode(line) == run.tokenizer.encode(line)


def test_t5_is_imported_and_exported(tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM

    for number, options in enumerate(({}, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False})):
        theirs = t5(**options)
        run = cr.import_model(saved(theirs, t5_tokenizer(), tmp_path / f"in{number}"), tmp_path / f"run{number}")
        tokenizer = exported(run, tmp_path / f"out{number}")
        again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / f"out{number}", attn_implementation="eager").eval()
        assert again.config.decoder_start_token_id == 0
        assert_same_translator(theirs, run)
        assert_same_translator(again, run)
        assert tokenizer(ENGLISH)["input_ids"] == t5_tokenizer().encode(ENGLISH).ids


def test_marian_is_imported_and_exported(tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM, MarianTokenizer

    for number, options in enumerate(({}, {"share_encoder_decoder_embeddings": False}, {"scale_embedding": False})):
        theirs = marian(**options)
        run = cr.import_model(folder_of(theirs, tmp_path / f"in{number}"), tmp_path / f"run{number}")
        out = tmp_path / f"out{number}"
        export(run.folder.path, out, to="hf")
        assert_same_translator(AutoModelForSeq2SeqLM.from_pretrained(out, attn_implementation="eager").eval(), run)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about an optional library
            tokenizer = MarianTokenizer.from_pretrained(out)
        for line in LINES:
            assert tokenizer(line)["input_ids"] == [*run.subject.encode_source(line), 0]


# Encoders


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_an_encoder_is_imported_and_exported(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    theirs, tokens = masked_model(kind)
    run = cr.import_model(saved(theirs, tokens, tmp_path / "folder"), tmp_path / "run")
    tokenizer = exported(run, tmp_path / "out")
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    rows = rows_of(tokens, theirs.config.pad_token_id)
    assert type(again) is type(theirs)
    with torch.no_grad():
        assert torch.equal(again(rows[0], rows[1].long()).logits, theirs(rows[0], rows[1].long()).logits)
    assert_equal(again, run.model, *rows)
    for line in LINES:
        assert tokenizer(line)["input_ids"] == tokens.encode(line).ids
    assert tokenizer.mask_token_id == run.model.mask
    assert tokenizer.pad_token_id == theirs.config.pad_token_id


@pytest.mark.parametrize(("kind", "tokens"), [("bert", "char"), ("distilbert", "byte"), ("bert", "unigram")])
def test_our_encoder_is_exported_and_imported(kind: str, tokens: str, texts: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    settings = {"model": {"kind": kind, "width": 16, "layers": 2, "heads": 2, "positions": 32}}
    run = trained(texts, tmp_path / "run", "bert", tokens, settings)
    tokenizer = exported(run, tmp_path / "folder")
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path / "folder", attn_implementation="eager").eval()
    tokens_BS = torch.randint(0, run.tokenizer.vocab_size + 1, (2, 30), generator=torch.Generator().manual_seed(1))
    mask_BS = torch.arange(30) < torch.tensor([[30], [12]])
    assert_equal(theirs, run.model, tokens_BS, mask_BS)
    assert tokenizer.mask_token_id == run.model.mask == run.tokenizer.vocab_size
    for line in PROBES:
        assert tokenizer(line)["input_ids"] == [*run.tokenizer.encode(line), run.tokenizer.eos]
    back = cr.import_model(tmp_path / "folder", tmp_path / "back").model
    assert back.mask == run.model.mask
    with torch.no_grad():
        words = run.tokenizer.vocab_size  # the additional mask is never predicted
        ours, again = run.model.logits(tokens_BS, mask_BS), back.logits(tokens_BS, mask_BS)
        assert max_difference(again[..., :words][mask_BS], ours[mask_BS]) < 1e-5


# Errors


def test_runs_without_a_counterpart_are_refused(texts: Path, tmp_path: Path) -> None:
    def message(model: str, settings: dict[str, Any], tokenizer: str = "char") -> str:
        place = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        run = trained(texts, place, model, tokenizer, settings)
        out = tmp_path / "out"
        found = error_message(export, run.folder.path, out, to="hf")
        assert not out.exists()
        return found.replace(str(place), "RUN")

    cannot = "RUN cannot be exported as hf: "
    tree = {"model": {**SMALL, "norm": "post", "tied": False}, "output": {"name": "hierarchical"}}
    place = tmp_path / "tree"
    tree["tokenizer"] = {"split": "unicode"}
    cr.train(texts / "text.txt", model="transformer", tokenizer="word", steps=1, out=place, settings=tree)
    assert error_message(export, place, tmp_path / "out", to="hf") == (
        f"{place} cannot be exported as hf: (1) model.norm is post, but GPT-2 and GPT-NeoX are pre-norm; (2) the "
        "output layer is hierarchical, which has no vector per word; (3) the tokeniser is word with split = unicode, "
        "which tokenizer.json cannot represent; train with --set model.norm=pre --output softmax --set "
        "tokenizer.split=space"
    )
    assert message("seq2seq-transformer", {"model": {**SIDES, "positions": "rotary"}}) == (
        f"{cannot}model.positions is rotary, but Marian and Pegasus have sinusoidal positions; train with --set "
        "model.positions=sinusoidal"
    )
    assert message("seq2seq-transformer", {"model": SIDES, "tokenizer": {"joint": False}}) == (
        f"{cannot}source and target have separate tokenisers, but a folder has one; train with --set "
        "tokenizer.joint=true"
    )
    assert message("t5", {"model": {**SIDES, "shared": False}}) == (
        f"{cannot}(1) the output layer has a bias, but T5 has none; (2) source and target have separate embeddings "
        "(model.shared is false), but T5 has one; train with --set output.bias=false --set model.shared=true"
    )
    small = {"width": 8, "layers": 1, "heads": 2, "positions": 16}
    assert message("bert", {"model": {**small, "kind": "roberta", "activation": "relu"}}) == (
        f"{cannot}(1) model.activation is relu, but the head of RoBERTa has gelu; (2) RoBERTa computes positions from "
        "padding tokens, but the padding of the run is a word of its tokeniser; train with --set "
        "model.activation=gelu --set model.kind=bert"
    )
    assert message("bert", {"model": {**small, "kind": "distilbert", "eps": 1e-5}}) == (
        f"{cannot}model.eps is 1e-05, but DistilBERT has 1e-12; train with --set model.eps=1e-12"
    )
    cr.train(texts / "text.txt", model="ngram", tokenizer="char", out=tmp_path / "ngram")
    assert error_message(export, tmp_path / "ngram", tmp_path / "out", to="hf") == (
        f"{tmp_path / 'ngram'} cannot be exported as hf: the model ngram has no counterpart in Hugging Face "
        "(transformer, bert, t5, seq2seq-transformer have one); train with --model transformer"
    )


def test_an_export_overwrites_nothing(texts: Path, tmp_path: Path) -> None:
    run = trained(texts, tmp_path / "run", "transformer", "char", GPT2)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").touch()
    assert error_message(export, run.folder.path, tmp_path / "taken", to="hf") == (
        f"{tmp_path / 'taken'} is not empty and was not made by this command; choose another place"
    )
    assert (tmp_path / "taken" / "mine").exists()
