"""The tokeniser of a Hugging Face folder: its tokenizer.json, or what can be made of the older files.

GPT-2 and RoBERTa have `vocab.json` and `merges.txt`, BERT and DistilBERT `vocab.txt`, T5 `spiece.model`, and Marian
`source.spm`, `target.spm` and `vocab.json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from chainrule.errors import ConfigError, TokenizerError
from chainrule.interop.huggingface.folders import CONFIG, RESTORE, Folder
from chainrule.text.tokenizers.base import Tokenizer
from chainrule.text.tokenizers.huggingface import ByteLevelTokenizer, HuggingFaceTokenizer, keeps_newlines
from chainrule.text.tokenizers.pieces import PiecesTokenizer

JSON = "tokenizer.json"
T = TypeVar("T", bound=Tokenizer)


class Sides(NamedTuple):
    """The tokenisers of a translator."""

    target: Tokenizer
    source: Tokenizer | None  # None: the same


def read_content(folder: Folder) -> bytes:
    """The tokenizer.json of a folder, or one made of the files that it has instead."""
    if (content := folder.read(JSON)) is not None:
        return content
    made = {"gpt2": _byte_level, "roberta": _byte_level, "bert": _word_pieces, "distilbert": _word_pieces}
    make: Callable[[Folder], Any] | None = made.get(str(folder.kind))
    tokenizer = None if make is None else make(folder)
    if tokenizer is None:
        raise ConfigError(
            f"{folder.path} has no {JSON}, so its tokens cannot be told; load its tokeniser with transformers, save it "
            "to the folder again, and the file is there"
        )
    made_of: str = tokenizer.to_str()
    return made_of.encode()


def read_text_tokenizer(folder: Folder, size: int) -> Tokenizer:
    """Of a language model: newlines are tokens where the tokeniser has one for them, else they are the end token."""
    content = read_content(folder)
    end = end_piece(folder, content, size)
    kind = ByteLevelTokenizer if keeps_newlines(content) and end != "\n" else HuggingFaceTokenizer
    return fitting(folder, kind(content, end=end, size=size), size)


def read_line_tokenizer(folder: Folder, size: int) -> HuggingFaceTokenizer:
    """Of a model that reads lines: the end token is the newline."""
    content = read_content(folder)
    return fitting(folder, HuggingFaceTokenizer(content, end=end_piece(folder, content, size), size=size), size)


def read_t5_tokenizer(folder: Folder, size: int) -> Tokenizer:
    """From tokenizer.json, else from spiece.model with as many sentinels as there is room for."""
    model = None if folder.read(JSON) is not None else folder.read("spiece.model")
    if model is None:
        return read_line_tokenizer(folder, size)
    sentinels = int(folder.json("tokenizer_config.json").get("extra_ids", 100))
    return fitting(folder, PiecesTokenizer.of_t5(model, size=size, sentinels=sentinels), size)


def read_marian_tokenizers(folder: Folder, size: int, target_size: int) -> Sides:
    """From tokenizer.json, else from the sentencepiece files of both sides."""
    if folder.read(JSON) is not None:
        return Sides(read_line_tokenizer(folder, size), None)
    models = {name: folder.read(name) for name in ("source.spm", "target.spm", "vocab.json")}
    if lacking := [name for name, content in models.items() if content is None]:
        raise ConfigError(f"{folder.path} has neither {JSON} nor {lacking[0]}, so its tokens cannot be told; {RESTORE}")
    vocabulary = folder.json("vocab.json")
    written = folder.json("target_vocab.json") or vocabulary
    sides = [
        PiecesTokenizer(models[name] or b"", pieces, size=count)
        for name, pieces, count in (("target.spm", written, target_size), ("source.spm", vocabulary, size))
    ]
    return Sides(fitting(folder, sides[0], target_size), fitting(folder, sides[1], size))


def fitting(folder: Folder, tokenizer: T, size: int) -> T:
    """The tokeniser, if the model knows all of its tokens."""
    if tokenizer.vocab_size > size:
        raise TokenizerError(
            f"the tokeniser of {folder.path} has {tokenizer.vocab_size} tokens, but {CONFIG} tells of {size}; "
            "restore the files that belong together"
        )
    return tokenizer


def end_piece(folder: Folder, content: bytes, size: int) -> str:
    """The token that ends a text: the eos_token or sep_token of the tokeniser's settings, else that of config.json."""
    tokenizer = open_content(content, str(folder.path / JSON))
    settings = folder.json("tokenizer_config.json") | folder.json("special_tokens_map.json")
    for name in ("sep_token", "eos_token") if folder.kind in ("bert", "distilbert") else ("eos_token", "sep_token"):
        piece = settings.get(name)
        piece = piece.get("content") if isinstance(piece, dict) else piece
        if piece is not None and tokenizer.token_to_id(piece) is not None:
            return str(piece)
    number = folder.config.get("eos_token_id")
    number = number[0] if isinstance(number, list) and number else number
    if isinstance(number, int) and number < size and tokenizer.id_to_token(number) is not None:
        return str(tokenizer.id_to_token(number))
    for piece in ("</s>", "<|endoftext|>", "[SEP]"):
        if tokenizer.token_to_id(piece) is not None:
            return piece
    raise ConfigError(
        f"{folder.path} does not tell which token ends a text; name it in {CONFIG} as eos_token_id, or in "
        "tokenizer_config.json as eos_token"
    )


def open_content(content: bytes, name: str) -> Any:
    """A tokenizer.json as the tokenizers library has it, without padding and truncation."""
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
    except ValueError as error:
        raise TokenizerError(f"{name} is no Hugging Face tokeniser ({error}); {RESTORE}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


# Older files


def _byte_level(folder: Folder) -> Any:
    """GPT-2 and RoBERTa from vocab.json and merges.txt; None if either is missing."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    merges = folder.read("merges.txt")
    if folder.read("vocab.json") is None or merges is None:
        return None
    vocabulary = folder.json("vocab.json")
    lines = merges.decode(errors="replace").splitlines()
    cut = [line.partition(" ") for line in lines if line and not line.startswith("#version")]
    try:
        model = models.BPE(vocabulary, [(left, right) for left, _, right in cut], fuse_unk=False)
    except (ValueError, TypeError) as error:
        raise TokenizerError(f"{folder.path / 'merges.txt'} does not fit vocab.json ({error}); {RESTORE}") from None
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>") if folder.kind == "roberta" else ("<|endoftext|>",)
    tokenizer.add_special_tokens([piece for piece in special if piece in vocabulary])
    if folder.kind == "roberta" and {"<s>", "</s>"} <= vocabulary.keys():
        last, first = ((piece, vocabulary[piece]) for piece in ("</s>", "<s>"))
        tokenizer.post_processor = processors.RobertaProcessing(last, first, add_prefix_space=False)
    return tokenizer


def _word_pieces(folder: Folder) -> Any:
    """BERT and DistilBERT from vocab.txt; None if it is missing."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    if (listed := folder.read("vocab.txt")) is None:
        return None
    pieces = listed.decode(errors="replace").removesuffix("\n").split("\n")
    vocabulary = {piece.rstrip("\r"): number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    lowers = bool(folder.json("tokenizer_config.json").get("do_lower_case", True))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowers)
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
    """A JSON file as transformers writes it."""
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()
