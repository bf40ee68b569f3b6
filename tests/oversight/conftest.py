"""An event loop and a sandbox for each file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.coroutines import runner

from casemate import Limits, Sandbox

__all__ = ["runner"]


@pytest.fixture(scope="module")
def sandbox(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One sandbox for all tests of a file."""
    one = Sandbox(audit=tmp_path_factory.mktemp("audit") / "audit.db", limits=Limits(wall=120))
    try:
        yield one
    finally:
        runner.run(one.close())
