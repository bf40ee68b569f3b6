"""The sessions of a sandbox, by id and by name."""

from __future__ import annotations

import asyncio
from typing import Any

from casemate.errors import InvalidArgument, QueueFull
from casemate.model.kinds import Name
from casemate.model.operation import Audience, operation
from casemate.sessions.session import Session
from casemate.visible import is_plain

_MOST = 5000  # open sessions
_SOON = 10.0  # seconds
_MOST_NAME = 200  # characters


class Sessions:
    def __init__(self) -> None:
        self._open: dict[str, Session] = {}

    def __len__(self) -> int:
        return sum(not session.is_closed for session in tuple(self._open.values()))

    def add(self, session: Session) -> Session:
        """Add and record a session. Raises ``InvalidArgument`` for a taken or invalid name, and ``QueueFull``."""
        _check_name(session.name)
        self._forget_closed()
        if session.name is not None and self._find(session.name) is not None:
            raise InvalidArgument("name", f"a session named {session.name!r} is open; use it or choose another name")
        if len(self._open) >= _MOST:
            raise QueueFull(f"{_MOST} sessions are open", retry_after=_SOON, remediation="Close some of them.")
        self._open[session.id] = session
        session.record_open()
        return session

    async def get(self, id_or_name: str) -> Session:
        """Return the open session with this id or name.

        Raises:
            InvalidArgument: No open session has it.
        """
        session = self._find(id_or_name)
        if session is None:
            raise InvalidArgument("id_or_name", f"no open session has the id or name {id_or_name!r}")
        return session

    async def list(self) -> list[Session]:
        """Return the open sessions, oldest first."""
        self._forget_closed()
        return list(self._open.values())

    @operation(audience=Audience.AGENT)
    async def bridge(self, name: Name, source: Session | Name, target: Session | Name) -> Any:
        """Copy a variable from one session to another, and return its value.

        Args:
            name: The name of the variable.
            source: The session to copy from, or its handle or name.
            target: The session to copy to, or its handle or name.

        Raises:
            InvalidArgument: The session or variable does not exist, or the value is not representable in JSON.
        """
        from_session = await self.get(source) if isinstance(source, str) else source
        to_session = await self.get(target) if isinstance(target, str) else target
        value = await from_session.get(name)
        await to_session.set(name, value)
        return value

    async def close(self) -> None:
        """End all sessions."""
        async with asyncio.TaskGroup() as ending:
            for session in self._open.values():
                ending.create_task(session.close())
        self._open.clear()

    def _find(self, id_or_name: str) -> Session | None:
        self._forget_closed()
        for session in self._open.values():
            if id_or_name in (session.id, session.name):
                return session
        return None

    def _forget_closed(self) -> None:
        self._open = {known: session for known, session in self._open.items() if not session.is_closed}


def _check_name(name: object) -> None:
    if name is not None and (not isinstance(name, str) or not is_plain(name) or not 0 < len(name) <= _MOST_NAME):
        raise InvalidArgument("name", f"{name!r} is not a printable name of 1 to {_MOST_NAME} characters")
