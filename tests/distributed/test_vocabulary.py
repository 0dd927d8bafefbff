"""A vocabulary counted in shards: the tokeniser is that of the whole text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import chainrule as cr
from chainrule.cli.main import app
from chainrule.config import TokenizerConfig
from chainrule.errors import ConfigError, DataError
from chainrule.text.readers import open_texts
from chainrule.text.tokenizers import load_tokenizer
from chainrule.text.tokenizers.fit import fit_tokenizer

TEXTS = ("a b, b  c\ta\n<unk> é e\u0301 \r x\n", "b b\u00a0c c d\n\nzz (a)\n", "last d line, without end <unk>")


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.txt" for number in range(len(TEXTS))]
    for path, text in zip(paths, TEXTS, strict=True):
        path.write_text(text, encoding="utf-8", newline="")
    return paths


def fingerprint_of_whole(shards: list[Path], **options: Any) -> str:
    """The tokeniser of `train`."""
    return fit_tokenizer(TokenizerConfig(**options), open_texts(shards), lambda text: None)[0].fingerprint


@pytest.mark.parametrize("kind", ["word", "char", "jieba"])
@pytest.mark.parametrize("limits", [{}, {"vocab_size": 7}, {"min_count": 3}])
def test_the_tokeniser_is_that_of_the_whole_text(
    tmp_path: Path, shards: list[Path], kind: str, limits: dict[str, int]
) -> None:
    folders = [cr.count_vocabulary(shard, out=tmp_path / shard.stem, kind=kind) for shard in shards]
    made = cr.merge_vocabulary(*folders, out=tmp_path / "tokenizer", **limits)
    assert load_tokenizer(made).fingerprint == fingerprint_of_whole(shards, kind=kind, **limits)


def test_groups_and_unicode_words(tmp_path: Path, shards: list[Path]) -> None:
    split = {"tokenizer": {"split": "unicode", "unk": "token"}}
    folders = [cr.count_vocabulary(shard, out=tmp_path / shard.stem, settings=split) for shard in shards]
    group = cr.merge_vocabulary(*folders[1:], out=tmp_path / "group", counts=True)
    made = cr.merge_vocabulary(folders[0], group, out=tmp_path / "tokenizer")
    assert load_tokenizer(made).fingerprint == fingerprint_of_whole(shards, kind="word", **split["tokenizer"])


def test_the_model_over_a_merged_vocabulary_is_that_of_train(tmp_path: Path, shards: list[Path]) -> None:
    """By the command line, from words to the model."""

    def run(*arguments: object) -> None:
        result = CliRunner().invoke(app, [str(one) for one in arguments])
        assert result.exit_code == 0, result.output

    for shard in shards:
        run("count", shard, "--vocabulary", "word", "--out", tmp_path / "words" / shard.stem)
    run("merge", *sorted((tmp_path / "words").iterdir()), "--vocabulary", "--out", tmp_path / "tokenizer")
    for shard in shards:
        run("count", shard, "--tokenizer", tmp_path / "tokenizer", "--order", 3, "--out", tmp_path / "n" / shard.stem)
    run("merge", *sorted((tmp_path / "n").iterdir()), "--out", tmp_path / "merged")
    options = {"model": "ngram", "order": 3, "tokenizer": "word", "valid": shards[0], "progress": False}
    cr.train(*shards, out=tmp_path / "whole", **options)
    assert (tmp_path / "merged/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_finished_counts_are_left_alone_and_others_refused(tmp_path: Path, shards: list[Path]) -> None:
    notes: list[str] = []
    one = cr.count_vocabulary(shards[0], out=tmp_path / "one")
    cr.count_vocabulary(shards[0], out=one, note=notes.append)
    assert notes == [f"{one} is already finished"]
    with pytest.raises(ConfigError, match="word counts of another text or split"):
        cr.count_vocabulary(shards[1], out=one)
    with pytest.raises(ConfigError, match="a vocabulary of bpe is not counted in shards; expected word, char or jieba"):
        cr.count_vocabulary(shards[1], out=tmp_path / "no", kind="bpe")
    characters = cr.count_vocabulary(shards[1], out=tmp_path / "characters", kind="char")
    with pytest.raises(DataError, match="another kind of tokeniser or split"):
        cr.merge_vocabulary(one, characters, out=tmp_path / "no")
    with pytest.raises(DataError, match="more than once"):
        cr.merge_vocabulary(one, one, out=tmp_path / "no")
    with pytest.raises(DataError, match="damaged or holds no counts of chainrule count --vocabulary"):
        cr.merge_vocabulary(cr.count(shards[0], tokenizer="byte", out=tmp_path / "n").path, out=tmp_path / "no")
    (one / "parts.txt").write_text("1 z\n")
    with pytest.raises(DataError, match=r"parts\.txt is damaged"):
        cr.merge_vocabulary(one, out=tmp_path / "no")
