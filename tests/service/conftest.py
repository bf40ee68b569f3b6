"""What every test of the service has: folders of its own, and services that end with it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.coroutines import pytest_pyfunc_call
from tests.service.daemon import ASKS, Daemon, environment, serving

__all__ = ["pytest_pyfunc_call"]


@pytest.fixture
def env() -> Iterator[dict[str, str]]:
    """The variables of a user who has nothing yet."""
    folder = Path(tempfile.mkdtemp(prefix="casemate-service-"))
    try:
        yield environment(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    """One service for all tests of a file that leave nothing behind; commands of sessions ask."""
    folder = Path(tempfile.mkdtemp(prefix="casemate-service-"))
    variables = environment(folder)
    policy = folder / "policy.json"
    policy.write_text(ASKS)
    try:
        with serving({**variables, "CASEMATE_POLICY": str(policy)}) as daemon:
            yield daemon
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def asking_env(env: dict[str, str]) -> dict[str, str]:
    """The same for one whose policy asks about commands of sessions."""
    policy = Path(env["HOME"]) / "policy.json"
    policy.write_text(ASKS)
    return {**env, "CASEMATE_POLICY": str(policy)}
