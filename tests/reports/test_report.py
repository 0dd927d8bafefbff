"""Reports: every figure equals that of `eval`, parts add up, the same input gives the same bytes."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chainrule as cr
from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.significance import RESAMPLES, SEED
from chainrule.inference.alignment import WORD
from chainrule.reports.difference import difference
from chainrule.reports.metrics import METRICS, compare_pair, grouped
from chainrule.reports.sections.bits import FREQUENCIES, bucket_names
from chainrule.reports.text_scores import TestText as MeasuredText
from chainrule.reports.text_scores import score_text
from chainrule.text.readers import open_texts
from report_desk import SCRIPT, Desk


def section(report: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in report["sections"] if one["name"] == name)


def test_figures_are_those_of_eval(desk: Desk) -> None:
    best_first = []
    for system in desk.report.systems:
        measured = cr.load(system.run).evaluate(desk.test)
        (score,) = system.scores
        assert score.value == measured.bits_per_byte
        assert system.facts["perplexity"] == measured.perplexity
        assert (system.facts["tokens"], system.facts["unknown"]) == (measured.tokens, measured.oov)
        assert score.signature.startswith(measured.signature)
        assert system.protocol == measured.protocol
        assert score.interval is not None
        assert score.interval[0] < score.value < score.interval[1]
        best_first.append(score.value)
    assert best_first == sorted(best_first)
    shown = desk.report.markdown()
    assert all(f"{value:.4f}" in shown for value in best_first)
    assert all(f"{value:.4f}" in desk.report.html() for value in best_first)


@pytest.mark.parametrize("name", ["lstm", "ngram", "chars"])
def test_bits_of_tokens_lines_and_words_add_up_to_those_of_eval(desk: Desk, name: str) -> None:
    run, text = cr.load(desk.folder / name), MeasuredText(open_texts([desk.test]))
    scores = score_text(run, name, text)  # type: ignore[arg-type]
    whole = scores.evaluation.bits_per_byte * scores.evaluation.bytes
    assert scores.bits == pytest.approx(whole, rel=1e-12)
    bits, size = scores.line_table.sum(axis=0)
    assert (bits, size) == (pytest.approx(whole, rel=1e-12), desk.test.stat().st_size)
    assert scores.word_bits.sum() + scores.formatting_bits == pytest.approx(whole, rel=1e-12)
    assert "".join(found[0] for found in WORD.finditer(text.whole)) == text.whole
    surprise = run.surprise(text.whole)
    assert scores.bits_N.tolist() == pytest.approx([token.bits for token in surprise.tokens], rel=1e-5, abs=1e-5)
    assert scores.begins_N.tolist() == [token.begin for token in surprise.tokens]


def test_frequency_buckets_by_a_second_route(desk: Desk) -> None:
    """Words are counted and their bits summed one by one, from the tokens that `surprise` gives."""
    data = section(desk.report.to_dict(), "bits")["blocks"][0]
    assert data["title"] == "Bits per word by training frequency"
    run, text = cr.load(desk.folder / "chars"), desk.test.read_text(encoding="utf-8")
    seen = Counter(found[0].strip() or found[0] for found in WORD.finditer((desk.folder / "book.txt").read_text()))
    spans = [(found.start(), found.end(), found[0].strip() or found[0]) for found in WORD.finditer(text)]
    tokens = run.surprise(text).tokens
    names, bits, words = bucket_names(FREQUENCIES), Counter[str](), Counter[str]()
    for begin, end, word in spans:
        place = max(index for index, least in enumerate(FREQUENCIES) if seen[word] >= least)
        name = "line end" if word == "\n" else names[place]
        words[name] += 1
        bits[name] += sum(token.bits for token in tokens if begin <= token.begin < end)
    rows = {row[1]: row for row in data["rows"] if row[0] == "chars"}
    assert set(rows) == set(words)
    for name, row in rows.items():
        assert row[2] == words[name]
        assert row[3] == pytest.approx(bits[name] / words[name], rel=1e-4)


def test_intervals_and_tests_by_a_second_route(desk: Desk) -> None:
    """Resampled corpora one by one."""
    (a, *_), (b, *_) = (system.scores for system in desk.report.systems[:2])
    assert a.table_PF is not None
    assert b.table_PF is not None
    drawn = np.random.default_rng(SEED).integers(len(a.table_PF), size=(RESAMPLES, len(a.table_PF)))
    ratios = []
    for table in (a.table_PF, b.table_PF):
        ratios.append([sum(table[row, 0] for row in rows) / sum(table[row, 1] for row in rows) for rows in drawn[:200]])
    scores = [METRICS["bits_per_byte"].make().scores(one.table_PF[drawn[:200]].sum(axis=1)) for one in (a, b)]
    assert np.allclose(ratios, scores)
    whole = np.array([a.table_PF[rows].sum(axis=0) for rows in drawn])
    ordered = np.sort(whole[:, 0] / whole[:, 1])
    assert a.interval == pytest.approx((ordered[RESAMPLES // 40], ordered[-1 - RESAMPLES // 40]))
    tested = compare_pair(METRICS["bits_per_byte"], a, b)
    assert tested is not None
    assert tested.difference == b.value - a.value
    again = compare_pair(METRICS["bits_per_byte"], a, a)
    assert again is not None
    assert again.p_value == 1


def test_many_lines_are_grouped_without_changing_sums() -> None:
    table = np.arange(90_002, dtype=float).reshape(-1, 2)
    assert len(grouped(table)) <= 20_000
    assert np.allclose(grouped(table).sum(axis=0), table.sum(axis=0))


def test_the_same_input_gives_the_same_bytes(desk: Desk) -> None:
    runs = [desk.folder / name for name in ("lstm", "ngram", "chars")]
    again = cr.report(*runs, data=desk.test)
    assert again.html() == desk.report.html()
    assert again.json() == desk.report.json()
    assert again.markdown() == desk.report.markdown()


def test_the_page_is_small_and_asks_for_nothing(desk: Desk) -> None:
    page, interactive = desk.report.html(), desk.report.html(interactive=True)
    assert len(page.encode()) < 600_000
    assert len(interactive.encode()) < 2_000_000
    for one in (page, interactive):
        assert "default-src 'none'" in one.replace("&#x27;", "'")
        body = re.sub(r"<script.*?</script>", "", one, flags=re.DOTALL)
        assert not re.search(r'<[^>]*(?:src|href)="(?!#)', body)
        assert "<img" not in body
    assert page.count("<script") == 1
    assert SCRIPT.split("<img")[0].replace("<", "&lt;").replace(">", "&gt;") in page


def test_all_formats_have_all_sections(desk: Desk) -> None:
    values = json.loads(desk.report.json())
    names = ["leaderboard", "curves", "bits", "worst", "sample", "calibration", "time", "provenance"]
    assert [one["name"] for one in values["sections"]] == names
    for one in values["sections"]:
        assert f"## {one['title']}" in desk.report.markdown()
        assert f'<section id="{one["name"]}">' in desk.report.html()
    assert "<svg" in desk.report.html()
    assert "onerror" in desk.report.markdown()
    assert not re.search(r"(?<!\\)<img", desk.report.markdown())
    assert "Leaderboard" in desk.report._repr_html_()


@pytest.mark.parametrize("text", ["One line.\n", "No newline", "a\n", "Two\nlines\n", "long " * 120 + "\n"])
def test_a_report_on_a_short_text(desk: Desk, tmp_path: Path, text: str) -> None:
    (tmp_path / "short.txt").write_text(text)
    made = cr.report(desk.folder / "ngram", desk.folder / "chars", data=tmp_path / "short.txt")
    for system in made.systems:
        assert system.scores[0].value == cr.load(system.run).evaluate(tmp_path / "short.txt").bits_per_byte
    words = section(json.loads(made.json()), "sample")
    assert text.split("\n")[0].split()[0] in json.dumps(words)


def test_hard_lines_are_those_with_the_most_bits_per_byte(desk: Desk) -> None:
    table = section(desk.report.to_dict(), "worst")["blocks"][0]
    best = table["columns"][2]
    run, lines = cr.load(desk.folder / best), desk.test.read_text(encoding="utf-8").split("\n")
    rates = [row[2] for row in table["rows"]]
    assert rates == sorted(rates, reverse=True)
    for number, text, *_ in table["rows"]:
        assert lines[number - 1].startswith(text.rstrip("…"))
    assert run.config.model.name == "ngram"


def test_learning_curves_have_three_axes(desk: Desk) -> None:
    charts = section(desk.report.to_dict(), "curves")["blocks"]
    assert [one["columns"][1] for one in charts] == ["optimiser steps", "training tokens", "seconds of training"]
    log = cr.load(desk.folder / "lstm").folder.read_log()
    steps = [line["step"] for line in log if "valid_loss" in line]
    rows = {name: [row[1:] for row in charts[0]["rows"] if row[0] == name] for name in ("lstm", "ngram", "chars")}
    assert [row[0] for row in rows["lstm"]] == steps
    best = cr.load(desk.folder / "lstm").evaluate(desk.folder / "valid.txt")  # type: ignore[attr-defined]
    assert min(row[1] for row in rows["lstm"]) == pytest.approx(best.bits_per_byte, rel=1e-3)
    for name in ("ngram", "chars"):
        level = cr.load(desk.folder / name).evaluate(desk.folder / "valid.txt").bits_per_byte  # type: ignore[attr-defined]
        assert [row[1] for row in rows[name]] == [level, level]
    tokens = {line["step"]: line["tokens"] for line in log if "tokens" in line}
    assert [row[1] for row in charts[1]["rows"] if row[0] == "lstm"][-1] == tokens[20]


# Comparing reports


def test_a_difference_is_tested_on_the_same_data(desk: Desk, tmp_path: Path) -> None:
    for name in ("ngram", "chars"):
        cr.report(desk.folder / name, data=desk.test).save(json=tmp_path / f"{name}.json")
    changed = difference(tmp_path / "ngram.json", tmp_path / "chars.json")
    (row,) = changed.to_dict()["sections"][0]["blocks"][0]["rows"]
    assert row[0] == "ngram → chars"
    a, b = (desk.report.systems[place].scores[0] for place in _places(desk, "ngram", "chars"))
    direct = compare_pair(METRICS["bits_per_byte"], a, b)
    assert direct is not None
    assert row[6] == pytest.approx(direct.p_value)
    assert row[7] == ("better" if b.value < a.value else "worse") + ", significant at 5%"
    same = difference(tmp_path / "ngram.json", tmp_path / "ngram.json")
    assert same.to_dict()["sections"][0]["blocks"][0]["rows"][0][7] == "equal"
    assert "No figure" in same.markdown()


def _places(desk: Desk, *names: str) -> list[int]:
    return [[system.name for system in desk.report.systems].index(name) for name in names]


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"format": "chainrule report", "systems": [1]}', "[" * 100_000])
def test_other_files_are_no_reports(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(DataError, match="is not a report: expected a file that chainrule report --json wrote"):
        difference(path, path)


def test_mistakes(desk: Desk) -> None:
    with pytest.raises(ConfigError, match="no run was given; name the folder of at least one run"):
        cr.report()
    with pytest.raises(ConfigError, match="ngram is given twice; name each run once"):
        cr.report(desk.folder / "ngram", desk.folder / "ngram")
