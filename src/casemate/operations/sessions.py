"""``sessions``: stateful interpreters by handle, each bound to who has opened it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from casemate.api.options import Language, Name, Names, SessionOptions
from casemate.errors import InvalidArgument, NotFound, QueueFull, SandboxClosed
from casemate.execution.request import Content
from casemate.languages.catalogue import LANGUAGES
from casemate.model.operation import Audience, Between, Most, Principal, called_by, operation
from casemate.model.options import complete, takes_options
from casemate.model.preview import Preview
from casemate.model.review import Applied, Diff
from casemate.operations.lookup import FilterKey, Filters, apply_filters, match_handle
from casemate.policy.hosts import MOST_PORT
from casemate.sessions.previews import MOST_SECONDS
from casemate.sessions.protocol import Variable
from casemate.visible import is_plain

if TYPE_CHECKING:
    from casemate.operations.shared import Shared
    from casemate.sessions.session import Session

MOST_OPEN = 100  # sessions of one account, however it comes
_SOON = 10.0  # seconds
Port = Annotated[int, Between(1, MOST_PORT)]


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session that is open. ``session``: its handle; ``created`` in seconds since 1970; ``steps``: how many runs were
    begun in it; ``is_busy``: one goes on now."""

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
    """A session, and whose it is."""

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
    """Each session is found by its handle, or by its name where the caller has given it one."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._open: dict[str, Opened] = {}

    @operation(audience=Audience.AGENT)
    @takes_options(SessionOptions)
    async def open(
        self, language: Language = "python", *, principal: Principal, **options: Unpack[SessionOptions]
    ) -> SessionState:
        """Open a session: an interpreter in a cell of its own that keeps its state from one run to the next.

        ``language``: that its programs are written in.
        """
        values = complete(SessionOptions, options, "sessions.open")
        name = values.pop("name")  # it is unique among the caller's only, so the sandbox is not told
        self._check(name, principal)
        values["secrets"] = await self._shared.secrets_for(principal, values["secrets"])
        self._check(name, principal)
        values["limits"] = self._shared.limits_for(principal, values["limits"])
        if values["idle_timeout"] is None:
            values["idle_timeout"] = self._shared.idle_timeout
        await self._shared.sandbox._parts.wall.prove()  # refused here, not at the first step
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
                f"{name!r} is not a printable name, or means something else",
                remediation='Take one of printable characters that is not "new", or leave it out.',
            )
        if name is not None and any(name in (one.name, one.session.id) for one in own):
            raise InvalidArgument(
                "name", f"a session called {name!r} is open already", remediation="Use it, or take another name."
            )

    @operation(audience=Audience.AGENT)
    async def list(self, *, filters: Filters | None = None, principal: Principal) -> list[SessionState]:
        """The sessions that are open, the oldest first.

        ``filters``: only those with one of the values of each key: status ("busy" or "idle"), language, name, owner,
        namespace and session, of which the beginning is enough.
        """
        states = [one.state for one in self._all() if principal.may_see(one.owner)]
        return apply_filters(states, filters, _KEYS, self._shared.sandbox.namespace)

    @operation(audience=Audience.AGENT)
    async def close(self, session: Name, *, principal: Principal) -> None:
        """End a session and everything in it. ``session``: its handle or name."""
        opened = self.find(session, principal)
        await opened.session.close()
        self._open.pop(opened.session.id, None)

    @operation(audience=Audience.AGENT)
    async def reset(self, session: Name, *, principal: Principal) -> None:
        """Forget everything of a session but its files, and interrupt what runs. ``session``: its handle or name."""
        with called_by(principal):
            await self.find(session, principal).session.reset()

    @operation(audience=Audience.AGENT)
    async def interrupt(self, session: Name, *, principal: Principal) -> None:
        """Interrupt what runs in a session; its state is kept. ``session``: its handle or name."""
        self.find(session, principal).session.interrupt()

    @operation(audience=Audience.AGENT)
    async def diff(self, session: Name, *, principal: Principal) -> Diff:
        """What a session has changed in the service's workspace and is kept back, where its changes are reviewed.
        ``session``: its handle or name."""
        return await self.find(session, principal).session.diff()

    @operation(audience=Audience.AGENT)
    async def apply(self, session: Name, *, paths: Names | None = None, principal: Principal) -> Applied:
        """Ask for what a session has changed to be applied to the service's workspace, wait until somebody decides, and
        apply exactly what was shown: all of it, or nothing.

        ``session``: its handle or name. ``paths``: only what is changed at these, and in folders there.
        """
        with called_by(principal):
            return await self.find(session, principal).session.apply(paths)

    @operation(audience=Audience.AGENT)
    async def discard(self, session: Name, *, principal: Principal) -> None:
        """Give up what a session has changed and is kept back; its next run has a fresh interpreter. ``session``: its
        handle or name."""
        with called_by(principal):
            await self.find(session, principal).session.discard()

    @operation()
    async def expose(
        self,
        session: Name,
        port: Port,
        *,
        expires: Annotated[float, Between(1.0, MOST_SECONDS)] = 3600.0,
        unix: bool = False,
        third_parties: bool = False,
        principal: Principal,
    ) -> Preview:
        """Show the server that listens at a port of a session's loopback, on the service's machine, until the session
        ends. The answer has a link in it: whoever has that may look.

        ``session``: its handle or name. ``port``: at which a program of the session listens, or will. ``expires``:
        seconds after which the link ends. ``unix``: at a Unix socket that the service's user alone can use, instead.
        ``third_parties``: let its pages load from other hosts, and send to them, with the browser of whoever looks.
        """
        with called_by(principal):
            found = self.find(session, principal).session
            return await found.expose(port, expires=expires, unix=unix, third_parties=third_parties)

    @operation()
    async def unexpose(self, session: Name, port: Port, *, principal: Principal) -> None:
        """Show what listens at a port of a session no more: its links end. ``session``: its handle or name. ``port``:
        as it was shown."""
        with called_by(principal):
            await self.find(session, principal).session.unexpose(port)

    @operation()
    async def previews(self, session: Name | None = None, *, principal: Principal) -> tuple[Preview, ...]:
        """What is shown of sessions, without links. ``session``: only of this one, by its handle or name."""
        found = [self.find(session, principal)] if session is not None else self._all()
        return tuple([preview for one in found for preview in await one.session.previews()])

    @operation(audience=Audience.AGENT)
    async def variables(self, session: Name, *, principal: Principal) -> tuple[Variable, ...]:
        """The names that programs of a session have bound. ``session``: its handle or name."""
        return tuple(await self.find(session, principal).session.variables())

    @operation(audience=Audience.AGENT)
    async def get(self, session: Name, name: Name, *, principal: Principal) -> Any:
        """The JSON value of a variable. ``session``: the session's handle or name. ``name``: the variable's."""
        return await self.find(session, principal).session.get(name)

    @operation(audience=Audience.AGENT)
    async def set(self, session: Name, name: Name, value: Any, *, principal: Principal) -> None:
        """Bind a variable of a session. ``session``: its handle or name. ``name``: the variable's. ``value``: a JSON
        value."""
        await self.find(session, principal).session.set(name, value)

    @operation(audience=Audience.AGENT)
    async def bridge(self, name: Name, source: Name, target: Name, *, principal: Principal) -> Any:
        """Copy the value of a variable from one session to another; the answer is the value.

        ``name``: the variable's. ``source``: handle or name of the session that has it. ``target``: of that which is to
        have it.
        """
        giving, taking = self.find(source, principal), self.find(target, principal)
        value = await giving.session.get(name)
        await taking.session.set(name, value)
        return value

    async def give(
        self, session: str, files: Annotated[Mapping[str, Content], Most(10_000)], principal: Principal
    ) -> None:
        """Put files into the workspace of a session that exists."""
        opened = self.find(session, principal)
        for name, content in files.items():
            if isinstance(content, str | bytes | bytearray | memoryview):
                await opened.session.files.write(name, content if isinstance(content, str) else bytes(content))
            else:
                await opened.session.files.upload(content, name)

    def find(self, session: str, principal: Principal) -> Opened:
        """The session with this handle, or with this name among those of the caller, and then of all that it may see,
        or else the only one of these whose handle begins so. Raises ``NotFound``, also for another's, and
        ``InvalidArgument`` for the beginning of several."""
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
        """How many are open, in whoever's name."""
        return len(self._all())

    async def close_all(self) -> None:
        """End all of them."""
        for one in self._all():
            with contextlib.suppress(SandboxClosed):
                await one.session.close()
        self._open.clear()


class Group:
    """Operations of one kind, on what a namespace shares and on its sessions."""

    def __init__(self, shared: Shared, sessions: SessionOperations) -> None:
        self._shared = shared
        self._sessions = sessions

    def _id_of(self, session: str | None, principal: Principal) -> str | None:
        """The id of a session by its handle or name. Raises as :meth:`SessionOperations.find`."""
        return None if session is None else self._sessions.find(session, principal).session.id
