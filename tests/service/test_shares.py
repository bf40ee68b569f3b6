"""One caller against all others of a service: bodies that are small and hold much, many names, many questions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.service.daemon import environment, reserved_port, serving, tcp
from tests.service.test_who import Open

from casemate.errors import QueueFull
from casemate.remote.client import connect
from casemate.surfaces.http.exchange import Shares, check_shape
from casemate.surfaces.http.identity import Refused

KINDS = "Content-Type: application/json\nAccept: application/json, text/event-stream"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


@pytest.fixture(scope="module")
def open_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    folder = tmp_path_factory.mktemp("shares")
    with reserved_port() as port, serving(environment(folder), "--listen", f"127.0.0.1:{port}") as daemon:
        yield Open(daemon, port)


def ask(service: Open, path: str, body: bytes, headers: str = "") -> tuple[int, Any]:
    lines = f"POST {path} HTTP/1.1\nHost: 127.0.0.1:{service.port}\nAuthorization: Bearer {service.agent}\n{headers}"
    status, _, said = service.answer(lines + KINDS, body)
    return status, json.loads(said)


def called(name: str, arguments: dict[str, Any]) -> bytes:
    params = {"name": name, "arguments": arguments, "_meta": META}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


def of_tool(name: str) -> str:
    return f"MCP-Protocol-Version: 2026-07-28\nMcp-Method: tools/call\nMcp-Name: {name}\n"


@pytest.mark.parametrize(
    "filling", [b"[" + b"[]," * 300_000 + b"1]", b'["' + b'","' * 300_000 + b'"]', b"[" + b"1," * 700_000 + b"1]"]
)
@pytest.mark.parametrize("path", ["/v1/runs/start", "/mcp"])
def test_a_body_of_very_many_values_is_refused_before_it_is_read(open_service: Open, path: str, filling: bytes) -> None:
    body = called("execute_code", {"code": "X"}) if path == "/mcp" else b'{"code": "1", "metadata": {"a": "X"}}'
    headers = of_tool("execute_code") if path == "/mcp" else ""
    status, said = ask(open_service, path, body.replace(b'"X"', filling), headers)
    assert (status, said["error"]["kind"]) == (413, "invalid")


def test_a_body_to_the_mcp_server_is_bounded(open_service: Open) -> None:
    lines = (
        f"POST /mcp HTTP/1.1\nHost: 127.0.0.1:{open_service.port}\nAuthorization: Bearer {open_service.agent}\n"
        f"{of_tool('execute_code')}{KINDS}\nContent-Length: {9 * 2**20}\n\n"
    )
    with tcp(open_service.port) as one:
        one.sendall(lines.replace("\n", "\r\n").encode())
        assert one.makefile("rb").readline().split()[1] == b"413"


@pytest.mark.parametrize("argument", ["env", "metadata", "secrets", "files"])
def test_of_a_list_that_is_too_long_no_entry_is_looked_at(open_service: Open, argument: str) -> None:
    many: Any = {f"A{number}": 1 for number in range(10_001)}
    given = {"code": "1", argument: list(many) if argument == "secrets" else many}
    status, said = ask(open_service, "/v1/runs/start", json.dumps(given).encode())
    assert status == 400
    assert "the limit is" in said["error"]["message"]


@pytest.mark.parametrize(
    "metadata", ['{"a": 1e999}', '{"a":' * 200 + "1" + "}" * 200, json.dumps({"a": "x" * 100_000})]
)
def test_metadata_that_no_answer_could_carry_is_refused(open_service: Open, metadata: str) -> None:
    status, said = ask(open_service, "/v1/run", b'{"code": "1", "metadata": %s}' % metadata.encode())
    assert (status, said["error"]["argument"]) == (400, "metadata")


@pytest.mark.parametrize("where", ["", "?session_id=made-up"])
def test_a_session_id_that_nobody_gave_makes_no_other_caller(open_service: Open, where: str) -> None:
    handles = []
    for number in range(2):
        headers = of_tool("execute_code") + ("" if where else f"Mcp-Session-Id: made-up-{number}\n")
        body = called("execute_code", {"code": "x = 1", "session": "new"})
        status, said = ask(open_service, f"/mcp{where}{number if where else ''}", body, headers)
        assert status == 200
        handles.append(said["result"]["structuredContent"]["session"])
    status, said = ask(
        open_service, "/mcp", called("execute_code", {"code": "x", "session": handles[0]}), of_tool("execute_code")
    )
    assert said["result"]["isError"] is False


def test_a_token_has_so_many_sessions_over_http_and_over_mcp_together(open_service: Open) -> None:
    begun = called("execute_code", {"code": "1", "session": "new"})
    assert ask(open_service, "/mcp", begun, of_tool("execute_code"))[1]["result"]["isError"] is False
    opened = []
    while (answer := ask(open_service, "/v1/sessions/open", b"{}"))[0] == 200:
        opened.append(answer[1]["session"])
    try:
        status, said = answer
        assert (status, said["error"]["kind"], len(opened) < 100) == (429, "busy", True)
        over_mcp = ask(open_service, "/mcp", begun, of_tool("execute_code"))[1]["result"]
        assert over_mcp["isError"] is True
        assert "100 sessions" in json.dumps(over_mcp)
    finally:
        for session in opened:
            ask(open_service, "/v1/sessions/close", json.dumps({"session": session}).encode())


def test_an_mcp_session_is_there_for_the_token_alone_that_opened_it(open_service: Open) -> None:
    def post(token: str, body: Any, headers: str = "") -> tuple[int, dict[str, str]]:
        lines = (
            f"POST /mcp HTTP/1.1\nHost: 127.0.0.1:{open_service.port}\nAuthorization: Bearer {token}\n{headers}{KINDS}"
        )
        status, told, _ = open_service.answer(lines, json.dumps(body).encode())
        return status, told

    info = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    beginning = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": info}
    status, told = post(open_service.agent, beginning)
    session = f"Mcp-Session-Id: {told['mcp-session-id']}\n"
    listing = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert status == 200
    assert post(open_service.agent, listing, session)[0] == 202
    assert post(open_service.other, listing, session)[0] == 404


async def test_what_one_agent_asks_for_does_not_keep_others_from_asking(open_service: Open) -> None:
    one = await connect(open_service.url, open_service.agent)
    other = await connect(open_service.url, open_service.other)
    operator = await connect(open_service.url, open_service.operator)
    definition = {"command": "never"}
    tasks = [asyncio.create_task(one("egress.request", {"domain": f"a{n}.test"})) for n in range(20)]
    tasks += [
        asyncio.create_task(one("tools.register", {"name": f"a{n}", "definition": definition})) for n in range(20)
    ]
    try:
        tasks.append(asyncio.create_task(other("egress.request", {"domain": "other.test"})))
        tasks.append(asyncio.create_task(other("tools.register", {"name": "other", "definition": definition})))
        while True:
            waiting = await operator("approvals.pending")
            callers = [each["caller"] for each in waiting]
            assert callers.count("token:agent") <= 16
            if callers.count("token:other") == 2 and callers.count("token:agent") == 16:
                break
            await asyncio.sleep(0.02)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in (one, other, operator):
            await client.close()


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": "%s"}' % (b"[]{}," * 100_000),
        b'{"a": "%s"}' % (b'\\"[],' * 100_000),
        b'{"a": "\\\\", "b": [1, 2]}' * 3000,
    ],
)
def test_what_is_in_texts_is_not_counted(body: bytes) -> None:
    assert check_shape(body) is body


@pytest.mark.parametrize("before", [b'"\\\\",', b'"\\"",', b'"\\\\\\"",'])
def test_escapes_hide_no_lists(before: bytes) -> None:
    with pytest.raises(Refused):
        check_shape(b"[" + before + b"[]," * 100_000 + b'"x"]')


def test_one_account_s_requests_and_bytes_are_bounded_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("casemate.surfaces.http.exchange._MOST_REQUESTS", 2)
    monkeypatch.setattr("casemate.surfaces.http.exchange._MOST_BYTES", 10)
    shares = Shares()
    with shares.of("default", "one") as first, shares.of("default", "one"):
        first.hold(10)
        with pytest.raises(QueueFull), shares.of("default", "one"):
            pass
        with pytest.raises(QueueFull):
            first.hold(1)
        with shares.of("default", "other") as other, shares.of("elsewhere", "one"):
            other.hold(10)
    with shares.of("default", "one") as again:
        again.hold(10)


def test_a_stranger_keeps_no_connection(open_service: Open) -> None:
    status, headers, _ = open_service.answer(f"GET /v1/health HTTP/1.1\nHost: localhost:{open_service.port}", b"")
    assert (status, headers["connection"].lower()) == (200, "close")
