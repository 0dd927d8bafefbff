"""The structure of the project: the direction of imports, lengths, shapes, registries, and a page for everything."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import chainrule
from chainrule.cli.main import app
from chainrule.registry import FITTINGS, MODELS, OBJECTIVES, OUTPUTS, RUNS, TASKS, TOKENIZERS

SOURCE = Path(chainrule.__file__).parent
DOCS = SOURCE.parent.parent / "docs"
FILES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}

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
    ("distributed",),
    ("reports",),
    ("server",),
    ("api", "kenlm"),
    ("sklearn", "spark", "ray"),
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
    for node in ast.walk(TREES[path]):
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
    assert {path.stem for path in SOURCE.glob("*.py")} == {
        "__init__",
        "api",
        "config",
        "errors",
        "kenlm",
        "ray",
        "registry",
        "sklearn",
        "spark",
    }
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


def functions() -> Iterator[tuple[Path, ast.FunctionDef]]:
    """Every function and method with its file."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                yield path, node


# Lengths


def test_files_and_functions_are_short() -> None:
    """The options of a command are its signature, so only bodies are measured."""
    lengths = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8").count("\n") for path in FILES}
    assert not {name for name, length in lengths.items() if length > 360}
    long = []
    for path, node in functions():
        body = node.body[1:] if ast.get_docstring(node) else node.body
        if body and (node.end_lineno or 0) - body[0].lineno >= 55:
            long.append(f"{path.name}: {node.name}")
    assert not long


# Safety


def test_nothing_unsafe_or_unfinished() -> None:
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        for word in ("pickle.", "NotImplementedError", "except Exception", "TODO", "FIXME"):
            assert word not in text, f"{path.name} has {word}"


def test_torch_files_are_read_in_one_place_and_only_as_tensors() -> None:
    """Without `weights_only`, torch.load would execute code from the file."""
    calls = [
        (path.relative_to(SOURCE).as_posix(), {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords})
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
    ]
    assert [(file, options["weights_only"]) for file, options in calls] == [("interop/huggingface/folders.py", "True")]
    mentions = [path.name for path in FILES if "torch.load" in path.read_text(encoding="utf-8")]
    assert mentions == ["folders.py"]


# Declared, not probed

PROBES = {
    "base/devices.py": "os.sched_getaffinity is missing on some systems",
    "engines/ngram/scratch.py": "mmap.MADV_DONTNEED is missing on some systems",
    "registry.py": "nodes of a syntax tree have different attributes",
    "runs/base.py": "the error for a missing verb looks for the classes that have it",
    "tasks/presets.py": "older versions of torch have no Muon",
    "text/samples/labels.py": "members of the standard library may lack a docstring",
    "text/tokenizers/huggingface.py": "models of the library tokenizers have different attributes",
    "training/optimizers.py": "older versions of torch have no Muon",
    "types/states.py": "states hold named tuples and tensors, recognised without importing torch",
}
"""The only files that ask an object for an attribute it may lack, and why. Models and runs declare theirs."""


def test_attributes_are_declared_not_probed() -> None:
    probing = {
        path.relative_to(SOURCE).as_posix()
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and (node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) > 2))
    }
    assert probing == set(PROBES)


# Shapes


def legend() -> set[str]:
    """The letters that the contract explains."""
    text = ast.get_docstring(TREES[SOURCE / "types" / "__init__.py"], clean=False) or ""
    return set(re.findall(r"^    ([A-Z])  \S", text, re.MULTILINE))


def names_in(tree: ast.AST) -> Iterator[str]:
    """Names of variables, parameters and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute):
            yield node.attr


def test_shape_letters_are_those_of_the_legend() -> None:
    letters = legend()
    assert {"B", "T", "D", "V"} <= letters
    unknown = {
        f"{path.name}: {name}"
        for path, tree in TREES.items()
        for name in names_in(tree)
        if (suffix := re.fullmatch(r"_?[a-z]\w*_([A-Z0-9]+)", name))
        and not set(re.sub(r"\d", "", suffix[1])) <= letters
    }
    assert not unknown


def test_there_is_one_legend_of_shapes() -> None:
    assert [path.name for path in FILES if re.search(r"\b(Legend|Shapes):", path.read_text(encoding="utf-8"))] == []


def test_every_forward_states_its_shapes() -> None:
    """In the names of its parameters, by a record whose fields have shapes, or in words."""
    silent = []
    for path, node in functions():
        parameters = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        if node.name != "forward" or parameters[0].arg == "ctx":  # of a torch.autograd.Function
            continue
        kinds = {ast.unparse(one.annotation) for one in parameters if one.annotation is not None}
        named = any(re.search(r"_[A-Z0-9]+$", one.arg) for one in parameters) or kinds & {"Batch", "Source"}
        if not named and not re.search(r"\bshape\b|\b\d?[A-Z]{1,5}(?=[,.;)]|$)", ast.get_docstring(node) or ""):
            silent.append(f"{path.name}: {ast.unparse(node.args)}")
    assert not silent


# Documentation


def test_every_file_has_a_docstring() -> None:
    for path, tree in TREES.items():
        assert not tree.body or ast.get_docstring(tree), f"{path.relative_to(SOURCE)} has no docstring"


@pytest.mark.parametrize("name", MODELS.names())
def test_every_model_has_its_page(name: str) -> None:
    page = DOCS / "models" / f"{MODELS.get(name).family}.md"
    assert page.exists(), f"docs/models has no {page.name}"
    assert f"`{name}`" in page.read_text(encoding="utf-8"), f"{page.name} does not describe `{name}`"


@pytest.mark.parametrize("verb", [command.name for command in app.registered_commands])
def test_every_verb_has_its_page(verb: str) -> None:
    assert (DOCS / "verbs" / f"{verb}.md").exists()


def test_every_room_is_listed_for_contributors() -> None:
    text = (DOCS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    places = [text.find(f"`{room}/`" if (SOURCE / room).is_dir() else f"`{room}`") for rooms in ROOMS for room in rooms]
    assert -1 not in places


# Registries


def test_every_task_has_a_run_class_or_prepares_the_data_of_an_objective() -> None:
    of_models = {entry.task for entry in MODELS.entries()}
    of_objectives = {entry.task for entry in OBJECTIVES.entries() if entry.task}
    assert of_models == set(RUNS.names())
    assert of_models | of_objectives == set(TASKS.names())


def test_every_way_of_fitting_is_used() -> None:
    assert {entry.fitting for entry in MODELS.entries()} == set(FITTINGS.names())


def test_what_is_read_from_the_sources_is_what_is_registered() -> None:
    """Help texts list names without importing anything."""
    for registry in (TOKENIZERS, OUTPUTS, OBJECTIVES):
        assert registry.peek_names() == registry.names()
    fields = ("name", "family", "task", "counterpart", "objective", "fitting", "kind")
    for registry in (MODELS, TASKS):
        peeked, registered = registry.peek(), registry.entries()
        assert len(peeked) == len(registered)
        for one, other in zip(peeked, registered, strict=True):
            assert [getattr(one, field) for field in fields] == [getattr(other, field) for field in fields]


def test_the_laws_cover_every_language_model_and_translator() -> None:
    from builders import CASES

    assert {case[0] for case in CASES} == {
        entry.name for entry in MODELS.entries() if entry.task in ("lm", "translation")
    }
