"""Ray Data: a verb over a column, by actors that load the run once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
import chainrule.ray
from requirements import need

need("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # ray leaves sockets and files to the collector


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray
    ray.shutdown()


def test_a_verb_over_a_column(ray: Any, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat\nthe dog ran\n" * 10)
    run = cr.train(text, model="ngram", tokenizer="word", out=tmp_path / "run", progress=False)
    texts = ["the cat ran", None, "a dog"]
    rows = ray.data.from_items([{"number": number, "text": text} for number, text in enumerate(texts)])
    found = chainrule.ray.map(rows, tmp_path / "run", "score", batch_size=2, oov="spell").take_all()
    found.sort(key=lambda row: row["number"])
    wanted = [run.score(text, oov="spell").log_prob if text else None for text in texts]
    assert [row["log_prob"] for row in found] == wanted
    assert [row["error"] for row in found] == [None, "expected a text, got none", None]
