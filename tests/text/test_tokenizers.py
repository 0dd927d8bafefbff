"""Properties of all tokenisers, and of each kind."""

from __future__ import annotations

import builtins
import json
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.errors import ConfigError, DataError, TokenizerError
from chainrule.interop.huggingface.read_tokenizers import parse_tokenizer_json
from chainrule.registry import TOKENIZERS
from chainrule.text import Tokenizer, load_tokenizer, text_of, train_tokenizer
from chainrule.text.tokenizers import saved_fingerprint
from chainrule.text.tokenizers.huggingface import HuggingFaceTokenizer
from chainrule.text.tokenizers.spans import spans_by_search
from chainrule.text.tokenizers.subword import default_vocab_size
from chainrule.text.tokenizers.vocabulary import count_parts
from conftest import KINDS, SMALL

Small = Callable[[str], Tokenizer]

# Arbitrary text with sequences that are difficult for tokenisers.
TRICKY = st.sampled_from(
    ["▁", "▂1", "▂", "￭", "␣", "<unk>", "</s>", "<0x41>", "[SEP]", "  ", "\t", "\r", "白日", "the", "▅"]
)
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\n\0")
LINES = st.lists(TRICKY | st.text(CHARACTERS, max_size=5), max_size=6).map("".join)
EXACT = ("byte", "bpe", "unigram")


def test_every_registered_kind_is_tested() -> None:
    assert set(TOKENIZERS.names()) == {kind.removesuffix("-unicode") for kind in KINDS}


@pytest.mark.parametrize("kind", EXACT)
@given(line=LINES)
def test_exact_kinds_decode_to_the_line(small: Small, kind: str, line: str) -> None:
    tokenizer = small(kind)
    assert tokenizer.exact
    assert tokenizer.decode(tokenizer.encode(line)) == line
    assert tokenizer.unk not in tokenizer.encode(line)


@pytest.mark.parametrize("kind", KINDS)
@given(lines=st.lists(LINES, min_size=1, max_size=4))
def test_block_is_lines_with_eos_between(small: Small, kind: str, lines: list[str]) -> None:
    tokenizer = small(kind)
    expected: list[int] = []
    for line in lines:
        ids = tokenizer.encode(line)
        assert tokenizer.eos not in ids
        assert all(0 <= token < tokenizer.vocab_size for token in ids)
        expected += [*ids, tokenizer.eos]
    assert tokenizer.encode_block("\n".join(lines)).tolist() == expected[:-1]
    assert tokenizer.encode_block("\n".join([*lines, ""])).tolist() == expected
    assert [list(ids) for ids in tokenizer.encode_lines(lines)] == [tokenizer.encode(line) for line in lines]


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_is_the_same(small: Small, kind: str, tmp_path: Path) -> None:
    tokenizer = small(kind)
    tokenizer.save(tmp_path)
    for loaded in (load_tokenizer(tmp_path), train_tokenizer(str(tmp_path), text_of("x"))):
        assert type(loaded) is type(tokenizer)
        assert loaded.fingerprint == tokenizer.fingerprint
        assert loaded.encode_block(SMALL).tolist() == tokenizer.encode_block(SMALL).tolist()
        assert [loaded.piece(n) for n in range(loaded.vocab_size)] == [
            tokenizer.piece(n) for n in range(loaded.vocab_size)
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_the_saved_file_has_one_line_for_each_value(small: Small, kind: str, tmp_path: Path) -> None:
    """As the encoder of Python writes it: fingerprints are those of these bytes."""
    small(kind).save(tmp_path)
    text = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), ensure_ascii=False, indent=0)


JOINING = ("bpe", "unigram", "huggingface", "sentencepiece")


@pytest.mark.parametrize("kind", KINDS)
def test_subwords_join_the_space_before_a_word(small: Small, kind: str) -> None:
    tokenizer = small(kind)
    assert tokenizer.joins_spaces == (kind in JOINING)


@pytest.mark.parametrize(
    ("kind", "matter"),
    [
        ("word", False),
        ("word-unicode", False),
        ("char", True),
        ("byte", True),
        ("bpe", True),
        ("unigram", True),
        ("jieba", True),
        ("huggingface", False),  # WordPiece splits at spaces and drops them
        ("sentencepiece", False),  # the library's default adds a space at the beginning of a line
    ],
)
def test_whether_a_space_changes_the_ids_of_a_word(small: Small, kind: str, matter: bool) -> None:
    assert small(kind).spaces_matter == matter


@pytest.mark.parametrize("kind", ["word", "char", "byte", "bpe", "unigram", "jieba"])
def test_training_twice_gives_the_same(kind: str) -> None:
    first, second = (train_tokenizer(kind, text_of(SMALL * 3)) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    assert kind == "byte" or train_tokenizer(kind, text_of("other words")).fingerprint != first.fingerprint


@pytest.mark.parametrize("kind", ["word", "char", "byte", "bpe", "unigram", "jieba"])
@pytest.mark.parametrize("text", ["hello", "a\n", "\n", " ", "▅"])
def test_one_word_corpus(kind: str, text: str) -> None:
    tokenizer = train_tokenizer(kind, text_of(text))
    assert tokenizer.decode(tokenizer.encode_block(text)) == (text.strip(" ") if kind == "word" else text)


def test_a_file_is_read_by_its_own_name(tmp_path: Path) -> None:
    for word in ("cat", "dog"):
        train_tokenizer("word", text_of(f"{word}\n")).save(tmp_path)
        (tmp_path / "tokenizer.json").rename(tmp_path / f"{word}.json")
    train_tokenizer("word", text_of("bird\n")).save(tmp_path)
    found = [train_tokenizer(tmp_path / f"{name}.json", text_of("\n")).piece(2) for name in ("cat", "dog", "tokenizer")]
    assert found == ["cat", "dog", "bird"]


def test_saving_gives_the_fingerprint(tmp_path: Path) -> None:
    before = train_tokenizer("word", text_of("a cat\n"))
    before.save(tmp_path)
    assert before.fingerprint == load_tokenizer(tmp_path).fingerprint == saved_fingerprint(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_and_ids_are_inverse(small: Small, kind: str) -> None:
    tokenizer = small(kind)
    ordinary = [token for token in range(tokenizer.vocab_size) if token not in (tokenizer.eos, tokenizer.unk)]
    assert all(tokenizer.to_id(tokenizer.piece(token)) == token for token in ordinary)
    assert tokenizer.to_id("no such piece at all") is None


def test_word_vocabulary_by_frequency_then_alphabet() -> None:
    texts = text_of("b a b c a d <unk> <unk> <unk> <eos>\n")
    tokenizer = train_tokenizer("word", texts)
    assert [tokenizer.piece(token) for token in range(tokenizer.vocab_size)] == [
        "<unk>", "<eos>", "a", "b", "<eos>", "c", "d",
    ]  # fmt: skip
    assert tokenizer.encode("d <unk> x <eos>") == [6, 0, 0, 4]  # a literal <eos> is an ordinary word
    assert train_tokenizer("word", texts, vocab_size=4).vocab_size == 4
    assert train_tokenizer("word", texts, min_count=2).vocab_size == 4
    assert tokenizer.decode([2, 3, 1, 5, 0]) == "a b\nc <unk>"


def test_word_unicode_marks_unusual_gaps() -> None:
    text = 'He said (softly): "don\'t - e\u0301t\u0301e\u0301 well-known 3.5%"'
    tokenizer = train_tokenizer("word", text_of(text), split="unicode")
    pieces = [tokenizer.piece(token) for token in tokenizer.encode(text)]
    assert pieces == [
        "He", "said", "␣(", "￭softly", ")", ":", '␣"', "￭don't", "␣-", "e\u0301t\u0301e\u0301", "well-known",
        "3", ".", "￭5", "%", '"',
    ]  # fmt: skip
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(line=LINES)
def test_word_unicode_is_exact_for_single_spaces(line: str) -> None:
    line = " ".join(line.split())
    tokenizer = train_tokenizer("word", text_of(line + "\n"), split="unicode")
    known = "<unk>" not in line
    assert tokenizer.decode(tokenizer.encode(line)) == line or not known


def test_char_vocabulary() -> None:
    tokenizer = train_tokenizer("char", text_of("白日白\n日白a"))
    assert [tokenizer.piece(token) for token in range(5)] == ["<unk>", "<eos>", "白", "日", "a"]
    assert tokenizer.encode("a白b") == [4, 2, 0]
    assert tokenizer.encode_block("a\n").tolist() == [4, 1]
    assert train_tokenizer("char", text_of("aab"), min_count=2).vocab_size == 3


def test_bytes_encode_anything() -> None:
    data = bytes(range(256)) + b"\xff\xfe"
    tokenizer = train_tokenizer("byte", text_of(data))
    (block,) = tokenizer.blocks(text_of(data))
    assert tokenizer.encode_block(block).tolist() == list(data)
    assert tokenizer.decode_bytes(data) == data
    assert (tokenizer.vocab_size, tokenizer.eos, tokenizer.unk) == (256, 10, None)
    assert tokenizer.decode([0xC3, 0xA9, 0xFF]) == "é\ufffd"


@given(line=LINES)
@settings(max_examples=200)
def test_jieba_words_join_to_the_line(small: Small, line: str) -> None:
    tokenizer = small("jieba")
    assert "".join(tokenizer.split(line)) == line  # type: ignore[attr-defined]


def test_jieba_finds_words(small: Small) -> None:
    tokenizer = train_tokenizer("jieba", text_of("我来到北京清华大学<unk>"))
    assert [tokenizer.piece(token) for token in tokenizer.encode("我来到北京清华大学<unk>")] == [
        "我", "来到", "北京", "清华大学", "<unk>",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_words_encoded_once_equal_whole_lines(kind: str) -> None:
    text = "".join(f"line {n}   of  words: the cat sat\ton mat{n % 7}s \n" for n in range(300))
    tokenizer = train_tokenizer(kind, text_of(text), vocab_size=400)
    lines = [*text.split("\n"), "  unseen   words\there  ", "x" * 100]
    assert [list(ids) for ids in tokenizer.encode_lines(lines)] == [tokenizer.encode(line) for line in lines]
    assert tokenizer.vocab_size == 400


def test_subword_vocabulary_size() -> None:
    with pytest.warns(UserWarning, match=r"^text gives 27\d bpe tokens, fewer than the 5000 asked for$"):
        train_tokenizer("bpe", text_of("hello"), vocab_size=5000)
    many = "".join(chr(0x4E00 + n) for n in range(2000))  # more characters than fit into the vocabulary
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for kind in ("bpe", "unigram"):
            tokenizer = train_tokenizer(kind, text_of(many * 2 + "\n" + "白日" * 50), vocab_size=300)
            assert 258 < tokenizer.vocab_size <= 300
            assert tokenizer.decode(tokenizer.encode(many)) == many
    assert [default_vocab_size(size) for size in (10, 10**5, 10**6, 10**8, 10**11)] == [512, 512, 1024, 8192, 16384]


def test_huggingface_end_token_in_a_line_is_not_a_newline(small: Small) -> None:
    tokenizer = small("huggingface")
    assert tokenizer.encode("The cat [SEP] sat the cat sat") == [2, 3, 4, 2, 3, 4]  # no truncation either
    assert tokenizer.decode([2, 1, 3]) == "the\ncat"
    assert tokenizer.unk == 0


def test_huggingface_byte_level_without_end_token_gains_one(tmp_path: Path) -> None:
    import tokenizers

    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    model.train_from_iterator(["the cat sat"] * 20, trainer)
    model.save(str(tmp_path / "gpt.json"))
    tokenizer = train_tokenizer(str(tmp_path / "gpt.json"), text_of("x"))
    assert tokenizer.piece(tokenizer.eos) == "<eos>"
    assert tokenizer.vocab_size == model.get_vocab_size() + 1
    assert tokenizer.encode("the cat, 白日") == model.encode("the cat, 白日").ids
    assert tokenizer.decode(tokenizer.encode_block("the cat\n 白日")) == "the cat\n 白日"


def test_sentencepiece_file(small: Small, tmp_path: Path) -> None:
    path = tmp_path / "x.model"
    path.write_bytes(small("sentencepiece").blobs()["tokenizer.model"])
    tokenizer = train_tokenizer(str(path), text_of("x"))
    assert tokenizer.decode(tokenizer.encode_block("the cat\nsat")) == "the cat\nsat"
    assert not tokenizer.exact


def test_counting_is_bounded() -> None:
    batches = [["a", "b", "a"], ["c", "a", "d"], ["e", "b"]]
    assert count_parts(batches) == Counter("abacadeb")
    assert count_parts(batches, max_types=3) == Counter({"a": 3, "b": 1, "e": 1})  # c, d and the first b were dropped


def test_long_word() -> None:
    long = "x" * 1_200_000
    with pytest.raises(DataError) as caught:
        train_tokenizer("word", text_of(f"short\n{long} y"))
    assert str(caught.value) == (
        "text: byte 6: a word longer than 524288 bytes; expected white space between words; use --tokenizer char."
    )
    spaced = text_of("some words " * 300_000)
    tokenizer = train_tokenizer("word", spaced)
    assert sum(len(tokenizer.encode_block(block)) for block in tokenizer.blocks(spaced)) == 600_000
    for kind in ("char", "byte", "bpe", "unigram"):
        tokenizer = train_tokenizer(kind, text_of(long))
        ids = np.concatenate([tokenizer.encode_block(block) for block in tokenizer.blocks(text_of(long))])
        assert tokenizer.decode(ids.tolist()) == long


CONFIG_ERRORS = {
    ("wrod", ()): (
        "unknown tokenizer 'wrod': did you mean 'word'? "
        "Known: bpe, byte, char, huggingface, jieba, sentencepiece, sentencepiece-char, unigram, word"
    ),
    ("word", (("split", "spaces"),)): "unknown word split 'spaces': did you mean 'space'? Known: space, unicode",
    ("char", (("split", "space"),)): "the char tokeniser has no option 'split'; leave it out.",
    ("word", (("vocab_size", 1),)): "got a vocab_size of 1: expected 2 or more, as <unk> and <eos> take two.",
    ("word", (("min_count", 0),)): "got a min_count of 0: expected 1 or more; 1 keeps every word.",
    ("bpe", (("min_count", 2),)): "got a min_count of 2: the bpe tokeniser leaves nothing out; leave it at 1.",
    ("byte", (("vocab_size", 99),)): "got a vocab_size of 99: the byte tokeniser has 256 tokens; leave it out.",
    ("unigram", (("vocab_size", 258),)): (
        "got a vocab_size of 258: expected 259 or more, as 256 bytes and two special tokens come first; "
        "use --tokenizer byte for fewer."
    ),
    ("huggingface", ()): "the huggingface tokeniser comes from a file: give the path of a tokenizer.json.",
    ("sentencepiece", ()): "the sentencepiece tokeniser comes from a file: give a .model, or use bpe or unigram.",
}


def test_characters_by_sentencepiece_have_runs_of_spaces_folded() -> None:
    tokenizer = train_tokenizer("sentencepiece-char", text_of("the cat\nsat 你\n"))
    assert tokenizer.decode(tokenizer.encode("  the   cat sat ")) == "the cat sat"
    assert [tokenizer.piece(token) for token in tokenizer.encode("a  你")] == ["a", "▁", "你"]
    assert tokenizer.encode("x") == [tokenizer.unk]
    assert not tokenizer.exact


@pytest.mark.parametrize(("kind", "options"), CONFIG_ERRORS)
def test_wrong_options(kind: str, options: tuple[tuple[str, object], ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        train_tokenizer(kind, text_of("a b c"), **dict(options))  # type: ignore[arg-type]
    assert str(caught.value) == CONFIG_ERRORS[kind, options]


def test_wrong_files(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    cases: dict[str, str] = {
        "{": f"'{path}' is not JSON (",
        "[]": f"'{path}' is not a JSON object: expected a tokeniser; train it again.",
        '{"model": 3}': f"'{path}' has no 'kind': expected a tokeniser of this package; give the file itself.",
        '{"kind": "word", "version": 9}': f"'{path}' has version 9: expected 1; use the release that wrote it.",
        '{"kind": "word", "version": 1, "files": []}': (
            f"'{path}' is damaged ('pieces'): expected a whole tokeniser; train it again."
        ),
    }
    for content, message in cases.items():
        path.write_text(content)
        with pytest.raises(TokenizerError) as caught:
            load_tokenizer(tmp_path)
        assert str(caught.value).startswith(message)
    path.write_text(json.dumps({"model": 3}))
    with pytest.raises(TokenizerError, match=r"^not a Hugging Face tokeniser \(.*\): expected the content of a tok"):
        train_tokenizer(str(path), text_of("x"))
    (tmp_path / "x.model").write_bytes(b"nonsense")
    with pytest.raises(TokenizerError, match=r"^not a sentencepiece model \(.*\): expected a \.model file"):
        train_tokenizer(str(tmp_path / "x.model"), text_of("x"))
    (tmp_path / "x.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"^got the file '.*x\.bin' as tokeniser: expected a Hugging Face"):
        train_tokenizer(str(tmp_path / "x.bin"), text_of("x"))
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(tmp_path / "none")
    assert str(caught.value) == (
        f"there is no '{tmp_path}/none/tokenizer.json': expected a folder with a tokeniser; "
        "train one or check the name."
    )


def test_merges_without_the_prefix_of_their_file_are_refused(tmp_path: Path) -> None:
    """Found by fuzzing: the tokenizers library cuts the prefix off inside a character and ends the process."""
    from hf_folders import byte_level

    path = tmp_path / "tokenizer.json"
    byte_level(300).save(str(path))
    values = json.loads(path.read_text())
    first, second = values["model"]["merges"][0]
    for merges in ([[first, second]], [f"{first} {second}"]):
        values["model"] |= {"continuing_subword_prefix": "xy", "merges": merges}
        path.write_text(json.dumps(values))
        with pytest.raises(
            TokenizerError, match=r"^not a Hugging Face tokeniser \(the merge .* lacks the prefix 'xy' of"
        ):
            train_tokenizer(str(path), text_of("x"))
        with pytest.raises(TokenizerError, match=r"^x is not a Hugging Face tokeniser \(the merge .* lacks the prefix"):
            parse_tokenizer_json(path.read_bytes(), "x")


def test_prefixes_inside_words_are_read(tmp_path: Path) -> None:
    import tokenizers
    from tokenizers import models, pre_tokenizers

    model = models.BPE({"a": 0, "##b": 1, "ab": 2}, [("a", "##b")], continuing_subword_prefix="##")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    found = train_tokenizer(str(tmp_path / "tokenizer.json"), text_of("x"))
    assert [found.piece(token) for token in found.encode("ab a")] == ["ab", "a"]


def test_jieba_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    from chainrule.text.tokenizers import chinese

    real = builtins.__import__

    def without(name: str, *rest: object, **more: object) -> object:
        if name == "jieba":
            raise ImportError(name)
        return real(name, *rest, **more)  # type: ignore[arg-type]

    chinese._jieba.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(TokenizerError) as caught:
        train_tokenizer("jieba", text_of("白日"))
    assert str(caught.value) == "the jieba tokeniser needs the jieba library: pip install 'chainrule[zh]'."


@pytest.mark.parametrize("kind", KINDS)
def test_written_pieces_are_pieces_but_unknown_ones_are_text(kind: str, small: Small) -> None:
    tokenizer = small(kind)
    line = "the cat ж sat <unk>"
    ids, written = tokenizer.encode(line), tokenizer.written_pieces(line)
    assert len(ids) == len(written)
    for token, shown in zip(ids, written, strict=True):
        if token == tokenizer.unk:
            assert shown.strip("▁") in line
        else:
            assert shown == tokenizer.piece(token)
    if tokenizer.unk in ids:
        assert any("ж" in shown for shown in written)


@pytest.mark.parametrize("kind", KINDS)
@given(lines=st.lists(LINES, min_size=1, max_size=3))
def test_spans_are_one_per_token_and_in_order(small: Small, kind: str, lines: list[str]) -> None:
    tokenizer, text = small(kind), "\n".join(lines)
    ids, spans, pieces = tokenizer.encode_block(text), tokenizer.spans(text), tokenizer.text_pieces(text)
    assert len(ids) == len(spans) == len(pieces)
    assert all(0 <= begin <= end <= len(text) for begin, end in spans)
    assert all(first[0] <= second[0] and first[1] <= second[1] for first, second in pairwise(spans))
    if tokenizer.exact:
        covered = [place for begin, end in spans for place in range(begin, end)]
        assert set(covered) == set(range(len(text)))
    if kind in ("word", "word-unicode"):
        gaps = [text[first[1] : second[0]] for first, second in pairwise([(0, 0), *spans, (len(text), 0)])]
        assert not "".join(gaps).strip()


@pytest.mark.parametrize(
    ("kind", "line", "expected"),
    [
        ("word", " the  café", [(1, 4), (6, 10)]),
        ("word-unicode", "the (dog", [(0, 3), (4, 5), (5, 8)]),
        ("char", "a白", [(0, 1), (1, 2)]),
        ("byte", "a白b", [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]),
        ("huggingface", "The cat", [(0, 3), (4, 7)]),
        ("sentencepiece", "白a cat", [(0, 1), (1, 2), (2, 6)]),
    ],
)
def test_spans(small: Small, kind: str, line: str, expected: list[tuple[int, int]]) -> None:
    found = small(kind).line_spans(line)
    assert [span for span in found if span[0] < span[1]] == expected or found == expected


def test_tokens_that_are_not_in_the_text_share_what_lies_between() -> None:
    assert spans_by_search("A ﬁne x", ["a", " fi", "ne", " x"]) == [(0, 3), (0, 3), (3, 5), (5, 7)]
    assert spans_by_search("ab", ["a", "z"]) == [(0, 1), (1, 2)]
    assert spans_by_search("  a", [" ", "a"]) == [(0, 1), (1, 3)]


@pytest.mark.parametrize("kind", ["WordPiece", "WordLevel"])
def test_a_huggingface_tokeniser_without_its_unknown_token_is_refused(kind: str) -> None:
    model = {"type": kind, "unk_token": "[UNK]", "vocab": {"[SEP]": 0, "the": 1}}
    model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100} if kind == "WordPiece" else {}
    content = {"version": "1.0", "added_tokens": [], "model": model, "pre_tokenizer": {"type": "Whitespace"}}
    with pytest.raises(TokenizerError, match=r"the tokeniser has no token \[UNK\], which its unknown words need"):
        HuggingFaceTokenizer(json.dumps(content).encode())
    model["vocab"] = {"[SEP]": 0, "the": 1, "[UNK]": 2}
    assert HuggingFaceTokenizer(json.dumps(content).encode()).encode("the dog") == [1, 2]
