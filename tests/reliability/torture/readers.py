"""Every file, option and text that the toolkit reads, as targets of fuzzing."""

from __future__ import annotations

import contextlib
import gzip
import lzma
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from chainrule import export, load
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import parse_settings
from chainrule.errors import ChainruleError
from chainrule.experiments.compare import parse_contenders
from chainrule.inference.rescore import group_candidates, read_candidates
from chainrule.interop.formats import import_run
from chainrule.interop.word2vec import write_vectors
from chainrule.tasks.task import task_of
from chainrule.text.formats.labels import LabelledFiles
from chainrule.text.formats.pairs import open_pairs
from chainrule.text.formats.tags import TaggedFiles
from chainrule.text.readers import lines_in, open_texts
from chainrule.text.tokenizers import load_tokenizer, train_tokenizer
from chainrule.training.checks import check_options
from chainrule.training.fitting.fitting import fitting_of
from chainrule.training.request import make_config
from torture.containers import container_targets
from torture.fuzzing import Target
from torture.requests import request_targets
from torture.toys import STEPS, TRAININGS, classifier, counting, write_data

SETTINGS = """model.hidden=20
training.lr=0.001
model.dropout=0.1
training.schedule=cosine
tokenizer.kind=char
seed=3
data.valid=["a.txt"]
training.minutes=1.5
model={"name": "transformer", "heads": 2}
training.batch_size=8
training.memory=1.5G
objective.name=likelihood
output.name=softmax
"""
PROMPTS = """the cat ab ba <unk> abba
ab [MASK] ba cab
abba, baab. "cb" 12
c
"""
TOML = """seed = 1
[data]
train = ["text.txt"]
[tokenizer]
kind = "char"
vocab_size = 40
[model]
name = "lstm"
hidden = 8
dropout = 0.1
[training]
steps = 3
lr = 1e-3
schedule = "cosine"
"""


def light_targets(place: Path) -> list[Target]:
    """Targets that are quick to make; their files are made below `place`."""
    place.mkdir(parents=True)
    write_data(place)
    return [
        *_texts(place),
        *_options(place),
        *_tokenizers(place),
        *_runs(place),
        *_imports(place),
        *container_targets(place),
    ]


def targets(place: Path) -> list[Target]:
    """All targets."""
    further = (_prompts, _hugging_face_tokenizers, _hugging_face_folders, request_targets)
    return [*light_targets(place), *(target for make in further for target in make(place))]


def _consume(*parts: Iterator[Any]) -> None:
    for part in parts:
        for _ in part:
            pass


# Texts


def _texts(place: Path) -> Iterator[Target]:
    for name, content, kind, read in _text_files(place):
        path = place / name
        path.write_bytes(content)
        yield Target(name, path, kind, partial(read, path))


def _text_files(place: Path) -> Iterator[tuple[str, bytes, str, Callable[[Path], object]]]:
    plain = (place / "text.txt").read_bytes()
    yield "text.txt", plain, "lines", _read_text
    yield "plain.gz", gzip.compress(plain), "binary", _read_text
    yield "plain.zst", zstandard.ZstdCompressor().compress(plain), "binary", _read_text
    yield "plain.xz", lzma.compress(plain), "binary", _read_text
    yield "wide.txt", plain.decode().encode("utf-16"), "binary", _read_text
    records = b"".join(b'{"text": "%s", "label": "x", "n": [1, {"a": null}]}\n' % line for line in plain.split()[:20])
    yield "records.jsonl", records, "json", _read_text
    yield "pairs.tsv", (place / "pairs.tsv").read_bytes(), "lines", _read_pairs
    yield "pairs.csv", b'source,target\n"a, b",c\n' + b'ab,"b ""a"""\n' * 9, "lines", _read_pairs
    yield "pairs.jsonl", b'{"source": "ab", "target": "ba"}\n' * 9, "json", _read_pairs
    yield "labels.tsv", (place / "labels.tsv").read_bytes(), "lines", _read_labels
    yield "labels.csv", b'label,text\nx,"a, b"\n' + b'y,"b ""a"""\n' * 9, "lines", _read_labels
    yield (
        "labels.jsonl",
        b'{"text": "ab", "label": "x"}\n{"text": "b", "label": ["y"]}\n' * 5,
        "json",
        _read_labels,
    )
    yield "tags.tsv", (place / "tags.tsv").read_bytes(), "lines", _read_tags
    yield "tags.jsonl", b'{"text": ["ab", "c"], "label": ["O", "C"]}\n' * 9, "json", _read_tags
    yield "nbest.txt", b"0 ||| ab ba ||| -1.5\n0 ||| cab ||| -2\n1 ||| f: 1 ||| x ||| -3e0\n", "lines", _read_candidates
    yield "nbest-json.txt", b'{"id": 0, "text": "ab", "score": -1.5}\n' * 5, "json", _read_candidates


def _read_text(path: Path) -> None:
    texts = open_texts([path])
    _consume(lines_in(texts), texts.strings(any_bytes=True), texts.strings(whole_words=True))
    texts.fingerprint()


def _read_pairs(path: Path) -> None:
    pairs = open_pairs([path])
    _consume(lines_in(pairs.source), lines_in(pairs.target))


def _read_labels(path: Path) -> None:
    files = LabelledFiles([path])
    files.labels()
    _consume(lines_in(files.texts))


def _read_tags(path: Path) -> None:
    files = TaggedFiles([path])
    files.labels()
    _consume(lines_in(files.words(spaced=True)))


def _read_candidates(path: Path) -> None:
    group_candidates(read_candidates(lines_in(open_texts([path]))))


# Options


def _options(place: Path) -> Iterator[Target]:
    settings, toml, names = place / "settings", place / "options.toml", place / "names"
    settings.write_text(SETTINGS)
    toml.write_text(TOML)
    names.write_text("lstm\nngram(order=3)\ntransformer:adaptive(layers=2,heads=4)\nlstm, gru:adaptive\n")

    def lines(path: Path) -> list[str]:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()

    def read_names() -> None:
        for line in lines(names):
            _refusable(parse_contenders, line)

    yield Target("--set", settings, "lines", lambda: [_refusable(_check_set, line) for line in lines(settings)])
    yield Target("--config", toml, "lines", lambda: _check_config(toml))
    yield Target("--models", names, "lines", read_names)


def _refusable(work: Callable[[Any], object], given: Any) -> None:
    """Several refusals may come from one file."""
    with contextlib.suppress(ChainruleError):
        work(given)


def _check_set(setting: str) -> None:
    _check(make_config(None, {}, parse_settings([setting])))


def _check_config(path: Path) -> None:
    _check(make_config(path, {}, {}))


def _check(config: Any) -> None:
    check_options(config, task_of(config), fitting_of(config.model.name))


# Tokenisers


def _tokenizers(place: Path) -> Iterator[Target]:
    texts = open_texts([place / "text.txt"])
    for kind in ("char", "word", "byte", "bpe"):
        folder = place / f"tokenizer-{kind}"
        folder.mkdir()
        tokenizer = train_tokenizer(kind, texts, vocab_size=265 if kind == "bpe" else None)
        tokenizer.save(folder)
        for path in sorted(folder.iterdir()):
            kind_of_file = "json" if path.suffix == ".json" else "binary"
            yield Target(f"{kind} {path.name}", path, kind_of_file, partial(_read_tokenizer, folder))


def _read_tokenizer(folder: Path) -> None:
    _try(load_tokenizer(folder))


def _try(tokenizer: Any) -> None:
    tokenizer.decode(tokenizer.encode("ab ba cab <unk> é"))


# Run folders: damage is refused or has no effect


def _runs(place: Path) -> Iterator[Target]:
    for name in ("lm lstm", "ngram", "word2vec"):
        run = place / f"run-{name}"
        TRAININGS[name](place, run)
        for file in ("config.toml", "signature", "tokenizer.json", "model.safetensors", "result.json", "tuning.json"):
            path = run / file
            if file == "tuning.json":
                path.write_text('[{"options": {"model.x": 1}, "valid": "text.txt", "before": 2.0}]')
            kind = {".json": "json", ".safetensors": "tensors"}.get(path.suffix, "lines")
            yield Target(f"{name}: {file}", path, kind, partial(_use, run), same=True)
    yield from _checkpoints(place)
    yield from _archives(place)


def _use(run: Path) -> object:
    """What a run computes."""
    loaded = load(run)
    loaded.info()
    if "score" in loaded.available_verbs:
        return [line.log_prob for line in loaded.score(["ab ba cab", "abba"])]
    return [tuple(one) for one in loaded.neighbours("ab", 3)]


def _checkpoints(place: Path) -> Iterator[Target]:
    """A training that is resumed from a damaged checkpoint ends like an undisturbed one, or not at all."""
    begun = place / "begun"
    classifier(steps=STEPS // 2)(place, begun)
    checkpoint = begun / "training" / f"step-{STEPS // 2:09d}"
    for path, kind in (
        (begun / "training" / "request.json", "json"),
        (checkpoint / "values.json", "json"),
        (checkpoint / "tensors.safetensors", "tensors"),
    ):
        yield Target(f"resume: {path.name}", path, kind, lambda: _resume(place, begun), same=True)


def _resume(place: Path, begun: Path) -> object:
    """Resume a copy -> its weights."""
    copy = place / "resumed"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(begun, copy)
    classifier()(place, copy)
    return RunFolder(copy).model_path.read_bytes()


def _archives(place: Path) -> Iterator[Target]:
    text, out = place / "short.txt", place / "restored.txt"
    text.write_text("ab ba cab abba\n" * 3)
    for name in ("ngram", "lm lstm"):
        run, archive = load(place / f"run-{name}"), place / f"{name}.cr"
        run.compress(text, archive)
        _ = run.model

        def read(run: Any = run, archive: Path = archive) -> bytes:
            run.decompress(archive, out)
            return out.read_bytes()

        yield Target(f"{name}.cr", archive, "binary", read, same=True)


# Prompts


def _prompts(place: Path) -> Iterator[Target]:
    for name, verb in (
        (
            "ngram",
            lambda run, text: (run.score([text]), run.generate(text, max_new_tokens=3), run.choose(text, "ab")),
        ),
        ("lm lstm", lambda run, text: (run.score([text]), run.generate(text, max_new_tokens=3), run.embed([text]))),
        ("translator", lambda run, text: run.translate([text], num_beams=2, max_new_tokens=5)),
        ("masked bert", lambda run, text: run.fill([text])),
        ("classifier", lambda run, text: run.classify([text])),
        ("tagger", lambda run, text: run.tag([text])),
    ):
        folder, path = place / f"run-{name}", place / f"prompts-{name}"
        if not folder.exists():
            TRAININGS[name](place, folder)
        path.write_text(PROMPTS)
        run = load(folder)
        _ = run.model

        def read(run: Any = run, verb: Callable[..., object] = verb, path: Path = path) -> None:
            lines = path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
            _refusable(lambda text: verb(run, text), lines[len(lines) // 3])

        yield Target(f"prompts: {name}", path, "lines", read)


# Imports


def _import(source: Path, place: Path) -> None:
    out = place / "imported"
    shutil.rmtree(out, ignore_errors=True)
    run = load(import_run(source, out).path)
    _ = run.model
    _try(run.tokenizer)


def _imports(place: Path) -> Iterator[Target]:
    arpa, packed = place / "model.arpa", place / "model.arpa.gz"
    run = counting("ngram", tokenizer="word", order=3, settings={"model": {"across_lines": False}})
    run(place, place / "lines")
    export(place / "lines", arpa)
    packed.write_bytes(gzip.compress(arpa.read_bytes(), 1))
    text, binary = place / "vectors.txt", place / "vectors.bin"
    vectors_VD = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    words = ["ab", "ba", "é", "cab", "<unk>"]
    write_vectors(text, words, vectors_VD)
    write_vectors(binary, words, vectors_VD, binary=True)
    for path, kind in ((arpa, "lines"), (packed, "binary"), (text, "lines"), (binary, "binary")):
        yield Target(path.name, path, kind, partial(_import, path, place))


def _hugging_face_folders(place: Path) -> Iterator[Target]:
    for family, folder in _hugging_face(place):
        for path in sorted(folder.iterdir()):
            kind = {".json": "json", ".safetensors": "tensors", ".txt": "lines"}.get(path.suffix, "binary")
            yield Target(f"{family}: {path.name}", path, kind, partial(_import, folder, place))


def _hugging_face_tokenizers(place: Path) -> Iterator[Target]:
    import hf_folders

    texts = open_texts([place / "text.txt"])

    def read(path: Path) -> None:
        _try(train_tokenizer(path, texts))

    for name, made in (("byte-level", hf_folders.byte_level(300)), ("unigram", hf_folders.unigram(80))):
        path = place / f"{name}.json"
        made.save(str(path))
        yield Target(f"--tokenizer {name}.json", path, "json", partial(read, path))


def _hugging_face(place: Path) -> Iterator[tuple[str, Path]]:
    """Folders saved by transformers, with small vocabularies."""
    import transformers as hf

    import hf_folders

    gpt2 = hf.GPT2Config(
        vocab_size=300, n_embd=8, n_layer=1, n_head=2, n_positions=16, bos_token_id=299, eos_token_id=299
    )
    yield "gpt2", hf_folders.saved(hf.GPT2LMHeadModel(gpt2), hf_folders.byte_level(300), place / "gpt2")
    size = hf_folders.word_piece(80).get_vocab_size()
    bert = hf.BertConfig(
        vocab_size=size, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=16,
    )  # fmt: skip
    marks = {"sep_token": "[SEP]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
    yield "bert", hf_folders.saved(hf.BertModel(bert), hf_folders.word_piece(80), place / "bert", **marks)
    size = hf_folders.unigram(80).get_vocab_size()
    t5 = hf.T5Config(vocab_size=size, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
    yield "t5", hf_folders.saved(hf.T5ForConditionalGeneration(t5), hf_folders.unigram(80), place / "t5")
