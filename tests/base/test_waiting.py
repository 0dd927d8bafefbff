"""The waiting policy of threads is set unless the user has one."""

from __future__ import annotations

import os

import pytest

from chainrule.base.waiting import SPIN_COUNT, set_wait_policy


def test_threads_sleep_soon_unless_the_user_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    set_wait_policy()
    assert os.environ["GOMP_SPINCOUNT"] == SPIN_COUNT
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    set_wait_policy()
    assert os.environ["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    set_wait_policy()
    assert "GOMP_SPINCOUNT" not in os.environ
