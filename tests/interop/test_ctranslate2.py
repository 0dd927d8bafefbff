"""Runs as folders of CTranslate2: the engine computes the same numbers, and obstacles are listed before any work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import chainrule as cr
from chainrule.checkpoint.build import save_model
from chainrule.errors import ConfigError
from chainrule.interop.formats import export, find_format, format_for
from chainrule.registry import MODELS
from commands import chainrule
from hf_folders import perturbed
from requirements import need

need("export")

import ctranslate2  # noqa: E402

SMALL: dict[str, Any] = {"embedding": 16, "heads": 2, "context": 48}
SIDES: dict[str, Any] = {**SMALL, "encoder_layers": 2, "decoder_layers": 1}
ENCODER: dict[str, Any] = {"width": 16, "heads": 2, "layers": 2, "positions": 48}

FORMS: list[tuple[str, dict[str, Any]]] = [
    ("transformer", {**SMALL, "layers": 2}),
    ("transformer", {**SMALL, "layers": 1, "positions": "sinusoidal", "norm": "post", "bias": True}),
    ("transformer", {**SMALL, "layers": 1, "positions": "learned", "activation": "gelu-tanh", "tied": False}),
    ("transformer", {**SMALL, "layers": 1, "positions": "none", "activation": "gelu"}),
    ("seq2seq-transformer", SIDES),
    ("seq2seq-transformer", {**SIDES, "positions": "rotary", "shared": False}),
    ("seq2seq-transformer", {**SIDES, "positions": "learned", "norm": "post", "bias": True, "activation": "swish"}),
    ("t5", {**SIDES, "sentinels": 3}),
    ("t5", {**SIDES, "gated": True, "activation": "gelu-tanh", "tied": False, "head_width": 12}),
    ("bert", ENCODER),
    ("bert", {**ENCODER, "types": 2, "pooler": True, "activation": "relu"}),
    ("bert", {**ENCODER, "kind": "roberta", "pad": 1}),
]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "text.txt").write_text("the cat sat on the mat\na dog ate the cat\n" * 30)
    (folder / "pairs.tsv").write_text("".join(f"the cat {n}\tdie katze {n}\n" for n in range(60)))
    return folder


def trained(texts: Path, out: Path, model: str, options: dict[str, Any], steps: int = 1, **further: Any) -> Any:
    """A run of some steps whose weights are then perturbed, so that every one of them matters."""
    data = texts / ("pairs.tsv" if MODELS.get(model).task == "translation" else "text.txt")
    run = cr.train(
        data, model=model, steps=steps, out=out, settings={"model": options}, **{"tokenizer": "char", **further}
    )
    perturbed(run.model, 0.1 if steps == 1 else 0.01)
    save_model(run.folder, run.model)
    return run


@pytest.mark.parametrize(("model", "options"), FORMS)
def test_every_form_is_the_same_model_in_the_engine(
    model: str, options: dict[str, Any], texts: Path, tmp_path: Path
) -> None:
    run = trained(texts, tmp_path / "run", model, options)
    done = cr.export(run.folder.path, tmp_path / "out", to="ctranslate2")
    assert done.difference is not None
    assert done.difference < 1e-5
    assert done.bytes == sum(file.stat().st_size for file in (tmp_path / "out").iterdir())


def test_greedy_texts_are_those_of_the_run(texts: Path, tmp_path: Path) -> None:
    run = trained(texts, tmp_path / "run", "transformer", {**SMALL, "layers": 2}, steps=60)
    cr.export(run.folder.path, tmp_path / "out", to="ctranslate2")
    pieces = json.loads((tmp_path / "out" / "vocabulary.json").read_text())
    engine = ctranslate2.Generator(str(tmp_path / "out"), intra_threads=1)
    start = [pieces[run.tokenizer.eos], *"the "]
    found = engine.generate_batch([start], max_length=20, sampling_topk=1, include_prompt_in_result=False)
    ours = run.generate("the ", max_new_tokens=20, temperature=0.0)
    assert "the " + run.tokenizer.decode(found[0].sequences_ids[0]) == ours[0].text


def test_beams_translate_as_the_run_does(texts: Path, tmp_path: Path) -> None:
    run = trained(texts, tmp_path / "run", "seq2seq-transformer", SIDES, steps=60)
    cr.export(run.folder.path, tmp_path / "out", to="ctranslate2")
    engine = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    lines = [f"the cat {n}" for n in range(5, 9)]
    limits = {"min_decoding_length": 0, "max_decoding_length": 30}
    found = engine.translate_batch([list(line) for line in lines], beam_size=2, **limits)
    ours = run.translate(lines, num_beams=2, max_new_tokens=30)
    assert ["".join(one.hypotheses[0]) for one in found] == ours
    assert any(ours)


def test_int8_weights_are_smaller_and_state_their_difference(texts: Path, tmp_path: Path) -> None:
    run = trained(texts, tmp_path / "run", "transformer", {**SMALL, "embedding": 64, "layers": 2})
    single = cr.export(run.folder.path, tmp_path / "single", to="ctranslate2")
    small = cr.export(run.folder.path, tmp_path / "small", to="ctranslate2", quantize="int8")
    assert small.bytes < 0.5 * single.bytes
    assert small.difference is not None
    assert single.difference is not None
    assert single.difference < small.difference < 1.0


def test_the_verb_states_the_difference(texts: Path, tmp_path: Path) -> None:
    run = trained(texts, tmp_path / "run", "transformer", {**SMALL, "layers": 1}, tokenizer="word")
    arguments = ["export", run.folder.path, tmp_path / "out", "--to", "ctranslate2", "--quantize", "int8", "--json"]
    record = json.loads(chainrule(*arguments).out)
    assert record["format"] == "ctranslate2"
    assert 0 < record["difference"] < 1
    assert (tmp_path / "out" / "tokenizer.json").exists()


def test_an_export_that_differs_is_not_left_behind(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(texts, tmp_path / "run", "transformer", {**SMALL, "layers": 1})
    monkeypatch.setattr("chainrule.interop.ctranslate2.runs.difference", lambda *arguments: 0.5)
    with pytest.raises(ConfigError, match=r"differs from its export by 0\.5, more than the rounding"):
        cr.export(run.folder.path, tmp_path / "out", to="ctranslate2")
    assert not (tmp_path / "out").exists()


def test_all_obstacles_are_listed(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        cr.train(texts / "text.txt", model="lstm", out=tmp_path / "run", export_to="ctranslate2")
    assert str(caught.value) == (
        "the run cannot be exported as ctranslate2: the model lstm is none of the Transformers that CTranslate2 runs "
        "(transformer, seq2seq-transformer, t5, bert); train with --model transformer"
    )
    with pytest.raises(ConfigError, match="the output layer is adaptive, which has no vector per word"):
        cr.train(
            texts / "text.txt", model="transformer", output="adaptive", out=tmp_path / "run", export_to="ctranslate2"
        )


def test_unknown_quantizations_and_formats_without_them_are_refused(texts: Path, tmp_path: Path) -> None:
    run = trained(texts, tmp_path / "run", "transformer", {**SMALL, "layers": 1})
    with pytest.raises(ConfigError, match="unknown quantization 'int9': did you mean 'int8'"):
        export(run.folder.path, tmp_path / "out", to="ctranslate2", quantize="int9")
    with pytest.raises(ConfigError, match="the format hf has no quantized weights; leave out --quantize"):
        export(run.folder.path, tmp_path / "out", to="hf", quantize="int8")
    assert format_for(run.folder.path, "folder").name == "hf"
    assert find_format("ctranslate2").import_run is None
    assert torch.is_grad_enabled()
