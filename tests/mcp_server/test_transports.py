"""The MCP server over stdio, streamable HTTP and SSE, with real clients and processes, in both eras of the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventMessage, EventStore
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitResult, InputRequiredResult, JSONRPCNotification, JSONRPCResponse
from tests.mcp_server.conftest import ERAS, OWN_SERVER, output_of, structure_of, text_of
from tests.mcp_server.serving import CALLER, by_http

from casemate import InvalidArgument, Sandbox
from casemate.operations.operations import Operations
from casemate.surfaces.cli.serve import ServeOptions, options_of, serve
from casemate.surfaces.mcp import early, resuming
from casemate.surfaces.mcp.callers import Callers, LocalBackend
from casemate.surfaces.mcp.early import reply_to
from casemate.surfaces.mcp.resuming import ResumingSessions
from casemate.surfaces.mcp.server import make_server

SECONDS = 60.0
TOKEN = "a-token-that-only-the-test-knows"
META = "io.modelcontextprotocol/"
REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")


def initialize(revision: str, **capabilities: Any) -> dict[str, Any]:
    info = {"name": "a client", "version": "1", "title": "A client"}
    params = {"protocolVersion": revision, "capabilities": capabilities, "clientInfo": info}
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}


def discover(identity: Any = "a") -> dict[str, Any]:
    meta = {f"{META}protocolVersion": "2026-07-28", f"{META}clientCapabilities": {"elicitation": {}}}
    return {"jsonrpc": "2.0", "id": identity, "method": "server/discover", "params": {"_meta": meta}}


class Lines:
    """Standard input or output of a server in this process."""

    def __init__(self, *given: str) -> None:
        self.given = given
        self.written: list[str] = []

    async def __aiter__(self) -> AsyncIterator[str]:
        for line in self.given:
            yield line
        while not self.written:
            await anyio.sleep(0.001)

    async def write(self, line: str) -> None:
        self.written.append(line)

    async def flush(self) -> None:
        pass


async def sdks_reply(message: dict[str, Any]) -> Any:
    """What the SDK itself answers to a first message."""
    lines = Lines(json.dumps(message) + "\n")
    server = make_server(LocalBackend(no_desk, may_approve=False))
    async with stdio_server(lines, lines) as (incoming, outgoing):  # type: ignore[arg-type]
        await server.run(incoming, outgoing, server.create_initialization_options())
    return json.loads(lines.written[0])


async def no_desk() -> Operations:
    raise AssertionError("nothing is run")


@pytest.mark.parametrize(("option", "named"), [
    ({"policy": "rules.yaml"}, "policy"), ({"settings": "rules.yaml"}, "settings"),
    ({"workspace": "no folder"}, "workspace"), ({"policy": "none.yaml"}, "policy"),
    ({"transport": "http", "port": 0, "token_file": "none"}, "token_file"),
])  # fmt: skip
def test_what_is_wrong_with_a_named_file_is_told_before_anything_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: dict[str, Any], named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.yaml").write_text("netwrk: none\n")
    with pytest.raises(InvalidArgument) as raised:
        serve(ServeOptions(**option, embedded=True))
    assert raised.value.argument == named


class Conversation(Lines):
    """Standard input that goes on once a request of it is answered."""

    async def __aiter__(self) -> AsyncIterator[str]:
        for answers, line in enumerate(self.given, 1):
            yield line
            while len(self.written) < answers:
                await anyio.sleep(0.001)


@pytest.mark.parametrize("revision", REVISIONS)
async def test_links_to_files_are_told_to_clients_whose_revision_knows_them(
    operations: Operations, revision: str
) -> None:
    async def made() -> Operations:
        return operations

    call = {"name": "execute_code", "arguments": {"code": "open('left.txt', 'w').write('left')"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    talk: Any = Conversation(json.dumps(initialize(revision)), json.dumps(request))
    server = make_server(LocalBackend(made, may_approve=True))
    async with server.lifespan(server), stdio_server(talk, talk) as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
    begun, answered = (json.loads(line)["result"] for line in talk.written)
    assert begun["protocolVersion"] == revision
    links = [] if revision in ("2024-11-05", "2025-03-26") else ["resource_link"]
    assert [block["type"] for block in answered["content"]] == ["text", *links]
    assert 'path="left.txt")' in answered["content"][0]["text"]


@pytest.mark.parametrize("message", [*(initialize(one, roots={}) for one in REVISIONS), discover(), discover(7)])
async def test_the_early_answer_is_exactly_what_the_sdk_answers(message: dict[str, Any]) -> None:
    reply = reply_to(json.dumps(message).encode())
    assert reply is not None
    assert reply == await sdks_reply(message)


@pytest.mark.parametrize(
    "message",
    [
        initialize("2099-01-01"),
        {**initialize("2025-11-25"), "id": None},
        {**initialize("2025-11-25"), "id": True},
        {**initialize("2025-11-25"), "jsonrpc": "1.0"},
        {**initialize("2025-11-25"), "method": "tools/list"},
        {**initialize("2025-11-25"), "params": {}},
        initialize("2025-11-25", roots=3),
        {**discover(), "params": {}},
        [initialize("2025-11-25")],
        "text",
    ],
)
def test_whatever_is_not_as_expected_is_left_to_the_sdk(message: Any) -> None:
    assert reply_to(json.dumps(message).encode()) is None


@pytest.mark.full
def test_the_first_answer_comes_before_the_sdk_is_loaded_and_only_once(home: dict[str, str]) -> None:
    program = (
        "import sys; from casemate.surfaces.mcp.early import Early; early = Early(); early._thread.join(); "
        "print('loaded', 'mcp' in sys.modules)"
    )
    first = json.dumps(initialize("2025-11-25")) + "\n"
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=first,
        capture_output=True,
        text=True,
        env=home,
        timeout=SECONDS,
        check=True,
    )
    assert json.loads(done.stdout)["id"] == 0
    assert "loaded False" in done.stderr  # and what else is written to standard output is no part of the protocol
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    served = subprocess.run(
        [sys.executable, "-m", "casemate", "serve", "--embedded"], input=first + json.dumps(ping) + "\n",
        capture_output=True, text=True, env=home, timeout=SECONDS, check=True,
    )  # fmt: skip
    assert [json.loads(line)["id"] for line in served.stdout.splitlines()] == [0, 1]


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a user whose home is empty."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "VIRTUAL_ENV") if name in os.environ}
    return {**kept, "HOME": str(tmp_path), "CASEMATE_AUDIT": str(tmp_path / "audit.db")}


@pytest.mark.full
@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_starts_the_command_runs_programs_with_it(home: dict[str, str], era: str) -> None:
    arguments = ["-m", "casemate", "serve", "--embedded", "--toolset=full"]
    command = StdioServerParameters(command=sys.executable, args=arguments, env=home)
    async with Client(stdio_client(command), mode=era) as client:
        answer = await client.call_tool("execute_code", {"code": "print(6 * 7)"})
        assert output_of(answer).startswith("42")
        kept = await client.call_tool("execute_code", {"code": "x = 1", "session": "new"})
        assert structure_of(kept)["session"]


_DEEP = '{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":%s}}' % ("[" * 3000 + "]" * 3000)
MISSHAPEN = {
    "half a surrogate pair": (
        r'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"execute_code","arguments":'
        r'{"code":"print(1) # \ud83d"}}}',
        (7, -32700),
    ),
    "deep nesting": (_DEEP, (None, -32700)),
    "no JSON": ("hello", (None, -32700)),
    "half an object": ('{"jsonrpc":"2.0","id":7,', (None, -32700)),
    "a byte order mark": ('\ufeff{"jsonrpc":"2.0","id":7,"method":"ping"}', (None, -32700)),
    "params that are a list": ('{"jsonrpc":"2.0","id":"a","method":"ping","params":[]}', ("a", -32602)),
    "a method that is a number": ('{"jsonrpc":"2.0","id":7,"method":7}', (7, -32602)),
    "a batch": ('[{"jsonrpc":"2.0","id":7,"method":"ping"}]', (None, -32602)),
    "an id that is a fraction": ('{"jsonrpc":"2.0","id":1.5,"method":"ping"}', (None, -32600)),
    "an id that is null": ('{"jsonrpc":"2.0","id":null,"method":"ping"}', (None, -32600)),
    "an answer that is none": ('{"jsonrpc":"2.0","id":7,"result":"\\ud83d"}', (None, -32700)),
}


@pytest.mark.parametrize("is_first", [False, True], ids=["later", "first"])
def test_each_line_over_stdio_that_is_no_message_has_an_answer_and_the_next_one_too(
    home: dict[str, str], is_first: bool
) -> None:
    begin, ping = json.dumps(initialize("2025-11-25")), '{"jsonrpc":"2.0","id":"last","method":"ping"}'
    lines = [line for line, _ in MISSHAPEN.values()]
    order = [*lines, begin, "", ping] if is_first else [begin, *lines, "", ping]
    served = subprocess.run(
        [sys.executable, "-m", "casemate", "serve", "--embedded"], input="".join(f"{line}\n" for line in order),
        capture_output=True, encoding="utf-8", env=home, timeout=SECONDS, check=True,
    )  # fmt: skip
    told = [json.loads(line) for line in served.stdout.splitlines()]
    assert [(one["id"], one["error"]["code"]) for one in told if "error" in one] == [
        answer for _, answer in MISSHAPEN.values()
    ]
    assert {one["id"] for one in told if "result" in one} == {0, "last"}


@pytest.mark.full
def test_a_signal_ends_the_server_and_what_runs_in_it(home: dict[str, str]) -> None:
    serving = subprocess.Popen(
        [sys.executable, "-m", "casemate", "serve", "--embedded"],
        env=home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert serving.stdin
    assert serving.stdout
    try:
        code = {"name": "execute_code", "arguments": {"code": "import time; time.sleep(100)"}}
        run = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**code, "_meta": {"progressToken": 1}}}
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        lines = [json.dumps(one).encode() + b"\n" for one in (initialize("2025-11-25"), ready, run)]
        serving.stdin.write(b"".join(lines))
        serving.stdin.flush()
        assert json.loads(serving.stdout.readline())["id"] == 0
        assert json.loads(serving.stdout.readline())["method"] == "notifications/progress"
        serving.terminate()
        assert serving.wait(SECONDS) == 128 + 15
    finally:
        serving.kill()
        serving.wait()
        serving.stdin.close()
        serving.stdout.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server by HTTP, both transports, with a sandbox of its own."""
    audit = tmp_path_factory.mktemp("web") / "audit.db"

    @contextlib.asynccontextmanager
    async def making() -> AsyncGenerator[Server[Callers]]:
        own = {"command": sys.executable, "args": ["-S", str(OWN_SERVER), "good"]}
        async with Sandbox(audit=audit, tools={"own": own}) as sandbox, Operations(sandbox) as operations:

            async def made() -> Operations:
                return operations

            yield make_server(LocalBackend(made, may_approve=True))

    with by_http(making) as url:
        yield url


@pytest.mark.parametrize(("path", "era"), [("/mcp", "legacy"), ("/mcp", "2026-07-28"), ("/sse", "legacy")])
async def test_clients_run_programs_by_http(address: str, path: str, era: str) -> None:
    target: Any = sse_client(address + path) if path == "/sse" else address + path
    async with Client(target, mode=era) as client:
        answer = await client.call_tool("execute_code", {"code": "open('a', 'w').write('b'); print(6 * 7)"})
        assert output_of(answer).startswith("42")
        (content,) = (await client.read_resource(structure_of(answer)["files"][0]["uri"])).contents
        assert getattr(content, "text", None) == "b"


class Cutting(httpx2.AsyncHTTPTransport):
    """A network that breaks the stream of the first call after its first bytes. ``resumed``: events to go on from."""

    def __init__(self) -> None:
        super().__init__()
        self.resumed: list[str] = []
        self.first = b""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if "last-event-id" in request.headers:
            self.resumed.append(request.headers["last-event-id"])
        elif b'"tools/call"' in request.content and not self.first:
            stream = aiter(response.stream)  # type: ignore[arg-type]
            self.first = await anext(stream)
            await response.aclose()
            return httpx2.Response(200, headers=response.headers, content=self.first)
        return response


async def test_a_call_whose_stream_breaks_is_answered_to_the_client_that_comes_back(address: str) -> None:
    network = Cutting()
    async with (
        httpx2.AsyncClient(transport=network, timeout=SECONDS) as http,
        Client(streamable_http_client(f"{address}/mcp", http_client=http), mode="legacy") as client,
    ):
        answer = await client.call_tool("execute_code", {"code": "import time; time.sleep(1); print(6 * 7)"})
        assert output_of(answer).startswith("42")
        session = {"mcp-session-id": http.headers.get("mcp-session-id", ""), "accept": "text/event-stream"}
        gone = await http.get(f"{address}/mcp", headers={**session, "last-event-id": "999999-1"})
    begin = network.resumed[0]
    assert set(network.first.decode().split("\r\n")) == {f"id: {begin}", "data: ", "retry: 1000", ""}
    assert (gone.status_code, "no longer kept" in gone.text) == (400, True)


async def test_of_a_stream_so_much_is_kept_and_to_no_other_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "KEPT_SECONDS", 0.1)
    sessions = ResumingSessions(Server("s"))
    own, other = sessions.event_store, sessions.event_store
    assert own
    assert other

    async def kept(of: EventStore, begin: str, *messages: Any) -> list[Any]:
        for message in messages:
            await of.store_event("1", message)
        await of.store_event("1", JSONRPCResponse(jsonrpc="2.0", id=1, result={}))
        found: list[Any] = []

        async def take(event: EventMessage) -> None:
            found.append(event.message)

        await of.replay_events_after(begin, take)
        return found

    small = JSONRPCNotification(jsonrpc="2.0", method="x")
    large = JSONRPCNotification(jsonrpc="2.0", method="x" * (1 << 20))
    begin = await own.store_event("1", None)
    assert await kept(other, begin) == []
    assert len(await kept(own, begin, *[small] * 1200)) == 1000
    begin = await own.store_event("1", None)  # the same number once more
    assert len(await kept(own, begin, *[large] * 20)) == 16
    while sessions.find(begin)[0] is not None:
        await asyncio.sleep(0.05)
    assert await kept(own, begin) == []


async def test_a_client_that_waits_for_a_stream_that_is_given_up_is_let_go() -> None:
    sessions = ResumingSessions(Server("s"))
    own, other = sessions.event_store, sessions.event_store
    assert own
    assert other
    begin = await own.store_event("1", None)
    waits = asyncio.create_task(own.replay_events_after(begin, lambda _: asyncio.sleep(0)))
    await asyncio.sleep(0)
    for number in range(1000):  # as many streams as one server keeps
        await other.store_event(str(number), None)
    await asyncio.wait_for(waits, 10)


@pytest.mark.full
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_cancelling_a_call_ends_its_run(address: str, home: dict[str, str], transport: str, era: str) -> None:
    command = StdioServerParameters(command=sys.executable, args=["-m", "casemate", "serve", "--embedded"], env=home)
    target: Any = stdio_client(command) if transport == "stdio" else f"{address}/mcp"
    async with Client(target, mode=era) as client:
        opened = await client.call_tool("execute_code", {"code": "x = 1", "session": "new"})
        session = structure_of(opened)["session"]
        begun = asyncio.Event()

        async def told(progress: float, total: float | None, message: str | None) -> None:
            begun.set()

        endless = {"code": "import time; time.sleep(300)", "session": session, "timeout_seconds": 60}
        calling = asyncio.ensure_future(client.call_tool("execute_code", endless, progress_callback=told))
        await begun.wait()
        calling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await calling
        answer = await client.call_tool("execute_code", {"code": "x", "session": session})
        assert output_of(answer).startswith("1")


@pytest.mark.parametrize(("path", "era", "is_shared"), [
    ("/mcp", "legacy", False), ("/sse", "legacy", False), ("/mcp", "2026-07-28", True),
])  # fmt: skip
async def test_a_handle_is_of_the_mcp_session_and_of_the_principal_where_there_are_no_sessions(
    address: str, path: str, era: str, is_shared: bool
) -> None:
    def target() -> Any:
        return sse_client(address + path) if path == "/sse" else address + path

    async with Client(target(), mode=era) as one, Client(target(), mode=era) as two:
        session = structure_of(await one.call_tool("execute_code", {"code": "x = 1", "session": "new"}))["session"]
        answer = await two.call_tool("execute_code", {"code": "x", "session": session})
        assert answer.is_error is not is_shared


@contextlib.asynccontextmanager
async def called(address: str, name: str) -> AsyncGenerator[Client]:
    """A client that can ask its user, by the name of somebody who has authenticated."""

    async def ask(context: Any, params: Any) -> ElicitResult:
        raise AssertionError("rounds are made by hand here")

    async with (
        httpx2.AsyncClient(headers={CALLER: name}, timeout=SECONDS) as known,
        Client(
            streamable_http_client(f"{address}/mcp", http_client=known), mode="2026-07-28", elicitation_callback=ask
        ) as client,
    ):
        yield client


async def test_state_that_was_given_to_one_principal_is_refused_from_another(address: str) -> None:
    arguments = {"code": "from mcptools.own.echo import run\nprint('came', run(word='hello'))"}
    async with called(address, "first") as first, called(address, "second") as second:
        asked = await first.session.call_tool("execute_code", arguments, allow_input_required=True)
        assert isinstance(asked, InputRequiredResult)
        (identity,) = asked.input_requests or {}
        given: dict[str, Any] = {identity: ElicitResult(action="accept", content={"answer": "allow once"})}
        back: dict[str, Any] = {"input_responses": given, "request_state": asked.request_state}
        with pytest.raises(MCPError, match="Invalid or expired requestState"):
            await second.session.call_tool("execute_code", arguments, **back)
        assert "came" in text_of(await first.session.call_tool("execute_code", arguments, **back))


@pytest.fixture
def listening(home: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """The address of ``casemate serve --transport http`` with a token."""
    (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
    command = [sys.executable, "-m", "casemate", "serve", "--embedded", "--transport", "http", "--port", "0"]
    with (tmp_path / "log").open("w+b") as log:
        serving = subprocess.Popen(
            [*command, "--token-file", str(tmp_path / "token")], env=home, stdin=subprocess.DEVNULL, stderr=log
        )
        try:
            yield said(tmp_path / "log", "listens at ")
        finally:
            serving.terminate()
            serving.wait(SECONDS)


def said(log: Path, words: str) -> str:
    """What comes behind these words in a log, once it is there."""
    deadline = time.monotonic() + SECONDS
    while words not in (text := log.read_text(encoding="utf-8")):
        assert time.monotonic() < deadline, text
        time.sleep(0.02)
    return text.partition(words)[2].split()[0]


@pytest.mark.parametrize("era", ERAS)
async def test_the_command_serves_http_to_whoever_has_its_token_alone(listening: str, era: str) -> None:
    async with httpx2.AsyncClient(timeout=SECONDS) as stranger:
        for headers in ({}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": TOKEN}):
            answer = await stranger.post(listening, headers=headers, content=b"{}")
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=SECONDS) as known,
        Client(streamable_http_client(listening, http_client=known), mode=era) as client,
    ):
        assert output_of(await client.call_tool("execute_code", {"code": "print(6 * 7)"})).startswith("42")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--toolset", "everything"], "toolset"),
        (["--transport", "carrier-pigeon"], "transport"),
        (["--may-approve"], "stdio"),
        (["--unknown"], "--unknown"),
        (["--port", "x", "--transport", "http"], "port"),
        (["--token-file", "token"], "stdio has no tokens"),
        (["--transport", "http", "--host", "0.0.0.0"], "there is no TLS"),
        (["--transport", "sse", "--host", "host.test"], "there is no TLS"),
    ],
)
def test_a_wrong_option_is_told_and_nothing_served(home: dict[str, str], arguments: list[str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "casemate", "serve", *arguments], stdin=subprocess.DEVNULL, capture_output=True,
        text=True, env=home, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_what_is_configured_for_serve_holds_unless_it_is_given() -> None:
    environ = {"CASEMATE_CONFIG": "none", "CASEMATE_SERVE_TOOLSET": "full", "CASEMATE_SERVE_PORT": "0"}
    assert (options_of({}, environ).toolset, options_of({}, environ).port) == ("full", 0)
    assert options_of({"toolset": "ipybox"}, environ).toolset == "ipybox"
    assert options_of({}, {"CASEMATE_CONFIG": "none"}) == ServeOptions()


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_without_end_is_not_kept_and_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    monkeypatch.setattr(early, "_MOST_LINE", 100)
    file = io.BytesIO(b"x" * 1_000_000 + end + b'{"next": 1}\n' * bool(end))
    assert len(early.line_of(file)) < 100
    assert early.line_of(file) == b'{"next": 1}\n' * bool(end)


@pytest.mark.full
def test_a_client_that_leaves_in_the_middle_of_an_answer_causes_no_traceback(tmp_path: Path) -> None:
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    program = {"name": "execute_code", "arguments": {"code": "print('x' * 100)"}}
    server = subprocess.Popen(
        [sys.executable, "-m", "casemate", "serve", "--embedded"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")},
    )  # fmt: skip
    assert server.stdin
    assert server.stdout
    assert server.stderr
    with server:
        for message in (
            {"id": 1, "method": "initialize", "params": client}, {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": program},
        ):  # fmt: skip
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        server.stdin.flush()
        server.stdout.readline()
        server.stdout.close()
        assert server.wait(60) == 128 + signal.SIGTERM
        assert b"Traceback" not in server.stderr.read()
