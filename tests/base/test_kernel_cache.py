"""A kernel is compiled again when a file that its code comes from has changed."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from chainrule.base.kernel_cache import (
    FOLDER,
    PACKAGE,
    RECORD,
    discard_stale_kernels,
    importers,
    kernel_sources,
    place_kernels,
)

FILES = {
    "engines/__init__.py": "",
    "engines/inner.py": "from numba import njit\n\n@njit\ndef inner(x):\n    return x + 1\n",
    "engines/outer.py": (
        "from chainrule.engines.inner import inner\n\n@njit(cache=True)\ndef outer(x):\n    return inner(x)\n"
    ),
    "engines/caller.py": "from chainrule.engines import (\n    outer,\n)\n",
    "layers/alone.py": "import numba\n",
    "cli/main.py": "print()\n",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        (path.parent / "__pycache__").mkdir(exist_ok=True)
        (path.parent / "__pycache__" / f"{path.stem}.f-1.py311.nbi").touch()
    return tmp_path


def compiled(package: Path) -> set[str]:
    return {f"{path.parent.parent.name}/{path.name.split('.')[0]}" for path in package.rglob("*.nbi")}


def test_kernels_that_contain_changed_code_are_discarded(package: Path) -> None:
    discard_stale_kernels(package)
    assert compiled(package) == {"cli/main"}  # nothing is known of what was there before
    for name in FILES:
        path = package / name
        (path.parent / "__pycache__" / f"{path.stem}.f-1.py311.nbi").touch()
    discard_stale_kernels(package)
    everything = {name.removesuffix(".py") for name in FILES}
    assert compiled(package) == everything
    (package / "cli/main.py").write_text("print(1)\n")
    discard_stale_kernels(package)
    assert compiled(package) == everything
    (package / "engines/inner.py").write_text(FILES["engines/inner.py"].replace("1", "22"))
    discard_stale_kernels(package)
    assert compiled(package) == everything - {"engines/inner", "engines/outer", "engines/caller"}
    (package / "engines/inner.py").unlink()
    discard_stale_kernels(package)
    assert str(RECORD.name) in os.listdir(package / RECORD.parent)


def test_a_package_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    discard_stale_kernels(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


def test_kernels_are_in_the_cache_where_the_package_cannot_be_written(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numba itself ends with an error if the home cannot be written either."""
    access, cache = os.access, tmp_path / "cache"
    monkeypatch.setenv("CHAINRULE_CACHE", str(cache))

    def placed(chosen: str = "") -> str:
        monkeypatch.setenv(FOLDER, chosen)
        place_kernels(package)
        return os.environ[FOLDER]

    assert placed() == ""
    monkeypatch.setattr(os, "access", lambda path, mode: path != package and access(path, mode))
    first = placed()
    assert Path(first).parent == cache / "kernels"
    assert placed() == first
    assert placed("/chosen") == "/chosen"
    (package / "engines/inner.py").write_text("# changed")
    assert placed() != first
    monkeypatch.setenv("CHAINRULE_CACHE", str(package / "cli/main.py"))  # no folder
    removed: list[tuple[Path, int]] = []
    monkeypatch.setattr(atexit, "register", lambda call, folder, process: removed.append((folder, process)))
    temporary = Path(placed()).parent.parent
    assert removed == [(temporary, os.getpid())]
    assert temporary.is_relative_to(tempfile.gettempdir())
    temporary.rmdir()


def test_imports_between_the_real_kernels_are_found() -> None:
    sources = kernel_sources(PACKAGE)
    assert "engines/decode/vectors.py" in sources
    found = importers(sources, ["engines/decode/vectors.py"])
    assert {"engines/decode/stack_kernel.py", "engines/fused/attention.py"} <= found
    assert "engines/ngram/query_kernels.py" not in found


def test_a_changed_function_of_another_file_changes_a_kernel(tmp_path: Path) -> None:
    """The whole mechanism, with numba's own cache."""
    package = tmp_path / "chainrule"
    (package / "engines").mkdir(parents=True)
    (package / "__init__.py").touch()
    for name in ("__init__", "inner", "outer"):
        (package / f"engines/{name}.py").write_text(FILES[f"engines/{name}.py"].replace("@njit(", "@numba.njit("))
    outer = package / "engines/outer.py"
    outer.write_text("import numba\n" + outer.read_text())
    program = (
        f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
        "from pathlib import Path\n"
        "from chainrule.base.kernel_cache import discard_stale_kernels\n"
        f"discard_stale_kernels(Path({str(package)!r}))\n"
        "for name in [name for name in sys.modules if name.startswith('chainrule')]: del sys.modules[name]\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from chainrule.engines.outer import outer\n"
        "print(outer(1))\n"
    )

    def result() -> str:
        return subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.strip()

    assert result() == "2"
    inner = package / "engines/inner.py"
    inner.write_text(inner.read_text().replace("x + 1", "x + 10"))
    assert result() == "11"
