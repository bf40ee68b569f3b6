"""A sandbox with a server that writes down what it is asked, for each test."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from casemate import Sandbox

SERVER = Path(__file__).with_name("witness_server.py")


@dataclass(frozen=True)
class Witness:
    """What a server was asked, as the host sees it."""

    log: Path

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """Names and arguments of the calls that reached it, in order."""
        return [row for row in self._rows() if row[0] != "cancelled"]

    @property
    def is_cancelled(self) -> bool:
        """Whether it was told that a request is not waited for any more; also of one that is no call."""
        return any(row[0] == "cancelled" for row in self._rows())

    def _rows(self) -> list[tuple[str, dict[str, Any]]]:
        if not self.log.exists():
            return []
        return [tuple(json.loads(line)) for line in self.log.read_text().splitlines()]

    @property
    def definition(self) -> dict[str, Any]:
        """How it is started."""
        return {"command": sys.executable, "args": [str(SERVER), str(self.log)]}


Opened = Callable[..., AbstractAsyncContextManager[Sandbox]]


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    return Witness(tmp_path / "calls")


@pytest.fixture
def opened(witness: Witness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Opens a sandbox that has the server as ``w``. Servers that cells add work in the folder of this process, which is
    looked through for what is to be hidden from them: an empty one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    @asynccontextmanager
    async def open_one(**arguments: Any) -> AsyncIterator[Sandbox]:
        async with Sandbox(audit=tmp_path / "audit.db", **arguments) as sandbox:
            await sandbox.tools.add("w", witness.definition)
            yield sandbox

    return open_one
