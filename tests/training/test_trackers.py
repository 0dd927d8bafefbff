"""Trackers mirror metrics.jsonl, each line once: TensorBoard for real, the others against stand-ins."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import chainrule as cr
from chainrule.checkpoint.folder import RunFolder
from chainrule.errors import ConfigError
from chainrule.text.samples.texts import english_text
from chainrule.training.trackers.mirror import Mirror, figures_of

OPTIONS: dict[str, Any] = {
    "model": "lstm",
    "tokenizer": "char",
    "progress": False,
    "settings": {
        "model": {"embedding": 8, "hidden": 8, "layers": 1},
        "training": {"log_steps": 2, "validations": 3, "save_seconds": 1000, "batch_size": 4, "length": 8},
    },
}


class FakeTracker(ModuleType):
    """What wandb, trackio and mlflow document of their calls; it remembers points by run, step and name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        self.points: list[tuple[str, int, str, float]] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.run = ""

    def init(self, **options: Any) -> None:
        self.calls.append(("init", options))
        self.run = options.get("id") or options["name"]

    def log(self, figures: dict[str, float], step: int) -> None:
        self.points += [(self.run, step, name, value) for name, value in figures.items()]

    def finish(self) -> None:
        self.calls.append(("finish", {}))

    def set_experiment(self, name: str) -> None:
        self.calls.append(("set_experiment", {"name": name}))

    def start_run(self, run_id: str | None = None, run_name: str | None = None) -> Any:
        self.calls.append(("start_run", {"run_id": run_id, "run_name": run_name}))
        self.run = run_id or "fresh"
        return SimpleNamespace(info=SimpleNamespace(run_id=self.run))

    def log_params(self, values: dict[str, str]) -> None:
        assert len(values) <= 100
        self.calls.append(("log_params", values))

    def log_metrics(self, figures: dict[str, float], step: int) -> None:
        self.log(figures, step)

    def end_run(self) -> None:
        self.calls.append(("end_run", {}))


@pytest.fixture
def book(tmp_path: Path) -> Path:
    (tmp_path / "book.txt").write_text(english_text()[:5000], encoding="utf-8")
    return tmp_path / "book.txt"


def expected(run: Path) -> list[tuple[int, str, float]]:
    """The points of metrics.jsonl."""
    return [
        (line["step"], name, value)
        for line in RunFolder(run).read_log()
        for name, value in figures_of(line).items()
        if name != "train/seconds"  # measured
    ]


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_a_resumed_training_sends_no_point_twice(name: str, book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker, out = FakeTracker(name), book.parent / "run"
    monkeypatch.setitem(sys.modules, name, tracker)
    cr.train(book, out=out, steps=6, log=name, **OPTIONS)
    cr.train(book, out=out, steps=12, log=name, **OPTIONS)
    sent = [(step, curve, value) for _, step, curve, value in tracker.points if curve != "train/seconds"]
    assert sent == expected(out)
    assert len({point[:2] for point in sent}) == len(sent)
    assert {step for step, *_ in sent} == {2, 4, 6, 8, 10, 12}
    assert len({run for run, *_ in tracker.points}) == 1
    names = [call for call, _ in tracker.calls]
    if name == "mlflow":
        assert names.count("log_params") == 1
        assert [options["run_id"] for call, options in tracker.calls if call == "start_run"] == [None, "fresh"]
        assert dict(tracker.calls)["log_params"]["model.hidden"] == "8"
    else:
        assert names == ["init", "finish"] * 2
        first, *_ = (options for call, options in tracker.calls if call == "init")
        assert first["project"] == "chainrule"
        assert first["name"] == "run"
        assert first["resume"] == "allow"
        assert first["config"]["model"]["hidden"] == 8


def test_lines_that_were_cut_and_logged_again_are_not_sent_again(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed training logs again what came after its last checkpoint."""
    tracker, out = FakeTracker("wandb"), book.parent / "run"
    monkeypatch.setitem(sys.modules, "wandb", tracker)
    cr.train(book, out=out, steps=6, log="wandb", **OPTIONS)
    folder = RunFolder(out)
    lines = folder.read_log()
    before = len(tracker.points)
    folder.cut_log(0)
    with Mirror(["wandb"], folder) as mirror:
        for line in lines:
            mirror.send(line)
        assert len(tracker.points) == before
        mirror.send({**lines[0], "step": 7})
    assert len(tracker.points) > before


def test_a_tracker_that_is_named_later_receives_the_earlier_lines(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker, out = FakeTracker("trackio"), book.parent / "run"
    monkeypatch.setitem(sys.modules, "trackio", tracker)
    cr.train(book, out=out, steps=4, **OPTIONS)
    assert not tracker.calls
    cr.train(book, out=out, steps=8, log=["trackio"], **OPTIONS)
    assert [(step, curve, value) for _, step, curve, value in tracker.points if curve != "train/seconds"] == expected(
        out
    )


def test_tensorboard_reads_each_point_once(book: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = book.parent / "run"
    for steps in (6, 12):
        cr.train(book, out=out, steps=steps, log="tensorboard", **OPTIONS)
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    read = {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}
    for name, points in read.items():
        if name != "train/seconds":
            wanted = [(step, value) for step, curve, value in expected(out) if curve == name]
            assert [step for step, _ in points] == [step for step, _ in wanted]
            assert [value for _, value in points] == pytest.approx([value for _, value in wanted], rel=1e-6)
    assert {"train/loss", "train/lr", "valid/loss"} <= set(read)


def test_word_vectors_are_tracked_too(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker, out = FakeTracker("wandb"), book.parent / "vectors"
    monkeypatch.setitem(sys.modules, "wandb", tracker)
    cr.train(book, model="word2vec", epochs=1, out=out, log="wandb", progress=False)
    assert [(step, curve, value) for _, step, curve, value in tracker.points if curve != "train/seconds"] == expected(
        out
    )


def test_a_missing_tracker_is_one_sentence(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chainrule.training.trackers.tracker.find_spec", lambda name: None)
    out = book.parent / "run"
    with pytest.raises(
        ConfigError, match=r"^--log mlflow needs the package mlflow, which is not installed: pip install mlflow$"
    ):
        cr.train(book, out=out, steps=2, log="mlflow", **OPTIONS)
    assert not out.exists()
    with pytest.raises(ConfigError, match=r"training\.log has no effect on ngram; leave it out"):
        cr.train(book, out=out, model="ngram", log="tensorboard", progress=False)
    with pytest.raises(ConfigError, match=r"training\.log\.0 = 'excel': input should be"):
        cr.train(book, out=out, log="excel", **OPTIONS)


def test_nothing_is_imported_unless_it_is_asked_for(book: Path) -> None:
    for name in ("tensorboard", "torch.utils.tensorboard", "wandb", "trackio", "mlflow"):
        sys.modules.pop(name, None)
    cr.train(book, out=book.parent / "run", steps=2, **OPTIONS)
    assert not {"torch.utils.tensorboard", "wandb", "trackio", "mlflow"} & set(sys.modules)
