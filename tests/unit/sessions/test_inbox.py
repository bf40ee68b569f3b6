"""What an interpreter says before its cell is known to the session."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from casemate.sessions import inbox


class Cell:
    def __init__(self) -> None:
        self.killed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def kill(self, reason: str) -> None:
        self.killed.set_result(reason)


async def test_an_interpreter_that_ends_at_once_ends_its_cell_and_not_the_thread_that_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbox, "_DEAF_GRACE", 0)
    one, cell = inbox.Inbox(), Cell()
    one.interpreter_closed()  # the thread that reads was faster than the one that opened the cell
    known: Any = cell
    one.cell = known
    assert await cell.killed == "deaf"
