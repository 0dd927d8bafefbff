"""The protocol of lm-evaluation-harness (`local-completions` with a remote tokeniser): log p of lines equals `score`.

The first test speaks the protocol as lm-eval 0.4.13 does. The second runs the program itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

import chainrule as cr
from chainrule.runs.language_model import LanguageModelRun
from requirements import need
from services import Service

MODELS = ["ngram", "lstm", "transformer", "mixture"]
SLOW = pytest.mark.slow  # the program takes ten seconds to start
LINES = ["abababab", "cdcd", "efefefefef", "ghab", "ijij", "a"]


def rolling_log_likelihoods(url: str, model: str, lines: list[str]) -> list[tuple[float, bool]]:
    """What lm-eval sends and reads: tokens by /tokenize, `eos` as the context, echo with one generated token."""
    info = httpx2.get(f"{url}/tokenizer_info", timeout=60).raise_for_status().json()

    def tokenize(text: str) -> list[int]:
        body = {"prompt": text, "add_special_tokens": False}
        tokens: list[int] = httpx2.post(f"{url}/tokenize", json=body, timeout=60).raise_for_status().json()["tokens"]
        return tokens

    context = tokenize(info["eos_token"])[:1]
    payload = {
        "model": model,
        "prompt": [context + tokenize(line) for line in lines],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    answer = httpx2.post(f"{url}/v1/completions", json=payload, timeout=60).raise_for_status().json()
    found = []
    for choice in sorted(answer["choices"], key=lambda one: one["index"]):
        log_probs = choice["logprobs"]["token_logprobs"][len(context) : -1]
        tops = choice["logprobs"]["top_logprobs"][len(context) : -1]
        greedy = all(one == max(top.values()) for one, top in zip(log_probs, tops, strict=True))
        found.append((sum(log_probs), greedy))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_log_likelihoods_of_lines_equal_score(runs: Path, start: Callable[..., Service], name: str) -> None:
    service, run = start(runs / name), cr.load(runs / name)
    assert isinstance(run, LanguageModelRun)
    found = rolling_log_likelihoods(service.url, name, [line + "\n" for line in LINES])
    assert [log_prob for log_prob, _ in found] == pytest.approx([one.log_prob for one in run.score(LINES)], abs=1e-3)
    without_end = rolling_log_likelihoods(service.url, name, LINES)
    expected = [sum(one.log_probs[:-1]) for one in run.score(LINES)]
    assert [log_prob for log_prob, _ in without_end] == pytest.approx(expected, abs=1e-3)
    assert not all(greedy for _, greedy in found)
    ids = run.tokenizer.encode("abab")
    text = httpx2.post(f"{service.url}/detokenize", json={"tokens": ids}).json()["prompt"]
    assert text == "abab"


@pytest.mark.parametrize("name", ["mixture", *(pytest.param(name, marks=SLOW) for name in MODELS if name != "mixture")])
def test_lm_eval_measures_what_score_measures(
    runs: Path, start: Callable[..., Service], tmp_path: Path, name: str
) -> None:
    need("lm-eval")
    service, run = start(runs / name), cr.load(runs / name)
    assert isinstance(run, LanguageModelRun)
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps({"text": line + "\n"}) + "\n" for line in LINES))
    (tmp_path / "lines.yaml").write_text(
        "task: lines\ndataset_path: json\n"
        f"dataset_kwargs:\n  data_files:\n    test: {tmp_path / 'lines.jsonl'}\n"
        "output_type: loglikelihood_rolling\ntest_split: test\ndoc_to_text: ''\ndoc_to_target: '{{text}}'\n"
        "metric_list:\n  - metric: byte_perplexity\n  - metric: bits_per_byte\n"
    )
    arguments = f"model={name},base_url={service.url}/v1/completions,tokenizer_backend=remote,num_concurrent=1"
    command = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments]
    command += ["--tasks", "lines", "--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")]
    subprocess.run(command, check=True, timeout=300)
    [path] = (tmp_path / "out").rglob("results*.json")
    measured = json.loads(path.read_text())["results"]["lines"]["bits_per_byte,none"]
    bits = -sum(one.log_prob for one in run.score(LINES)) / 0.6931471805599453
    assert measured == pytest.approx(bits / sum(len(line) + 1 for line in LINES), rel=1e-4)
