"""The connection to one server. It is made on first use, kept, and made again after the server died.

One task owns it (`Connection.run`). Calls run in separate tasks over the current session and all fail when it ends. A
call is never sent twice, unless the server says that it did not process it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from casemate.errors import CasemateError, InvalidArgument
from casemate.tools.connections.answers import (
    Answer,
    MalformedAnswer,
    ServerAnswer,
    ServerTools,
    ToolListing,
    answer_of,
    failure,
)
from casemate.tools.connections.calling import Calling, call, raw_result
from casemate.tools.connections.context import Surroundings
from casemate.tools.connections.definition import RemoteServer, ServerDefinition
from casemate.tools.connections.reports import OutputTail, Reports, clean_text, redact_answer
from casemate.tools.connections.streams import MessageFilter
from casemate.tools.connections.transport import ResolvedDefinition, resolve_definition, transport

if TYPE_CHECKING:
    from mcp import Client, MCPError
    from mcp.client import ClientRequestContext
    from mcp.types import ElicitRequestParams, ElicitResult

    from casemate.redaction.redaction import Redaction


_FIRST, _LONGEST = 0.5, 30.0  # seconds between two starts
MOST_FAILURES = 6  # in a row, after which there is a long pause
_ALONE_SECONDS = 300.0


class RestartBackoff:
    """The delays between starts of one server. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.failures = 0
        self._last = 0.0

    def note_failure(self, now: float) -> None:
        """Note that the server could not start, or died before it answered a call."""
        self.failures += 1
        self._last = now

    def note_success(self) -> None:
        """Note that the server answered."""
        self.failures = 0

    def delay(self, now: float) -> float:
        """Seconds until the next start."""
        if not self.failures:
            return 0.0
        pause: float = min(_FIRST * 2 ** (self.failures - 1), _LONGEST)
        return max(0.0, self._last + pause - now)

    def is_over(self, now: float) -> bool:
        """Whether it failed so often that it is not started for some minutes."""
        return self.failures >= MOST_FAILURES and now < self._last + _ALONE_SECONDS


T = TypeVar("T")

_SOON = 1.0  # seconds between two readings of a changing list, and to wait for an end that is about to be noticed
_NOT_FOUND, _BAD_REQUEST = 404, 400  # HTTP statuses for an unknown session
CHANGED = "changed"  # a `ToolUnavailable.reason`
_CHANGED = "notifications/tools/list_changed"


class _Forgotten(Exception):
    """The server no longer knows this session and did not process the request."""


@dataclass(slots=True, eq=False)
class Life:
    """The state of one session with the server."""

    client: Client
    messages: MessageFilter
    words: OutputTail
    redaction: Redaction | None
    over: asyncio.Event  # it has ended, or is to end
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # its tools must be listed again
    callings: set[Calling] = field(default_factory=set)
    idle: asyncio.Event = field(default_factory=asyncio.Event)  # it has no callings
    is_forgotten: bool = False  # the server does not know its session
    was_of_use: bool = False  # the server answered a call


class Connection:
    """A connection to one server. For one event loop; ``run`` must be running for other methods to finish."""

    def __init__(self, definition: ServerDefinition, surroundings: Surroundings) -> None:
        self.definition = definition
        self.tools: ServerTools | None = None  # the last list
        self._surroundings = surroundings
        self._name = definition.name
        self._reports = Reports(definition.name, signs_in=getattr(definition.how, "sign_in", None) is not None)
        self._backoff = RestartBackoff()
        self._life: Life | None = None
        self._next: asyncio.Future[Life] | None = None  # the next session, for callers that need one
        self._wanted = asyncio.Event()
        self._hurry = asyncio.Event()  # ends the delay before a start
        self._scope: Any = None  # the cancel scope of the current session
        self._is_stopped = False
        self._reading = asyncio.Lock()

    # -- for callers

    @property
    def is_there(self) -> bool:
        """Whether it is connected and its tools are listed, as far as is known. Callable from any thread."""
        life, made = self._life, self._next
        return life is not None and made is not None and made.done() and not life.over.is_set()

    async def list_tools(self) -> ServerTools:
        """The server's tools; connects first if needed. Raises ``ToolUnavailable`` and ``InvalidArgument``."""
        await self._alive()
        assert self.tools is not None
        return self.tools

    async def call(self, calling: Calling, expected: str = "") -> Answer:
        """Call a tool. ``expected``: the hash that its description must have. Raises as :meth:`list_tools`."""
        return await self._once_more(lambda life: self._call(life, calling, expected))

    async def read(self, uri: str) -> list[dict[str, Any]]:
        """Read a resource's contents, in MCP's form. Raises as :meth:`list_tools`."""
        return await self._once_more(lambda life: self._contents(life, uri))

    def reset(self) -> None:
        """End the connection. The next use makes a new one without delay."""
        self._backoff.note_success()
        self._hurry.set()
        if self._life is not None:
            self._life.over.set()

    def stop(self) -> None:
        """End the connection and ``run`` for good. Cancelling the task would not: the SDK swallows cancellations."""
        self._is_stopped = True
        self._wanted.set()
        self._hurry.set()
        if self._life is not None and self._next is not None and self._next.done():
            self._life.over.set()
        elif self._scope is not None:
            self._scope.cancel()

    # -- the owner

    async def run(self) -> None:
        """Make the connection whenever it is needed, until it is stopped."""
        while not self._is_stopped:
            await self._wanted.wait()
            self._wanted.clear()
            waiting = self._next
            if waiting is None:
                continue
            try:
                await self._take_turn()
                if not self._is_stopped:
                    await self._live(waiting)
            except CasemateError as error:
                if not waiting.done():
                    waiting.set_exception(error)
            finally:
                self._life = self._scope = None
                if not waiting.done():
                    waiting.set_exception(self._reports.closed_error())
                waiting.exception()  # marked as retrieved, because the waiters may be gone

    async def _take_turn(self) -> None:
        now = time.monotonic()
        if self._backoff.is_over(now):
            raise self._reports.unavailable(
                f"it failed {MOST_FAILURES} times in a row and is not started again for some minutes", "start",
                remediation="Find out why it fails; reset starts it again at once.",
            )  # fmt: skip
        self._hurry.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._backoff.delay(now)):
                await self._hurry.wait()

    async def _live(self, waiting: asyncio.Future[Life]) -> None:
        """Run one session from start to end."""
        resolved = await asyncio.to_thread(resolve_definition, self.definition, self._surroundings)
        words, over = OutputTail(), asyncio.Event()
        redaction = resolved.redaction()
        try:
            life = await self._connect(resolved, words, over, redaction, waiting)
        except Exception as error:  # noqa: BLE001 - any error of the SDK, a transport or a sign-in ends only this server
            self._backoff.note_failure(time.monotonic())
            if waiting.done():
                return  # it was connected, and its calls have failed already
            raise self._reports.connect_error(error, words, redaction) from None
        if life is None and self._is_stopped:
            raise self._reports.closed_error()
        if life is None:
            self._backoff.note_failure(time.monotonic())
            seconds = self.definition.connect_timeout
            raise self._reports.unavailable(f"it was not ready within {seconds:g} s", "connect", words, redaction)
        if not life.was_of_use:
            self._backoff.note_failure(time.monotonic())

    async def _connect(
        self, resolved: ResolvedDefinition, words: OutputTail, over: asyncio.Event, redaction: Redaction | None,
        waiting: asyncio.Future[Life],
    ) -> Life | None:  # fmt: skip
        """Run one session. Returns its ended life, or None if it was not ready in time."""
        import anyio
        from mcp import Client

        messages = MessageFilter(words, over.set)
        life = None
        with anyio.CancelScope() as self._scope:
            self._scope.deadline = anyio.current_time() + self.definition.connect_timeout
            streams = transport(self.definition, resolved, self._surroundings, words, self._wait_for_person)
            async with Client(
                messages.wrap(streams),
                cache=None,
                elicitation_callback=self._on_elicit,
                message_handler=self._on_message,
            ) as client:
                life = self._life = Life(client, messages, words, redaction, over)
                try:
                    await self._list(life)
                    self._scope.deadline = math.inf
                    waiting.set_result(life)
                    async with anyio.create_task_group() as group:
                        group.start_soon(self._keep_list, life)
                        group.start_soon(self._listen, life)
                        await over.wait()
                        group.cancel_scope.cancel()
                finally:
                    over.set()
                    self._life = None
        return life if waiting.done() else None

    @contextmanager
    def _wait_for_person(self) -> Iterator[None]:
        """Pause the deadline for connecting while a person signs in."""
        scope = self._scope
        left, scope.deadline = scope.deadline - time.monotonic(), math.inf
        try:
            yield
        finally:
            scope.deadline = time.monotonic() + left

    # -- while it is connected

    async def _alive(self) -> Life:
        if self._life is not None and self.is_there:
            return self._life
        if self._is_stopped:
            raise self._reports.closed_error()
        if self._next is None or self._next.done():
            self._next = asyncio.get_running_loop().create_future()
            self._wanted.set()
        return await asyncio.shield(self._next)

    async def _once_more(self, use: Callable[[Life], Awaitable[T]]) -> T:
        """Call ``use`` with the current life, and again with a new one if the server has forgotten the session."""
        life = await self._alive()
        try:
            return await use(life)
        except _Forgotten:
            await self._settle(life)
            life.over.set()
        life = await self._alive()
        try:
            return await use(life)
        except _Forgotten as forgotten:
            why = f"it forgets its sessions at once: {forgotten}"
            raise self._reports.unavailable(why, "answer", None, life.redaction) from None

    async def _settle(self, life: Life) -> None:
        """Wait a moment for concurrent calls, which the server refuses as well."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(life.idle.wait(), _SOON)

    async def _call(self, life: Life, calling: Calling, expected: str, *, is_again: bool = False) -> Answer:
        self._check_tool(calling.tool, expected)
        calling.redaction = life.redaction
        from mcp import MCPError
        from mcp_types import HEADER_MISMATCH

        try:
            return await self._call_timed(life, calling)
        except MCPError as error:
            if is_again or error.code != HEADER_MISMATCH:
                return await self._handle_refusal(life, error, f"while {calling.tool!r} ran", repr(calling.tool))
        await self._list(life)  # other arguments must be sent as headers now; the call was not processed
        return await self._call(life, calling, expected, is_again=True)

    async def _call_timed(self, life: Life, calling: Calling) -> Answer:
        import anyio

        life.callings.add(calling)
        life.idle.clear()
        try:
            with anyio.CancelScope() as scope:
                calling.begin(scope)
                answer = await call(life.client.session, self._name, calling)
                life.was_of_use = True
                self._backoff.note_success()
                return redact_answer(answer, life.redaction)
        except MalformedAnswer as error:
            raise self._reports.answer_error(error, life.redaction) from None
        finally:
            life.callings.discard(calling)
            if not life.callings:
                life.idle.set()
            calling.end()
        raise self._reports.unavailable(
            f"{calling.tool!r} did not answer within {calling.timeout:g} s, and was cancelled", "timeout"
        )

    async def _contents(self, life: Life, uri: str) -> list[dict[str, Any]]:
        from mcp import MCPError, types
        from pydantic import ValidationError

        request = types.ReadResourceRequest(params=types.ReadResourceRequestParams(uri=uri))
        try:
            async with asyncio.timeout(self.definition.timeout):
                raw = await life.client.session.send_request(request, raw_result())
            contents = answer_of({"content": raw.root.get("contents")}).content
        except TimeoutError:
            why = f"the resource did not come within {self.definition.timeout:g} s"
            raise self._reports.unavailable(why, "timeout") from None
        except (ValidationError, MalformedAnswer) as error:
            raise self._reports.answer_error(error, life.redaction) from None
        except MCPError as error:
            answer = await self._handle_refusal(life, error, "while a resource was read")
            raise InvalidArgument("uri", f"the server says: {answer.content[0]['text']}") from None
        return redact_answer(Answer(contents), life.redaction).content

    def _check_tool(self, tool: str, expected: str) -> None:
        tools = self.tools
        assert tools is not None
        if tool not in tools.tools:
            why = next((f": {problem.message}" for problem in tools.problems if problem.tool == tool), "")
            raise InvalidArgument("tool", f"{self._name!r} has no tool {tool[:100]!r}{why}")
        if expected and tools.hashes[tool] != expected:
            raise self._reports.unavailable(f"its tool {tool!r} is not described as it was before", CHANGED)

    async def _handle_refusal(self, life: Life, error: MCPError, while_what: str, call: str = "") -> Answer:
        """Turn a protocol error into an answer, or raise. ``call``: the call that may have taken effect."""
        from mcp_types import CONNECTION_CLOSED, PARSE_ERROR

        if (answer := ServerAnswer.of(error)) is not None:
            if answer.had_session and not await self._knows_session(life, answer.status):
                raise _Forgotten(f"HTTP {answer.status} {clean_text(error.message, life.redaction)}".rstrip())
            raise self._reports.http_error(answer, error.message, life.redaction, call)
        if error.code == CONNECTION_CLOSED:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SOON):
                    await life.over.wait()
        if call:
            while_what = f"{while_what}; whether that took effect is not known"
        if life.over.is_set():
            raise self._reports.unavailable(f"it ended {while_what}", "died", life.words, life.redaction)
        # The SDK uses the same code for the end of a remote server's stream, after which no answer comes.
        is_cut_off = error.code == CONNECTION_CLOSED and isinstance(self.definition.how, RemoteServer)
        if error.code == PARSE_ERROR or is_cut_off:
            raise self._reports.unavailable(f"{error.message} {while_what}", "answer", life.words, life.redaction)
        life.was_of_use = True
        return failure(clean_text(error.message, life.redaction))

    async def _knows_session(self, life: Life, status: int) -> bool:
        """Whether a server that answered with ``status`` knows the request's session. By 400 some servers mean an
        unknown session and others a malformed request; the latter answer a ping."""
        from mcp import MCPError

        if status == _BAD_REQUEST and not life.is_forgotten:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SOON):
                    try:
                        await life.client.session.send_ping()
                    except MCPError as error:
                        refused = ServerAnswer.of(error)
                        life.is_forgotten |= refused is not None and refused.status in (_BAD_REQUEST, _NOT_FOUND)
        life.is_forgotten |= status == _NOT_FOUND
        return not (life.is_forgotten and status in (_BAD_REQUEST, _NOT_FOUND))

    async def _list(self, life: Life) -> None:
        from mcp import MCPError
        from mcp_types import METHOD_NOT_FOUND, PaginatedRequestParams

        session = life.client.session
        async with self._reading:
            listing, kept = ToolListing(self._name), set()
            life.messages.judge = listing.page
            cursor: str | None = None
            try:
                while True:
                    params = None if cursor is None else PaginatedRequestParams(cursor=cursor)
                    page = await session.list_tools(params=params)
                    kept |= {tool.name for tool in page.tools}
                    cursor = page.next_cursor
                    if not listing.goes_on(cursor):
                        break
            except MCPError as error:
                if error.code != METHOD_NOT_FOUND:
                    raise
            listing.keep_only(kept)
            self.tools = listing.finish(session.protocol_version or "")
        self._surroundings.on_tools(self.tools)

    async def _keep_list(self, life: Life) -> None:
        """Read the list of tools again when the server says that it has changed."""
        from mcp import MCPError

        while True:
            await life.changed.wait()
            life.changed.clear()
            with contextlib.suppress(MCPError, TimeoutError):
                async with asyncio.timeout(self.definition.connect_timeout):
                    await self._list(life)
            await asyncio.sleep(_SOON)

    async def _listen(self, life: Life) -> None:
        """Subscribe to changes of the list, which a server only reports to subscribers since MCP 2026-07-28."""
        from mcp import MCPError
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

        tools = life.client.session.server_capabilities and life.client.session.server_capabilities.tools
        if not tools or not tools.list_changed:
            return
        with contextlib.suppress(ListenNotSupportedError, SubscriptionLost, MCPError):
            async with life.client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    life.changed.set()

    async def _on_message(self, message: object) -> None:
        if getattr(message, "method", "") == _CHANGED and self._life is not None:
            self._life.changed.set()

    async def _on_elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:  # noqa: ARG002
        """Forward an elicitation if all current calls are of one requester. Before MCP 2026-07-28 it names no call."""
        from mcp import types

        callings = list(self._life.callings) if self._life is not None else []
        if not callings or len({calling.elicit for calling in callings}) != 1:
            return types.ElicitResult(action="decline")
        return await callings[0].ask(self._name, params)
