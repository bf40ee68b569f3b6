"""A sandbox whose policy opens a folder for commands and two for files, and somebody who answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.coroutines import runner

from casemate import ApprovalRequest, Decision, Sandbox

__all__ = ["runner"]


@dataclass
class Opened:
    """Makes sandboxes of one test. ``answer``: what is said, after ``meanwhile``, to what was ``asked``;
    ``refuses``: words of commands that are denied."""

    place: Path
    answer: bool | Decision = True
    asked: list[ApprovalRequest] = field(default_factory=list)
    meanwhile: Callable[[], object] = lambda: None
    refuses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("project", "data", "out"):
            (self.place / name).mkdir()

    def policy(self, *rules: dict[str, Any], **host: Any) -> dict[str, Any]:
        """What is open, with further ``rules``."""
        roots = [{"path": str(self.place / "data")}, {"path": str(self.place / "out"), "write": True}]
        return {"host": {"folder": str(self.place / "project"), "roots": roots, **host}, "rules": list(rules)}

    def sandbox(self, *rules: dict[str, Any], options: dict[str, Any] | None = None, **host: Any) -> Sandbox:
        """A sandbox with that policy."""
        return Sandbox(
            policy=self.policy(*rules, **host), approve=self._approve, audit=self.place / "audit.db", **(options or {})
        )

    def _approve(self, request: ApprovalRequest) -> bool | Decision:
        self.asked.append(request)
        self.meanwhile()
        return self.answer if not set(self.refuses) & set(request.arguments.get("argv", ())) else False


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path)
