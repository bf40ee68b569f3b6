"""The callers of tools, their calls, and their way to the operations.

Sessions and runs are bound to a caller's name, so the name decides what a handle opens. Over stdio it is random per
process; over HTTP it is the token's name, with the MCP session's name if the protocol has sessions (before 2026-07-28).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from casemate.errors import CasemateError, InvalidArgument
from casemate.model.operation import Audience, Principal
from casemate.visible import plain

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp_types import CallToolRequestParams, CallToolResult, InputRequiredResult
    from starlette.requests import Request

    from casemate.operations.operations import Operations


class Refused(CasemateError):
    """A tool cannot do what the model asked for; the message is for the model."""

    kind = "refused"


@dataclass(frozen=True, slots=True)
class Resumed:
    """A call that was answered with questions and comes back."""

    work: str  # handle of the work that waits for the answers
    asked: Mapping[str, str]  # hash of the shown question, by its id
    progress: int  # the last count reported

    def as_text(self) -> str:
        """The text that the client hands back; the server's middleware seals it."""
        return json.dumps({"work": self.work, "asked": dict(self.asked), "progress": self.progress})


@dataclass(slots=True, eq=False)
class Call:
    caller: Caller
    callers: Callers
    arguments: Mapping[str, Any]
    context: ServerRequestContext[Any, Any]
    params: CallToolRequestParams
    answer_within: float  # seconds until the call is answered, done or not
    began: float = field(default_factory=time.monotonic)
    resumed: Resumed | None = None
    progress: int = 0

    def __post_init__(self) -> None:
        if self.params.request_state is not None:
            self.resumed = _read_state(self.params.request_state)
            self.progress = self.resumed.progress

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.answer_within - (time.monotonic() - self.began))

    @property
    def is_modern(self) -> bool:
        """Whether the client asks its user between two calls (2026-07-28), not within one."""
        return self.context.protocol_version in MODERN_PROTOCOL_VERSIONS

    def can_ask(self, mode: str = "form") -> bool:
        """Whether the client can ask its user, and the answer counts. A client that names no mode supports forms."""
        capabilities = self.context.session.client_capabilities
        elicitation = capabilities.elicitation if capabilities else None
        if not self.caller.has_person or elicitation is None:
            return False
        if mode == "url":
            return elicitation.url is not None
        return elicitation.form is not None or elicitation.url is None

    async def tell(self, message: str) -> None:
        """Report progress, if the client wants it: a count that only rises."""
        self.progress += 1
        await self.context.session.report_progress(self.progress, None, message)


def _read_state(state: str) -> Resumed:
    try:
        held = json.loads(state)
        return Resumed(str(held["work"]), dict(held["asked"]), int(held["progress"]))
    except (ValueError, KeyError, TypeError):
        raise InvalidArgument("requestState", "does not belong to this tool") from None


_MOST_NAME = 60  # characters of the name that a client gives itself
_MOST_CALLERS = 10_000  # as many as the SDK keeps MCP sessions
_END_WITHIN = 5.0  # seconds for ending a caller's runs and sessions


Document = dict[str, Any]
Invoke = Callable[[str, Mapping[str, Any]], Awaitable[Any]]  # the part of `casemate.operations.invoke` that tools need


class Work(ABC):
    """Something that takes a while. ``handle``: what ``read_output`` and ``cancel_run`` take."""

    handle: str

    @abstractmethod
    async def wait(self, seconds: float, seen: frozenset[str]) -> Document:
        """Its state, like ``runs.wait``: once done, at a question that is not in ``seen``, or after ``seconds``."""

    @abstractmethod
    async def cancel(self) -> None:
        """End it, unless it is over."""

    @abstractmethod
    async def answer(self, call: Call, state: Document) -> CallToolResult | InputRequiredResult:
        """The answer in this state: the result, or how to continue."""


def questions_in(state: Document) -> frozenset[str]:
    """The ids of the questions in a state of some work."""
    return frozenset(str(one["id"]) for one in state["approvals"])


class Backend(ABC):
    """How callers reach the operations. ``request``: the HTTP request; None over stdio."""

    is_alone = False

    def __init__(self, *, may_approve: bool = False) -> None:
        """``may_approve``: the person at a client may answer the approval requests of its agent."""
        self._may_approve = may_approve

    def who(self, request: Request | None) -> str:
        """The authenticated name, such as a token's; "anyone" without authentication."""
        return str((request.scope.get(PRINCIPAL) if request is not None else None) or "anyone")

    def has_person(self, request: Request | None) -> bool:  # noqa: ARG002 - the same for all
        """Whether a person at the client may answer the approval requests of its agent."""
        return self._may_approve

    @abstractmethod
    async def connect(self, name: str, request: Request | None, *, may_approve: bool) -> Invoke:
        """The operations for the agent ``name``; with ``may_approve`` also those that list and decide its requests."""


@dataclass(slots=True, eq=False)
class Caller:
    """A client's agent, and the person at the client if the person may approve."""

    name: str
    has_person: bool  # a person may answer the agent's approval requests
    connect: Callable[..., Awaitable[Invoke]]  # :meth:`Backend.connect` for this name
    session: str | None = None  # handle of the session for tools without a session parameter
    jobs: dict[str, Work] = field(default_factory=dict)
    turn: anyio.Lock = field(default_factory=anyio.Lock)
    _ways: dict[bool, Invoke] = field(default_factory=dict)
    _connecting: anyio.Lock = field(default_factory=anyio.Lock)

    async def invoke(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Call an operation as the agent."""
        return await (await self._way(may_approve=False))(operation, arguments)

    async def pending(self) -> list[Document]:
        """The agent's pending requests that the person at the client may answer."""
        if not self.has_person:
            return []
        waiting: list[Document] = await (await self._way(may_approve=True))("approvals.pending", {})
        return waiting

    async def decide(self, decision: Mapping[str, Any]) -> None:
        """Answer a request as the person at the client. If there is no person, only denials are accepted."""
        if decision.get("allow") and not self.has_person:
            raise Refused("no person at this client may approve")
        await (await self._way(may_approve=True))("approvals.decide", decision)

    async def _way(self, *, may_approve: bool) -> Invoke:
        if may_approve not in self._ways:
            async with self._connecting:
                if may_approve not in self._ways:
                    self._ways[may_approve] = await self.connect(may_approve=may_approve)
        return self._ways[may_approve]

    async def end(self) -> None:
        """End its runs and sessions, which can no longer be reached. Bounded; what does not answer is left."""
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
    """The callers of one server by name. The least recently used is forgotten first. ``is_alone``: only a client can
    answer its agent's requests."""

    def __init__(self, backend: Backend) -> None:
        self.is_alone = backend.is_alone
        self._backend = backend
        self._process = f"mcp:{secrets.token_hex(8)}"
        self._known: OrderedDict[str, Caller] = OrderedDict()
        self.tasks: anyio.abc.TaskGroup | None = None

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncGenerator[Callers]:
        """Allow jobs while this is entered. A nested entry, as for each connection, changes nothing. The outermost exit
        ends the runs and sessions of this process's client."""
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
        """End the runs and sessions of this process's client. Bounded."""
        if (own := self._known.pop(self._process, None)) is not None:
            await own.end()

    def forget(self, request: Request) -> None:
        """The client ended the MCP session of this ``request``: end its runs and sessions in a task."""
        caller = self._known.pop(self._name(request, has_sessions=True), None)
        if caller is not None and self.tasks is not None:
            self.tasks.start_soon(caller.end)

    def of(self, context: ServerRequestContext[Any, Any]) -> Caller:
        """The caller of one request."""
        request, backend = context.request, self._backend
        told = None if request is not None or self._known else context.session.client_params
        if told is not None:  # for people: a client may say anything
            self._process += f":{plain(told.client_info.name)[:_MOST_NAME]}"
        name = self._name(request, has_sessions=context.protocol_version not in MODERN_PROTOCOL_VERSIONS)
        if name not in self._known:
            self._known[name] = Caller(name, backend.has_person(request), partial(backend.connect, name, request))
            if len(self._known) > _MOST_CALLERS:
                self._forget()
        self._known.move_to_end(name)
        return self._known[name]

    def _name(self, request: Request | None, *, has_sessions: bool) -> str:
        if request is None:
            return self._process
        session = request.headers.get("mcp-session-id") or request.query_params.get("session_id")
        if not has_sessions:  # the header is unchecked: a client could name any session
            session = None
        name = f"mcp:{self._backend.who(request)}"
        return f"{name}:{hashlib.sha256(session.encode()).hexdigest()[:16]}" if session else name

    def _forget(self) -> None:
        idle = next((name for name, one in self._known.items() if not one.jobs), None)
        if idle is not None:
            del self._known[idle]


PRINCIPAL = "casemate.caller"
"""The key of an ASGI scope under which authentication puts the principal's name."""


class LocalBackend(Backend):
    """Operations in this process. ``make`` is called once, on first use."""

    def __init__(self, make: Callable[[], Awaitable[Operations]], *, may_approve: bool, is_alone: bool = False) -> None:
        super().__init__(may_approve=may_approve)
        self.is_alone = is_alone
        self._make = make
        self._operations: Operations | None = None
        self._turn = anyio.Lock()

    async def connect(self, name: str, request: Request | None, *, may_approve: bool) -> Invoke:  # noqa: ARG002
        from casemate.operations.invoke import local

        async with self._turn:
            self._operations = self._operations or await self._make()
        namespace = self._operations.sandbox.namespace
        principal = Principal(name, Audience.AGENT, namespace, may_approve, "mcp", may_run_commands=may_approve)
        return local(self._operations, principal)


class RemoteBackend(Backend):
    """Operations of the user's service."""

    async def connect(self, name: str, request: Request | None, *, may_approve: bool) -> Invoke:  # noqa: ARG002
        from casemate.remote.client import connect

        return await connect(agent=name, may_approve=may_approve, runs=True)


class ServiceBackend(Backend):
    """The operations of the service, each in the namespace of its principal."""

    def who(self, request: Request | None) -> str:
        """A name that no two principals share."""
        principal = _principal(request)
        return f"{principal.namespace}/{principal.name}"

    def has_person(self, request: Request | None) -> bool:
        return _principal(request).may_approve

    async def connect(self, name: str, request: Request | None, *, may_approve: bool) -> Invoke:
        """Connect as an agent even for the user: a model never acts as the operator."""
        from casemate.operations.invoke import local

        asking = _principal(request)
        assert request is not None
        principal = Principal(
            name, Audience.AGENT, asking.namespace, may_approve, asking.payer, asking.secrets,
            may_approve and asking.may_run_commands,
        )  # fmt: skip
        return local(await request.scope["casemate.operations"](), principal)


def _principal(request: Request | None) -> Principal:
    assert request is not None
    principal = request.scope["casemate.principal"]
    assert isinstance(principal, Principal)
    return principal
