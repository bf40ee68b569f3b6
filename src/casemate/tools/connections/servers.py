"""The MCP servers of a sandbox: added under names, connected when they are first used, in a thread of their own.

Everything here may be called from any thread. What takes time gives a future, and cancelling that cancels the call.
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
from casemate.tools.connections.context import SecretStore, SignInPrompt, Surroundings
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
_END_SECONDS = 20.0  # a server's processes have 8 of them, and all end at the same time
_MOST_SERVERS = 100
_LOUD = ("client", "mcp", "httpx2", "httpcore2")  # loggers of the libraries below, which write down what is secret

T = TypeVar("T")
AnyConnection = Connection | OwnConnection
Use = Callable[[AnyConnection], Awaitable[T]]


class Servers:
    """The servers of one namespace. ``environ``: the host's variables, of which servers see a few by name; ``secrets``:
    the vault's. ``on_tools``: is told of each list of tools, also one that has changed, in a thread of ours, and
    must neither block nor raise; ``on_sign_in`` shows somebody where to sign in, and may raise; ``wall``: see
    `Surroundings`. The thread starts with the first use, and ends with :meth:`close`."""

    def __init__(
        self,
        environ: Mapping[str, str],
        secrets: SecretStore,
        *,
        on_tools: Callable[[ServerTools], None] = lambda _tools: None,
        on_sign_in: Callable[[SignInPrompt], None] | None = None,
        wall: tuple[str, ...] = (),
    ) -> None:
        from casemate.tools.connections.browser import open_browser

        self._surroundings = Surroundings(environ, secrets, on_tools, on_sign_in or open_browser, wall)
        self._lock = threading.Lock()
        self._connections: dict[str, AnyConnection] = {}
        self._owned: set[AnyConnection] = set()  # those with a task that looks after them
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._group: asyncio.TaskGroup | None = None
        self._end: asyncio.Event | None = None
        self._loop_work = LoopWork()
        self._is_closed = False
        self._process = os.getpid()

    def add(
        self, name: str, definition: Mapping[str, Any] | ServerDefinition, folder: HeldFolder | None = None
    ) -> ServerDefinition:
        """Add a server; nothing is started. Raises ``InvalidArgument`` for a definition that is none, and for a name
        that is taken."""
        read = definition if isinstance(definition, ServerDefinition) else read_definition(name, definition)
        if read.name != check_server_name(name):
            raise InvalidArgument("server", f"the definition is of {read.name!r}, not of {name!r}")
        if folder is not None and isinstance(read.how, Program):
            read = replace(read, how=replace(read.how, folder=folder))
        with self._lock:
            self._check_free(name)
            if isinstance(read.how, OwnFunctions):
                self._connections[name] = OwnConnection(read, read.how, self._surroundings)
            else:
                self._connections[name] = Connection(read, self._surroundings)
        return read

    def check_free(self, name: str) -> None:
        """Raises ``InvalidArgument`` where no server of that name could be added, whatever its definition is."""
        check_server_name(name)
        with self._lock:
            self._check_free(name)

    def remove(self, name: str) -> None:
        """Forget a server and end what runs of it; calls that it has not answered fail. Raises ``InvalidArgument``."""
        with self._lock:
            connection = self._connection(name)
            del self._connections[name]
            loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(connection.stop)

    def definitions(self) -> tuple[ServerDefinition, ...]:
        """The definitions, in the order in which they were added."""
        with self._lock:
            return tuple(connection.definition for connection in self._connections.values())

    def last_tools(self, server: str) -> ServerTools | None:
        """The tools of a server as they were last read; None before that. Nothing is started. Raises
        ``InvalidArgument`` for a name that is not exactly a server's."""
        with self._lock:
            return self._connection(server).tools

    def present(self, server: str) -> ServerTools | None:
        """As :meth:`last_tools`, of a server that is connected now; what it says of changes is noticed."""
        with self._lock:
            connection = self._connection(server)
            return connection.tools if connection.is_there else None

    def tools(self, server: str) -> Future[ServerTools]:
        """The tools of a server, which is connected for that. The future raises ``ToolUnavailable``,
        ``InvalidArgument`` for a placeholder without value, ``VaultUnavailable``; this itself ``InvalidArgument`` for
        an unknown name, and ``SandboxClosed``."""
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
        """Call a tool by its exact names. Arguments are sent as they are: whoever calls has checked them.

        ``timeout``: seconds from when it is sent, None for the definition's; those in which the user is asked do not
        count. ``expected``: the hash of the description that was approved (``ServerTools.hashes``); a call of what has
        changed since is refused. ``on_progress`` is called in a thread of ours and must neither block nor raise.
        ``elicit``: asks the user what the server wants to know; None declines.

        The future raises as that of :meth:`tools`; cancelling it tells the server. A failure of the tool itself is
        an answer with ``is_error``.
        """
        with self._lock:
            seconds = self._connection(server).definition.timeout if timeout is None else timeout
        calling = Calling(tool, arguments, seconds, on_progress, elicit)
        return self._submit(server, lambda connection: connection.call(calling, expected))

    def read(self, server: str, uri: str, *, timeout: float | None = None) -> Future[list[dict[str, Any]]]:
        """The contents of a resource of the server's, as MCP has them (``resources/read``). Raises as :meth:`call`."""
        with self._lock:
            seconds = self._connection(server).definition.timeout if timeout is None else timeout
        return self._submit(server, lambda connection: connection.read(uri, seconds))

    async def beside(self, work: Work) -> None:
        """Have ``work`` done in the loop of the connections, from where calls need no other thread. From any loop.

        It comes back when ``work`` has ended, also when it is cancelled, which ends that. Raises what ``work`` raises,
        ``SandboxClosed``, and ``Fault`` where the thread is gone.
        """
        with self._lock:  # so that it begins before the loop is told to end
            self._check_open()
            loop = self._ensure_loop()
            assert self._group is not None
            item = self._loop_work.enter(loop, self._group, work)
        await item.stay()

    def reset(self, name: str | None = None) -> None:
        """End a server, or all that run; each is started anew when it is next used. Raises ``InvalidArgument``."""
        with self._lock:
            which = [self._connection(name)] if name is not None else list(self._connections.values())
            loop = self._loop
        if loop is not None:
            for connection in which:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(connection.reset)

    def close(self) -> None:
        """End every server and the thread. Blocks, bounded; harmless when repeated."""
        with self._lock:
            self._is_closed = True
            thread, loop, end = self._thread, self._loop, self._end
        if thread is None or loop is None or end is None or self._process != os.getpid():
            return
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(end.set)
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
    """Load the MCP SDK, which takes most of a second, and silence it: its loggers tell of sessions and tokens."""
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
