"""Who calls a tool, each call of one, and how calls reach the operations.

Sessions and runs are bound to a caller's name, so the name decides what a handle opens: over stdio it is random and of
the process; over HTTP it is that of the token, and of the MCP session where the protocol has any (before 2026-07-28).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from casemate.errors import CasemateError, InvalidArgument

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp_types import CallToolRequestParams
    from starlette.requests import Request

    from casemate.operations.operations import Operations


class Refused(CasemateError):
    """A tool cannot do what was asked for; the message is for the model."""

    kind = "refused"


@dataclass(frozen=True, slots=True)
class Resumed:
    """A call that was answered with questions, and comes back: ``work`` is what waits for them; ``asked`` has the hash
    of what was shown for each question's id; ``progress``: how far was counted."""

    work: str
    asked: Mapping[str, str]
    progress: int

    def as_text(self) -> str:
        """As text that the client hands back; the server's middleware seals it."""
        return json.dumps({"work": self.work, "asked": dict(self.asked), "progress": self.progress})


@dataclass(slots=True, eq=False)
class Call:
    """``context``: the SDK's; ``answer_within``: seconds until the call is answered, done or not."""

    caller: Caller
    callers: Callers
    arguments: Mapping[str, Any]
    context: ServerRequestContext[Any, Any]
    params: CallToolRequestParams
    answer_within: float
    began: float = field(default_factory=time.monotonic)
    resumed: Resumed | None = None
    progress: int = 0

    def __post_init__(self) -> None:
        if self.params.request_state is not None:
            self.resumed = _read_state(self.params.request_state)
            self.progress = self.resumed.progress

    @property
    def seconds_left(self) -> float:
        """Seconds until it must be answered."""
        return max(0.0, self.answer_within - (time.monotonic() - self.began))

    @property
    def is_modern(self) -> bool:
        """Whether the client asks its user between two calls (2026-07-28), rather than within one."""
        return self.context.protocol_version in MODERN_PROTOCOL_VERSIONS

    def can_ask(self, mode: str = "form") -> bool:
        """Whether the client can ask its user, and that user's answer counts. Who names no mode means forms."""
        capabilities = self.context.session.client_capabilities
        elicitation = capabilities.elicitation if capabilities else None
        if self.caller.person is None or elicitation is None:
            return False
        if mode == "url":
            return elicitation.url is not None
        return elicitation.form is not None or elicitation.url is None

    async def tell(self, message: str) -> None:
        """Report progress, where the client wants it: a count that only rises."""
        self.progress += 1
        await self.context.session.report_progress(self.progress, None, message)


def _read_state(state: str) -> Resumed:
    try:
        held = json.loads(state)
        return Resumed(str(held["work"]), dict(held["asked"]), int(held["progress"]))
    except (ValueError, KeyError, TypeError):
        raise InvalidArgument("requestState", "is not of this tool") from None


_UNANSWERABLE = (
    "nobody can be asked: this client does not ask its user, and this server has no other way to be answered; a rule "
    "of its policy can allow it (--policy)"
)
_MOST_CALLERS = 10_000  # as many as the SDK keeps MCP sessions
_END_WITHIN = 5.0  # seconds for ending what a caller has left behind


Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class State:
    """``status``: "queued", "running", "waiting" or "done"; ``approvals``: the questions it waits for; ``document``:
    all that is known of it."""

    status: str
    approvals: tuple[Document, ...]
    document: Document

    @property
    def is_done(self) -> bool:
        return self.status == "done"

    @property
    def awaited_ids(self) -> frozenset[str]:
        """The ids of what it waits for."""
        return frozenset(str(one["id"]) for one in self.approvals)


class Work(Protocol):
    """Something that takes its time."""

    handle: str
    """What ``read_output`` and ``cancel_run`` take."""

    async def wait(self, seconds: float, seen: frozenset[str]) -> State:
        """Its state when it is done, when it waits for a question that is not among ``seen``, or after so many
        seconds."""

    async def cancel(self) -> None:
        """End it. Harmless when it is over."""


class Invoke(Protocol):
    """Operations by name, for one principal: JSON values in and out. Raises ``casemate.CasemateError``."""

    async def __call__(self, operation: str, arguments: Mapping[str, Any] = ...) -> Any:
        """Carry out ``operation``, such as ``"runs.start"``."""


class Backend(Protocol):
    """How callers reach the operations. ``request``: of HTTP; None over stdio."""

    def who(self, request: Request | None) -> str:
        """The name of whoever has authenticated, such as a token's."""

    def agent(self, name: str, request: Request | None) -> Invoke:
        """The operations for agents, as the principal ``name``."""

    def person(self, name: str, request: Request | None) -> Invoke | None:
        """The operations for the person beside that agent, who answers what it asks for (``approvals.pending`` and
        ``approvals.decide``); None where nobody may answer through the agent's client."""


@dataclass(slots=True, eq=False)
class Caller:
    """``invoke``: as the agent; ``person``: as whoever sits at the client, or None. ``session``: the handle of the
    session that tools without a session use; ``jobs``: what was asked for and takes its time."""

    name: str
    invoke: Invoke
    person: Invoke | None
    session: str | None = None
    jobs: dict[str, Work] = field(default_factory=dict)
    turn: anyio.Lock = field(default_factory=anyio.Lock)

    async def end(self) -> None:
        """End its runs and sessions, which nobody can reach any more. Bounded; what does not answer is left."""
        with anyio.move_on_after(_END_WITHIN, shield=True):
            await self._end_each("runs.list", "runs.cancel", "run")
            await self._end_each("sessions.list", "sessions.close", "session")

    async def _end_each(self, listing: str, ending: str, key: str) -> None:
        with contextlib.suppress(CasemateError):
            for one in await self.invoke(listing, {}):
                if one.get("status") != "done":
                    with contextlib.suppress(CasemateError):
                        await self.invoke(ending, {key: one[key]})


class Callers:
    """The callers of one server, by name; the one that was not heard of for longest is forgotten first."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._process = f"mcp:{secrets.token_hex(8)}"
        self._known: OrderedDict[str, Caller] = OrderedDict()
        self.tasks: anyio.abc.TaskGroup | None = None

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncGenerator[Callers]:
        """As long as this is entered there can be jobs. Entered again within, as for each connection, it changes
        nothing; at its end, what the client of this process has left behind is ended."""
        if self.tasks is not None:
            yield self
            return
        async with anyio.create_task_group() as self.tasks:
            try:
                yield self
            finally:
                self.tasks.cancel_scope.cancel()
        self.tasks = None
        await self.end()

    async def end(self) -> None:
        """End what the client of this process has left behind. Bounded."""
        if (own := self._known.pop(self._process, None)) is not None:
            await own.end()

    def forget(self, request: Request) -> None:
        """The client has ended the MCP session of this ``request``: end what it has left behind, meanwhile."""
        caller = self._known.pop(self._name(request, has_sessions=True), None)
        if caller is not None and self.tasks is not None:
            self.tasks.start_soon(caller.end)

    def of(self, context: ServerRequestContext[Any, Any]) -> Caller:
        """The caller of one request."""
        request = context.request
        name = self._name(request, has_sessions=context.protocol_version not in MODERN_PROTOCOL_VERSIONS)
        caller = self._known.get(name)
        if caller is None:
            caller = self._known[name] = Caller(
                name, self._backend.agent(name, request), self._backend.person(name, request)
            )
            if len(self._known) > _MOST_CALLERS:
                self._forget()
        self._known.move_to_end(name)
        return caller

    def _name(self, request: Request | None, *, has_sessions: bool) -> str:
        if request is None:
            return self._process
        session = request.headers.get("mcp-session-id") or request.query_params.get("session_id")
        if not has_sessions:  # nobody has looked at it: a client could name any
            session = None
        name = f"mcp:{self._backend.who(request)}"
        return f"{name}:{hashlib.sha256(session.encode()).hexdigest()[:16]}" if session else name

    @property
    def is_alone(self) -> bool:
        """Whether nobody but a client can answer what its agent asks for."""
        return isinstance(self._backend, LocalBackend) and self._backend.is_alone

    async def deny_unanswerable(self, caller: Caller, requests: Iterable[str]) -> None:
        """Refuse what nobody can answer: the client cannot ask its user, and there is nobody else."""
        assert isinstance(self._backend, LocalBackend)
        deny = self._backend.deny(caller.name)
        for request in requests:
            await deny("approvals.decide", {"request": request, "reason": _UNANSWERABLE})

    def _forget(self) -> None:
        idle = next((name for name, one in self._known.items() if not one.jobs), None)
        if idle is not None:
            del self._known[idle]


PRINCIPAL = "casemate.caller"
"""The key of an ASGI scope under which whoever authenticates a request puts the principal's name."""


class _SandboxBackend(ABC):
    """``may_approve``: whether the person at the client may answer what its agent asks for."""

    def __init__(self, may_approve: bool) -> None:
        self._may_approve = may_approve

    def who(self, request: Request | None) -> str:
        """The name of whoever has authenticated; the same for all where nobody has to."""
        return str((request.scope.get(PRINCIPAL) if request is not None else None) or "anyone")

    def person(self, name: str, request: Request | None) -> Invoke | None:  # noqa: ARG002 - the same for all
        """The same agent, as one that may approve what is its own."""
        return self._invoke(name, may_approve=True) if self._may_approve else None

    def agent(self, name: str, request: Request | None) -> Invoke:  # noqa: ARG002 - the same for all
        """The agent itself."""
        return self._invoke(name, may_approve=False)

    @abstractmethod
    def _invoke(self, name: str, *, may_approve: bool) -> Invoke: ...


class LocalBackend(_SandboxBackend):
    """Operations in this process, made when it is first needed. ``make`` is called once. ``is_alone``: nobody but the
    client can answer what waits for an approval."""

    def __init__(
        self,
        make: Callable[[], Awaitable[Operations]],
        namespace: str = "default",
        *,
        may_approve: bool,
        is_alone: bool = False,
    ) -> None:
        super().__init__(may_approve)
        self.is_alone = is_alone
        self._make = make
        self._namespace = namespace
        self._operations: Operations | None = None
        self._turn = anyio.Lock()

    def deny(self, name: str) -> Invoke:
        """The operations by which what this agent asks for is refused."""
        return self._invoke(name, may_approve=True)

    async def operations(self) -> Operations:
        """The operations."""
        async with self._turn:
            self._operations = self._operations or await self._make()
        return self._operations

    def _invoke(self, name: str, *, may_approve: bool) -> Invoke:
        async def invoke(operation: str, arguments: Mapping[str, Any] = {}) -> Any:
            from casemate.model.operation import Audience, Principal
            from casemate.operations.invoke import local

            operations = self._operations or await self.operations()
            principal = Principal(
                name, Audience.AGENT, self._namespace, may_approve, "mcp", may_run_commands=may_approve
            )  # fmt: skip
            return await local(operations, principal)(operation, arguments)

        return invoke


class RemoteBackend(_SandboxBackend):
    """Operations of a service. ``connect`` gives the way of one agent to it, and whether it is to be one that may
    approve; it is called when that is first needed."""

    def __init__(self, connect: Callable[[str, bool], Awaitable[Invoke]], *, may_approve: bool) -> None:
        super().__init__(may_approve)
        self._connect = connect

    def _invoke(self, name: str, *, may_approve: bool) -> Invoke:
        connected: list[Invoke] = []
        turn = anyio.Lock()

        async def invoke(operation: str, arguments: Mapping[str, Any] = {}) -> Any:
            if not connected:
                async with turn:
                    if not connected:
                        connected.append(await self._connect(name, may_approve))
            return await connected[0](operation, arguments)

        return invoke
