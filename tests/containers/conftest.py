"""Every test here has an engine if it wants one."""

from __future__ import annotations

import pytest


@pytest.fixture
def docker(any_engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sandboxes find an engine, which may be a stand-in."""
    monkeypatch.setenv("DOCKER_HOST", any_engine)
