"""What all tests share: one thread, as small models want it, and a cache of tokens that is thrown away."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported; also for the processes that tests start

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def surroundings() -> Iterator[None]:
    """Tokens are kept in a folder of this test run alone."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache, pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHAINRULE_CACHE", cache)
        yield
