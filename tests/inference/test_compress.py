"""Compressed texts are restored byte for byte, and have the size that the evaluation predicts."""

from __future__ import annotations

import json
import random
import struct
import zlib
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from chainrule.data.store import open_store
from chainrule.errors import ConfigError, RunError
from chainrule.evaluation import evaluate, tracks
from chainrule.inference import compress as compression
from chainrule.inference.archive import Needs
from chainrule.inference.compress import CompressionResult, compress, decompress
from chainrule.text.readers import text_of
from chainrule.text.tokenizers import Tokenizer, train_tokenizer
from chainrule.types import SteppingModel
from toy import TableModel, TablePrefix

NAME = b"8 bytes!"
TRAIN = "the cat sat on the mat\n a  <unk> sat \n\nThe end."
TOKENIZERS = {kind: train_tokenizer(kind, text_of(TRAIN)) for kind in ("word", "char", "byte")}
ENGLISH = ["the", "of", "and", "to", "in", "a", "is", "that", "it", "was", "for", "with", *TRAIN.split()]


def table(tokenizer: Tokenizer, seed: int = 1) -> TableModel:
    return TableModel(tokenizer.vocab_size, seed, eos=tokenizer.eos)


def compressed(tokenizer: Tokenizer, text: bytes, folder: Path, model: TableModel | None = None) -> CompressionResult:
    model = model or table(tokenizer)
    return compress(model, tokenizer, text_of(text), folder / "packed", fingerprint=NAME, cache=folder / "cache")


def decompressed(tokenizer: Tokenizer, folder: Path, model: TableModel | None = None) -> bytes:
    decompress(
        lambda portable: model or table(tokenizer), tokenizer, folder / "packed", folder / "text", fingerprint=NAME
    )
    return (folder / "text").read_bytes()


def words(count: int, seed: int = 0) -> bytes:
    chosen = random.Random(seed).choices(ENGLISH, k=count)
    return "".join(word + random.Random(n).choice("    \n") for n, word in enumerate(chosen)).encode()


@pytest.mark.parametrize("kind", ["word", "char"])
@settings(deadline=None, max_examples=40)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1))
def test_any_text_is_restored(kind: str, text: str) -> None:
    with TemporaryDirectory() as folder:
        compressed(TOKENIZERS[kind], text.encode(), Path(folder))
        assert decompressed(TOKENIZERS[kind], Path(folder)) == text.encode()


@settings(deadline=None, max_examples=40)
@given(data=st.binary(min_size=1))
def test_any_bytes_are_restored(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        compressed(TOKENIZERS["byte"], data, Path(folder))
        assert decompressed(TOKENIZERS["byte"], Path(folder)) == data


@pytest.mark.parametrize("kind", ["word", "char", "byte"])
@pytest.mark.parametrize("extra", [0, 1, 2])
def test_several_tracks_and_blocks_are_restored(
    kind: str, extra: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracks, "TOKENS_PER_TRACK", 100)
    monkeypatch.setattr(compression, "BLOCK_TOKENS", 64)
    text = words(900 if kind == "word" else 200) + b"t" * extra
    result = compressed(TOKENIZERS[kind], text, tmp_path)
    assert tracks.track_count(result.tokens) > 2
    assert decompressed(TOKENIZERS[kind], tmp_path) == text


class Sharp(TableModel):
    """Confident and often wrong: small probabilities, where the precision of the coder matters."""

    def step(self, state: TablePrefix, token_B: Tensor) -> tuple[Tensor, TablePrefix]:
        log_probs_BV, state = super().step(state, token_B)
        return (log_probs_BV * 3).log_softmax(1), state

    def score(self, tokens_BT: Tensor, state: TablePrefix) -> tuple[Tensor, TablePrefix]:
        rows = []
        for token_B in tokens_BT.unbind(1):
            before_B = torch.full_like(token_B, self.eos) if state.pending_B is None else state.pending_B
            log_probs_BV, state = self.step(TablePrefix(state.hash_B, None), before_B)
            rows.append(log_probs_BV.gather(1, token_B[:, None])[:, 0])
            state = TablePrefix(state.hash_B, token_B)
        return torch.stack(rows, 1), state


@pytest.mark.parametrize("kind", ["word", "char", "byte"])
@pytest.mark.parametrize("make", [TableModel, Sharp])
def test_the_file_has_the_size_that_the_evaluation_predicts(kind: str, make: type[TableModel], tmp_path: Path) -> None:
    tokenizer, text = TOKENIZERS[kind], words(2000)
    model = make(tokenizer.vocab_size, 1, eos=tokenizer.eos)
    predicted = evaluate(model, open_store(text_of(text), tokenizer, cache=tmp_path / "cache"), tokenizer)
    result = compressed(tokenizer, text, tmp_path, model)
    assert result.compressed_bytes == (tmp_path / "packed").stat().st_size
    stated = {name: value for name, value in asdict(Needs.here(portable=False)).items() if value}
    needs = len(json.dumps(stated, separators=(",", ":")))
    fixed = 38 + 12 + needs + 12 + 16  # header, needs, residue's length and checksum, the same and that of the tokens
    expected = predicted.bits_per_byte * len(text) / 8 + fixed
    assert abs(result.compressed_bytes - expected) <= 12 + 0.001 * expected  # each range code ends in whole words
    assert (result.bytes, result.tokens) == (len(text), predicted.tokens)


class Network(nn.Module, SteppingModel):
    """A recurrent network with dropout: its numbers are sums of floats, and random unless dropout is off."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, 24)
        self.cell = nn.GRUCell(24, 40)
        self.output = nn.Sequential(nn.Dropout(0.5), nn.Linear(40, vocab_size))

    def start(self, batch: int) -> Tensor:
        return self.cell.weight_hh.new_zeros(batch, 40)

    def step(self, hidden_BD: Tensor, token_B: Tensor) -> tuple[Tensor, Tensor]:
        hidden_BD = self.cell(self.embedding(token_B), hidden_BD)
        return self.output(hidden_BD).log_softmax(1), hidden_BD

    def select(self, hidden_BD: Tensor, rows_K: Tensor) -> Tensor:
        return hidden_BD[rows_K]


def test_a_network_reads_what_its_copy_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracks, "TOKENS_PER_TRACK", 300)
    tokenizer, text = TOKENIZERS["char"], words(600)
    writer, reader = Network(tokenizer.vocab_size).train(), Network(tokenizer.vocab_size).train()
    reader.load_state_dict(writer.state_dict())
    packed, out = tmp_path / "packed", tmp_path / "text"
    compress(writer, tokenizer, text_of(text), packed, fingerprint=NAME, cache=tmp_path / "cache")
    decompress(lambda portable: reader, tokenizer, packed, out, fingerprint=NAME)
    assert out.read_bytes() == text
    assert writer.training
    assert reader.training


def test_the_bytes_of_the_file_are_as_documented(tmp_path: Path) -> None:
    text = b"the dog\nsat"
    compressed(TOKENIZERS["word"], text, tmp_path)
    packed = (tmp_path / "packed").read_bytes()
    assert packed[:14] == b"CHRL" + b"\x02\x00" + NAME
    assert struct.unpack_from("<QQII", packed, 14) == (len(text), 4, zlib.crc32(text), zlib.crc32(packed[:34]))
    needs_size, needs_checksum = struct.unpack_from("<QI", packed, 38)
    needs = packed[50 : 50 + needs_size]
    assert zlib.crc32(needs) == needs_checksum
    assert json.loads(needs).keys() == {"cpu", "torch", "chainrule"}
    begin = 50 + needs_size + 12
    residue_size, residue_checksum = struct.unpack_from("<QI", packed, begin - 12)
    residue = packed[begin : begin + residue_size]
    assert zlib.crc32(residue) == residue_checksum
    tokens = [token for line in (b"the dog", b"sat") for token in [*TOKENIZERS["word"].encode(line.decode()), 1]][:-1]
    place = begin + residue_size
    tokens_checksum, size, checksum = struct.unpack_from("<IQI", packed, place)
    assert tokens_checksum == zlib.crc32(struct.pack("<4I", *tokens))
    assert checksum == zlib.crc32(packed[place + 16 :])
    assert len(packed) == place + 16 + size


def test_progress_counts_tokens_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "BLOCK_TOKENS", 5)
    monkeypatch.setattr(tracks, "TOKENS_PER_TRACK", 5)
    reports: list[tuple[int, int]] = []
    options = {"fingerprint": NAME, "progress": lambda *step: reports.append(step)}
    tokenizer, packed = TOKENIZERS["byte"], tmp_path / "packed"
    compress(table(tokenizer), tokenizer, text_of(b"hello, world"), packed, cache=tmp_path, **options)  # type: ignore[arg-type]
    decompress(lambda portable: table(tokenizer), tokenizer, packed, tmp_path / "text", **options)  # type: ignore[arg-type]
    assert reports == [(4, 12), (8, 12), (12, 12)] * 2


def test_the_number_of_threads_is_as_before(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    compressed(TOKENIZERS["byte"], b"abc", tmp_path)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def error_message(folder: Path, model: TableModel | None = None, name: bytes = NAME) -> str:
    """The error message of decompressing, which must write nothing."""
    tokenizer = TOKENIZERS["char"]
    with pytest.raises(RunError) as caught:
        decompress(
            lambda portable: model or table(tokenizer), tokenizer, folder / "packed", folder / "text", fingerprint=name
        )
    assert not (folder / "text").exists()
    assert not list(folder.glob(".text*"))
    return str(caught.value).replace(str(folder / "packed"), "FILE")


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    compressed(TOKENIZERS["char"], TRAIN.encode() + b" x\n", tmp_path)
    return tmp_path / "packed"


def test_another_file_is_an_error(packed: Path) -> None:
    packed.write_bytes(b"PK\3\4 something")
    expected = "'FILE' does not begin with CHRL: expected a file written by `chainrule compress`; give one."
    assert error_message(packed.parent) == expected
    packed.write_bytes(b"")
    assert error_message(packed.parent) == expected
    packed.unlink()
    assert error_message(packed.parent) == (
        "cannot read 'FILE' (No such file or directory): expected a compressed file; check its name."
    )


def test_another_version_is_an_error(packed: Path) -> None:
    packed.write_bytes(b"CHRL\x09\x00" + packed.read_bytes()[6:])
    assert (
        error_message(packed.parent) == "'FILE' has format version 9: expected 1 to 2; use the release that wrote it."
    )


def test_another_model_is_an_error(packed: Path) -> None:
    assert error_message(packed.parent, name=b"\0" * 8) == (
        "'FILE' was compressed with the model 3820627974657321, but this model is 0000000000000000; give the run that "
        "compressed it."
    )


def test_other_probabilities_are_an_error(packed: Path) -> None:
    for seed in range(2, 12):
        message = error_message(packed.parent, model=table(TOKENIZERS["char"], seed))
        assert message.startswith(
            "the probabilities of the model differ from those with which 'FILE' was compressed; decompress with the "
            "machine type and the versions of torch and chainrule that compressed it (cpu "
        )
        assert message.endswith("; archives written with --portable need neither.")


def test_an_archive_of_the_first_version_is_restored(tmp_path: Path) -> None:
    compressed(TOKENIZERS["char"], b"sat on the cat", tmp_path)
    packed = (tmp_path / "packed").read_bytes()
    needs_size = struct.unpack_from("<Q", packed, 38)[0]
    first = packed[:4] + b"\x01\x00" + packed[6:34]
    (tmp_path / "packed").write_bytes(first + struct.pack("<I", zlib.crc32(first)) + packed[50 + needs_size :])
    assert decompressed(TOKENIZERS["char"], tmp_path) == b"sat on the cat"


def test_other_versions_are_stated_before_decompressing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, notes = TOKENIZERS["char"], list[str]()
    monkeypatch.setattr("chainrule.inference.archive._capability", lambda: "riscv64 RVV")
    compressed(tokenizer, b"sat on the cat", tmp_path)
    monkeypatch.setattr("chainrule.inference.archive._capability", lambda: "x86_64 AVX2")
    packed, out = tmp_path / "packed", tmp_path / "text"
    decompress(lambda portable: table(tokenizer), tokenizer, packed, out, fingerprint=NAME, note=notes.append)
    assert notes == [
        f"'{packed}' was compressed with cpu riscv64 RVV (here x86_64 AVX2), where probabilities may differ in the "
        "last bit; if so, decompressing stops with an error"
    ]


def test_every_truncation_is_found(packed: Path) -> None:
    whole = packed.read_bytes()
    packed.write_bytes(whole[:20])
    assert (
        error_message(packed.parent)
        == "'FILE' ends too early: expected 30 bytes from byte 4 on, got 16; copy it again."
    )
    for size in range(len(whole)):
        packed.write_bytes(whole[:size])
        assert "ends too early" in error_message(packed.parent) or size < 4


def test_every_damaged_byte_is_found(packed: Path) -> None:
    whole = packed.read_bytes()
    for place in range(len(whole)):
        packed.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        assert error_message(packed.parent)
    packed.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert error_message(packed.parent).endswith(" or after; copy it again.")
    packed.write_bytes(whole + b"\0")
    assert error_message(packed.parent) == (f"'FILE' is damaged at byte {len(whole)} or after; copy it again.")


def test_an_existing_file_stays_if_decompressing_fails(packed: Path) -> None:
    (packed.parent / "text").write_text("mine")
    packed.write_bytes(packed.read_bytes()[:-1])
    with pytest.raises(RunError):
        decompressed(TOKENIZERS["char"], packed.parent)
    assert (packed.parent / "text").read_text() == "mine"


def test_wrong_arguments_are_errors(tmp_path: Path) -> None:
    tokenizer = TOKENIZERS["byte"]
    with pytest.raises(ConfigError) as caught:
        compress(table(tokenizer), tokenizer, text_of(b"a"), tmp_path / "packed", fingerprint=b"short")
    assert str(caught.value) == "the fingerprint has 5 bytes, but it must have 8."
    with pytest.raises(ConfigError) as caught:
        compress(table(tokenizer), tokenizer, text_of(b"a"), tmp_path, fingerprint=NAME, cache=tmp_path / "cache")
    assert str(caught.value) == f"{tmp_path} is a folder: expected the name of a file to write; add one"


class Diverged(TableModel):
    def step(self, state: TablePrefix, token_B: Tensor) -> tuple[Tensor, TablePrefix]:
        log_probs_BV, state = super().step(state, token_B)
        return log_probs_BV * torch.nan, state


def test_a_diverged_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        compressed(TOKENIZERS["byte"], b"abc", tmp_path, Diverged(256))
    assert str(caught.value) == ("the model gives probabilities that are not finite, for example NaN; train it again.")
    assert not (tmp_path / "packed").exists()
