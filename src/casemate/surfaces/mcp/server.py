"""The MCP server: the SDK's server and stdio transport, with casemate's tools and files.

It builds on the SDK's low-level server: schemas are written here, arguments are checked here, and every error of
casemate becomes an answer for the model. The SDK speaks the protocol, in the revisions from 2024-11-05 to 2026-07-28.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, cast

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from casemate import __version__
from casemate.errors import CasemateError
from casemate.surfaces.mcp.answers import TEMPLATES, failure
from casemate.surfaces.mcp.callers import Backend, Call, Callers
from casemate.surfaces.mcp.toolsets import INSTRUCTIONS, NAME, check_toolset, tools_of

if TYPE_CHECKING:
    from anyio import AsyncFile

    from casemate.surfaces.mcp.early import Early

Context = Any  # mcp.server.context.ServerRequestContext
ANSWER_WITHIN = 45.0  # seconds until a call is answered, done or not; clients give up after 60
_STATE_HOLDS = 86_400.0  # seconds for a person to answer: longer than any approval request waits
_LISTS_HOLD = 3_600_000  # milliseconds; a server's tools never change
_BEFORE_LINKS = ("2024-11-05", "2025-03-26")  # revisions without links in an answer's content
_log = logging.getLogger(__name__)


def make_server(backend: Backend, *, toolset: str = "default", answer_within: float = ANSWER_WITHIN) -> Server[Callers]:
    """A server for any number of connections. Raises ``InvalidArgument`` for an unknown toolset.

    ``answer_within``: seconds until a call is answered, done or not.
    """
    check_toolset(toolset)
    callers = Callers(backend)

    @contextlib.asynccontextmanager
    async def run_callers(_server: Server[Callers]) -> AsyncGenerator[Callers]:
        async with callers.open():
            yield callers

    async def list_tools(_context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        described = [one.definition() for one in tools_of(toolset).values()]
        return types.ListToolsResult(tools=described, ttl_ms=_LISTS_HOLD, cache_scope="public")

    server: Server[Callers] = Server(
        NAME, version=__version__, title=NAME, instructions=INSTRUCTIONS, lifespan=run_callers,
        get_tool_input_schema=lambda name: tools_of(toolset)[name].input_schema if name in tools_of(toolset) else None,
        on_list_tools=list_tools, on_call_tool=_make_caller(toolset, answer_within),
        on_list_resources=_no_resources, on_list_resource_templates=_templates, on_read_resource=_read,
    )  # fmt: skip

    def bind(context: Context) -> str:
        return callers.of(context).name

    security = RequestStateSecurity(keys=[secrets.token_bytes(32)], ttl=_STATE_HOLDS, bind_principal=bind)
    server.middleware.append(RequestStateBoundary(security, default_audience=NAME))
    return server


def _make_caller(toolset: str, answer_within: float) -> Callable[..., Any]:
    async def call_tool(
        context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        tool = tools_of(toolset).get(params.name)
        if tool is None:
            raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: {params.name[:200]}")
        callers: Callers = context.lifespan_context
        arguments = params.arguments or {}
        try:
            tool.check(arguments)
            answer = await tool.run(Call(callers.of(context), callers, arguments, context, params, answer_within))
            return _without_links(answer) if context.protocol_version in _BEFORE_LINKS else answer
        except CasemateError as error:
            return failure(error)
        except Exception as error:  # noqa: BLE001 - the SDK would hide it from the model and the log
            _log.exception("the tool %s failed", tool.name)
            return failure(CasemateError(f"casemate itself failed: {type(error).__name__}"))

    return call_tool


def _without_links(
    answer: types.CallToolResult | types.InputRequiredResult,
) -> types.CallToolResult | types.InputRequiredResult:
    """Drop the answer's links, for clients that do not know them. The text has a ``read_file`` for each file."""
    if not isinstance(answer, types.CallToolResult):
        return answer
    known = [block for block in answer.content if not isinstance(block, types.ResourceLink)]
    return answer.model_copy(update={"content": known})


async def _no_resources(_context: Context, _params: Any) -> types.ListResourcesResult:
    """Return an empty list: answers name their files."""
    return types.ListResourcesResult(resources=[])


async def _templates(_context: Context, _params: Any) -> types.ListResourceTemplatesResult:
    templates = [types.ResourceTemplate(uri_template=uri, name=name) for uri, name in TEMPLATES]
    return types.ListResourceTemplatesResult(resource_templates=templates, ttl_ms=_LISTS_HOLD, cache_scope="public")


async def _read(context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    from casemate.surfaces.mcp.files import read_resource

    callers: Callers = context.lifespan_context
    uri = str(params.uri)
    try:
        found = await read_resource(callers.of(context), uri)
    except CasemateError as error:
        raise MCPError(code=types.INVALID_PARAMS, message=str(error), data={"uri": uri}) from None
    if found is None:
        raise MCPError(code=types.INVALID_PARAMS, message="Resource not found", data={"uri": uri})
    return found


async def serve_stdio(server: Server[Callers], early: Early) -> None:
    """Serve until the client closes standard input. A signal ends the client's runs and sessions. Then the
    process exits at once, because its reading thread cannot be woken. ``early`` holds standard input and output."""
    lines = cast("AsyncFile[str]", early)
    async with server.lifespan(server) as callers, anyio.create_task_group() as tasks:
        tasks.start_soon(_end_by_signal, callers)
        async with stdio_server(lines, lines) as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
        tasks.cancel_scope.cancel()


async def _end_by_signal(callers: Callers) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            await callers.end()
            sys.stderr.flush()
            os._exit(128 + number)
