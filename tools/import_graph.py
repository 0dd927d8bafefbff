"""Draw the import graph of the package and print its measures.

    python tools/import_graph.py                     # measures of src/chainrule
    python tools/import_graph.py TREE --dot out.dot  # of another checkout, with the graph of rooms for graphviz

Imports inside functions count. A room is a folder or a module at the top level.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PROBES = {
    "hasattr": re.compile(r"\bhasattr\("),
    "getattr with a default": re.compile(r"\bgetattr\([^()]*(?:\([^()]*\))?[^()]*,[^()]*,"),
    "isinstance on models and runs": re.compile(
        r"isinstance\([^)]*\b(?:\w*Run|LanguageModel|EncoderDecoder|Encoder|PairCorpus|TextCorpus|TaggedWords)\b"
    ),
    "about[…] of registrations": re.compile(r"\.about(?:\[|\.get\()"),
    "model: Any": re.compile(r"\bmodel: Any\b"),
}


def modules_of(root: Path) -> dict[str, Path]:
    """Module names without the package's own, and their files."""
    named = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def imports_of(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "chainrule":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("chainrule.")]
        for name in names:
            inside = name.removeprefix("chainrule.")
            yield inside if inside in modules else inside.rpartition(".")[0]


def strongly_connected(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import one another in a circle."""
    reached = {name: _reach(graph, name) for name in graph}
    groups: list[list[str]] = []
    for name in graph:
        group = sorted(other for other in reached[name] if name in reached[other])
        if len(group) > 1 and group not in groups:
            groups.append(group)
    return groups


def _reach(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for other in graph[waiting.pop()]:
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def main() -> None:
    """Print the measures; write the graph of rooms if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", nargs="?", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--dot", type=Path, help="write the graph of rooms in the format of graphviz")
    arguments = parser.parse_args()
    root = arguments.tree / "src" / "chainrule"
    modules = modules_of(root)
    graph = {name: {other for other in imports_of(path, modules) if other} - {name} for name, path in modules.items()}
    texts = {name: path.read_text(encoding="utf-8") for name, path in modules.items()}
    print(f"modules                        {len(modules)}")
    print(f"lines                          {sum(len(text.splitlines()) for text in texts.values()):,}")
    print(f"modules at the top level       {len(list(root.glob('*.py')))}")
    for group in strongly_connected(graph) or [[]]:
        print(f"modules in a cycle             {len(group)} {' '.join(group)}".rstrip())
    for what, pattern in PROBES.items():
        print(f"{what:<30} {sum(len(pattern.findall(text)) for text in texts.values())}")
    longest = sorted(((len(text.splitlines()), name) for name, text in texts.items()), reverse=True)[:5]
    print("longest files                  " + ", ".join(f"{name} {lines}" for lines, name in longest))
    if arguments.dot:
        edges = Counter(
            (name.split(".")[0], other.split(".")[0]) for name, others in graph.items() if name for other in others
        )
        lines = [f'  "{one}" -> "{other}" [label={n}];' for (one, other), n in sorted(edges.items()) if one != other]
        arguments.dot.write_text("\n".join(["digraph rooms {", *lines, "}"]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
