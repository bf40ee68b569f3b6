"""Offers casemate's own functions to cells as the tools of a server. They run in the sandbox's event loop."""

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
    from casemate.approvals.requester import Requester
    from casemate.tools.connections.calling import Calling
    from casemate.tools.connections.context import Surroundings

Function = Callable[..., Awaitable[Any]]
_OF_A_FILE = ("name", "size", "sha256", "media_type")


_CALLING: ContextVar[Requester | None] = ContextVar("calling", default=None)


@contextlib.contextmanager
def called_from_cell(requester: Requester) -> Iterator[None]:
    """Attribute function calls in the block to the run or step of ``requester``."""
    token = _CALLING.set(requester)
    try:
        yield
    finally:
        _CALLING.reset(token)


def calling_requester() -> Requester | None:
    """The requester of the calling cell's run or step; None if the application calls."""
    return _CALLING.get()


class OwnConnection:
    """A connection to casemate's own functions, with the interface of `Connection`. It has no process."""

    def __init__(self, definition: ServerDefinition, functions: OwnFunctions, surroundings: Surroundings) -> None:
        self.definition = definition
        self.tools: ServerTools | None = None
        self._functions = functions.functions
        self._on_tools = surroundings.on_tools

    @property
    def is_there(self) -> bool:
        return self.tools is not None

    async def list_tools(self) -> ServerTools:
        """List the functions as tools."""
        if self.tools is None:
            listing = ToolListing(self.definition.name)
            listing.page([_describe(name, function) for name, function in self._functions.items()])
            listed = listing.finish("")
            own = {name: replace(tool, asks_itself=True) for name, tool in listed.tools.items()}
            self.tools = replace(listed, tools=own)
            self._on_tools(self.tools)
        return self.tools

    async def call(self, calling: Calling, expected: str = "") -> Answer:  # noqa: ARG002 - it never changes
        """Call a function. Its ``CasemateError`` becomes an error of the tool."""
        requester = calling_requester()
        if requester is None:
            raise ToolUnavailable(self.definition.name, "only code in a cell can call it as a tool", reason="call")
        context = requester.context.copy()
        context.run(_CALLING.set, requester)
        work = self._functions[calling.tool](**calling.arguments)
        assert inspect.iscoroutine(work)
        try:
            answering = context.run(asyncio.run_coroutine_threadsafe, work, requester.loop)
        except RuntimeError:
            work.close()
            raise ToolUnavailable(self.definition.name, "the sandbox's event loop is gone", reason="closed") from None
        try:
            value = _as_json(await asyncio.wrap_future(answering))
        except CasemateError as error:
            return Answer([{"type": "text", "text": str(error)}], is_error=True)
        except Exception as error:  # otherwise it would end the connections to all servers
            raise Fault(f"{self.definition.name}.{calling.tool} failed: {type(error).__name__}") from error
        return Answer([{"type": "text", "text": json.dumps(value, ensure_ascii=False)}], {"result": value})

    async def read(self, uri: str) -> list[dict[str, Any]]:  # noqa: ARG002 - as a connection
        """Raise ``InvalidArgument``: there are no resources."""
        raise InvalidArgument("uri", f"{self.definition.name} has no resources")

    def reset(self) -> None:
        """Do nothing: it has no process."""

    def stop(self) -> None:
        """Do nothing: it has no process."""

    async def run(self) -> None:
        """Do nothing: it has no process."""


def _describe(name: str, function: Function) -> dict[str, Any]:
    from pydantic import ConfigDict, create_model

    hints, parameters = get_type_hints(function), inspect.signature(function).parameters
    fields: dict[str, Any] = {
        key: (hints[key], ... if one.default is one.empty else one.default) for key, one in parameters.items()
    }
    schema = create_model(name, __config__=ConfigDict(extra="forbid"), **fields).model_json_schema()
    text = inspect.getdoc(function) or ""
    return {"name": name, "description": text.partition("\nRaises:")[0].strip(), "inputSchema": schema}


def _as_json(value: Any) -> Any:
    """A result as JSON: bytes as text, or in base64 if they are not UTF-8."""
    try:
        return value.decode() if isinstance(value, bytes) else _json_of(value)
    except UnicodeDecodeError:
        return {"base64": _json_of(value)}


def _json_of(value: Any) -> Any:
    """A JSON value with bytes in base64. A file's bytes are its ``content``."""
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
