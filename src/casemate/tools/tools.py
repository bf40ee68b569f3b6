"""``sandbox.tools``: MCP servers and their tools, for the application and for cells."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from casemate.errors import CasemateError, InvalidArgument
from casemate.model.call_options import Seconds
from casemate.model.foreign import suggest
from casemate.model.kinds import Name
from casemate.model.operation import Audience, Most, operation
from casemate.tools.connections.answers import ABSENT, Answer, CallProgress, Elicit
from casemate.tools.connections.definition import Program
from casemate.tools.modules.catalogue import Catalogue
from casemate.tools.requests import Detail
from casemate.tools.schemas.schema import Unreadable, infer_schema
from casemate.tools.schemas.types import module_names, package_names
from casemate.tools.schemas.validation import Validator
from casemate.tools.tool import Problem, Tool

if TYPE_CHECKING:
    from casemate.files.beneath import HeldFolder
    from casemate.tools.connections.answers import ServerTools as Listed
    from casemate.tools.connections.servers import Servers

Aside = Callable[..., Awaitable[Any]]  # runs a function with arguments in another thread
_RESOLVERS = 8
_RESOLVED_SECONDS = 20.0
_MOST_VALIDATORS = 1000  # cached compiled schemas
_MOST_SAMPLES = 5  # answers used to infer a tool's result type
_MOST_MADE = 3  # attempts at an up-to-date catalogue
_MOST_SAMPLE = 64 << 10  # bytes of a sample


@dataclass(frozen=True, slots=True)
class ToolSummary:
    """An available tool.

    Attributes:
        server: The name of its server.
        tool: Its name on the wire.
        module: Its module in cells.
        about: The beginning of its description.
    """

    server: str
    tool: str
    module: str
    about: str


@dataclass(frozen=True, slots=True)
class Known:
    tool: Tool
    hash: str  # of its whole definition
    validator: Validator


@dataclass(frozen=True, slots=True)
class SearchResult:
    text: str  # for a model
    rows: list[dict[str, Any]]  # the tools in it
    missing: str = ""  # a line for each server that could not be reached


def _told_answer(answer: Answer) -> dict[str, Any]:
    structured = {"structured": answer.structured} if answer.has_structured else {}
    return {"content": answer.content, "is_error": answer.is_error, **structured}


class Tools:
    """The MCP servers of a sandbox. Servers start when they are first needed and stay."""

    def __init__(
        self, servers: Callable[[Callable[[Listed], None]], Servers], written_through: str | None = None
    ) -> None:
        """``servers`` makes the connections, given a callback for each new list of tools."""
        self.written_through = written_through  # the folder that cells write to directly
        self._make_servers = servers
        self._servers: Servers | None = None
        self._lock = threading.Lock()
        self._catalogue: Catalogue | None = None
        self._made_of = -1  # the state that the catalogue was made from
        self._state = 0  # counts changes of servers and tools
        self._making: Future[Catalogue] | None = None
        self._validators: dict[tuple[str, str, str], Validator] = {}  # the oldest is dropped first
        self._samples: dict[tuple[str, str], list[Any]] = {}
        self._resolvers = ThreadPoolExecutor(_RESOLVERS, "casemate-tools-resolver")  # threads start on first use

    # -- for the application

    async def add(self, name: str, definition: Mapping[str, Any], *, folder: HeldFolder | None = None) -> None:
        """Add a server: ``{"command": ..., "args": [...], "env": {...}}`` or ``{"url": ..., "headers": {...}}``, as in
        other programs' ``mcpServers`` (docs/how-to/servers.md). It starts when it is first needed.

        Args:
            folder: The folder to start it in, held open since an approver saw its path as "cwd".

        Raises:
            InvalidArgument: The definition is malformed, or the name is taken.
        """
        self.servers.add(name, definition, folder)
        self._forget(name)

    def server_folders(self) -> dict[str, str]:
        """The folder of each server that runs behind a wall, which it may write to, by the server's name."""
        programs = ((one.name, one.how) for one in self.servers.definitions())
        return {name: os.path.realpath(how.cwd) for name, how in programs if isinstance(how, Program) and how.wall}

    @operation()
    async def remove(self, name: Name) -> None:
        """Remove a server and end its processes.

        Args:
            name: The server's name.

        Raises:
            InvalidArgument: There is no such server.
        """
        self.servers.remove(name)
        self._forget(name)

    @operation()
    async def reset(self, name: Name | None = None) -> None:
        """End one server or all. Each starts again when it is next needed.

        Args:
            name: The server's name; nothing for all.

        Raises:
            InvalidArgument: An argument cannot be used.
        """
        self.servers.reset(name)

    @operation(audience=Audience.AGENT)
    async def list(self) -> list[ToolSummary]:
        """List the tools of all servers that can be reached; see :meth:`problems` for the others."""
        return [ToolSummary(**row) for row in (await self.catalogue()).list_rows()]

    @operation(audience=Audience.AGENT)
    async def search(self, query: Annotated[str, Most(2000)], *, detail: Detail = "brief") -> str:
        """Find the tools that match best, as a text for a model. It names servers that cannot be reached.

        Args:
            query: Words to search for.
            detail: ``"names"``, a line for each tool (``"brief"``), or full descriptions (``"full"``).
        """
        found = await self.search_all(query, detail)
        return f"{found.text}\n{found.missing}" if found.missing else found.text

    @operation(audience=Audience.AGENT)
    async def describe(self, server: Name, tool: Name) -> str:
        """Describe everything that a program needs to call a tool, as a text for a model.

        Args:
            server: The name of its server.
            tool: The tool's name.

        Raises:
            InvalidArgument: There is no such tool.
        """
        return await self.describe_aside(server, tool, asyncio.to_thread)

    async def describe_aside(self, server: str, tool: str, aside: Aside) -> str:
        """Like :meth:`describe`, with the work done by ``aside``."""
        await self.resolve_tool(server, tool, aside=aside)
        text: str | None = await aside((await self.catalogue(server)).describe, server, tool)
        if text is None:
            raise _no_tool(server, tool)
        return text

    async def problems(self) -> Mapping[str, str]:
        """Why servers and single tools (``server.tool``) are unavailable, with the last output of such a server."""
        tools, failed = await self.find_problems()
        return {**tools, **{server: str(error) for server, error in failed.items()}}

    async def find_problems(self) -> tuple[dict[str, str], dict[str, CasemateError]]:
        """Why single tools are unavailable, and the errors of servers."""
        catalogue, failed = await self._all()
        return {f"{server}.{one.tool}": one.message for server, one in self._problems_in(catalogue)}, failed

    @operation(gives=_told_answer)
    async def call(
        self,
        server: Name,
        tool: Name,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the server has it, too
    ) -> Answer:
        """Call a tool from the application, without approval.

        A failure of the tool itself is an answer with ``is_error``. As JSON the answer has ``content``, ``is_error``,
        and ``structured`` if the tool returned structured content.

        Args:
            server: The name of its server.
            tool: The tool's name.
            arguments: Arguments that match the tool's schema.
            timeout: Seconds; None for the server's timeout.

        Raises:
            InvalidArgument: There is no such tool, or its schema does not allow the arguments.
            ToolUnavailable: The server cannot be used.
        """
        known = await self.resolve_tool(server, tool)
        given = dict(arguments or {})
        if errors := known.validator.errors(given):
            raise InvalidArgument("arguments", "; ".join(errors))
        return await asyncio.wrap_future(self.send_call(known, given, timeout=timeout))

    # -- for cells

    @property
    def servers(self) -> Servers:
        with self._lock:
            if self._servers is None:
                self._servers = self._make_servers(self._note_change)
            return self._servers

    async def search_all(
        self, query: str, detail: Detail = "brief", *, aside: Aside = asyncio.to_thread
    ) -> SearchResult:
        """The tools that match ``query`` best, and the servers that could not be reached."""
        catalogue, failed = await self._all()
        text, rows = await aside(catalogue.search, query, detail)
        why = [
            f"{server} cannot be reached, so its tools are not among these: {error.message}"
            for server, error in failed.items()
        ]
        return SearchResult(text, rows, "\n".join(why))

    async def catalogue(self, server: str | None = None) -> Catalogue:
        """The catalogue with the tools of ``server``, or of all servers, which are started if needed."""
        if server is None:
            return (await self._all())[0]
        if self.servers.present(server) is None:
            await asyncio.wrap_future(self.servers.tools(server))
        return await self._current()

    async def resolve_tool(
        self, server: str, tool: str, *, is_new: bool = False, aside: Aside = asyncio.to_thread
    ) -> Known:
        """A tool by its exact names, from its server's last list, or a new one with ``is_new``. Raises
        ``InvalidArgument`` for an unknown tool."""
        listed = None if is_new else self.servers.last_tools(server)
        if listed is None:
            listed = await asyncio.wrap_future(self.servers.tools(server))
        described = listed.tools.get(tool)
        if described is None:
            raise _no_tool(server, tool)
        return Known(described, listed.hashes[tool], await self._validator(described, listed.hashes[tool], aside))

    def send_call(
        self,
        known: Known,
        arguments: Mapping[str, Any],
        *,
        timeout: float | None = None,
        on_progress: Callable[[CallProgress], None] | None = None,
        elicit: Elicit | None = None,
    ) -> Future[Answer]:
        """Call exactly the tool ``known``, with validated arguments."""
        tool = known.tool
        answering = self.servers.call(
            tool.server, tool.name, arguments, timeout=timeout, expected=known.hash, on_progress=on_progress,
            elicit=elicit,
        )  # fmt: skip
        if tool.output_schema is None:
            answering.add_done_callback(lambda done: self._learn(tool, done))
        return answering

    async def addresses_of(self, host: str) -> tuple[str, ...]:
        """Resolve ``host`` in separate threads, which its name server may delay. Raises ``InvalidArgument``."""
        from casemate.tools.connections.remote import addresses_of

        try:
            async with asyncio.timeout(_RESOLVED_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._resolvers, addresses_of, host)
        except (OSError, UnicodeError, TimeoutError):
            raise InvalidArgument("url", f"{host[:100]} has no address") from None

    async def module(self, name: str, *, aside: Aside = asyncio.to_thread) -> tuple[str, bool] | None:
        """The source of a module of ``mcptools``, and whether it is a package; None for an unknown module."""
        server = await self._server_of(name)
        if server is None:
            return None
        catalogue = await self.catalogue(server)
        found: tuple[str, bool] | None = catalogue.cached_source(name) or await aside(catalogue.source, name)
        return found

    async def explain_missing(self, name: str) -> str:
        """Why ``mcptools`` has no module ``name``, with a suggestion."""
        package, _, module = name.partition(".")[2].partition(".")
        server = await self._server_of(name)
        if server is None:
            packages = package_names(definition.name for definition in self.servers.definitions()).values()
            return f"there is no server {package!r}{suggest(package, packages)}"
        catalogue = await self.catalogue(server)
        for owner, problem in self._problems_in(catalogue):
            if owner == server and module in (problem.tool, *module_names([problem.tool]).values()):
                return f"{server} has no tool {module!r} that can be called: {problem.message}"
        return f"{server} has no tool {module!r}{suggest(module, catalogue.modules(server))}"

    def close(self) -> None:
        """End every server. Blocks for a bounded time; may be repeated."""
        self._resolvers.shutdown(wait=False, cancel_futures=True)
        if self._servers is not None:
            self._servers.close()

    # -- inside

    def _problems_in(self, catalogue: Catalogue) -> tuple[tuple[str, Problem], ...]:
        """The unusable tools, by server: those left out of its list and those that the catalogue refused."""
        left_out = [(one.server, problem) for one in self.servers.all_tools() for problem in one.problems]
        return (*left_out, *catalogue.problems)

    async def _server_of(self, module: str) -> str | None:
        package = module.split(".")[1] if module.count(".") else ""
        names = package_names(definition.name for definition in self.servers.definitions())
        return next((server for server, name in names.items() if name == package), None)

    async def _all(self) -> tuple[Catalogue, dict[str, CasemateError]]:
        failed: dict[str, CasemateError] = {}

        async def list_one(server: str) -> None:
            try:
                await asyncio.wrap_future(self.servers.tools(server))
            except CasemateError as error:
                failed[server] = error

        async with asyncio.TaskGroup() as group:
            for definition in self.servers.definitions():
                group.create_task(list_one(definition.name))
        return await self._current(), failed

    async def _current(self) -> Catalogue:
        with self._lock:
            if self._catalogue is not None and self._made_of == self._state:
                return self._catalogue
            made, is_first = self._making or Future(), self._making is None
            self._making = made
        if is_first:
            asyncio.get_running_loop().run_in_executor(None, self._make, made)
        return await asyncio.shield(asyncio.wrap_future(made))

    def _made_now(self) -> Catalogue:
        servers = self.servers
        with self._lock:
            before, state = self._catalogue, self._state
            tools = [self._with_samples(tool) for one in servers.all_tools() for tool in one.tools.values()]
            names = [definition.name for definition in servers.definitions()]
        catalogue = Catalogue(tools, names, before)
        with self._lock:
            self._catalogue, self._made_of = catalogue, state
        return catalogue

    def _make(self, made: Future[Catalogue]) -> None:
        """Make the catalogue of the current state. Attempts are bounded: a server may change its list all the time."""
        try:
            catalogue, tries = self._made_now(), 1
            while self._made_of != self._state and tries < _MOST_MADE:
                catalogue, tries = self._made_now(), tries + 1
            with self._lock:
                self._making = None
            made.set_result(catalogue)
        except BaseException as error:  # noqa: BLE001 - it is raised where the future is awaited
            with self._lock:
                self._making = None
            made.set_exception(error)

    async def _validator(self, tool: Tool, digest: str, aside: Aside) -> Validator:
        key = (tool.server, tool.name, digest)
        if (found := self._validators.get(key)) is not None:
            return found
        try:
            made: Validator = await aside(lambda: self._validators.get(key) or Validator(tool.input_schema))
        except Unreadable as error:
            raise InvalidArgument("tool", f"{tool.server}.{tool.name} cannot be used: {error}") from None
        with self._lock:
            self._validators[key] = made
            while len(self._validators) > _MOST_VALIDATORS:
                del self._validators[next(iter(self._validators))]
        return made

    def _note_change(self, _: Listed) -> None:
        with self._lock:
            self._state += 1

    def _forget(self, server: str) -> None:
        with self._lock:
            self._state += 1
            for known in [known for known in self._samples if known[0] == server]:
                del self._samples[known]

    def _with_samples(self, tool: Tool) -> Tool:
        samples = self._samples.get((tool.server, tool.name))
        return replace(tool, samples=infer_schema(samples)) if samples else tool

    def _learn(self, tool: Tool, answering: Future[Answer]) -> None:
        if answering.cancelled() or answering.exception() is not None or answering.result().is_error:
            return
        sample = _sample(answering.result())
        with self._lock:
            known = self._samples.setdefault((tool.server, tool.name), [])
            if sample is not ABSENT and len(known) < _MOST_SAMPLES:
                known.append(sample)
                self._state += 1


def _sample(answer: Answer) -> Any:
    """The value of an answer: its structured content, or the JSON object or list in its only text."""
    if answer.structured is not ABSENT:
        return answer.structured if len(json.dumps(answer.structured)) <= _MOST_SAMPLE else ABSENT
    texts = [block.get("text") for block in answer.content]
    if len(texts) != 1 or not isinstance(texts[0], str) or len(texts[0]) > _MOST_SAMPLE:
        return ABSENT
    try:
        value = json.loads(texts[0])
    except (ValueError, RecursionError):
        return ABSENT
    return value if isinstance(value, dict | list) else ABSENT


def _no_tool(server: str, tool: str) -> InvalidArgument:
    return InvalidArgument("tool", f"{server} has no tool {tool[:100]!r}; names are compared exactly")
