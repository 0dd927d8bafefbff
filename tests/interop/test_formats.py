"""The registry of formats: detection by suffix and content, and the families of Hugging Face models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chainrule.errors import ConfigError, DataError
from chainrule.interop.arpa.runs import ARPA
from chainrule.interop.common import Format
from chainrule.interop.ctranslate2.runs import CTRANSLATE2
from chainrule.interop.formats import FORMATS, detect_format, export, import_run
from chainrule.interop.huggingface.runs import BY_MODEL, BY_MODEL_TYPE, HUGGING_FACE
from chainrule.interop.onnx.runs import ONNX
from chainrule.interop.run_copies import RUN_COPY
from chainrule.interop.word2vec import WORD2VEC
from chainrule.registry import MODELS, OUTPUTS
from chainrule.types import Vocabulary


def test_the_formats_are_registered_by_name() -> None:
    assert FORMATS == {
        "arpa": ARPA,
        "hf": HUGGING_FACE,
        "word2vec": WORD2VEC,
        "ctranslate2": CTRANSLATE2,
        "onnx": ONNX,
        "run": RUN_COPY,
    }
    assert all(known.name == name and known.summary for name, known in FORMATS.items())


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("model.arpa", b"\\data\\\n", ARPA),
        ("model.arpa.gz", b"2 3\n", ARPA),  # a suffix goes before the content
        ("model.lm", b"\\data\\\n", ARPA),
        ("vectors.txt", b"2 3\nthe 1 2 3\n", WORD2VEC),
        ("vectors", b"2 3\n", WORD2VEC),
        ("empty", b"", ARPA),
    ],
)
def test_a_file_is_detected_by_suffix_or_content(name: str, content: bytes, expected: Format, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert detect_format(tmp_path / name) is expected


def test_folders_and_packages_are_of_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.arpa").mkdir()
    assert detect_format(tmp_path / "folder.arpa") is HUGGING_FACE
    package = tmp_path / "packed_model"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "config.json").write_text('{"model_type": "gpt2"}')
    monkeypatch.syspath_prepend(str(tmp_path))
    assert detect_format("packed-model") is HUGGING_FACE


def test_anything_else_is_left_to_the_arpa_reader(tmp_path: Path) -> None:
    assert detect_format(tmp_path / "missing.arpa") is ARPA
    with pytest.raises(DataError, match="there is no file, folder or installed package 'no-such-package'"):
        detect_format("no-such-package")


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError) as caught:
        import_run(tmp_path / "folder", tmp_path / "run")
    assert str(caught.value) == f"{tmp_path / 'folder'} has no config.json; give a folder saved by transformers"


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        export(tmp_path / "run", tmp_path / "file", to="arpaa")
    known = "arpa, ctranslate2, hf, onnx, run, word2vec"
    assert str(caught.value) == f"unknown format 'arpaa': did you mean 'arpa'? Known: {known}"


def test_every_family_belongs_to_a_model() -> None:
    assert list(BY_MODEL_TYPE) == [*("gpt2", "gpt_neox", "bert", "roberta", "distilbert", "t5", "marian", "pegasus")]
    assert set(BY_MODEL_TYPE.values()) == set(BY_MODEL.values())
    assert set(BY_MODEL) <= set(MODELS.names())


@pytest.mark.parametrize("name", OUTPUTS.names())
def test_output_layers_declare_whether_they_have_word_vectors(name: str) -> None:
    make = OUTPUTS.get(name).make
    layer = make(make.Config(), 4, Vocabulary(20, 0, np.arange(20)))
    assert layer.has_word_vectors == (name in ("softmax", "sampled", "nce")) == hasattr(layer, "weight_VD")
