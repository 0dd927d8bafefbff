"""GPT-2 folders as runs: layers, logits, log p of a text and greedy decoding equal those of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import chainrule as cr
from chainrule.interop.huggingface.runs import import_folder
from chainrule.text.readers import text_of
from chainrule.text.tokenizers.huggingface import ByteLevelTokenizer, keeps_newlines
from chainrule.types import Batch
from hf_folders import (
    ENGLISH,
    LINES,
    TEXT,
    byte_level,
    change_config,
    error_message,
    hidden_states,
    max_difference,
    perturbed,
    saved,
)

SHAPES: list[dict[str, Any]] = [
    {},
    {"n_inner": 40, "activation_function": "gelu", "layer_norm_epsilon": 0.1, "n_head": 2},
    {"tie_word_embeddings": False, "activation_function": "relu", "n_layer": 1},
    {"vocab_size": 411},  # larger than that of the tokeniser
]


def gpt2(**options: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    small = {"vocab_size": 400, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
    end = {"bos_token_id": 399, "eos_token_id": 399}
    torch.manual_seed(0)
    return perturbed(GPT2LMHeadModel(GPT2Config(**{**small, **end, **options}, attn_implementation="eager")))


def imported(theirs: Any, tmp_path: Path) -> Any:
    folder = saved(theirs, byte_level(), tmp_path / "folder")
    return cr.import_model(folder, tmp_path / "run")


@pytest.mark.parametrize("options", SHAPES)
@torch.no_grad()
def test_every_layer_and_the_logits(options: dict[str, Any], tmp_path: Path) -> None:
    theirs = gpt2(**options)
    run = imported(theirs, tmp_path)
    assert run.config.model.name == "transformer"
    tokens_BT = torch.randint(0, 400, (3, 64), generator=torch.Generator().manual_seed(2))
    expected = theirs(tokens_BT, output_hidden_states=True)
    features = run.model.features
    states = hidden_states(features.blocks, lambda: run.model(Batch(tokens_BT, tokens_BT)))
    between = [state_ND.view(3, 64, -1) for state_ND in states]
    # Theirs are the embeddings, the states after each block except the last, and those of the last after the norm.
    embedded_BTD = features.positions(run.model.embedding(tokens_BT), 0)
    ours = [embedded_BTD, *between[:-1], features.norm(between[-1])]
    assert len(ours) == len(expected.hidden_states)
    for mine_BTD, their_BTD in zip(ours, expected.hidden_states, strict=True):
        assert max_difference(mine_BTD, their_BTD) < 1e-4
    hidden_BTD = run.model(Batch(tokens_BT, tokens_BT)).hidden_BTD
    assert max_difference(hidden_BTD @ run.model.output.weight_VD.T, expected.logits) < 1e-4
    assert run.model.output.bias_V is None


@torch.no_grad()
def test_a_text_has_their_tokens_and_their_log_probability(tmp_path: Path) -> None:
    theirs = gpt2()
    run = imported(theirs, tmp_path)
    text = TEXT[:100]
    ids = byte_level().encode(text).ids
    assert run.tokenizer.encode_block(text).tolist() == ids
    assert run.tokenizer.to_id("Ċ") in ids
    row = torch.tensor([[399, *ids]])
    expected = theirs(row).logits[0].log_softmax(1)[:-1].gather(1, row[0, 1:, None]).sum()
    (tmp_path / "text.txt").write_bytes(text.encode())
    measured = run.evaluate(tmp_path / "text.txt")
    assert measured.tokens == len(ids) < 64
    assert -measured.cross_entropy * measured.tokens == pytest.approx(float(expected), rel=1e-5)
    # The tokeniser is lossless, so the tokens are all the bits.
    bits = measured.cross_entropy * measured.tokens / 0.6931471805599453
    assert measured.bits_per_byte == pytest.approx(bits / len(text.encode()), rel=1e-9)


@pytest.mark.parametrize("size", [7, 40, 200])
def test_a_text_in_blocks_has_the_tokens_of_the_whole_text(size: int) -> None:
    made = byte_level()
    tokenizer = ByteLevelTokenizer(made.to_str().encode(), end="<|endoftext|>")
    texts = text_of(TEXT)
    texts._block = size
    blocks = list(tokenizer.blocks(texts))
    assert len(blocks) > 2
    assert "".join(blocks) == TEXT
    ids = [token for block in blocks for token in tokenizer.encode_block(block).tolist()]
    assert ids == made.encode(TEXT).ids
    assert tokenizer.decode(ids) == made.decode(ids) == TEXT
    assert b"\n".join(map(tokenizer.decode_bytes, tokenizer.lines_of(ids))) == TEXT.encode()


def test_which_tokenisers_keep_newlines() -> None:
    content = json.loads(byte_level().to_str())
    assert keeps_newlines(json.dumps(content).encode())
    spaced = {**content, "pre_tokenizer": {**content["pre_tokenizer"], "add_prefix_space": True}}
    assert not keeps_newlines(json.dumps(spaced).encode())
    assert not keeps_newlines(json.dumps({**content, "normalizer": {"type": "NFC"}}).encode())
    lacking = {**content["model"], "vocab": {k: v for k, v in content["model"]["vocab"].items() if k != "Ċ"}}
    assert not keeps_newlines(json.dumps({**content, "model": lacking}).encode())
    assert not keeps_newlines(b"{}")


def test_a_text_is_compressed_without_loss(tmp_path: Path) -> None:
    run = imported(gpt2(n_layer=1, n_embd=8, n_head=2), tmp_path)
    text = TEXT + "<|endoftext|> written out \n\n"
    (tmp_path / "text.txt").write_bytes(text.encode())
    run.compress(tmp_path / "text.txt", tmp_path / "packed")
    run.decompress(tmp_path / "packed", tmp_path / "back.txt")
    assert (tmp_path / "back.txt").read_bytes() == text.encode()


@pytest.mark.parametrize("seed", [1, 2])
def test_greedy_decoding_equals_theirs(seed: int, tmp_path: Path) -> None:
    theirs = perturbed(gpt2(), 0.3, seed)
    run = imported(theirs, tmp_path)
    for prompt in ("", ENGLISH, "two\n\nlines\n"):
        ids = [399, *byte_level().encode(prompt).ids]
        row = theirs.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False, pad_token_id=399)[0].tolist()
        written = run.generate(prompt, max_new_tokens=20, stop_at_eos=True)[0]
        assert written.tokens == len(row) - len(ids)
        assert written.text == run.tokenizer.decode(row[1:])


def test_lines_are_scored_as_texts_that_end(tmp_path: Path) -> None:
    theirs = gpt2()
    run = imported(theirs, tmp_path)
    for line, score in zip(LINES, run.score(LINES), strict=True):
        row = torch.tensor([[399, *byte_level().encode(line).ids, 399]])
        with torch.no_grad():
            expected = theirs(row).logits[0].log_softmax(1)[:-1].gather(1, row[0, 1:, None]).sum()
        assert score.log_prob == pytest.approx(float(expected), rel=1e-5)


# Older files


def test_the_tokeniser_of_older_files(tmp_path: Path) -> None:
    folder = saved(gpt2(), None, tmp_path)
    byte_level().model.save(str(folder))
    vocabulary = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps({**vocabulary, "<|endoftext|>": 399}))
    run = cr.import_model(folder, tmp_path / "run")
    assert run.tokenizer.encode_block(TEXT).tolist() == byte_level().encode(TEXT).ids
    assert run.tokenizer.eos == 399


def test_older_weight_files_and_names(tmp_path: Path) -> None:
    theirs = gpt2()
    folder = saved(theirs, byte_level(), tmp_path / "folder")
    one = cr.import_model(folder, tmp_path / "one")
    tensors = {name.removeprefix("transformer."): t for name, t in load_file(folder / "model.safetensors").items()}
    tensors |= {f"h.{n}.attn.bias": torch.ones(1, 1, 64, 64).tril() for n in range(3)}
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    other = cr.import_model(folder, tmp_path / "other")
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))


def test_weights_in_several_files_and_in_half_precision(tmp_path: Path) -> None:
    theirs = gpt2().half()
    folder = saved(theirs, byte_level(), tmp_path / "folder")
    one = cr.import_model(folder, tmp_path / "one")
    assert one.model.embedding.weight.dtype == torch.float32
    (folder / "model.safetensors").unlink()
    theirs.save_pretrained(folder, max_shard_size="40KB")
    assert not (folder / "model.safetensors").exists()
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    other = cr.import_model(folder, tmp_path / "other")
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))
    last = sorted(folder.glob("model-*.safetensors"))[-1]
    last.unlink()
    assert error_message(import_folder, folder, tmp_path / "third") == (
        f"{folder} has no {last.name}, which its index lists; restore the file that came with the model"
    )


# Errors


def test_a_repeated_import_finds_the_finished_run(tmp_path: Path) -> None:
    folder = saved(gpt2(n_layer=1), byte_level(), tmp_path / "folder")
    notes: list[str] = []
    cr.import_model(folder, tmp_path / "run", note=notes.append)
    before = (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns
    cr.import_model(folder, tmp_path / "run", note=notes.append)
    assert notes == [f"{tmp_path / 'run'} is finished already; choose another --out to import it again"]
    assert (tmp_path / "run" / "model.safetensors").stat().st_mtime_ns == before
    change_config(folder, layer_norm_epsilon=0.5)
    assert error_message(cr.import_model, folder, tmp_path / "run") == (
        f"{tmp_path / 'run'} is not empty and was not made by this command; choose another place"
    )


def test_folders_that_cannot_be_read(tmp_path: Path) -> None:
    folder, out = saved(gpt2(n_layer=1), byte_level(), tmp_path / "folder"), tmp_path / "run"
    config = json.loads((folder / "config.json").read_text())

    def message(**changes: Any) -> str:
        change_config(folder, **changes)
        found = error_message(import_folder, folder, out)
        (folder / "config.json").write_text(json.dumps(config))
        assert not out.exists()
        return found

    file = folder / "config.json"
    assert message(model_type="llama") == (
        f"{folder} has a model of the type 'llama'; supported are gpt2, gpt_neox, bert, roberta, "
        "distilbert, t5, marian, pegasus"
    )
    assert message(n_head=...) == f"{file} has no n_head; restore the file that came with the model"
    assert message(scale_attn_by_inverse_layer_idx=True) == (
        f"{file} has scale_attn_by_inverse_layer_idx = True; supported is only False"
    )
    assert message(activation_function="tanh") == (
        f"{file} has activation_function = 'tanh'; supported are gelu_new, gelu_pytorch_tanh, gelu, relu, relu2"
    )
    assert message(n_positions=65) == (
        f"{folder / 'model.safetensors'} does not match its config.json: features.positions.table_CD is [64, 32], "
        "expected [65, 32]; restore the files that belong together"
    )
    assert message(n_layer=2) == (
        f"{folder / 'model.safetensors'} has no tensor h.1.ln_1.weight, which config.json requires; restore the file "
        "that came with the model"
    )
    assert message(vocab_size=399) == (
        f"the tokeniser of {folder} has 400 tokens, but vocab_size in config.json is 399; restore the files that "
        "belong together"
    )


def test_weights_that_cannot_be_read(tmp_path: Path) -> None:
    folder, out = saved(gpt2(n_layer=1), byte_level(), tmp_path / "folder"), tmp_path / "run"
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert error_message(import_folder, folder, out).startswith(f"{file} is damaged (")
    file.write_bytes(whole)
    tensors = load_file(file)
    save_file({**tensors, "transformer.h.0.mlp.c_fc.weight": torch.zeros(5, 7)}, file)
    assert error_message(import_folder, folder, out) == (
        f"{file} does not match its config.json: features.blocks.0.widen.weight is [7, 5], expected [128, 32]; restore "
        "the files that belong together"
    )
    file.unlink()
    assert error_message(import_folder, folder, out) == (
        f"{folder} has no model.safetensors; load the model with transformers and save it to the folder again, which "
        "writes the file"
    )
    torch.save({"anything": {1, 2}, "model": gpt2}, folder / "pytorch_model.bin")
    assert error_message(import_folder, folder, out).startswith(f"{folder / 'pytorch_model.bin'} is damaged (")
    torch.save([1], folder / "pytorch_model.bin")
    assert error_message(import_folder, folder, out) == (
        f"{folder / 'pytorch_model.bin'} is not a dictionary of tensors; restore the file that came with the model"
    )
    assert not out.exists()


def test_folders_without_a_complete_tokeniser(tmp_path: Path) -> None:
    folder, out = saved(gpt2(n_layer=1), byte_level(), tmp_path / "folder"), tmp_path / "run"
    (folder / "tokenizer.json").unlink()
    assert error_message(import_folder, folder, out) == (
        f"{folder} has no tokenizer.json; load its tokeniser with transformers and save it to the folder again, which "
        "writes the file"
    )
    (folder / "tokenizer.json").write_text("{}")
    assert error_message(import_folder, folder, out).startswith(
        f"{folder / 'tokenizer.json'} is not a Hugging Face tokeniser"
    )
    byte_level(end="<|halt|>").save(str(folder / "tokenizer.json"))
    change_config(folder, eos_token_id=..., bos_token_id=...)
    assert error_message(import_folder, folder, out) == (
        f"{folder} does not define the token that ends a text; set eos_token_id in config.json, or eos_token in "
        "tokenizer_config.json"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|halt|>"}}))
    assert cr.load(import_folder(folder, out).path).tokenizer.eos == 399
    (tmp_path / "empty").mkdir()
    assert error_message(cr.import_model, tmp_path / "empty", out) == (
        f"{tmp_path / 'empty'} has no config.json; give a folder saved by transformers"
    )
