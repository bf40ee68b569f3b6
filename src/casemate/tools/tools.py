"""``sandbox.tools``: MCP servers and their tools, for the application; and what cells are offered of them."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from casemate.errors import CasemateError, InvalidArgument
from casemate.model.foreign import suggest
from casemate.tools.connections.answers import ABSENT, Answer, CallProgress, Elicit
from casemate.tools.connections.definition import Program
from casemate.tools.modules.catalogue import Catalogue, Detail
from casemate.tools.schemas.schema import Unreadable, infer_schema
from casemate.tools.schemas.types import module_names, package_names
from casemate.tools.schemas.validation import Validator
from casemate.tools.tool import Problem, Tool

if TYPE_CHECKING:
    from casemate.files.beneath import HeldFolder
    from casemate.tools.connections.answers import ServerTools as Listed
    from casemate.tools.connections.servers import Servers

Aside = Callable[..., Awaitable[Any]]  # does a step, with what it is given, in another thread
_RESOLVERS = 8
_RESOLVED_SECONDS = 20.0
_MOST_VALIDATORS = 1000  # compiled schemas that are kept
_MOST_SAMPLES = 5  # answers from which a tool's result type is inferred
_MOST_MADE = 3  # catalogues, one after the other, for whoever waits for one
_MOST_SAMPLE = 64 << 10  # bytes of one


@dataclass(frozen=True, slots=True)
class ToolSummary:
    """A tool that is there: the names of its ``server`` and of itself, as they are on the wire, the ``module`` that it
    is in cells.

    Attributes:
        about: The beginning of its description.
    """

    server: str
    tool: str
    module: str
    about: str


@dataclass(frozen=True, slots=True)
class Known:
    """A tool as it is known now. ``hash``: of its whole definition."""

    tool: Tool
    hash: str
    validator: Validator


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search gave: ``text`` for a model, ``rows`` of the tools in it, and ``missing``, a line for each server
    that could not be reached."""

    text: str
    rows: list[dict[str, Any]]
    missing: str = ""


class Tools:
    """The MCP servers of a sandbox. Servers are started when they are first needed, and kept."""

    def __init__(
        self, servers: Callable[[Callable[[Listed], None]], Servers], written_through: str | None = None
    ) -> None:
        """``servers`` makes them, given who is told of each list of tools. ``written_through``: the folder that cells
        write in directly."""
        self.written_through = written_through
        self._make_servers = servers
        self._servers: Servers | None = None
        self._lock = threading.Lock()
        self._listed: dict[str, Listed] = {}
        self._catalogue: Catalogue | None = None  # as it was last made, of the state with this number
        self._made_of = -1
        self._state = 0
        self._making: Future[Catalogue] | None = None
        self._validators: OrderedDict[tuple[str, str, str], Validator] = OrderedDict()
        self._samples: dict[tuple[str, str], list[Any]] = {}
        self._resolvers = ThreadPoolExecutor(_RESOLVERS, "casemate-tools-resolver")  # threads start when they are used

    # -- for the application

    async def add(self, name: str, definition: Mapping[str, Any], *, folder: HeldFolder | None = None) -> None:
        """Add a server: ``{"command": ..., "args": [...], "env": {...}}`` or ``{"url": ..., "headers": {...}}``, as in
        other programs' ``mcpServers`` (docs/how-to/servers.md). It is started when it is first needed.

        Args:
            folder: That it is started in, in place of its "cwd", by which somebody was shown it.

        Raises:
            InvalidArgument: The definition is none, or the name is taken.
        """
        self.servers.add(name, definition, folder)
        self._forget(name)

    def server_folders(self) -> dict[str, str]:
        """Where each server that is started behind a wall writes, by its name."""
        programs = ((one.name, one.how) for one in self.servers.definitions())
        return {name: os.path.realpath(how.cwd) for name, how in programs if isinstance(how, Program) and how.wall}

    async def remove(self, name: str) -> None:
        """Forget a server, and end what runs of it.

        Raises:
            InvalidArgument: There is none.
        """
        self.servers.remove(name)
        self._forget(name)

    async def reset(self, name: str | None = None) -> None:
        """End one server, or all; each is started anew when it is next needed.

        Raises:
            InvalidArgument: An argument cannot be used.
        """
        self.servers.reset(name)

    async def list(self) -> list[ToolSummary]:
        """Every tool of every server; servers that cannot be reached have none (:meth:`problems` says why)."""
        return [_summary(row) for row in (await self.catalogue()).list_rows()]

    async def search(self, query: str, *, detail: Detail = "brief") -> str:
        """The tools that fit ``query`` best, as a text for a model: their ``"names"``, a line each, or all about them
        (``"full"``); then the servers that cannot be reached, and why."""
        found = await self.search_all(query, detail)
        return f"{found.text}\n{found.missing}" if found.missing else found.text

    async def describe(self, server: str, tool: str, *, aside: Aside = asyncio.to_thread) -> str:
        """All that a program needs to know in order to call a tool, as a text for a model.

        Raises:
            InvalidArgument: There is none.
        """
        await self.resolve_tool(server, tool, aside=aside)
        text: str | None = await aside((await self.catalogue(server)).describe, server, tool)
        if text is None:
            raise _no_tool(server, tool)
        return text

    async def problems(self) -> Mapping[str, str]:
        """Why servers, and single tools (``server.tool``), are not there, and what such a server said last."""
        tools, failed = await self.find_problems()
        return {**tools, **{server: str(error) for server, error in failed.items()}}

    async def find_problems(self) -> tuple[dict[str, str], dict[str, CasemateError]]:
        """Why single tools are not there, and the errors of servers."""
        catalogue, failed = await self._all()
        tools = {f"{server}.{problem.tool}": problem.message for server, problem in catalogue.problems}
        with self._lock:
            for listed in self._listed.values():
                tools |= {f"{listed.server}.{problem.tool}": problem.message for problem in listed.problems}
        return tools, failed

    async def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the server has it, too
    ) -> Answer:
        """Call a tool from the application: nobody is asked.

        A failure of the tool itself is an answer with ``is_error``.

        Args:
            timeout: Seconds, None for the server's own.

        Raises:
            InvalidArgument: The tool is not there, or its schema does not allow the arguments.
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
        """The connections."""
        with self._lock:
            if self._servers is None:
                self._servers = self._make_servers(self._store_list)
            return self._servers

    @property
    def has_servers(self) -> bool:
        """Whether there is anything to offer."""
        return bool(self.servers.definitions())

    async def search_all(
        self, query: str, detail: Detail = "brief", *, aside: Aside = asyncio.to_thread
    ) -> SearchResult:
        """The tools that fit ``query`` best, and what could not be looked through."""
        catalogue, failed = await self._all()
        text, rows = await aside(catalogue.search, query, detail)
        why = [
            f"{server} cannot be reached, so its tools are not among these: {error.message}"
            for server, error in failed.items()
        ]
        return SearchResult(text, rows, "\n".join(why))

    async def catalogue(self, server: str | None = None) -> Catalogue:
        """What is known of the tools of ``server``, or of all, which are started for that."""
        if server is None:
            return (await self._all())[0]
        if self.servers.present(server) is None:
            await asyncio.wrap_future(self.servers.tools(server))
        return await self._current()

    async def resolve_tool(
        self, server: str, tool: str, *, is_new: bool = False, aside: Aside = asyncio.to_thread
    ) -> Known:
        """A tool, by its exact names, as its server has last described it, or with ``is_new`` does now: a call of what
        has changed since is refused. Raises ``InvalidArgument`` where there is none."""
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
        """A call of exactly the tool that is known, with arguments that were checked."""
        tool = known.tool
        answering = self.servers.call(
            tool.server, tool.name, arguments, timeout=timeout, expected=known.hash, on_progress=on_progress,
            elicit=elicit,
        )  # fmt: skip
        if tool.output_schema is None:
            answering.add_done_callback(lambda done: self._learn(tool, done))
        return answering

    async def addresses_of(self, host: str) -> tuple[str, ...]:
        """Where a name leads, by threads of its own: each may be held up by who answers for that name. Raises
        ``InvalidArgument`` where it leads nowhere."""
        from casemate.tools.connections.remote import addresses_of

        try:
            async with asyncio.timeout(_RESOLVED_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._resolvers, addresses_of, host)
        except (OSError, UnicodeError, TimeoutError):
            raise InvalidArgument("url", f"{host[:100]} has no address") from None

    async def module(self, name: str, *, aside: Aside = asyncio.to_thread) -> tuple[str, bool] | None:
        """The source of a module of ``mcptools``, and whether it is a package; None where there is none."""
        server = await self._server_of(name)
        if server is None:
            return None
        catalogue = await self.catalogue(server)
        found: tuple[str, bool] | None = catalogue.cached_source(name) or await aside(catalogue.source, name)
        return found

    async def explain_missing(self, name: str) -> str:
        """Why there is no module ``name`` of ``mcptools``, and which may have been meant."""
        package, _, module = name.partition(".")[2].partition(".")
        server = await self._server_of(name)
        if server is None:
            packages = package_names(definition.name for definition in self.servers.definitions()).values()
            return f"there is no server {package!r}{suggest(package, packages)}"
        catalogue = await self.catalogue(server)
        for problem in self._problems_of(server, catalogue):
            if module in (problem.tool, *module_names([problem.tool]).values()):
                return f"{server} has no tool {module!r} that can be called: {problem.message}"
        return f"{server} has no tool {module!r}{suggest(module, catalogue.modules(server))}"

    def close(self) -> None:
        """End every server. Blocks, bounded; harmless when repeated."""
        self._resolvers.shutdown(wait=False, cancel_futures=True)
        if self._servers is not None:
            self._servers.close()

    # -- inside

    def _problems_of(self, server: str, catalogue: Catalogue) -> tuple[Problem, ...]:
        with self._lock:
            listed = self._listed.get(server)
        left_out = listed.problems if listed is not None else ()
        return (*left_out, *(problem for name, problem in catalogue.problems if name == server))

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
        """The catalogue, which is made once for all that wait for it."""
        with self._lock:
            if self._catalogue is not None and self._made_of == self._state:
                return self._catalogue
            made, is_first = self._making or Future(), self._making is None
            self._making = made
        if is_first:
            asyncio.get_running_loop().run_in_executor(None, self._make, made)
        return await asyncio.shield(asyncio.wrap_future(made))

    def _made_now(self) -> Catalogue:
        with self._lock:
            before, state = self._catalogue, self._state
            tools = [self._with_samples(tool) for one in self._listed.values() for tool in one.tools.values()]
            names = [definition.name for definition in self._servers.definitions()] if self._servers else []
        catalogue = Catalogue(tools, names, before)
        with self._lock:
            self._catalogue, self._made_of = catalogue, state
        return catalogue

    def _make(self, made: Future[Catalogue]) -> None:
        """Until it is of what there is now, within reason: a server may change its list without end."""
        try:
            catalogue, tries = self._made_now(), 1
            while self._made_of != self._state and tries < _MOST_MADE:
                catalogue, tries = self._made_now(), tries + 1
            with self._lock:
                self._making = None
            made.set_result(catalogue)
        except BaseException as error:  # noqa: BLE001 - whoever waits has it
            with self._lock:
                self._making = None
            made.set_exception(error)

    async def _validator(self, tool: Tool, digest: str, aside: Aside) -> Validator:
        key = (tool.server, tool.name, digest)
        if (found := self._cached_validator(key)) is not None:
            return found
        try:
            made: Validator = await aside(lambda: self._cached_validator(key) or Validator(tool.input_schema))
        except Unreadable as error:
            raise InvalidArgument("tool", f"{tool.server}.{tool.name} cannot be used: {error}") from None
        with self._lock:
            self._validators[key] = made
            while len(self._validators) > _MOST_VALIDATORS:
                self._validators.popitem(last=False)
        return made

    def _cached_validator(self, key: tuple[str, str, str]) -> Validator | None:
        with self._lock:
            if (found := self._validators.get(key)) is not None:
                self._validators.move_to_end(key)
            return found

    def _store_list(self, listed: Listed) -> None:
        with self._lock:
            self._listed[listed.server] = listed
            self._state += 1

    def _forget(self, server: str) -> None:
        with self._lock:
            self._listed.pop(server, None)
            self._state += 1
            for known in [known for known in self._samples if known[0] == server]:
                del self._samples[known]

    def _with_samples(self, tool: Tool) -> Tool:
        samples = self._samples.get((tool.server, tool.name))
        return replace(tool, samples=infer_schema(samples)) if samples else tool

    def _learn(self, tool: Tool, answering: Future[Answer]) -> None:
        """Keep what it gave, for the type of what it gives."""
        if answering.cancelled() or answering.exception() is not None or answering.result().is_error:
            return
        sample = _sample(answering.result())
        with self._lock:
            known = self._samples.setdefault((tool.server, tool.name), [])
            if sample is not ABSENT and len(known) < _MOST_SAMPLES:
                known.append(sample)
                self._state += 1


def _sample(answer: Answer) -> Any:
    """The value that an answer is: its structured content, or the JSON that its only text is."""
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


def _summary(row: Mapping[str, Any]) -> ToolSummary:
    return ToolSummary(row["server"], row["tool"], row["module"], row["about"])


def _no_tool(server: str, tool: str) -> InvalidArgument:
    return InvalidArgument("tool", f"{server} has no tool {tool[:100]!r}; names are compared exactly")
