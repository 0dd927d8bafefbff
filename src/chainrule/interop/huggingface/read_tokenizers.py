"""The tokeniser of a Hugging Face folder: its tokenizer.json, or one made from the older files.

GPT-2 and RoBERTa have `vocab.json` and `merges.txt`, BERT and DistilBERT `vocab.txt`, T5 `spiece.model`, and Marian
`source.spm`, `target.spm` and `vocab.json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from chainrule.errors import ConfigError, TokenizerError
from chainrule.interop.huggingface.folders import CONFIG, RESTORE, HuggingFaceFolder
from chainrule.text.tokenizers.base import Tokenizer
from chainrule.text.tokenizers.huggingface import (
    ByteLevelTokenizer,
    HuggingFaceTokenizer,
    keeps_newlines,
    parse_tokenizer,
)
from chainrule.text.tokenizers.pieces import PiecesTokenizer

TOKENIZER_JSON = "tokenizer.json"
T = TypeVar("T", bound=Tokenizer)


class TokenizerPair(NamedTuple):
    """The tokenisers of a translator."""

    target: Tokenizer
    source: Tokenizer | None  # None: the same tokeniser


def read_tokenizer_json(folder: HuggingFaceFolder) -> bytes:
    """The tokenizer.json of a folder, or one made from its older files."""
    if (content := folder.read_bytes(TOKENIZER_JSON)) is not None:
        return content
    makers = {"gpt2": _byte_level, "roberta": _byte_level, "bert": _word_pieces, "distilbert": _word_pieces}
    make: Callable[[HuggingFaceFolder], Any] | None = makers.get(str(folder.model_type))
    tokenizer = None if make is None else make(folder)
    if tokenizer is None:
        raise ConfigError(
            f"{folder.path} has no {TOKENIZER_JSON}; load its tokeniser with transformers and save it to the folder "
            "again, which writes the file"
        )
    text: str = tokenizer.to_str()
    return text.encode()


def read_text_tokenizer(folder: HuggingFaceFolder, size: int) -> Tokenizer:
    """The tokeniser of a language model: newlines are tokens if it has one for them, otherwise the end token."""
    content = read_tokenizer_json(folder)
    end = find_end_piece(folder, content, size)
    kind = ByteLevelTokenizer if keeps_newlines(content) and end != "\n" else HuggingFaceTokenizer
    return check_size(folder, kind(content, end=end, size=size), size)


def read_line_tokenizer(folder: HuggingFaceFolder, size: int) -> HuggingFaceTokenizer:
    """The tokeniser of a model that reads lines: the end token is the newline."""
    content = read_tokenizer_json(folder)
    return check_size(folder, HuggingFaceTokenizer(content, end=find_end_piece(folder, content, size), size=size), size)


def read_t5_tokenizer(folder: HuggingFaceFolder, size: int) -> Tokenizer:
    """From tokenizer.json, or from spiece.model with as many sentinels as fit into the vocabulary."""
    model = None if folder.read_bytes(TOKENIZER_JSON) is not None else folder.read_bytes("spiece.model")
    if model is None:
        return read_line_tokenizer(folder, size)
    sentinels = int(folder.read_json("tokenizer_config.json").get("extra_ids", 100))
    return check_size(folder, PiecesTokenizer.of_t5(model, size=size, sentinels=sentinels), size)


def read_marian_tokenizers(folder: HuggingFaceFolder, size: int, target_size: int) -> TokenizerPair:
    """From tokenizer.json, or from the sentencepiece files of both sides."""
    if folder.read_bytes(TOKENIZER_JSON) is not None:
        return TokenizerPair(read_line_tokenizer(folder, size), None)
    models = {name: folder.read_bytes(name) for name in ("source.spm", "target.spm", "vocab.json")}
    if missing := [name for name, content in models.items() if content is None]:
        raise ConfigError(f"{folder.path} has neither {TOKENIZER_JSON} nor {missing[0]}; {RESTORE}")
    vocabulary = folder.read_json("vocab.json")
    target_vocabulary = folder.read_json("target_vocab.json") or vocabulary
    sides = [
        PiecesTokenizer(models[name] or b"", pieces, size=count)
        for name, pieces, count in (("target.spm", target_vocabulary, target_size), ("source.spm", vocabulary, size))
    ]
    return TokenizerPair(check_size(folder, sides[0], target_size), check_size(folder, sides[1], size))


def check_size(folder: HuggingFaceFolder, tokenizer: T, size: int) -> T:
    """The tokeniser, after checking that the model has all of its tokens."""
    if tokenizer.vocab_size > size:
        raise TokenizerError(
            f"the tokeniser of {folder.path} has {tokenizer.vocab_size} tokens, but vocab_size in {CONFIG} is {size}; "
            "restore the files that belong together"
        )
    return tokenizer


def find_end_piece(folder: HuggingFaceFolder, content: bytes, size: int) -> str:
    """The end token of a text: eos_token or sep_token of the tokeniser's settings, or eos_token_id of config.json."""
    tokenizer = parse_tokenizer_json(content, str(folder.path / TOKENIZER_JSON))
    settings = folder.read_json("tokenizer_config.json") | folder.read_json("special_tokens_map.json")
    for name in (
        ("sep_token", "eos_token") if folder.model_type in ("bert", "distilbert") else ("eos_token", "sep_token")
    ):
        piece = settings.get(name)
        piece = piece.get("content") if isinstance(piece, dict) else piece
        if isinstance(piece, str) and tokenizer.token_to_id(piece) is not None:
            return piece
    number = folder.config.get("eos_token_id")
    number = number[0] if isinstance(number, list) and number else number
    if isinstance(number, int) and number < size and tokenizer.id_to_token(number) is not None:
        return str(tokenizer.id_to_token(number))
    for piece in ("</s>", "<|endoftext|>", "[SEP]"):
        if tokenizer.token_to_id(piece) is not None:
            return piece
    raise ConfigError(
        f"{folder.path} does not define the token that ends a text; set eos_token_id in {CONFIG}, or eos_token in "
        "tokenizer_config.json"
    )


def parse_tokenizer_json(content: bytes, name: str) -> Any:
    """A tokenizer.json as an object of the tokenizers library, without padding and truncation."""
    try:
        tokenizer = parse_tokenizer(content)
    except ValueError as error:
        raise TokenizerError(f"{name} is not a Hugging Face tokeniser ({error}); {RESTORE}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


# Older files


def _byte_level(folder: HuggingFaceFolder) -> Any:
    """A tokeniser of GPT-2 or RoBERTa from vocab.json and merges.txt; None if either is missing."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    merges = folder.read_bytes("merges.txt")
    if folder.read_bytes("vocab.json") is None or merges is None:
        return None
    vocabulary = folder.read_json("vocab.json")
    lines = merges.decode(errors="replace").splitlines()
    pairs = [line.partition(" ") for line in lines if line and not line.startswith("#version")]
    try:
        model = models.BPE(vocabulary, [(left, right) for left, _, right in pairs], fuse_unk=False)
    except (ValueError, TypeError) as error:
        raise TokenizerError(f"{folder.path / 'merges.txt'} does not match vocab.json ({error}); {RESTORE}") from None
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>") if folder.model_type == "roberta" else ("<|endoftext|>",)
    tokenizer.add_special_tokens([piece for piece in special if piece in vocabulary])
    if folder.model_type == "roberta" and {"<s>", "</s>"} <= vocabulary.keys():
        last, first = ((piece, vocabulary[piece]) for piece in ("</s>", "<s>"))
        tokenizer.post_processor = processors.RobertaProcessing(last, first, add_prefix_space=False)
    return tokenizer


def _word_pieces(folder: HuggingFaceFolder) -> Any:
    """A tokeniser of BERT or DistilBERT from vocab.txt; None if it is missing."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    if (content := folder.read_bytes("vocab.txt")) is None:
        return None
    pieces = content.decode(errors="replace").removesuffix("\n").split("\n")
    vocabulary = {piece.rstrip("\r"): number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    lowercase = bool(folder.read_json("tokenizer_config.json").get("do_lower_case", True))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    special = [piece for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if piece in vocabulary]
    tokenizer.add_special_tokens(special)
    if {"[CLS]", "[SEP]"} <= vocabulary.keys():
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(piece, vocabulary[piece]) for piece in ("[CLS]", "[SEP]")],
        )
    return tokenizer


def as_json(values: dict[str, Any]) -> bytes:
    """The content of a JSON file in the style of transformers."""
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()
