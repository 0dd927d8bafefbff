"""The folders of runs over HTTP: leaderboard, logs, configuration; nothing outside the served folders is read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

import chainrule as cr
from chainrule.base.locks import lock
from chainrule.runs.labels import ClassifierRun, TaggerRun
from chainrule.runs.translator import TranslatorRun
from services import Service


def get(service: Service, path: str, **values: Any) -> Any:
    answer = httpx2.get(service.url + path, params=values)
    assert answer.status_code == 200, answer.text
    return answer.json()


def record(service: Service, name: str) -> dict[str, Any]:
    found = {one["name"]: one for one in get(service, "/page/api/leaderboard")["runs"]}
    return found[name]


def test_the_leaderboard_has_what_the_files_say(service: Service, runs: Path) -> None:
    found = {one["name"]: one for one in get(service, "/page/api/leaderboard")["runs"]}
    assert set(found) >= {"ngram", "lstm", "transformer", "more/translator", "more/classifier"}
    result = json.loads((runs / "lstm" / "result.json").read_text())
    lstm = found["lstm"]
    assert (lstm["model"], lstm["task"], lstm["status"]) == ("lstm", "lm", "finished")
    for name in ("parameters", "steps", "seconds", "tokens_per_second", "peak_memory"):
        assert lstm[name] == result[name]
    kept = json.loads((runs / "ngram" / "result.json").read_text())["valid"]["bits_per_byte"]
    assert found["ngram"]["valid"]["bits_per_byte"] == kept


def test_figures_on_test_data_are_shown_where_there_are_no_others(service: Service, runs: Path) -> None:
    folder = cr.load(runs / "lstm").folder
    folder.write_figures({"bits_per_byte": 2.25, "tokens": 3, "data": ["test.txt"]}, "test.json")
    try:
        found = record(service, "lstm")
        assert (found["valid"], found["tested"]) == ({"bits_per_byte": 2.25}, ["test.txt"])
        folder.write_figures({"bits_per_byte": 2.5})
        found = record(service, "lstm")
        assert (found["valid"], found["tested"]) == ({"bits_per_byte": 2.5}, [])
        (folder.path / "valid.json").unlink()
        folder.write_figures({"bits_per_byte": 2.25, "data": 3}, "test.json")
        assert record(service, "lstm")["tested"] == []
    finally:
        for name in ("test.json", "valid.json"):
            (folder.path / name).unlink(missing_ok=True)
    assert record(service, "lstm")["valid"] == {}


def test_a_run_is_measured_on_request(service: Service, runs: Path) -> None:
    assert record(service, "lstm")["valid"] == {}
    found = service.post("/page/api/measure", {"model": "lstm"}).json()
    expected: Any = cr.load(runs / "lstm")
    assert found["valid"]["bits_per_byte"] == pytest.approx(expected.validation().bits_per_byte, abs=1e-5)


def test_configuration_and_command(service: Service, runs: Path) -> None:
    found = get(service, "/page/api/run", run="lstm")
    assert found["config"] == (runs / "lstm" / "config.toml").read_text()
    assert found["command"].startswith("chainrule train ")
    assert "--model lstm" in found["command"]
    assert found["signature"]["seed"] == "1"
    assert get(service, "/page/api/run", run="mixture")["command"] is None


def test_a_log_is_read_while_it_grows(start: Callable[..., Service], runs: Path, tmp_path: Path) -> None:
    """A run that appears and is trained after the server was started."""
    served = tmp_path / "served"
    shutil.copytree(runs / "ngram", served / "ngram")
    service = start(served)
    live = served / "live"
    (live / "training").mkdir(parents=True)
    for name in ("config.toml", "signature"):
        shutil.copy(runs / "lstm" / name, live / name)
    log = live / "metrics.jsonl"
    log.write_text('{"step": 1, "loss": 2.5}\n')
    assert record(service, "live")["status"] == "stopped"
    with lock(live / "training" / "lock", live):
        assert record(service, "live")["status"] == "training"
        first = get(service, "/page/api/metrics", run="live")
        assert (first["records"], first["status"], first["restarted"]) == ([{"step": 1, "loss": 2.5}], "training", True)
        with log.open("a") as file:
            file.write('{"step": 2, "loss": NaN}\n')
        second = get(service, "/page/api/metrics", run="live", offset=first["offset"])
        assert second["records"] == [{"step": 2, "loss": None}]
        with log.open("a") as file:
            file.write("".join(json.dumps({"step": step, "loss": 1 / step}) + "\n" for step in range(3, 20_000)))
        third = get(service, "/page/api/metrics", run="live", offset=second["offset"])
        assert len(third["records"]) < 4000
        assert third["records"][-1]["step"] == 19_999
    (served / "live" / "config.toml").write_text("broken =")
    assert record(service, "live")["status"] == "damaged"
    assert record(service, "ngram")["status"] == "finished"


@pytest.mark.parametrize("name", ["../ngram", "/etc", "ngram/../ngram", "nothing", "ngram/training", ".", "a\x00b"])
def test_a_name_is_never_a_path(service: Service, name: str) -> None:
    for path in ("/page/api/run", "/page/api/metrics"):
        answer = httpx2.get(service.url + path, params={"run": name})
        assert answer.status_code == 404, answer.text
        assert answer.json()["error"]["message"].startswith("there is no run ")


@pytest.mark.parametrize("offset", ["-1", "x", "1e3", "9" * 30, "²"])
def test_a_wrong_offset_is_refused(service: Service, offset: str) -> None:
    answer = httpx2.get(service.url + "/page/api/metrics", params={"run": "lstm", "offset": offset})
    assert answer.status_code == 400
    assert "expected a number of bytes" in answer.json()["error"]["message"]
    assert httpx2.get(service.url + "/page/api/metrics").json()["error"]["message"] == "run is missing"


def test_links_out_of_the_served_folder_are_not_followed(
    start: Callable[..., Service], runs: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"step": 1, "loss": 42}\n')
    served = tmp_path / "served"
    shutil.copytree(runs / "lstm", served / "lstm")
    (served / "lstm" / "metrics.jsonl").unlink()
    os.symlink(secret, served / "lstm" / "metrics.jsonl")
    os.symlink(runs / "transformer", served / "linked")
    service = start(served)
    assert get(service, "/page/api/metrics", run="lstm")["records"] == []
    assert [one["name"] for one in get(service, "/page/api/leaderboard")["runs"]] == ["lstm"]


def test_keys_guard_the_folders(start: Callable[..., Service], runs: Path) -> None:
    guarded = start(runs / "ngram", environment={"CHAINRULE_API_KEYS": "secret"})
    for path in ("leaderboard", "run?run=ngram", "metrics?run=ngram"):
        assert httpx2.get(f"{guarded.url}/page/api/{path}").status_code == 401
        given = {"authorization": "Bearer secret"}
        assert httpx2.get(f"{guarded.url}/page/api/{path}", headers=given).status_code == 200


def test_a_translation_is_that_of_the_run(service: Service, runs: Path) -> None:
    run = cr.load(runs / "more" / "translator")
    assert isinstance(run, TranslatorRun)
    body = {"model": "more/translator", "text": "abc", "num_beams": 3}
    found = service.post("/page/api/translation", body).json()
    expected = next(run.translate_lines("abc", num_beams=3, num_return_sequences=3, trace=True))
    assert [one["text"] for one in found["translations"]] == [one.text for one in expected]
    assert found["attention"] is None  # it has none
    assert expected[0].trace is not None
    assert len(found["tree"]["nodes"]) == len(expected[0].trace.nodes)
    assert found["passes"] == expected[0].passes
    assert [one["token"] for one in found["choices"]][:-1] == expected[0].target
    prefix = found["choices"][0]["choices"][1]["token"]
    if prefix != run.tokenizer.eos:
        forced = service.post("/page/api/translation", {**body, "prefix": [prefix]}).json()
        assert forced["translations"][0]["tokens"][0] == prefix
    for wrong, message in (
        ({"text": "a\nb"}, "text has a newline; give one line"),
        ({"num_beams": 99}, "num_beams is 99; this server allows at most 16"),
        ({"mode": "nar"}, "--mode is nar, but"),
        ({"prefix": [100_000]}, "the prefix has the token 100000; expected ids"),
    ):
        answer = service.post("/page/api/translation", {**body, **wrong})
        assert (answer.status_code, answer.json()["error"]["message"][: len(message)]) == (400, message)
    assert service.post("/page/api/translation", {**body, "model": "lstm"}).status_code == 400
    assert service.post("/page/api/translation", {**body, "text": " "}).json()["tree"] is None


def test_labels_and_tags_are_those_of_the_runs(service: Service, runs: Path) -> None:
    classifier, tagger = cr.load(runs / "more" / "classifier"), cr.load(runs / "more" / "tagger")
    assert isinstance(classifier, ClassifierRun)
    assert isinstance(tagger, TaggerRun)
    found = service.post("/page/api/labels", {"model": "more/classifier", "text": "good text"}).json()
    expected = classifier.classify("good text", top=2)
    assert [one["label"] for one in found["labels"]] == [one.label for one in expected]
    assert found["attention"]["tokens"] == classifier.attention("good text").tokens
    assert found["attention"]["weights"] == pytest.approx(classifier.attention("good text").weights, abs=1e-5)
    tagged = service.post("/page/api/labels", {"model": "more/tagger", "text": "the cat sat"}).json()
    assert [one["tag"] for one in tagged["words"]] == tagger.tag("the cat sat")
    assert [sum(one["probabilities"]) for one in tagged["words"]] == pytest.approx([1] * 3, abs=1e-5)
    assert service.post("/page/api/labels", {"model": "more/tagger", "text": ""}).json()["words"] == []
    assert service.post("/page/api/labels", {"model": "lstm", "text": "x"}).status_code == 400


def test_vectors_of_words_and_texts(service: Service, runs: Path) -> None:
    run = cr.load(runs / "lstm")
    found = service.post("/page/api/vectors", {"model": "lstm", "positive": ["a", "b"], "negative": ["c"]}).json()
    expected = run.word_table.most_similar(["a", "b"], ["c"], topn=30)
    assert [one["word"] for one in found["neighbours"]] == [one.word for one in expected]
    assert {"a", "b", "c"} <= {one["label"] for one in found["map"]["points"]}
    first = service.post("/page/api/vectors", {"model": "lstm", "top": 5}).json()
    assert [one["label"] for one in first["map"]["points"]] == list(run.word_table.words[:5])
    texts = service.post("/page/api/vectors", {"model": "lstm", "texts": ["ab", "cd", "abcd"]}).json()
    assert [one["label"] for one in texts["map"]["points"]] == ["ab", "cd", "abcd"]
    for wrong, message in (
        ({"texts": ["a"], "words": ["b"]}, "the map shows texts or words; give one of them"),
        ({"positive": ["unknown"]}, "the run has no vector of the word 'unknown'"),
        ({"model": "ngram"}, "ngram"),
    ):
        answer = service.post("/page/api/vectors", {"model": "lstm", **wrong})
        assert answer.status_code in (400, 503)
        assert message in answer.json()["error"]["message"]
