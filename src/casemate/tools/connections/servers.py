"""The MCP servers of a sandbox. They are connected on first use, in one separate thread.

Everything here is thread-safe. Slow calls return a future; cancelling it cancels the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import replace
from typing import Any, TypeVar

from casemate.errors import CasemateError, Fault, InvalidArgument, SandboxClosed
from casemate.event_loop import run_in_loop
from casemate.files.beneath import HeldFolder
from casemate.tools.connections.answers import Answer, CallProgress, Elicit, ServerTools
from casemate.tools.connections.calling import Calling
from casemate.tools.connections.connection import Connection
from casemate.tools.connections.context import Surroundings
from casemate.tools.connections.definition import (
    OwnFunctions,
    Program,
    ServerDefinition,
    check_server_name,
    read_definition,
)
from casemate.tools.connections.loop_work import LoopWork, Work
from casemate.tools.connections.own import OwnConnection

_THREAD = "casemate-tools"
_START_SECONDS = 10.0
_END_SECONDS = 20.0  # a server's processes take at most 8, and all servers end at the same time
_MOST_SERVERS = 100
_LOUD = ("client", "mcp", "httpx2", "httpcore2")  # loggers of the libraries below; they log secrets

T = TypeVar("T")
AnyConnection = Connection | OwnConnection
Use = Callable[[AnyConnection], Awaitable[T]]


class Servers:
    """The servers of one namespace. The thread starts on first use and ends with :meth:`close`."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._lock = threading.Lock()
        self._connections: dict[str, AnyConnection] = {}
        self._owned: set[AnyConnection] = set()  # those whose `run` is running
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._group: asyncio.TaskGroup | None = None
        self._end: asyncio.Event | None = None
        self._loop_work = LoopWork()
        self._is_closed = False
        self._process = os.getpid()

    def add(
        self, name: str, definition: Mapping[str, Any] | ServerDefinition, folder: HeldFolder | None = None
    ) -> None:
        """Add a server without starting it. Raises ``InvalidArgument`` for a bad definition or a name that is taken."""
        read = definition if isinstance(definition, ServerDefinition) else read_definition(name, definition)
        if folder is not None and isinstance(read.how, Program):
            read = replace(read, how=replace(read.how, folder=folder))
        with self._lock:
            self._check_free(name)
            if isinstance(read.how, OwnFunctions):
                self._connections[name] = OwnConnection(read, read.how, self._surroundings)
            else:
                self._connections[name] = Connection(read, self._surroundings)

    def check_free(self, name: str) -> None:
        """Raise ``InvalidArgument`` if no server of that name can be added."""
        check_server_name(name)
        with self._lock:
            self._check_free(name)

    def remove(self, name: str) -> None:
        """Remove a server and end its processes. Its pending calls fail. Raises ``InvalidArgument``."""
        with self._lock:
            connection = self._connection(name)
            del self._connections[name]
        self._have_done(connection.stop)

    def definitions(self) -> tuple[ServerDefinition, ...]:
        """The definitions, in the order of their addition."""
        with self._lock:
            return tuple(connection.definition for connection in self._connections.values())

    def last_tools(self, server: str) -> ServerTools | None:
        """The last list of a server's tools, if any. Starts nothing. Raises ``InvalidArgument`` for an unknown name."""
        with self._lock:
            return self._connection(server).tools

    def all_tools(self) -> tuple[ServerTools, ...]:
        """The last lists of all servers that have one."""
        with self._lock:
            return tuple(one.tools for one in self._connections.values() if one.tools is not None)

    def present(self, server: str) -> ServerTools | None:
        """Like :meth:`last_tools`, but None if the server is not connected: its tools may have changed unnoticed."""
        with self._lock:
            connection = self._connection(server)
            return connection.tools if connection.is_there else None

    def tools(self, server: str) -> Future[ServerTools]:
        """List a server's tools; connects it if needed. Raises ``SandboxClosed``, and ``InvalidArgument`` for an
        unknown name. The future raises ``ToolUnavailable``, ``VaultUnavailable`` and ``InvalidArgument``."""
        return self._submit(server, lambda connection: connection.list_tools())

    def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout: float | None = None,
        expected: str = "",
        on_progress: Callable[[CallProgress], None] | None = None,
        elicit: Elicit | None = None,
    ) -> Future[Answer]:
        """Call a tool by its exact names. The caller has validated the arguments.

        ``timeout``, ``on_progress``, ``elicit``: see `Calling`. ``expected``: the hash of the approved description
        (``ServerTools.hashes``); a call of a changed tool is refused.

        The future has the errors of :meth:`tools`. Cancelling it cancels the call at the server. A failure of the tool
        itself is an answer with ``is_error``.
        """
        with self._lock:
            seconds = self._connection(server).definition.timeout if timeout is None else timeout
        calling = Calling(tool, arguments, seconds, on_progress, elicit)
        return self._submit(server, lambda connection: connection.call(calling, expected))

    def read(self, server: str, uri: str) -> Future[list[dict[str, Any]]]:
        """Read a server's resource (``resources/read``). Raises as :meth:`call`."""
        return self._submit(server, lambda connection: connection.read(uri))

    async def beside(self, work: Work) -> None:
        """Run ``work`` in the connections' loop, where calls need no change of thread. Await it in any loop. Raises
        what ``work`` raises, ``SandboxClosed``, and ``Fault`` if the thread is gone."""
        with self._lock:  # so that it starts before `close` ends the loop
            self._check_open()
            loop = self._ensure_loop()
            assert self._group is not None
            item = self._loop_work.enter(loop, self._group, work)
        await item.stay()

    def reset(self, name: str | None = None) -> None:
        """End a server, or all. Each starts again on its next use. Raises ``InvalidArgument``."""
        with self._lock:
            which = [self._connection(name)] if name is not None else list(self._connections.values())
        for connection in which:
            self._have_done(connection.reset)

    def close(self) -> None:
        """End every server and the thread. Blocks for a bounded time; may be repeated."""
        with self._lock:
            self._is_closed = True
            thread, end = self._thread, self._end
        if thread is None or end is None or self._process != os.getpid():
            return
        self._have_done(end.set)
        thread.join(_END_SECONDS)
        if thread.is_alive():
            raise Fault("the connections to MCP servers did not end")

    # -- from any thread

    def _connection(self, name: str) -> AnyConnection:
        connection = self._connections.get(name) if isinstance(name, str) else None
        if connection is None:
            raise InvalidArgument("server", f"there is no server {str(name)[:100]!r}; names are compared exactly")
        return connection

    def _check_free(self, name: str) -> None:
        self._check_open()
        if name in self._connections:
            raise InvalidArgument("server", f"there is a server {name!r}; remove it first")
        if len(self._connections) >= _MOST_SERVERS:
            raise InvalidArgument("server", f"there are {_MOST_SERVERS} servers, which is the most")

    def _check_open(self) -> None:
        if self._is_closed or self._process != os.getpid():
            raise SandboxClosed("the connections to MCP servers are closed")

    def _have_done(self, job: Callable[[], object]) -> None:
        """Run ``job`` in the thread, if there is one."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(job)

    def _submit(self, server: str, use: Use[T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            self._check_open()
            connection = self._connection(server)
            loop = self._ensure_loop()
            if threading.current_thread() is self._thread:
                self._begin(connection, use, future)
                return future
            try:
                loop.call_soon_threadsafe(self._begin, connection, use, future)
            except RuntimeError:
                raise Fault("the thread of the connections to MCP servers is gone") from None
        return future

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        if self._thread is None:
            has_started = threading.Event()
            self._thread = threading.Thread(target=self._main, args=(has_started,), name=_THREAD, daemon=True)
            self._thread.start()
            has_started.wait(_START_SECONDS)
        if self._loop is None or not self._thread.is_alive():
            raise Fault("the thread of the connections to MCP servers is gone")
        return self._loop

    # -- in the thread

    def _main(self, has_started: threading.Event) -> None:
        try:
            run_in_loop(self._serve(has_started))
        finally:
            has_started.set()
            self._loop_work.abandon()

    async def _serve(self, has_started: threading.Event) -> None:
        self._end = asyncio.Event()
        async with asyncio.TaskGroup() as self._group:
            self._loop = asyncio.get_running_loop()
            has_started.set()
            await asyncio.to_thread(_load)
            await self._end.wait()
            self._loop_work.cancel()
            for connection in self._owned:
                connection.stop()

    def _begin(self, connection: AnyConnection, use: Use[T], future: Future[T]) -> None:
        assert self._group is not None
        if connection not in self._owned:
            self._owned.add(connection)
            self._group.create_task(connection.run()).add_done_callback(lambda _: self._owned.discard(connection))
        self._group.create_task(self._answer(connection, use, future))

    async def _answer(self, connection: AnyConnection, use: Use[T], future: Future[T]) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def on_cancel(of: Future[T]) -> None:
            if of.cancelled():
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(task.cancel)

        future.add_done_callback(on_cancel)
        with contextlib.suppress(InvalidStateError):  # it was cancelled meanwhile
            try:
                future.set_result(await use(connection))
            except CasemateError as error:
                future.set_exception(error)
            except asyncio.CancelledError:
                future.cancel()
                raise
            except BaseException as error:
                future.set_exception(Fault(f"a call of an MCP server failed: {type(error).__name__}"))
                raise


def _load() -> None:
    """Load the MCP SDK, which takes most of a second, and silence its loggers, which log sessions and tokens."""
    import httpx2  # noqa: F401
    import mcp
    import mcp.client.auth
    import mcp.client.sse
    import mcp.client.streamable_http  # noqa: F401

    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in _LOUD:
            logging.getLogger(name).addFilter(_is_not_ours)


def _is_not_ours(record: logging.LogRecord) -> bool:
    return record.threadName != _THREAD
