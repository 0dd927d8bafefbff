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

ROOMS = (
    ("errors",),
    ("config", "types", "registry"),
    ("base",),
    ("text",),
    ("data",),
    ("engines",),
    ("layers",),
    ("models", "objectives", "decoding"),
    ("evaluation",),
    ("checkpoint",),
    ("interop",),
    ("inference",),
    ("tasks",),
    ("training",),
    ("runs",),
    ("experiments",),
    ("report",),
    ("api",),
    ("cli",),
)
"""The rooms in import order: a module imports its own room and those above, never its neighbours on the same line."""

LEVELS = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


def module_name(path: Path) -> str:
    """models/average.py -> models.average, runs/__init__.py -> runs."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def imported(path: Path) -> Iterator[str]:
    """The modules of this package that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            inside = name.removeprefix("chainrule.")
            if inside != name:
                yield inside if inside in MODULES else inside.rpartition(".")[0]


def test_the_top_level_holds_the_public_face_and_the_contract_alone() -> None:
    assert {path.stem for path in SOURCE.glob("*.py")} == {"__init__", "api", "config", "errors", "registry", "types"}
    assert {path.name for path in SOURCE.iterdir() if path.is_dir()} - {"__pycache__"} <= set(LEVELS)


def test_every_module_imports_only_its_own_room_and_those_above() -> None:
    wrong = []
    for name, path in MODULES.items():
        room = name.split(".")[0]
        for other in imported(path) if room else ():
            target = other.split(".")[0]
            if target != room and LEVELS[target] >= LEVELS[room]:
                wrong.append(f"{name} imports {other}")
    assert not wrong


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports inside functions count."""
    graph = {name: {other for other in imported(path) if other} for name, path in MODULES.items() if name}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name not in done:
            for other in sorted(graph[name] - {name}):
                visit(other, (*way, name))
            done.add(name)

    for name in graph:
        visit(name, ())


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
    assert [(file, options["weights_only"]) for file, options in calls] == [("interop/huggingface/folders.py", "True")]
    mentions = [path.name for path in FILES if "torch.load" in path.read_text(encoding="utf-8")]
    assert mentions == ["folders.py"]


def test_every_file_says_what_it_is() -> None:
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not tree.body or ast.get_docstring(tree), f"{path.relative_to(SOURCE)} has no docstring"


@pytest.mark.parametrize("name", MODELS.names())
def test_every_model_has_its_page(name: str) -> None:
    page = DOCS / "models" / f"{MODELS.get(name).family}.md"
    assert page.exists(), f"docs/models has no {page.name}"
    assert f"`{name}`" in page.read_text(encoding="utf-8"), f"{page.name} does not speak of `{name}`"


@pytest.mark.parametrize("verb", [command.name for command in app.registered_commands])
def test_every_verb_has_its_page(verb: str) -> None:
    assert (DOCS / "verbs" / f"{verb}.md").exists()


def test_the_laws_hold_every_language_model() -> None:
    from builders import LANGUAGE_MODELS

    assert {entry.name for entry in MODELS.entries() if entry.task == "lm"} == set(LANGUAGE_MODELS)
