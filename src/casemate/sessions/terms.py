"""What a session was opened with, and what is asked of it, checked for form and bounded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from casemate.errors import InvalidArgument
from casemate.execution.admit import Admitted
from casemate.execution.request import check_timeout, code_of, metadata_of, stdin_of
from casemate.model.request import Request

_MOST_NAME = 200  # characters
_MOST_STDIN = 4 << 20  # bytes; it travels in a frame of 16 MiB, escaped


@dataclass(frozen=True, slots=True)
class Terms:
    """What a session was opened with. ``admitted``: its request, whose code is its interpreter, and its limits.

    ``cwd``: where its steps begin; with ``restore_cwd`` each of them, else the first. ``idle_timeout`` and ``lifetime``
    in seconds.
    """

    name: str | None
    admitted: Admitted
    cwd: str | None
    restore_cwd: bool
    idle_timeout: float | None
    lifetime: float | None

    @property
    def language(self) -> str:
        return self.admitted.request.language

    def check_name(self, name: object) -> None:
        """The name of a variable. Raises ``InvalidArgument``."""
        plain = name.replace("$", "_") if isinstance(name, str) and self.language == "node" else name
        if not isinstance(plain, str) or not plain.isidentifier() or len(plain) > _MOST_NAME:
            raise InvalidArgument("name", f"{str(name)[:_MOST_NAME]!r} is not the name of a variable")

    def step(
        self,
        code: str | bytes,
        timeout: float | None,
        stdin: str | bytes | None,
        metadata: Mapping[str, Any] | None,
    ) -> Request:
        """The request for a step. Raises ``InvalidArgument``."""
        given = stdin_of(stdin, _MOST_STDIN)
        if self.language == "shell" and b"\0" in given:
            raise InvalidArgument("stdin", "bash cannot hold NUL bytes: give them to a Shell session as a file")
        return replace(
            self.admitted.request,
            id=os.urandom(16).hex(),
            code=code_of(code),
            timeout=check_timeout(timeout),
            stdin=given,
            has_stdin=stdin is not None,
            metadata={**self.admitted.request.metadata, **metadata_of(metadata)},
            session=self.admitted.request.id,
        )

    def deadline(self, request: Request) -> float:
        """Seconds that a step has."""
        wall = self.admitted.limits.wall
        return wall if request.timeout is None else min(wall, request.timeout)
