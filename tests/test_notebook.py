"""The notebook of the examples runs from its first cell to its last, and shows what it promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

TOUR = Path(__file__).resolve().parent.parent / "examples" / "tour.ipynb"


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    import nbformat
    from nbclient import NotebookClient

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tour")))
        book = nbformat.read(TOUR, as_version=4)
        NotebookClient(book, timeout=600, kernel_name="python3").execute()
    return [cell for cell in book.cells if cell.cell_type == "code"]


def shown(cells: list[Any], code: str) -> str:
    """The HTML, or else the text, of the cell that ends with some code."""
    cell = next(cell for cell in cells if cell.source.endswith(code))
    data = cell.outputs[-1].get("data") or {"text/plain": cell.outputs[-1]["text"]}
    return str(data.get("text/html") or data["text/plain"])


def test_every_result_shows_itself(cells: list[Any]) -> None:
    assert "<td" in shown(cells, "ngram.evaluate(test)")
    assert "ngram(order=5)" in shown(cells, "rows")
    for model in ("ngram", "transformer"):
        assert "rgba(213, 94, 0" in shown(cells, f"{model}.surprise(sentence)")
    assert "bits of" in shown(cells, "transformer.surprise(sentence)])")
    assert "rgba(0,114,178" in shown(cells, 'transformer.attention("The value of the argument")')
    report = shown(cells, "\nreport")
    assert "Leaderboard" in report
    assert "95% interval" in report
    assert " kB in " in shown(cells, "{folder / 'report.html'}\")")


def test_the_notebook_is_stored_without_outputs() -> None:
    """So that it does not go stale, and differences are readable."""
    book = json.loads(TOUR.read_text(encoding="utf-8"))
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
