"""Tokenisers as files that transformers loads: tokenizer.json of the tokenizers library, and what goes with it.

A tokeniser that came from a folder goes back as it came. Of our own, bytes, characters, words between white space and
subwords have a counterpart that gives the same ids, that of the unigram model up to ties; the newline, our `eos`, is
the special token "\\n" there, so a text of several lines has the same ids too. Others are refused.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

from chainrule.errors import ConfigError
from chainrule.interop.huggingface.folders import Foreign
from chainrule.interop.huggingface.read_tokenizers import as_json, open_content
from chainrule.text.tokenizers import Tokenizer
from chainrule.text.tokenizers.byte import ByteTokenizer
from chainrule.text.tokenizers.char import CharTokenizer
from chainrule.text.tokenizers.huggingface import HuggingFaceTokenizer
from chainrule.text.tokenizers.pieces import PiecesTokenizer
from chainrule.text.tokenizers.subword import BLOB, ESCAPES, SPACE, TrainedTokenizer, UnigramTokenizer
from chainrule.text.tokenizers.vocabulary import UNK_PIECE
from chainrule.text.tokenizers.word import WordTokenizer

END = "\n"
WHITE = " \\t\\x0b\\x0c\\r\\x1c-\\x1f\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"
"""What Python takes for white space, for it parts our words; the tokenizers library has another list."""

NO_MATCH = " <unk>"
"""The name of an unknown token that no text can contain: spaces have become ▁ where it would be looked for."""

MASKS = ("[MASK]", "<mask>", "<|mask|>")
SPIECE = "spiece.model"
FAST = "PreTrainedTokenizerFast"


def tokenizer_files(tokenizer: Tokenizer, source: Tokenizer | None, foreign: Foreign) -> dict[str, bytes]:
    """The files of a run's tokenisers, by name."""
    if isinstance(tokenizer, PiecesTokenizer):
        return _pieces_files(tokenizer, source)
    if source is not None:
        raise ConfigError(
            "the run has a tokeniser each for source and target, but a folder holds one; train with --set "
            "tokenizer.joint=true"
        )
    if isinstance(tokenizer, HuggingFaceTokenizer):
        content, end = tokenizer.content, tokenizer.piece(tokenizer.eos)
        made = open_content(content, "tokenizer.json")
    else:
        content, end, made = b"", END, _own(tokenizer)
    if _add_beyond(made, tokenizer, foreign) or not content:
        if not content:
            made.post_processor = _around(made, foreign)
        content = made.to_str().encode()
    settings = {"tokenizer_class": FAST, "eos_token": end, "pad_token": end, "clean_up_tokenization_spaces": False}
    settings |= {name: made.id_to_token(token) for name, token in foreign.special.items()}
    if (name := _unknown(tokenizer)) is not None:
        settings["unk_token"] = name
    return {"tokenizer.json": content, "tokenizer_config.json": as_json(settings), **_beside(tokenizer)}


def _beside(tokenizer: Tokenizer) -> dict[str, bytes]:
    """The sentencepiece model itself, where its counterpart gives the same ids but for ties."""
    if not isinstance(tokenizer, UnigramTokenizer):
        return {}
    warnings.warn(
        "the unigram tokeniser goes out with its pieces and scores; of two cuts that are equally good, as those of a "
        f"long run of one sign are, transformers may choose the other; the model itself is beside as {SPIECE}",
        stacklevel=4,
    )
    return {SPIECE: tokenizer.blobs()[BLOB]}


def _unknown(tokenizer: Tokenizer) -> str | None:
    """The unknown token, where one that is written out in a text is meant as such."""
    of_words = isinstance(tokenizer, WordTokenizer | HuggingFaceTokenizer)
    return None if tokenizer.unk is None or not of_words else tokenizer.piece(tokenizer.unk)


def _pieces_files(tokenizer: PiecesTokenizer, source: Tokenizer | None) -> dict[str, bytes]:
    """Of T5 spiece.model; of Marian a model for each side, and their vocabulary."""
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


def _own(tokenizer: Tokenizer) -> Any:
    """What gives the ids of one of ours."""
    if isinstance(tokenizer, ByteTokenizer):
        made = _bytes()
    elif isinstance(tokenizer, CharTokenizer):
        made = _characters(tokenizer)
    elif isinstance(tokenizer, WordTokenizer) and tokenizer.state()["split"] == "space":
        made = _words(tokenizer)
    elif isinstance(tokenizer, TrainedTokenizer):
        made = _subwords(tokenizer)
    else:
        split = " with split = unicode" if isinstance(tokenizer, WordTokenizer) else ""
        raise ConfigError(
            f"the run's tokeniser is {tokenizer.kind}{split}, and no tokenizer.json gives the same ids; train with "
            "--tokenizer byte, char, word, bpe or unigram"
        )
    made.add_special_tokens([END])
    return made


def _add_beyond(made: Any, tokenizer: Tokenizer, foreign: Foreign) -> int:
    """Add the tokens that the model has beyond those of its tokeniser, the mask or sentinels -> how many."""
    beyond = foreign.config["vocab_size"] - tokenizer.vocab_size
    masked = foreign.special.get("mask_token", -1) >= tokenizer.vocab_size
    names = [next(name for name in MASKS if made.token_to_id(name) is None)] if masked else []
    names += [f"<extra_id_{number}>" for number in range(beyond - len(names))]
    if names:
        made.add_special_tokens(names)
    return len(names)


def _around(made: Any, foreign: Foreign) -> Any:
    """What puts special tokens before and behind a text."""
    from tokenizers import processors

    before = [] if foreign.first is None else [made.id_to_token(foreign.first)]
    behind = [END] if foreign.ends else []
    if not before and not behind:
        return None
    names = dict.fromkeys([*before, *behind])
    return processors.TemplateProcessing(
        single=[*before, "$A", *behind],
        pair=[*before, "$A", *behind, "$B", *behind],
        special_tokens=[(name, made.token_to_id(name)) for name in names],
    )


# The kinds


def _bytes() -> Any:
    """No character has a token but the newline, so all others are spelled in bytes."""
    from tokenizers import Tokenizer as Tokens
    from tokenizers import decoders, models

    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256) if byte != ord(END)} | {END: ord(END)}
    made = Tokens(models.BPE(vocabulary, [], byte_fallback=True))
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return made


def _characters(tokenizer: CharTokenizer) -> Any:
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Tokens

    made = Tokens(models.WordLevel(_vocabulary(tokenizer), unk_token=UNK_PIECE))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"(?m)."), "isolated")
    made.decoder = decoders.Fuse()
    return made


def _words(tokenizer: WordTokenizer) -> Any:
    from tokenizers import Regex, models, pre_tokenizers
    from tokenizers import Tokenizer as Tokens

    made = Tokens(models.WordLevel(_vocabulary(tokenizer), unk_token=UNK_PIECE))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(f"[{WHITE}]+"), "removed")
    return made


def _vocabulary(tokenizer: CharTokenizer | WordTokenizer) -> dict[str, int]:
    pieces = {piece: token for token, piece in enumerate(tokenizer.parts, start=2)}
    return {UNK_PIECE: 0, END: tokenizer.eos, **pieces}


def _subwords(tokenizer: TrainedTokenizer) -> Any:
    """The pieces and their scores; sentencepiece merges the pair whose piece has the best score."""
    from tokenizers import Tokenizer as Tokens
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    pieces = _named_pieces(tokenizer)
    model: Any
    if tokenizer.algorithm == "unigram":
        model = models.Unigram(pieces, 0, byte_fallback=True)
    else:
        vocabulary = {piece: token for token, (piece, _) in enumerate(pieces)}
        model = models.BPE(vocabulary, _merges(pieces, vocabulary), byte_fallback=True, fuse_unk=True)
    made = Tokens(model)
    escapes = [normalizers.Replace(plain, escaped) for plain, escaped in reversed(ESCAPES.items())]
    made.normalizer = normalizers.Sequence([*escapes, normalizers.Replace(" ", SPACE)])
    made.pre_tokenizer = pre_tokenizers.Split(_chunk(), "isolated")
    restored = [decoders.Replace(escaped, plain) for plain, escaped in ESCAPES.items()]
    parts = [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace(SPACE, " "), *restored]
    made.decoder = decoders.Sequence(parts)
    return made


def _chunk() -> Any:
    """A word with the spaces before it: no piece reaches from a word into the space behind it.

    A byte spelled out in a text, as "<0x41>" is, is no byte: it is cut so that its piece is not found there.
    """
    from tokenizers import Regex

    byte = "0x[0-9A-F]{2}>"
    return Regex(f"{SPACE}*(?:<(?={byte})|(?:(?!<{byte})[^{SPACE}])+)|{SPACE}+")


def _named_pieces(tokenizer: TrainedTokenizer) -> list[tuple[str, float]]:
    """Every piece with its score, in the order of the ids; the unknown and the end under names that no text has."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.blobs()[BLOB])
    special = {tokenizer.unk: NO_MATCH, tokenizer.eos: END}
    pieces = []
    for token in range(tokenizer.vocab_size):
        score = float(processor.get_score(token))
        pieces.append((special.get(token, processor.id_to_piece(token)), score))
    return pieces


def _merges(pieces: list[tuple[str, float]], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """The pairs that make a piece, the better ones first."""
    merges = []
    for piece, score in pieces:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-score, vocabulary[left], vocabulary[right], left, right))
    return [(left, right) for *_, left, right in sorted(merges)]
