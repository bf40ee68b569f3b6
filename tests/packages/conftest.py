"""What every test of packages has: an index of its own, and a cache and a record that nobody else has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.coroutines import pytest_pyfunc_call, runner
from tests.packages.index import Index
from tests.packages.registry import Registry

import casemate.languages.python.installer
from casemate import ApprovalRequest, Sandbox

__all__ = ["pytest_pyfunc_call", "runner"]

Opened = Callable[..., Sandbox]


@pytest.fixture
def index() -> Iterator[Index]:
    """An index on loopback."""
    one = Index()
    yield one
    one.close()


@pytest.fixture
def other() -> Iterator[Index]:
    """Another index."""
    one = Index()
    yield one
    one.close()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry of npm's on loopback, which the operator's npm is set to."""
    one = Registry()
    monkeypatch.setenv("NPM_CONFIG_USERCONFIG", str(tmp_path / "npmrc"))
    (tmp_path / "npmrc").write_text(f"registry={one.url}\n")
    yield one
    one.close()


@pytest.fixture(params=["uv", "pip"])
def installer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of the two installs."""
    if request.param == "pip":
        monkeypatch.setattr(casemate.languages.python.installer, "find_uv", lambda _: None)
    return str(request.param)


@pytest.fixture
def asked() -> list[ApprovalRequest]:
    """What the approver of ``opened`` was asked."""
    return []


@pytest.fixture
def opened(
    runner: asyncio.Runner, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[ApprovalRequest]
) -> Iterator[Opened]:
    """Opens sandboxes that install from ``index``, with an approver that allows packages and remembers what it saw."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sandboxes: list[Sandbox] = []

    def approve(request: ApprovalRequest) -> bool:
        asked.append(request)
        return request.kind == "package"

    def open_sandbox(**arguments: Any) -> Sandbox:
        usual = {"audit": tmp_path / "audit.db", "package_indexes": [index.url], "approve": approve}
        sandboxes.append(Sandbox(**{**usual, **arguments}))
        return sandboxes[-1]

    yield open_sandbox
    for sandbox in sandboxes:
        runner.run(sandbox.close())
