"""A session's options, the requests of its steps, and its idle timeout and lifetime."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from casemate.errors import InvalidArgument, SandboxClosed
from casemate.execution.admit import AdmittedRequest, deadline_of
from casemate.execution.request import check_timeout, code_of, metadata_of, stdin_of, turn_terms
from casemate.languages.catalogue import runtime_for
from casemate.model.plan import Request

StepSlot = Callable[..., AbstractAsyncContextManager[None]]  # arguments: request, session lock, is_alive
_MOST_NAME = 200  # characters
_MOST_STDIN = 4 << 20  # bytes; it travels in a frame of 16 MiB, escaped


@dataclass(frozen=True, slots=True)
class SessionTerms:
    name: str | None
    admitted: AdmittedRequest  # its code is the interpreter
    cwd: str | None  # where the first step starts
    restore_cwd: bool  # every step starts in `cwd`
    idle_timeout: float | None  # seconds
    lifetime: float | None  # seconds

    @property
    def language(self) -> str:
        return self.admitted.request.language

    @property
    def namespace(self) -> str:
        return self.admitted.request.namespace

    def check_name(self, name: object) -> None:
        """Check the name of a variable. Raises ``InvalidArgument``."""
        if not isinstance(name, str) or not runtime_for(self.language).is_variable(name) or len(name) > _MOST_NAME:
            raise InvalidArgument("name", f"{str(name)[:_MOST_NAME]!r} is not the name of a variable")

    def make_request(
        self,
        code: str | bytes,
        timeout: float | None,
        stdin: str | bytes | None,
        metadata: Mapping[str, Any] | None,
        **turn: Any,
    ) -> Request:
        """Return the request for a step. ``turn``: see `turn_terms`. Raises ``InvalidArgument``."""
        stdin_bytes = stdin_of(stdin, _MOST_STDIN)
        if b"\0" in stdin_bytes and not runtime_for(self.language).holds_nul:
            raise InvalidArgument("stdin", f"{self.language} cannot hold NUL bytes: give them to its session as a file")
        seconds = check_timeout(timeout)
        deadline_of(self.admitted.limits, seconds)  # raises if the limits do not allow it
        return replace(
            self.admitted.request,
            id=os.urandom(16).hex(),
            code=code_of(code),
            timeout=seconds,
            stdin=stdin_bytes,
            has_stdin=stdin is not None,
            metadata={**self.admitted.request.metadata, **metadata_of(metadata)},
            session=self.admitted.request.id,
            turn=turn_terms(**turn),
        )

    def deadline(self, request: Request) -> float:
        """Seconds that a step may take."""
        return deadline_of(self.admitted.limits, request.timeout)


class Lifetime:
    """Calls ``on_end`` with "idle_timeout" or "lifetime". The first when the session is unused for ``idle`` seconds;
    the second ``total`` seconds after its creation, once no call uses it. The timers start after the first use."""

    def __init__(self, idle: float | None, total: float | None, on_end: Callable[[str], None]) -> None:
        self.began = self.last_used = time.monotonic()  # seconds on the monotonic clock
        self._idle = idle
        self._end = None if total is None else time.monotonic() + total
        self._on_end = on_end
        self._users = 0
        self.close_reason = ""  # why the session ended
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the session from expiring meanwhile. Raises ``SandboxClosed``."""
        if not self._users and self._end is not None and time.monotonic() > self._end:
            self._on_end("lifetime")
        self.check_open()
        self._users += 1
        self._stop_timer()
        try:
            yield
        finally:
            self._users -= 1
            self.restart_idle()

    def restart_idle(self) -> None:
        """Restart the idle time."""
        self.last_used = time.monotonic()
        self._stop_timer()
        if self._users or self.close_reason:
            return
        times = [] if self._idle is None else [(self._idle, "idle_timeout")]
        if self._end is not None:
            times.append((max(0.0, self._end - time.monotonic()), "lifetime"))
        if times:
            self._timer = asyncio.get_running_loop().call_later(min(times)[0], self._on_end, min(times)[1])

    def end(self, why: str) -> None:
        """Mark the session as ended. The first reason stays."""
        self.close_reason = self.close_reason or why
        self._stop_timer()

    def check_open(self) -> None:
        """Raise ``SandboxClosed`` if the session has ended."""
        if self.close_reason:
            raise SandboxClosed(self.close_reason)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
