"""Where a trace comes from: W3C headers at the service, ``_meta`` at the MCP server."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.mcp_server.conftest import ERAS
from tests.service.daemon import Daemon, environment, http, reserved_port, serving, unix
from tests.support.waiting import MAX_WAIT, until
from tests.telemetry.spans import context_of, named

from casemate import Sandbox
from casemate.operations.operations import Operations
from casemate.surfaces.mcp.callers import LocalBackend
from casemate.surfaces.mcp.server import make_server

# An SDK in another process, as `opentelemetry-instrument` brings it there.
CONFIGURED = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
told = open({file!r}, "a", buffering=1)
line = lambda span: span.to_json(indent=None) + "\\n"
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=told, formatter=line)))
trace.set_tracer_provider(provider)
"""
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Traced:
    """A service whose spans are in a file."""

    def __init__(self, daemon: Daemon, port: int, file: Path) -> None:
        self.daemon, self.port, self._file = daemon, port, file

    def run_span(self, run: str) -> dict[str, Any]:
        """Of an execution, once it has ended."""
        mine = until(lambda: [one for one in self._read() if one["attributes"].get("casemate.run") == run])
        return dict(mine[0])

    def _read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._file.read_text().splitlines(keepends=True) if line.endswith("\n")]


@pytest.fixture(scope="module")
def traced() -> Iterator[Traced]:
    folder = Path(tempfile.mkdtemp(prefix="casemate-telemetry-"))
    file = folder / "spans"
    (folder / "sitecustomize.py").write_text(CONFIGURED.format(file=str(file)))
    variables = environment(folder)
    variables["PYTHONPATH"] = f"{folder}:{variables['PYTHONPATH']}"
    try:
        with reserved_port() as port, serving(variables, "--listen", f"127.0.0.1:{port}") as daemon:
            yield Traced(daemon, port, file)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start(daemon: Daemon, *headers: str) -> str:
    """Start a run over HTTP; its id."""
    head = "\n".join(("POST /v1/runs/start HTTP/1.1\nHost: localhost\nContent-Type: application/json", *headers))
    with unix(daemon) as one:
        status, _, raw = http(one, head, json.dumps({"code": "print(1)", "wait": 60}).encode())
    assert status == 200, raw
    return str(json.loads(raw)["run"])


def test_a_run_belongs_to_the_trace_that_the_headers_of_its_request_name(traced: Traced) -> None:
    span = traced.run_span(start(traced.daemon, f"traceparent: 00-{TRACE}-{PARENT}-01", "tracestate: vendor=some"))
    assert (span["context"]["trace_id"], span["parent_id"]) == (f"0x{TRACE}", f"0x{PARENT}")
    assert "key=vendor, value=some" in span["context"]["trace_state"]


@pytest.mark.parametrize("header", [None, "traceparent: 00-nonsense", f"traceparent: 00-{'0' * 32}-{PARENT}-01"])
def test_a_run_begins_a_trace_of_its_own_where_no_header_names_one(traced: Traced, header: str | None) -> None:
    span = traced.run_span(start(traced.daemon, *([header] if header else [])))
    assert span["parent_id"] is None
    assert span["context"]["trace_id"] != f"0x{TRACE}"


async def test_a_connected_sandbox_sends_the_trace_of_its_caller(
    traced: Traced, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"unix://{traced.daemon.socket}"
    async with await Sandbox.connect(url) as sandbox, sandbox.session() as session:
        with trace.get_tracer("agent").start_as_current_span("thinking") as caller:
            executions = [await sandbox.run("print(1)"), await session.run("1 + 1")]
    for execution in executions:
        span = traced.run_span(execution.id)
        assert int(span["context"]["trace_id"], 16) == caller.get_span_context().trace_id
        assert int(span["parent_id"], 16) == caller.get_span_context().span_id


async def test_a_program_of_the_mcp_server_belongs_to_the_trace_that_the_meta_of_its_call_names(
    exporter: InMemorySpanExporter, tmp_path: Path
) -> None:
    exporter.clear()
    meta: Any = {"traceparent": f"00-{TRACE}-{PARENT}-01"}  # of a client without an SDK
    async with Sandbox(audit=tmp_path / "audit.db") as sandbox:
        operations = await Operations(sandbox).load()

        async def made() -> Operations:
            return operations

        async with Client(make_server(LocalBackend(made, may_approve=False)), mode="2026-07-28") as client:
            answer = await client.call_tool("execute_code", {"code": "print(1)"}, meta=meta)
        await operations.close()
    assert not answer.is_error
    found = exporter.get_finished_spans()
    served, run = named(found, "tools/call execute_code"), named(found, "run python")
    assert served.parent is not None
    assert run.parent is not None
    assert (served.parent.trace_id, served.parent.span_id) == (int(TRACE, 16), int(PARENT, 16))
    assert run.parent.span_id == context_of(served).span_id


@pytest.mark.parametrize("era", ERAS)
async def test_a_program_of_a_client_of_the_service_by_mcp_belongs_to_that_clients_trace(
    traced: Traced, exporter: InMemorySpanExporter, era: str
) -> None:
    headers = {"Authorization": f"Bearer {traced.daemon.token(era)}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=MAX_WAIT) as known,
        Client(streamable_http_client(f"http://127.0.0.1:{traced.port}/mcp", http_client=known), mode=era) as client,
    ):
        with trace.get_tracer("agent").start_as_current_span("thinking") as caller:
            answer = await client.call_tool("execute_code", {"code": "print(1)"})
    span = traced.run_span(str((answer.structured_content or {})["run"]))
    assert int(span["context"]["trace_id"], 16) == caller.get_span_context().trace_id
