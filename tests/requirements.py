"""What some tests need and not every machine has: a browser, a JRE, lm-eval.

A test whose need is missing is skipped. Where CHAINRULE_REQUIRED names the need, as in CI, the test fails instead.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")


def _installed(*modules: str) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in modules)


AXE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "chainrule-tests/node_modules/axe-core/axe.min.js")
"""The accessibility checker; `.ci/run` installs it with npm."""

NEEDS = {
    "axe": (AXE.is_file(), f"the npm package axe-core in {AXE.parent.parent.parent}"),
    "browser": (CHROMIUM is not None and _installed("playwright"), "chromium and the package playwright"),
    "spark": (shutil.which("java") is not None and _installed("pyspark"), "a JRE 17 and the package pyspark"),
    "lm-eval": (_installed("lm_eval", "tenacity"), "the package lm-eval[api]"),
    "ray": (_installed("ray"), "the package ray"),
    "export": (_installed("ctranslate2", "onnx", "onnxscript", "onnxruntime"), "the extra chainrule[export]"),
}


def need(name: str) -> None:
    """Skip the test, or its module, if something it needs is missing; where that is required, fail."""
    there, what = NEEDS[name]
    if there:
        return
    if name in os.environ.get("CHAINRULE_REQUIRED", "").split():
        pytest.fail(f"CHAINRULE_REQUIRED names {name}, but {what} is missing", pytrace=False)
    pytest.skip(f"needs {what}", allow_module_level=True)
