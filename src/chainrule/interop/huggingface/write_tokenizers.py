"""Tokenisers as files that transformers loads: the tokenizer.json of the tokenizers library, and the files beside it.

A tokeniser that was imported from a folder is written unchanged. Ours of bytes, characters, words between white space
and subwords have counterparts with the same ids (for the unigram model up to ties). The newline, our `eos`, is their
special token "\\n", so texts of several lines have the same ids too. Other tokenisers are refused.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

from chainrule.config import RunConfig
from chainrule.errors import ConfigError
from chainrule.interop.common import Obstacle
from chainrule.interop.huggingface.folders import ExportedModel
from chainrule.interop.huggingface.read_tokenizers import as_json, parse_tokenizer_json
from chainrule.registry import TOKENIZERS
from chainrule.text.tokenizers import Tokenizer
from chainrule.text.tokenizers.byte import ByteTokenizer
from chainrule.text.tokenizers.char import CharTokenizer
from chainrule.text.tokenizers.huggingface import HuggingFaceTokenizer
from chainrule.text.tokenizers.pieces import PiecesTokenizer
from chainrule.text.tokenizers.subword import BLOB, ESCAPES, SPACE, TrainedTokenizer, UnigramTokenizer
from chainrule.text.tokenizers.vocabulary import UNK_PIECE
from chainrule.text.tokenizers.word import WordTokenizer

END = "\n"
WHITE_SPACE = " \\t\\x0b\\x0c\\r\\x1c-\\x1f\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"
"""The white space of Python, which separates our words; the tokenizers library has another list."""

UNMATCHABLE = " <unk>"
"""A name of the unknown token that no text contains: spaces are replaced by ▁ before pieces are looked up."""

MASK_PIECES = ("[MASK]", "<mask>", "<|mask|>")
SPIECE = "spiece.model"
FAST_CLASS = "PreTrainedTokenizerFast"


REPRESENTED = (
    *(ByteTokenizer, CharTokenizer, WordTokenizer, TrainedTokenizer),
    *(HuggingFaceTokenizer, PiecesTokenizer),
)
"""Tokenisers that have counterparts in a folder."""


def tokenizer_obstacles(config: RunConfig) -> list[Obstacle]:
    """What the files of a folder cannot represent; a tokeniser that is not chosen yet is no obstacle."""
    found, t = [], config.tokenizer
    split = " with split = unicode" if t.kind == "word" and t.split == "unicode" else ""
    if t.kind in TOKENIZERS.peek_names() and (split or not issubclass(TOKENIZERS.get(t.kind).make, REPRESENTED)):
        reason = f"the tokeniser is {t.kind}{split}, which tokenizer.json cannot represent"
        found.append(Obstacle(reason, "--set tokenizer.split=space" if split else "--tokenizer bpe"))
    if (not t.joint or t.source is not None) and t.kind != PiecesTokenizer.kind:
        reason = "source and target have separate tokenisers, but a folder has one"
        found.append(Obstacle(reason, "--set tokenizer.joint=true"))
    return found


def tokenizer_files(tokenizer: Tokenizer, source: Tokenizer | None, exported: ExportedModel) -> dict[str, bytes]:
    """The files of the tokenisers of a run, by name."""
    if isinstance(tokenizer, PiecesTokenizer):
        return _pieces_files(tokenizer, source)
    if source is not None:
        raise ConfigError(
            "the run has separate tokenisers for source and target, but a folder has one; train with --set "
            "tokenizer.joint=true"
        )
    if isinstance(tokenizer, HuggingFaceTokenizer):
        content, end = tokenizer.content, tokenizer.piece(tokenizer.eos)
        made = parse_tokenizer_json(content, "tokenizer.json")
    else:
        content, end, made = b"", END, _counterpart(tokenizer)
    if _add_extra_tokens(made, tokenizer, exported) or not content:
        if not content:
            made.post_processor = _post_processor(made, exported)
        content = made.to_str().encode()
    settings = {
        "tokenizer_class": FAST_CLASS,
        "eos_token": end,
        "pad_token": end,
        "clean_up_tokenization_spaces": False,
    }
    settings |= {name: made.id_to_token(token) for name, token in exported.special_tokens.items()}
    if (name := _unknown_piece(tokenizer)) is not None:
        settings["unk_token"] = name
    return {"tokenizer.json": content, "tokenizer_config.json": as_json(settings), **_original_model(tokenizer)}


def portable_tokenizer(config: RunConfig, tokenizer: Tokenizer, source: Tokenizer | None) -> dict[str, bytes]:
    """The files for folders of other formats: without special tokens; none if they cannot represent the tokeniser."""
    if tokenizer_obstacles(config):
        return {}
    return tokenizer_files(tokenizer, source, ExportedModel({"vocab_size": tokenizer.vocab_size}, {}))


def _original_model(tokenizer: Tokenizer) -> dict[str, bytes]:
    """The original sentencepiece model, if its counterpart gives the same ids only up to ties."""
    if not isinstance(tokenizer, UnigramTokenizer):
        return {}
    warnings.warn(
        "the unigram tokeniser is exported with its pieces and scores; of two segmentations with equal scores, for "
        f"example of a long run of one character, transformers may choose the other; the original model is {SPIECE}",
        stacklevel=4,
    )
    return {SPIECE: tokenizer.blobs()[BLOB]}


def _unknown_piece(tokenizer: Tokenizer) -> str | None:
    """The unknown token, if a text that contains its name means this token."""
    of_words = isinstance(tokenizer, WordTokenizer | HuggingFaceTokenizer)
    return None if tokenizer.unk is None or not of_words else tokenizer.piece(tokenizer.unk)


def _pieces_files(tokenizer: PiecesTokenizer, source: Tokenizer | None) -> dict[str, bytes]:
    """For T5 spiece.model; for Marian a model of each side, and their vocabulary."""
    vocabulary = json.dumps(tokenizer.vocabulary, ensure_ascii=False).encode()
    settings: dict[str, Any]
    if source is None:
        settings = {"tokenizer_class": "T5Tokenizer", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
        return {SPIECE: tokenizer.model, "tokenizer_config.json": as_json(settings)}
    assert isinstance(source, PiecesTokenizer)
    files = {"source.spm": source.model, "target.spm": tokenizer.model, "vocab.json": vocabulary}
    separate = source.vocabulary != tokenizer.vocabulary
    if separate:
        files["vocab.json"] = json.dumps(source.vocabulary, ensure_ascii=False).encode()
        files["target_vocab.json"] = vocabulary
    settings = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    settings |= {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return files | {"tokenizer_config.json": as_json(settings)}


def _counterpart(tokenizer: Tokenizer) -> Any:
    """The tokeniser of the tokenizers library with the ids of one of ours."""
    if isinstance(tokenizer, ByteTokenizer):
        made = _byte_tokenizer()
    elif isinstance(tokenizer, CharTokenizer):
        made = _char_tokenizer(tokenizer)
    elif isinstance(tokenizer, WordTokenizer) and tokenizer.state()["split"] == "space":
        made = _word_tokenizer(tokenizer)
    elif isinstance(tokenizer, TrainedTokenizer):
        made = _subword_tokenizer(tokenizer)
    else:
        split = " with split = unicode" if isinstance(tokenizer, WordTokenizer) else ""
        raise ConfigError(
            f"the tokeniser of the run is {tokenizer.kind}{split}, which tokenizer.json cannot represent; train with "
            "--tokenizer byte, char, word, bpe or unigram"
        )
    made.add_special_tokens([END])
    return made


def _add_extra_tokens(made: Any, tokenizer: Tokenizer, exported: ExportedModel) -> int:
    """Add the tokens of the model that its tokeniser lacks, the mask or sentinels -> their number."""
    extra = exported.config["vocab_size"] - tokenizer.vocab_size
    masked = exported.special_tokens.get("mask_token", -1) >= tokenizer.vocab_size
    names = [next(name for name in MASK_PIECES if made.token_to_id(name) is None)] if masked else []
    names += [f"<extra_id_{number}>" for number in range(extra - len(names))]
    if names:
        made.add_special_tokens(names)
    return len(names)


def _post_processor(made: Any, exported: ExportedModel) -> Any:
    """The processor that puts special tokens before and after a text; None if there are none."""
    from tokenizers import processors

    before = [] if exported.first_token is None else [made.id_to_token(exported.first_token)]
    after = [END] if exported.appends_end else []
    if not before and not after:
        return None
    names = dict.fromkeys([*before, *after])
    return processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, "$B", *after],
        special_tokens=[(name, made.token_to_id(name)) for name in names],
    )


# Kinds of tokenisers


def _byte_tokenizer() -> Any:
    """Only the newline is a token, so all other characters fall back to bytes."""
    from tokenizers import Tokenizer as LibraryTokenizer
    from tokenizers import decoders, models

    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256) if byte != ord(END)} | {END: ord(END)}
    made = LibraryTokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return made


def _char_tokenizer(tokenizer: CharTokenizer) -> Any:
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as LibraryTokenizer

    made = LibraryTokenizer(models.WordLevel(_vocabulary(tokenizer), unk_token=UNK_PIECE))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"(?m)."), "isolated")
    made.decoder = decoders.Fuse()
    return made


def _word_tokenizer(tokenizer: WordTokenizer) -> Any:
    from tokenizers import Regex, models, pre_tokenizers
    from tokenizers import Tokenizer as LibraryTokenizer

    made = LibraryTokenizer(models.WordLevel(_vocabulary(tokenizer), unk_token=UNK_PIECE))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(f"[{WHITE_SPACE}]+"), "removed")
    return made


def _vocabulary(tokenizer: CharTokenizer | WordTokenizer) -> dict[str, int]:
    pieces = {piece: token for token, piece in enumerate(tokenizer.parts, start=2)}
    return {UNK_PIECE: 0, END: tokenizer.eos, **pieces}


def _subword_tokenizer(tokenizer: TrainedTokenizer) -> Any:
    """The pieces and their scores. sentencepiece merges the pair whose piece has the best score."""
    from tokenizers import Tokenizer as LibraryTokenizer
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    pieces = _scored_pieces(tokenizer)
    model: Any
    if tokenizer.algorithm == "unigram":
        model = models.Unigram(pieces, 0, byte_fallback=True)
    else:
        vocabulary = {piece: token for token, (piece, _) in enumerate(pieces)}
        model = models.BPE(vocabulary, _merges(pieces, vocabulary), byte_fallback=True, fuse_unk=True)
    made = LibraryTokenizer(model)
    escapes = [normalizers.Replace(plain, escaped) for plain, escaped in reversed(ESCAPES.items())]
    made.normalizer = normalizers.Sequence([*escapes, normalizers.Replace(" ", SPACE)])
    made.pre_tokenizer = pre_tokenizers.Split(_chunk_pattern(), "isolated")
    restored = [decoders.Replace(escaped, plain) for plain, escaped in ESCAPES.items()]
    parts = [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace(SPACE, " "), *restored]
    made.decoder = decoders.Sequence(parts)
    return made


def _chunk_pattern() -> Any:
    """A word with the spaces before it: no piece contains the space after a word.

    The name of a byte in a text, such as "<0x41>", is not that byte: it is split so that its piece does not match.
    """
    from tokenizers import Regex

    byte = "0x[0-9A-F]{2}>"
    return Regex(f"{SPACE}*(?:<(?={byte})|(?:(?!<{byte})[^{SPACE}])+)|{SPACE}+")


def _scored_pieces(tokenizer: TrainedTokenizer) -> list[tuple[str, float]]:
    """Every piece with its score, in the order of the ids; unk and eos have names that match no text."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.blobs()[BLOB])
    special = {tokenizer.unk: UNMATCHABLE, tokenizer.eos: END}
    pieces = []
    for token in range(tokenizer.vocab_size):
        score = float(processor.get_score(token))
        pieces.append((special.get(token, processor.id_to_piece(token)), score))
    return pieces


def _merges(pieces: list[tuple[str, float]], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """The pairs that form a piece, the best first."""
    merges = []
    for piece, score in pieces:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-score, vocabulary[left], vocabulary[right], left, right))
    return [(left, right) for *_, left, right in sorted(merges)]
