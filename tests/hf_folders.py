"""Small Hugging Face folders with random weights and real tokenisers, saved by transformers."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from chainrule.errors import ChainruleError

ENGLISH = "The quick brown fox jumps over the lazy dog. It isn't here, they're late: 12,345 times!"
CHINESE = "床前明月光，疑是地上霜。舉頭望明月，低頭思故鄉。"
TEXT = f"{ENGLISH}\n\n{CHINESE}\n  indented\tand tabbed \n\n\n naïve café — “quoted” 🙂\r\nend" * 3
LINES = (ENGLISH, CHINESE, "the dog, the fox and the moon 明月", "café naïve", "a")


@functools.cache
def byte_level(size: int = 400, end: str = "<|endoftext|>") -> Any:
    """A tokeniser like that of GPT-2."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    made.add_special_tokens([end])
    return made


@functools.cache
def word_piece(size: int = 300) -> Any:
    """A tokeniser like that of BERT."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.train_from_iterator([TEXT], trainers.WordPieceTrainer(vocab_size=size, special_tokens=special))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", made.token_to_id("[CLS]")), ("[SEP]", made.token_to_id("[SEP]"))],
    )
    return made


@functools.cache
def byte_level_with_marks(size: int = 400) -> Any:
    """A tokeniser like that of RoBERTa."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return made


@functools.cache
def unigram(size: int = 220) -> Any:
    """A tokeniser like that of T5: <pad>, </s>, <unk>, pieces."""
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(TEXT.split("\n"), trainer)
    made.add_special_tokens(["<extra_id_0>"])
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return made


@torch.no_grad()
def perturbed(model: Any, by: float = 0.2, seed: int = 1) -> Any:
    """The model with noise added to every weight, so that norms and biases matter too."""
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name or parameter.requires_grad:
            parameter.add_(torch.randn_like(parameter) * by)
    return model.eval()


def saved(model: Any, tokenizer: Any, folder: Path, **settings: Any) -> Path:
    """The folder of a model and its tokeniser; `settings` go into tokenizer_config.json."""
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def change_config(folder: Path, **changes: Any) -> None:
    """Change values in config.json; ... removes one."""
    file = folder / "config.json"
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({name: value for name, value in values.items() if value is not ...}))


def error_message(of: Any, *arguments: Any, **options: Any) -> str:
    """The message of the error that a call raises."""
    with pytest.raises(ChainruleError) as error:
        of(*arguments, **options)
    return str(error.value)


def hidden_states(blocks: Any, run: Any) -> list[torch.Tensor]:
    """The outputs of each block during `run()`; hooks would miss blocks whose `forward` is called by name."""
    found: list[torch.Tensor] = []

    def watched(forward: Any) -> Any:
        def watch(*given: Any, **options: Any) -> Any:
            out = forward(*given, **options)
            found.append(out[0])
            return out

        return watch

    for block in blocks:
        block.forward = watched(block.forward)
    run()
    for block in blocks:
        del block.forward
    return found


def max_difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest absolute difference."""
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max())
