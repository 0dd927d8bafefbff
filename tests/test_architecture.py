"""The shape of the project: who may import whom, how long things may be, and that everything there is has its page."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import chainrule
from chainrule.cli.main import app
from chainrule.registry import MODELS

SOURCE = Path(chainrule.__file__).parent
DOCS = SOURCE.parent.parent / "docs"
FILES = sorted(SOURCE.rglob("*.py"))

BASE = {"errors", "types", "config", "registry", "files", "arrays", "machine", "graphs", "huffman"}
TABLE = {
    "text": set(),
    "data": {"text"},
    "layers": set(),
    "counting": set(),
    "vectors": set(),
    "models": {"layers", "counting", "vectors"},
    "objectives": set(),
    "training": {"data", "objectives", "runs"},
    "decoding": set(),
    "evaluation": {"text", "data", "decoding"},
    "runs": {"text", "models", "layers"},
    "interop": {"text", "models", "counting", "vectors", "runs"},
}
"""What each part may import besides the base and itself. What is not here stands above: it may import all but cli."""

INSIDE_THE_BASE = {
    "errors": set(),
    "types": set(),
    "config": {"errors"},
    "registry": {"errors"},
    "files": {"errors"},
    "arrays": {"errors", "files"},
    "machine": {"errors"},
    "graphs": set(),
    "huffman": set(),
}


def part_of(path: Path) -> str:
    """models/average.py -> models, runs.py -> runs."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported(path: Path) -> Iterator[str]:
    """The parts of this package that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("chainrule."):
                yield name.split(".")[1]


def test_every_file_imports_only_what_stands_below_it() -> None:
    wrong = []
    for path in FILES:
        part = part_of(path)
        if part == "__init__" or part == "cli":
            continue
        if part in BASE:
            allowed = INSIDE_THE_BASE[part] | {part}
        elif part in TABLE:
            allowed = BASE | TABLE[part] | {part}
        else:
            allowed = {part_of(other) for other in FILES} - {"cli", "__init__"}
        wrong += [f"{path.relative_to(SOURCE)} imports {name}" for name in imported(path) if name not in allowed]
    assert not wrong


def test_models_objectives_and_decoding_never_import_one_another() -> None:
    apart = {"models", "objectives", "decoding"}
    for path in FILES:
        if part_of(path) in apart:
            assert not set(imported(path)) & (apart - {part_of(path)}), path


def test_nothing_is_longer_than_a_sitting() -> None:
    long_files = [path.name for path in FILES if len(path.read_text(encoding="utf-8").splitlines()) >= 500]
    assert not long_files
    long_functions = [
        f"{path.name}: {node.name}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= 70
    ]
    assert not long_functions


def test_nothing_unsafe_or_unfinished() -> None:
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        for word in ("pickle.", "NotImplementedError", "except Exception", "TODO", "FIXME"):
            assert word not in text, f"{path.name} has {word}"


def test_torch_files_are_read_in_one_place_and_as_tensors_alone() -> None:
    """Whatever calls torch.load, under any name, would run what a file tells it to."""
    calls = [
        (path.relative_to(SOURCE).as_posix(), {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords})
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
    ]
    assert [(file, options["weights_only"]) for file, options in calls] == [("interop/folders.py", "True")]
    mentions = [path.name for path in FILES if "torch.load" in path.read_text(encoding="utf-8")]
    assert mentions == ["folders.py"]


def test_every_file_says_what_it_is() -> None:
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not tree.body or ast.get_docstring(tree), f"{path.relative_to(SOURCE)} has no docstring"


@pytest.mark.parametrize("name", MODELS.names())
def test_every_model_has_its_page(name: str) -> None:
    page = DOCS / "models" / f"{MODELS.get(name).about['family']}.md"
    assert page.exists(), f"docs/models has no {page.name}"
    assert f"`{name}`" in page.read_text(encoding="utf-8"), f"{page.name} does not speak of `{name}`"


@pytest.mark.parametrize("verb", [command.name for command in app.registered_commands])
def test_every_verb_has_its_page(verb: str) -> None:
    assert (DOCS / "verbs" / f"{verb}.md").exists()


def test_the_laws_hold_every_language_model() -> None:
    from builders import LANGUAGE_MODELS

    assert {entry.name for entry in MODELS.entries() if entry.about["task"] == "lm"} == set(LANGUAGE_MODELS)
