"""casemate's own functions, offered to cells as the tools of a server are: they ask by themselves for what they do.

A function runs in the sandbox's event loop, in the name of the run or step whose cell has called it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, get_type_hints

from casemate.errors import CasemateError, Fault, InvalidArgument, ToolUnavailable
from casemate.model.execution import Artifact
from casemate.tools.connections.answers import Answer, ServerTools, ToolListing
from casemate.tools.connections.definition import OwnFunctions, ServerDefinition

if TYPE_CHECKING:
    from casemate.tools.connections.calling import Calling
    from casemate.tools.connections.context import Surroundings
    from casemate.tools.requests import CallRequester

Function = Callable[..., Awaitable[Any]]
_OF_A_FILE = ("name", "size", "sha256", "media_type")


_CALLING: ContextVar[CallRequester | None] = ContextVar("calling", default=None)


@contextlib.contextmanager
def called_from_cell(requester: CallRequester) -> Iterator[None]:
    """Functions that are called meanwhile are called by the cell of that run or step."""
    token = _CALLING.set(requester)
    try:
        yield
    finally:
        _CALLING.reset(token)


def calling_requester() -> CallRequester | None:
    """The requester of the run whose cell has called; None where the application, or a caller of its own, does."""
    return _CALLING.get()


class OwnConnection:
    """To the functions of one name. The same as a connection to a server, of which nothing has to be started."""

    def __init__(self, definition: ServerDefinition, functions: OwnFunctions, surroundings: Surroundings) -> None:
        self.definition = definition
        self.tools: ServerTools | None = None
        self._functions = functions.functions
        self._on_tools = surroundings.on_tools

    @property
    def is_there(self) -> bool:
        """Whether its functions are described."""
        return self.tools is not None

    async def list_tools(self) -> ServerTools:
        """All of them."""
        if self.tools is None:
            listing = ToolListing(self.definition.name)
            listing.page([_describe(name, function) for name, function in self._functions.items()])
            listed = listing.finish("", "")
            own = {name: replace(tool, asks_itself=True) for name, tool in listed.tools.items()}
            self.tools = replace(listed, tools=own)
            self._on_tools(self.tools)
        return self.tools

    async def call(self, calling: Calling, expected: str = "") -> Answer:  # noqa: ARG002 - it never changes
        """What a function gives, as JSON; an error that it raises is one of the tool."""
        requester = calling_requester()
        loop = requester.loop if requester is not None else None
        if requester is None or loop is None:
            raise ToolUnavailable(self.definition.name, "only code in a cell calls it so", reason="call")
        context = requester.context.copy()
        context.run(_CALLING.set, requester)
        work = self._functions[calling.tool](**calling.arguments)
        assert inspect.iscoroutine(work)
        try:
            answering = context.run(asyncio.run_coroutine_threadsafe, work, loop)
        except RuntimeError:
            work.close()
            raise ToolUnavailable(self.definition.name, "the sandbox's event loop is gone", reason="closed") from None
        try:
            value = _as_json(await asyncio.wrap_future(answering))
        except CasemateError as error:
            return Answer([{"type": "text", "text": str(error)}], is_error=True)
        except Exception as error:  # else it would end the connections to all servers
            raise Fault(f"{self.definition.name}.{calling.tool} failed: {type(error).__name__}") from error
        return Answer([{"type": "text", "text": json.dumps(value, ensure_ascii=False)}], {"result": value})

    async def read(self, uri: str, timeout: float) -> list[dict[str, Any]]:  # noqa: ARG002, ASYNC109 - as a connection
        """There are no resources."""
        raise InvalidArgument("uri", f"{self.definition.name} has no resources")

    def reset(self) -> None:
        """Nothing of it runs."""

    def stop(self) -> None:
        """Nothing of it runs."""

    async def run(self) -> None:
        """Nothing of it runs."""


def _describe(name: str, function: Function) -> dict[str, Any]:
    """A function as a server would describe it."""
    from pydantic import ConfigDict, create_model

    hints, parameters = get_type_hints(function), inspect.signature(function).parameters
    fields: dict[str, Any] = {
        key: (hints[key], ... if one.default is one.empty else one.default) for key, one in parameters.items()
    }
    schema = create_model(name, __config__=ConfigDict(extra="forbid"), **fields).model_json_schema()
    text = inspect.getdoc(function) or ""
    return {"name": name, "description": text.partition("\nRaises:")[0].strip(), "inputSchema": schema}


def _as_json(value: Any) -> Any:
    """A result as JSON: bytes as text, or in base64 where they are none."""
    try:
        return value.decode() if isinstance(value, bytes) else _json_of(value)
    except UnicodeDecodeError:
        return {"base64": _json_of(value)}


def _json_of(value: Any) -> Any:
    """Bytes in base64, those of a file as its ``content``."""
    if isinstance(value, Artifact):
        value = {name: getattr(value, name) for name in _OF_A_FILE} | {"content": value.read_bytes()}
    elif is_dataclass(value):
        value = {one.name: getattr(value, one.name) for one in fields(value)}
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case Mapping():
            return {name: _json_of(one) for name, one in value.items()}
        case list() | tuple():
            return [_json_of(one) for one in value]
    return value
