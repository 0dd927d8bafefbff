"""A new model is one file: its preferences are followed, it is listed, keeps the laws and trains."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_capabilities
import test_language_model_laws
import torch

import builders
import chainrule as cr
import chainrule.models
from chainrule.cli.main import main
from chainrule.config import RunConfig
from chainrule.registry import MODELS, OUTPUTS
from chainrule.tasks.presets import resolve
from chainrule.tasks.task import CorpusSize, task_of
from chainrule.training.request import make_config

SOURCE = '''
"""One head of attention over the embeddings of a window."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.models.feature_layer import FeatureLayer, LanguageModelConfig
from chainrule.models.language_model import language_model
from chainrule.types import Preferences


class GlanceConfig(LanguageModelConfig):
    """Options of a glance."""

    context: int = Field(64, ge=1, description="largest number of tokens in the window")


@language_model("glance", family="transformer")
class Glance(FeatureLayer):
    """h_t = e_t + sum of a_s e_s over s <= t, with a = softmax(e_t W e_s)."""

    Config = GlanceConfig
    prefers = Preferences(optimizer="muon", max_dropout=0.1, parallel=True, context_by_vocabulary=True)
    rewinds = True

    def __init__(self, config: GlanceConfig, embedding: nn.Embedding) -> None:
        super().__init__(config, embedding)
        self.width, self.window = config.embedding, config.context
        self.query = nn.Linear(config.embedding, config.embedding)

    def start(self, batch: int) -> Tensor:
        """No embeddings yet -> BLD."""
        return self.query.weight.new_zeros(batch, 0, self.width)

    def forward(self, embedded_BTD: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Read T more embeddings -> features BTD and all embeddings of the window BLD."""
        past_BLD = self.start(len(embedded_BTD)) if state is None else state
        seen_BLD = torch.cat([past_BLD, embedded_BTD], 1)
        scores_BTL = self.query(embedded_BTD) @ seen_BLD.transpose(1, 2)
        later_TL = torch.ones_like(scores_BTL[0], dtype=torch.bool).triu(past_BLD.shape[1] + 1)
        weights_BTL = scores_BTL.masked_fill(later_TL, -torch.inf).softmax(2)
        return embedded_BTD + weights_BTL @ seen_BLD, seen_BLD

    def rewind(self, state: Tensor, count: int) -> Tensor:
        """The window without its last `count` positions."""
        return state[:, : state.shape[1] - count]
'''


@pytest.fixture(autouse=True)
def new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A file in a folder that belongs to the package of models, for the time of a test."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "glance.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.setattr(MODELS, "_entries", dict(MODELS._entries))
    monkeypatch.setattr(MODELS, "_loaded", False)
    chainrule.models.__path__.append(str(tmp_path / "models"))
    importlib.invalidate_caches()
    yield
    chainrule.models.__path__.remove(str(tmp_path / "models"))
    if sys.modules.pop("chainrule.models.glance", None) is not None:
        delattr(chainrule.models, "glance")


def resolved(vocabulary: int, **training: float) -> RunConfig:
    config = make_config(None, {"model": {"name": "glance"}}, {"training": training})
    return resolve(config, task_of(config), CorpusSize(1_000_000, vocabulary))


def test_its_preferences_are_followed() -> None:
    config = resolved(60, epochs=20)
    assert config.training.optimizer == ("muon" if hasattr(torch.optim, "Muon") else "adamw")
    assert config.model.options["context"] == 128  # of characters
    assert config.model.options["dropout"] == 0.1
    assert (config.training.batching, config.training.length) == ("blocks", 128)
    assert resolved(8000).model.options["context"] == 64


def test_it_is_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["chainrule", "models", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    (listed,) = [entry for entry in json.loads(capsys.readouterr().out) if entry["name"] == "glance"]
    assert (listed["family"], listed["task"]) == ("transformer", "lm")


def test_it_keeps_the_laws() -> None:
    assert [case for case in builders.trained_cases() if case[0] == "glance"] == [
        ("glance", output, {}) for output in OUTPUTS.names()
    ]
    laws = [
        law
        for module in (test_language_model_laws, test_capabilities)
        for name, law in vars(module).items()
        if name.startswith("test_") and list(inspect.signature(law).parameters) == ["case"] and "depths" not in name
    ]
    assert len(laws) > 15
    for law in laws:
        if "same_text" not in law.__name__:  # for models that are counted
            with torch.set_grad_enabled("same_seed" in law.__name__):
                law(("glance", "softmax", {}))


def test_it_trains(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(builders.pairs_text(60))
    run = cr.train(text, model="glance", tokenizer="char", steps=3, embedding=8, out=tmp_path / "run")
    assert run.result["steps"] == 3
    assert run.config.training.optimizer == resolved(60).training.optimizer
    loaded = cr.load(tmp_path / "run")
    assert loaded.evaluate(text) == run.evaluate(text)  # type: ignore[attr-defined]
    assert len(loaded.generate("ab", max_new_tokens=5)[0].text) >= 2  # type: ignore[attr-defined]
