"""``sessions``: stateful interpreters by handle. Each belongs to its opener."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from casemate.api.options import Language, SessionOptions
from casemate.errors import InvalidArgument, NotFound, QueueFull, SandboxClosed
from casemate.languages.catalogue import LANGUAGES
from casemate.model.kinds import Files, Name
from casemate.model.operation import Audience, Principal, operation
from casemate.model.options import complete, takes_options
from casemate.model.preview import Preview
from casemate.operations.lookup import FilterKey, Filters, apply_filters, match_handle
from casemate.visible import is_plain

if TYPE_CHECKING:
    from casemate.operations.shared import Shared
    from casemate.sessions.session import Session

MOST_OPEN = 100  # open sessions of one account; its callers share the limit
_SOON = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class SessionState:
    """An open session. ``session``: its handle; ``created``: in seconds since 1970; ``steps``: how many runs were
    started in it; ``is_busy``: one is running now."""

    session: str
    name: str | None
    language: str
    owner: str
    created: float
    steps: int
    is_busy: bool


_KEYS: dict[str, FilterKey[SessionState]] = {
    "status": FilterKey(lambda one: ("busy" if one.is_busy else "idle",), known=("busy", "idle")),
    "language": FilterKey(lambda one: (one.language,), known=LANGUAGES),
    "session": FilterKey(lambda one: (one.session,), begins=True),
    "name": FilterKey(lambda one: (one.name,)),
    "owner": FilterKey(lambda one: (one.owner,)),
}


@dataclass(slots=True, eq=False)
class Opened:
    session: Session
    name: str | None
    owner: str
    created: float
    steps: int = 0
    payer: str = ""

    @property
    def state(self) -> SessionState:
        session = self.session
        return SessionState(
            session.id, self.name, session.language, self.owner, self.created, self.steps, session.is_busy
        )


class SessionOperations:
    """Sessions, by handle, or by name if they have one."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._open: dict[str, Opened] = {}

    @operation(audience=Audience.AGENT)
    @takes_options(SessionOptions)
    async def open(
        self, language: Language = "python", *, principal: Principal, **options: Unpack[SessionOptions]
    ) -> SessionState:
        """Open a session: an interpreter in its own cell that keeps its state from one run to the next.

        ``language``: the language of its programs.
        """
        values = complete(SessionOptions, options, "sessions.open")
        name = values.pop("name")  # the sandbox gets none: two callers may use the same name
        self._check(name, principal)
        values["secrets"] = await self._shared.secrets_for(principal, values["secrets"])
        self._check(name, principal)
        values["limits"] = self._shared.limits_for(principal, values["limits"])
        if values["idle_timeout"] is None:
            values["idle_timeout"] = self._shared.idle_timeout
        await self._shared.sandbox._wall.prove()  # fails now, not at the first step
        session = self._shared.sandbox.session(language, **values)
        opened = self._open[session.id] = Opened(session, name, principal.name, time.time(), payer=principal.payer)
        return opened.state

    def _check(self, name: str | None, principal: Principal) -> None:
        self._shared.kept.check_open()
        own = [one for one in self._all() if one.owner == principal.name]
        if sum(one.payer == principal.payer for one in self._all()) >= MOST_OPEN:
            raise QueueFull(
                f"{MOST_OPEN} sessions of {principal.payer!r} are open already", retry_after=_SOON,
                remediation="Close some of them.",
            )  # fmt: skip
        if name is not None and (not is_plain(name) or not name or name == "new"):
            raise InvalidArgument(
                "name",
                f"{name!r} is not a printable name, or is reserved",
                remediation='Use printable characters, and not "new"; or leave it out.',
            )
        if name is not None and any(name in (one.name, one.session.id) for one in own):
            raise InvalidArgument(
                "name", f"a session called {name!r} is already open", remediation="Use that session, or another name."
            )

    @operation(audience=Audience.AGENT, while_draining=True)
    async def list(self, *, filters: Filters | None = None, principal: Principal) -> list[SessionState]:
        """The open sessions, oldest first.

        ``filters``: the values to accept for each key: status ("busy" or "idle"), language, name, owner, namespace and
        session. The beginning of a session's handle is enough.
        """
        states = [one.state for one in self._all() if principal.may_see(one.owner)]
        return apply_filters(states, filters, _KEYS, self._shared.sandbox.namespace)

    @operation(audience=Audience.AGENT, while_draining=True)
    async def close(self, session: Name, *, principal: Principal) -> None:
        """End a session and everything in it. ``session``: its handle or name."""
        opened = self.find(session, principal)
        await opened.session.close()
        self._open.pop(opened.session.id, None)

    @operation()
    async def previews(self, session: Name | None = None, *, principal: Principal) -> tuple[Preview, ...]:
        """The previews of sessions, without links. ``session``: only those of this session, by its handle or name."""
        found = [self.find(session, principal)] if session is not None else self._all()
        return tuple([preview for one in found for preview in await one.session.previews()])

    async def give(self, session: str, files: Files, principal: Principal) -> None:
        """Put files into the workspace of an open session."""
        opened = self.find(session, principal)
        for name, content in files.items():
            if isinstance(content, str | bytes | bytearray | memoryview):
                await opened.session.files.write(name, content if isinstance(content, str) else bytes(content))
            else:
                await opened.session.files.upload(content, name)

    def find(self, session: str, principal: Principal) -> Opened:
        """Find a session that the caller may see: by its handle, else by its name, else by a unique beginning of its
        handle. With equal names, the caller's session comes first. Raises ``NotFound``, and ``InvalidArgument`` if
        several handles begin with ``session``."""
        visible = [one for one in self._all() if principal.may_see(one.owner)]
        ordered = sorted(visible, key=lambda one: one.owner != principal.name)
        for one in [*(one for one in visible if one.session.id == session), *ordered]:
            if session in (one.session.id, one.name):
                return one
        handle = match_handle(session, (one.session.id for one in visible), "session", "sessions")
        if handle is not None:
            return self._open[handle]
        raise NotFound("session", f"there is no session {session[:100]!r}, or it has ended")

    def _all(self) -> tuple[Opened, ...]:
        for handle in [handle for handle, one in self._open.items() if one.session.is_closed]:
            del self._open[handle]
        return tuple(self._open.values())

    @property
    def count(self) -> int:
        """How many sessions of all callers are open."""
        return len(self._all())

    async def close_all(self) -> None:
        """End all sessions."""
        for one in self._all():
            with contextlib.suppress(SandboxClosed):
                await one.session.close()
        self._open.clear()


class Group:
    """Base class of operations that may name a session."""

    def __init__(self, shared: Shared, sessions: SessionOperations) -> None:
        self._shared = shared
        self._sessions = sessions

    def _id_of(self, session: str | None, principal: Principal) -> str | None:
        return None if session is None else self._sessions.find(session, principal).session.id
