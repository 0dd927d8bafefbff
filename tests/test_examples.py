"""The examples run unchanged in an empty folder and do what they describe."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chainrule.config import parse
from chainrule.registry import MODELS, OUTPUTS
from chainrule.types import OutputChoice, Vocabulary

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder, and a registry that forgets what an example adds to it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    MODELS.names()
    before = dict(MODELS._entries)
    yield
    MODELS._entries.clear()
    MODELS._entries.update(before)


def run(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def numbers(pattern: str, text: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, text)]


def test_quickstart(capsys: pytest.CaptureFixture[str]) -> None:
    out = run("quickstart", capsys)
    (bits,) = numbers(r"^([\d.]+) bits per byte", out)
    assert 1.0 < bits < 4.5  # the unigram entropy of the text is 4.6 bits
    (english,), (noise,) = numbers(r"English (-[\d.]+)", out), numbers(r"noise (-[\d.]+)", out)
    assert english > noise
    assert out.count("'The ") == 2


def test_compare_models(capsys: pytest.CaptureFixture[str]) -> None:
    out = run("compare_models", capsys)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in out.splitlines() if line.startswith("| ")]
    assert {row[0].partition("(")[0] for row in rows[2:]} == {
        "ngram",
        "average",
        "feedforward",
        "lstm",
        "lstm:hierarchical",
        "mixture of the best two kinds",
    }
    bits = [float(row[5]) for row in rows[2:]]
    assert bits == sorted(bits)
    assert 1.0 < bits[0] < 4.8


def test_count_and_mix(capsys: pytest.CaptureFixture[str]) -> None:
    out = run("count_and_mix", capsys)
    weights = numbers(r"(?:ngram|lstm|cache) ([\d.]+)", out)
    assert len(weights) == 3
    assert min(weights) > 0.02  # each of them helps
    assert sum(weights) == pytest.approx(1, abs=2e-3)
    perplexity = dict(re.findall(r"^(\w+) +perplexity ([\d.]+)", out, re.MULTILINE))
    assert float(perplexity["mixture"]) < min(float(perplexity["trigram"]), float(perplexity["lstm"]))
    assert numbers(r"read again: perplexity ([\d.]+)", out) == [float(perplexity["trigram"])]
    assert numbers(r"(\d+) bytes of ARPA", out) == [Path("trigram.arpa").stat().st_size]


def test_vanishing_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    out = run("vanishing_gradients", capsys)
    short, long = numbers(r"([\d.e+-]+) after 7 steps", out), numbers(r"([\d.e+-]+) after 100 steps", out)
    vanishing, exploding, closed, opened = long
    assert vanishing < closed < 1e-6  # an untrained forget gate is half closed
    assert exploding > 1e4
    assert 0.1 < opened < 10
    assert short[0] < 0.2 < short[3]
    picture = Path("vanishing_gradients.svg").read_text(encoding="utf-8")
    assert picture.count('aria-label="k, steps back: ') == 4 * 12 + 4  # the points and the lines


def test_token_bits(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["token_bits.py"])
    out = run("token_bits", capsys)
    unigram, fivegram = numbers(r"([\d.]+) bits", out)
    assert fivegram < 0.7 * unigram
    drawn = Path("token_bits.svg").read_text(encoding="utf-8")
    cells = [float(bits) for bits in re.findall(r">(\d+\.\d)</text>", drawn)]
    row = len(cells) // 2 - 1
    assert cells[-2:] == pytest.approx([unigram, fivegram], abs=0.11)
    for figures, total in ((cells[:row], unigram), (cells[row:-2], fivegram)):
        assert sum(figures) == pytest.approx(total, abs=0.05 * len(figures) + 0.1)  # one decimal each


def test_translate_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    out = run("translate_numbers", capsys)
    (right,) = numbers(r"exact match (\d+)%", out)
    assert right >= 60
    translated = dict(re.findall(r"^'(.*)' -> '(.*)', then", out, re.MULTILINE))
    assert list(translated) == ["二百零七", "1987年3月3日", "", "下午三点半"]
    assert translated[""] == ""
    assert sum(translated[phrase] == meant for phrase, meant in MEANT.items()) >= 2
    looked = [line.split("\t") for line in out.splitlines() if "\t" in line]
    assert "".join(piece for piece, _ in looked[:-1]) == translated["1987年3月3日"]
    assert {place for _, place in looked[:-1]} <= {*"1987年3月3日", "<eos>"}


MEANT = {"二百零七": "207", "1987年3月3日": "1987-03-03", "下午三点半": "15:30"}


def test_compress_text(capsys: pytest.CaptureFixture[str]) -> None:
    out = run("compress_text", capsys)
    (reported,), (written,) = numbers(r"reports +([\d.]+)", out), numbers(r"has +([\d.]+)", out)
    assert 0 < written - reported < 160 * 8 / 12_000  # a header, checksums and rounding
    assert out.splitlines()[-1] == "identical"
    assert Path("back.txt").read_bytes() == Path("test.txt").read_bytes()


def test_chinese_poems(capsys: pytest.CaptureFixture[str]) -> None:
    out = run("chinese_poems", capsys).splitlines()
    assert [line.split()[0] for line in out] == ["char", "jieba", "bpe"]
    characters, words, subwords = ([int(number) for number in re.findall(r"(\d+) (?:tokens|unknown)", s)] for s in out)
    unseen = Path("unseen.txt").read_text(encoding="utf-8")
    assert characters[0] == len(unseen)  # a character or a newline a token
    assert words[0] < characters[0]
    known = set(Path("poems.txt").read_text(encoding="utf-8"))
    assert characters[1] == sum(letter not in known for letter in unseen)
    assert subwords[1] == 0
    assert "白 日 依 山 盡 ， 黃 河 入 海 流 。" in out[0]
    assert all(1.0 < bits < 8.0 for bits in numbers(r"([\d.]+) bits per byte", "\n".join(out)))


def test_add_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    out = run("add_a_model", capsys)
    (bits,) = numbers(r"([\d.]+) bits per byte", out)
    assert 1.0 < bits < 4.5
    model = small_model("moving-average")
    tokens_BT = torch.randint(0, 11, (3, 9), generator=torch.Generator().manual_seed(1))
    check_laws(model, tokens_BT)


def small_model(name: str) -> Any:
    """A registered model over 11 tokens, freshly initialised."""
    make, layer = MODELS.get(name).make, OUTPUTS.get("softmax").make
    torch.manual_seed(1)
    vocabulary = Vocabulary(11, 1, np.arange(1, 12))
    config = parse(make.Config, {"embedding": 6, "hidden": 5})
    return make(config, vocabulary, OutputChoice(layer, layer.Config())).eval()


@torch.no_grad()
def check_laws(model: Any, tokens_BT: torch.Tensor) -> None:
    """Normalised, causal, chained steps equal to parallel scores, rows independent, `select` permutes."""
    scored_BT = model.log_probs(tokens_BT)
    state, token_B, steps = model.start(len(tokens_BT)), torch.full((len(tokens_BT),), model.eos), []
    for next_B in tokens_BT.unbind(1):
        log_probs_BV, state = model.step(state, token_B)
        torch.testing.assert_close(log_probs_BV.exp().sum(1), torch.ones(len(tokens_BT)))
        steps.append(log_probs_BV.gather(1, next_B[:, None])[:, 0])
        token_B = next_B
    torch.testing.assert_close(torch.stack(steps, 1), scored_BT)
    changed_BT = tokens_BT.clone()
    changed_BT[:, -1] = (changed_BT[:, -1] + 1) % model.vocab_size
    torch.testing.assert_close(model.log_probs(changed_BT)[:, :-1], scored_BT[:, :-1])
    torch.testing.assert_close(model.log_probs(tokens_BT[1:2]), scored_BT[1:2])
    rows_K = torch.tensor([2, 0])
    chosen_KV, _ = model.step(model.select(state, rows_K), token_B[rows_K])
    torch.testing.assert_close(chosen_KV, model.step(state, token_B)[0][rows_K])


def test_match_answers(capsys: pytest.CaptureFixture[str]) -> None:
    out = run("match_answers", capsys)
    ((accuracy, majority),) = re.findall(r"accuracy ([\d.]+), majority class ([\d.]+)", out)
    assert float(accuracy) > float(majority) + 0.1
    assert "best checkpoint at step" in out


def test_classify_text(capsys: pytest.CaptureFixture[str]) -> None:
    out = run("classify_text", capsys)
    (accuracy,) = numbers(r"accuracy +([\d.]+)", out)
    assert accuracy > 0.35  # of eight topics
    assert "true \\ predicted" in out
