"""A text counted in shards: the model is that of the whole text, byte for byte, whatever the shards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chainrule as cr
from chainrule.distributed.manifest import write_manifest
from chainrule.engines.ngram.merging import merge_rows
from chainrule.engines.ngram.names import SMOOTHING_NAMES
from chainrule.engines.ngram.scratch import ArrayPool
from chainrule.engines.ngram.segments import Counts, Segment, Shape, count_segment, join
from chainrule.engines.ngram.sorted_runs import RunWriter
from chainrule.engines.ngram.trie import build_trie, count
from chainrule.errors import ConfigError, DataError

few = settings(max_examples=60, deadline=None)
WORDS = ("sat", "lay", "ran", "is", "was")
LINES = [f"the cat {word} on the mat and dog {day} {word} too" for day in range(4) for word in WORDS]


def write_shards(folder: Path, parts: int, *, last_newline: bool = True) -> tuple[Path, list[Path]]:
    """The whole text and its shards."""
    size, whole = len(LINES) // parts, folder / "whole.txt"
    texts = ["\n".join(LINES[at : at + size]) + "\n" for at in range(0, len(LINES), size)]
    texts[-1] = texts[-1] if last_newline else texts[-1].rstrip("\n")
    whole.write_text("".join(texts))
    paths = [folder / f"shard-{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return whole, paths


def trained(folder: Path, whole: Path, **options: Any) -> cr.Run:
    valid = folder / "valid.txt"
    valid.write_text("the cat was on the dog\n")
    return cr.train(whole, model="ngram", valid=valid, out=folder / "whole", progress=False, **options)


def counted(folder: Path, shards: list[Path], **options: Any) -> list[Path]:
    outs = [folder / "counts" / shard.stem for shard in shards]
    for shard, out in zip(shards, outs, strict=True):
        cr.count(shard, out=out, **options)
    return outs


def model_bytes(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("smoothing", SMOOTHING_NAMES)
@pytest.mark.parametrize("tokenizer", ["word", "char"])
def test_the_model_of_the_shards_is_that_of_the_text(tmp_path: Path, smoothing: str, tokenizer: str) -> None:
    whole, shards = write_shards(tmp_path, 4, last_newline=False)
    trained(tmp_path, whole, order=3, smoothing=smoothing, tokenizer=tokenizer)
    outs = counted(tmp_path, shards, like=tmp_path / "whole", order=3)
    cr.merge(*outs, out=tmp_path / "merged", smoothing=smoothing, valid=tmp_path / "valid.txt")
    assert model_bytes(tmp_path / "merged") == model_bytes(tmp_path / "whole")


@pytest.mark.parametrize("tokenizer", ["word", "char"])
def test_merging_is_associative(tmp_path: Path, tokenizer: str) -> None:
    whole, shards = write_shards(tmp_path, 4)
    trained(tmp_path, whole, order=4, tokenizer=tokenizer)
    outs = counted(tmp_path, shards, like=tmp_path / "whole", order=4)
    left = cr.merge_shards(*outs[:3], out=tmp_path / "left")
    right = cr.merge_shards(*outs[1:], out=tmp_path / "right")
    cr.merge(left.path, outs[3], out=tmp_path / "one")
    cr.merge(outs[0], right.path, out=tmp_path / "two", memory="1K")
    assert model_bytes(tmp_path / "one") == model_bytes(tmp_path / "two") == model_bytes(tmp_path / "whole")


def test_the_merged_run_answers_like_any_other(tmp_path: Path) -> None:
    whole, shards = write_shards(tmp_path, 2)
    run = trained(tmp_path, whole, order=3, tokenizer="word")
    outs = counted(tmp_path, shards, like=tmp_path / "whole", order=3)
    merged = cr.merge(*outs, out=tmp_path / "merged")
    assert merged.score("the cat sat").log_prob == run.score("the cat sat").log_prob
    assert merged.result["tokens"] == run.result["tokens"]


def test_a_finished_shard_and_a_finished_model_are_left_alone(tmp_path: Path) -> None:
    whole, shards = write_shards(tmp_path, 2)
    trained(tmp_path, whole, order=3, tokenizer="word")
    outs = counted(tmp_path, shards, like=tmp_path / "whole", order=3)
    notes: list[str] = []
    before = (outs[0] / "manifest.json").stat().st_mtime_ns
    cr.count(shards[0], out=outs[0], like=tmp_path / "whole", order=3, note=notes.append)
    assert (outs[0] / "manifest.json").stat().st_mtime_ns == before
    for _ in range(2):
        cr.merge(*outs, out=tmp_path / "merged", note=notes.append)
    finished = [note for note in notes if "finished" in note]
    assert finished == [
        f"{outs[0]} is already finished",
        f"{tmp_path / 'merged'} is already finished; choose another --out",
    ]
    with pytest.raises(ConfigError, match="holds the counts of another text"):
        cr.count(shards[1], out=outs[0], like=tmp_path / "whole", order=3)


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    whole, shards = write_shards(tmp_path, 2)
    trained(tmp_path, whole, order=3, tokenizer="word")
    one, two = counted(tmp_path, shards, like=tmp_path / "whole", order=3)
    other = cr.count(shards[1], out=tmp_path / "other", like=tmp_path / "whole", order=2).path
    with pytest.raises(DataError, match="another tokeniser, order or line mode"):
        cr.merge(one, other, out=tmp_path / "no")
    both = cr.merge_shards(one, two, out=tmp_path / "both").path
    with pytest.raises(DataError, match="among the other counts too"):
        cr.merge(one, both, out=tmp_path / "no")
    with pytest.raises(DataError, match=r"has no manifest\.json"):
        cr.merge(tmp_path, out=tmp_path / "no")
    with pytest.raises(ConfigError, match="fitted to each shard separately"):
        cr.count(shards[0], out=tmp_path / "no", tokenizer="word")
    with pytest.raises(ConfigError, match="give either --like RUN or --tokenizer FILE"):
        cr.count(shards[0], out=tmp_path / "no")
    with pytest.raises(ConfigError, match="fitted on a validation text"):
        cr.merge(one, two, out=tmp_path / "no", smoothing="jelinek-mercer")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    whole, shards = write_shards(tmp_path, 2)
    trained(tmp_path, whole, order=3, tokenizer="word")
    outs = counted(tmp_path, shards, like=tmp_path / "whole", order=3)
    run = outs[0] / "run-0.bin"
    data = bytearray(run.read_bytes())
    data[len(data) // 2] ^= 1
    run.write_bytes(data)
    with pytest.raises(DataError, match="damaged or missing"):
        cr.merge(*outs, out=tmp_path / "merged")


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    whole, shards = write_shards(tmp_path, 2)
    trained(tmp_path, whole, order=3, tokenizer="word")
    outs = counted(tmp_path, shards, like=tmp_path / "whole", order=3)
    manifest = outs[0] / "manifest.json"
    text = manifest.read_text()
    values = json.loads(text)
    for damaged in (
        text.replace('"across_lines": false', '"across_lines": true'),
        text.replace(f'"tokens": {values["tokens"]}', f'"tokens": {values["tokens"] + 1}'),
        "[" * 100_000,
        text[:-10],
        "3",
    ):
        assert damaged != text
        manifest.write_text(damaged)
        with pytest.raises(DataError, match="is damaged or holds no counts of chainrule count"):
            cr.merge(*outs, out=tmp_path / "merged")


def test_a_forged_manifest_cannot_make_counting_write_beyond_its_arrays(tmp_path: Path) -> None:
    whole, shards = write_shards(tmp_path, 1)
    trained(tmp_path, whole, order=3, tokenizer="word")
    (out,) = counted(tmp_path, shards, like=tmp_path / "whole", order=3)
    values = json.loads((out / "manifest.json").read_text())
    del values["digest"]
    for run in values["runs"]:
        run["sizes"] = [1, 1, 1]
    write_manifest(out, values)
    with pytest.raises(DataError, match="more n-grams than they state"):
        cr.merge(out, out=tmp_path / "merged")
    values["order"] = 10**9
    write_manifest(out, values)
    with pytest.raises(DataError, match="is damaged or holds no counts"):
        cr.merge(out, out=tmp_path / "merged")


# The engine


@few
@given(
    parts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=6),
    order=st.integers(1, 6),
    across_lines=st.booleans(),
    part=st.integers(1, 8),
)
def test_segments_of_any_length_join_into_the_whole(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[int]], order: int, across_lines: bool, part: int
) -> None:
    folder, shape = tmp_path_factory.mktemp("segments"), Shape(order, 0, across_lines, 4)
    whole: list[int] = []
    for tokens in parts:
        whole += [0] * bool(whole and whole[-1] != 0) + tokens
    names = (folder / str(number) for number in range(1000))
    counts = [count_segment([np.array(tokens)], shape, names.__next__, part=part) for tokens in parts]
    cut = len(counts) // 2
    halves = [join(half, shape, next(names)) for half in (counts[:cut], counts[cut:]) if half]
    trie = build_trie(join(halves, shape, next(names), finish=True), ArrayPool(), folder / "merged")
    want = count(np.array(whole), order=order, eos=0, across_lines=across_lines, vocab_size=4)
    for name in ("starts", "words_J", "counts_J", "first_Y", "links_J"):
        np.testing.assert_array_equal(getattr(trie, name), getattr(want, name), err_msg=name)


def test_counts_beyond_32_bits(tmp_path: Path) -> None:
    """Two runs of n-grams that occur more than 2³² times."""
    large = (1 << 32) + 5
    rows = np.array([[0, 2, 1], [2, 1, 2], [2, 3, 2]], np.uint32)
    runs = []
    for number in range(2):
        writer = RunWriter(tmp_path / str(number), 3)
        writer.add_rows(rows, np.array([large, 7, 1 << 40]))
        runs.append(writer.close())
    merged = list(merge_rows(runs, 3, 4))
    assert merged[0][1].tolist() == [2 * large, 14, 1 << 41]
    counts = Counts(Shape(3, 0, True, 4), Segment(), tuple(runs))
    trie = build_trie(counts, ArrayPool(), tmp_path / "merged")
    assert trie.counts(1).tolist() == [2 * large - 1, 0, 14 + (1 << 41), 0]
    assert trie.counts(3).tolist() == [2 * large, 14, 1 << 41]


@pytest.mark.parametrize("data", [b"\x00", b"\x10", b"\x11\x00\x01", b"\x20\x01", b"\x10\x7f\x01", b"\x10\x01\x00"])
def test_bytes_that_are_no_rows_are_refused(tmp_path: Path, data: bytes) -> None:
    writer = RunWriter(tmp_path / "run", 2)
    writer.add_rows(np.array([[1, 2]], np.uint32), np.array([1]))
    run = writer.close()
    run.path.write_bytes(data)
    with pytest.raises(DataError, match="is damaged"):
        list(merge_rows([run], 2, 4))


def test_counting_and_merging_import_no_torch(tmp_path: Path) -> None:
    """It takes longer to import than a small shard to count."""
    _, (shard,) = write_shards(tmp_path, 1)
    counts, run = str(tmp_path / "counts"), str(tmp_path / "run")
    commands = [["count", str(shard), "--tokenizer", "byte", "--out", counts], ["merge", counts, "--out", run]]
    code = (
        "import sys\nfrom chainrule.cli.main import app\n"
        f"for command in {commands!r}:\n    app(command, standalone_mode=False)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["False"], done.stderr
