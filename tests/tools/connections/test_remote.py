"""Servers behind HTTP: what they are sent, what is refused of them, and what becomes of a session that is gone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import CallToolResult, ElicitRequest, ElicitRequestFormParams, InputRequiredResult, TextContent
from tests.tools.connections.conftest import SECONDS, Made, Secrets, said
from tests.tools.connections.web import Rough, serving

from casemate.errors import InvalidArgument, ToolUnavailable
from casemate.model.addresses import METADATA, is_loopback, is_metadata, place_of
from casemate.tools.connections import remote
from casemate.tools.connections.answers import Elicitation, Elicited
from casemate.tools.connections.remote import http_client
from casemate.tools.connections.reports import OutputTail
from casemate.tools.connections.servers import Servers


@contextlib.contextmanager
def connected(connections: Made, application: Any) -> Iterator[Servers]:
    """Connections to ``own``, which ``application`` serves."""
    with serving(application) as url:
        servers = connections()
        servers.add("own", {"url": f"{url}/mcp"})
        yield servers
        servers.close()


def test_a_remote_server_is_called_with_its_headers(connections: Made) -> None:
    rough = Rough()
    with serving(rough) as url:
        servers = connections()
        servers.add(
            "own", {"url": f"{url}/mcp", "headers": {"Authorization": "Bearer ${TOKEN}", "X-Team": "${TEAM:-blue}"}}
        )
        assert said(servers, "echo", a=None) == '{"a": null}'
        servers.close()
    assert {one["authorization"] for one in rough.headers} == {"Bearer s3cret-value-of-the-vault"}
    assert {one["x-team"] for one in rough.headers} == {"blue"}
    assert {one["accept-encoding"] for one in rough.headers} == {"identity"}


def test_a_redirect_to_another_origin_gets_nothing(connections: Made) -> None:
    other = Rough()
    with serving(other) as elsewhere:
        leading = Rough(before=lambda _scope, _message: (307, [(b"location", f"{elsewhere}/mcp".encode())], b""))
        with serving(leading) as url:
            servers = connections()
            servers.add("own", {"url": f"{url}/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}})
            with pytest.raises(ToolUnavailable, match="not followed"):
                servers.tools("own").result(SECONDS)
            servers.close()
    assert other.headers == []


def test_a_redirect_within_the_origin_is_followed(connections: Made) -> None:
    def moved(scope: Any, _message: Any) -> Any:
        return (307, [(b"location", b"/mcp/")], b"") if scope["path"] == "/mcp" else None

    with connected(connections, Rough(before=moved)) as servers:
        assert said(servers, "echo") == "{}"


@pytest.mark.parametrize(
    ("headers", "body", "why"),
    [
        (
            [(b"content-encoding", b"gzip"), (b"content-type", b"application/json")],
            gzip.compress(b"{}", mtime=0),
            "compressed",
        ),
        ([(b"content-type", b"application/json")], b" " * (65 << 20), "more than 64 MiB"),
        ([(b"content-type", b"text/html")], b"<p>hello", "Unexpected content type"),
    ],
)
def test_an_answer_that_is_too_much_or_none_is_refused(connections: Made, headers: Any, body: bytes, why: str) -> None:
    with connected(connections, Rough(lambda _message: (200, headers, body))) as servers:
        servers.tools("own").result(SECONDS)
        try:
            answer = servers.call("own", "echo", {}).result(SECONDS)
            told = str(answer.content)
            assert answer.is_error, told
        except ToolUnavailable as error:
            told = error.message
        assert why in told
        assert servers.last_tools("own")


@pytest.mark.parametrize("is_json_rpc", [True, False])
@pytest.mark.parametrize("status", [404, 400])
def test_a_session_that_the_server_has_forgotten_is_made_anew(
    connections: Made, status: int, is_json_rpc: bool
) -> None:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "no such session"}}
    rough = Rough(forgotten=(status, [], error if is_json_rpc else b"no such session"))
    with connected(connections, rough) as servers:
        assert said(servers, "echo", n=1) == '{"n": 1}'
        rough.sessions = {"another"}
        many = [servers.call("own", "echo", {"n": 2}) for _ in range(5)]
        assert [one.result(SECONDS).content[0]["text"] for one in many] == ['{"n": 2}'] * 5
    answered = [one["params"]["arguments"]["n"] for one in rough.seen if one.get("method") == "tools/call"]
    assert answered.count(2) == 10  # the first five were refused, so nobody looked at them


class Opening(Rough):
    """A server that opens its own stream of events when it was asked for its tools all the same, or ``window`` seconds
    later; with None it never says that the stream is there. ``order``: what was asked, and that it is there."""

    def __init__(self, window: float | None) -> None:
        super().__init__()
        self.window = window
        self.order: list[str] = []
        self._listed = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "GET":
            await self._opened(receive, send)
        else:
            await super().__call__(scope, receive, send)

    async def _opened(self, receive: Any, send: Any) -> None:
        if self.window is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._listed.wait(), self.window)
            self.order.append("open")
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b": here\n\n", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    def _answered(self, headers: dict[str, str], message: dict[str, Any]) -> Any:
        if message.get("method") == "tools/list":
            self.order.append("tools/list")
            self._listed.set()
        return super()._answered(headers, message)


def test_a_server_is_asked_for_nothing_before_it_is_listened_to(
    connections: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_HEARD", SECONDS)  # however busy the machine is
    opening = Opening(0.3)
    with connected(connections, opening) as servers:
        assert said(servers, "echo") == "{}"
    assert opening.order == ["open", "tools/list"]


def test_a_server_that_does_not_say_that_it_is_listened_to_is_asked_all_the_same(connections: Made) -> None:
    opening = Opening(None)
    with connected(connections, opening) as servers:
        assert said(servers, "echo") == "{}"
    assert opening.order == ["tools/list"]


def test_a_server_that_is_away_is_found_again_when_it_is_back(connections: Made) -> None:
    servers = connections()
    with serving(Rough()) as url:
        servers.add("own", {"url": f"{url}/mcp"})
        assert said(servers, "echo") == "{}"
    with pytest.raises(ToolUnavailable, match="it was not reached, and nothing was sent: ") as failure:
        servers.call("own", "echo", {}).result(SECONDS)
    assert (failure.value.reason, "not known" in str(failure.value)) == ("connect", False)
    never = connections()
    never.add("own", {"url": f"{url}/mcp"})
    with pytest.raises(ToolUnavailable, match="it was not reached, and nothing was sent: "):
        never.call("own", "echo", {}).result(SECONDS)
    with serving(Rough(), int(url.rpartition(":")[2])):
        assert said(servers, "echo") == "{}"
        servers.close()


RETRY = [(b"retry-after", b"30")]


@pytest.mark.parametrize("is_json_rpc", [True, False])
@pytest.mark.parametrize("status", [400, 401, 403, 429, 500, 503])
def test_a_call_that_http_refuses_is_not_the_tools_answer_and_is_not_sent_again(
    connections: Made, status: int, is_json_rpc: bool
) -> None:
    error = {"code": -32000, "message": "not today", "data": ["why"]}
    body = {"jsonrpc": "2.0", "id": None, "error": error} if is_json_rpc else b"not today"
    plain = [] if is_json_rpc else [(b"content-type", b"text/plain")]
    rough = Rough(lambda _message: (status, [*plain, *RETRY], body))
    with connected(connections, rough) as servers:
        servers.tools("own").result(SECONDS)
        with pytest.raises(ToolUnavailable) as failure:
            servers.call("own", "echo", {}).result(SECONDS)
    doubt = "; whether 'echo' took effect is not known" if status >= 500 else ""
    said_there = f"it answered with HTTP {status} (Retry-After: 30): not today{doubt}"
    assert failure.value.message == f"the server 'own': {said_there}"
    is_about_sign_in = status in (401, 403)
    assert failure.value.reason == ("sign-in" if is_about_sign_in else "answer")
    assert ("'headers' with a token" in failure.value.remediation) is is_about_sign_in
    assert [one["method"] for one in rough.seen if one].count("tools/call") == 1


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_server_that_lets_nobody_in_is_told_of_with_its_status(connections: Made, status: int) -> None:
    with connected(connections, Rough(before=lambda _scope, _message: (status, [], b"no"))) as servers:
        with pytest.raises(ToolUnavailable, match=f"it answered with HTTP {status}") as failure:
            servers.tools("own").result(SECONDS)
        assert ("give its definition 'auth'" in failure.value.remediation) is (status != 500)


def test_a_value_that_would_make_two_headers_is_refused(connections: Made, secrets: Secrets) -> None:
    secrets.values["TWO"] = "a-long-value\r\nX-Admin: yes"
    servers = connections()
    servers.add("own", {"url": "http://127.0.0.1:9/mcp", "headers": {"X-Key": "${TWO}"}})
    with pytest.raises(InvalidArgument, match="no header can"):
        servers.tools("own").result(SECONDS)


def test_a_server_of_the_present_protocol_may_ask_the_user(connections: Made) -> None:

    server = MCPServer("present")
    form = {"type": "object", "properties": {"name": {"type": "string"}}}

    @server.tool()
    async def greet(ctx: Context) -> CallToolResult | InputRequiredResult:
        given = (ctx.input_responses or {}).get("who")
        if given is None:
            params = ElicitRequestFormParams(message="who?", requested_schema=form)
            return InputRequiredResult(input_requests={"who": ElicitRequest(params=params)}, request_state="half")
        content = getattr(given, "content", None)
        return CallToolResult(content=[TextContent(type="text", text=json.dumps([content, ctx.request_state]))])

    asked: list[Elicitation] = []

    def elicit(elicitation: Elicitation) -> Future[Elicited]:
        asked.append(elicitation)
        future: Future[Elicited] = Future()
        future.set_result(Elicited("accept", {"name": "Ada"}))
        return future

    with connected(connections, server.streamable_http_app()) as servers:
        assert servers.tools("own").result(SECONDS).protocol == "2026-07-28"
        answer = servers.call("own", "greet", {}, elicit=elicit).result(SECONDS)
    assert json.loads(answer.content[0]["text"]) == [{"name": "Ada"}, "half"]
    assert [(one.server, one.tool, one.message) for one in asked] == [("own", "greet", "who?")]


@pytest.mark.parametrize(
    ("home", "place", "why"),
    [
        ("https://8.8.8.8/mcp", "https://127.0.0.1:9/token", "is not public, but the server"),
        ("https://8.8.8.8/mcp", "http://127.0.0.1:9/token", "is not public, but the server"),
        ("http://127.0.0.1:9/mcp", "http://server.invalid:9/token", "is not https"),
    ],
)
def test_a_server_does_not_lead_where_a_sign_in_has_no_business(home: str, place: str, why: str) -> None:
    words = OutputTail()

    async def ask() -> int:
        async with http_client(home, {}, words=words) as client:
            return (await client.get(place)).status_code

    assert asyncio.run(ask()) == 503
    assert why in words.text()


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [("localhost", True), ("127.8.9.1", True), ("::1", True), ("localhost.test", False), ("0.0.0.0", False)],
)
def test_this_machine_is_known_without_asking(host: str, is_ours: bool) -> None:
    assert is_loopback(host) == is_ours


def test_a_server_is_only_where_it_may_be_whatever_its_name_leads_to(connections: Made) -> None:
    servers, rough = connections(), Rough()
    with serving(rough) as url:
        port = url.rpartition(":")[2]
        by_name = f"http://elsewhere.test:{port}/"
        servers.add("there", {"url": by_name, "addresses": ["127.0.0.2", "127.0.0.1"]})
        servers.add("gone", {"url": f"http://localhost:{port}/", "addresses": "public", "connect_timeout": SECONDS})
        assert json.loads(said(servers, "echo", "there", a="b")) == {"a": "b"}
        assert {one["host"] for one in rough.headers} == {f"elsewhere.test:{port}"}
        with pytest.raises(ToolUnavailable, match=r"is at 127\.0\.0\.1, and only public addresses are allowed"):
            servers.tools("gone").result(SECONDS)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # anyio leaves what shook no hands
def test_a_certificate_is_asked_for_by_the_servers_name(connections: Made) -> None:
    servers = connections()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)
        url = f"https://elsewhere.test:{listener.getsockname()[1]}/"
        servers.add("there", {"url": url, "addresses": ["127.0.0.1"]})
        asked = servers.tools("there")
        there, _ = listener.accept()
        listener.close()
        with there:
            there.settimeout(SECONDS)
            assert b"elsewhere.test" in there.recv(1 << 16)  # of the ClientHello
            there.sendall(b"\x15\x03\x01\x00\x02\x02\x28")  # an alert: handshake_failure (RFC 8446, 6.2)
    with pytest.raises(ToolUnavailable):
        asked.result(SECONDS)
    servers.close()
    gc.collect()


@pytest.mark.parametrize(
    ("address", "place", "is_credentials"),
    [
        ("93.184.215.14", "", False), ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", "", False),
        ("127.8.9.1", "loopback", False), ("0.0.0.0", "loopback", False), ("::1", "loopback", False),
        ("::ffff:127.0.0.1", "loopback", False), ("10.1.2.3", "private", False), ("fd12::1", "private", False),
        ("100.64.1.1", "private", False), ("169.254.1.1", "link-local", False), ("fe80::1", "link-local", False),
        ("169.254.169.254", METADATA, True), ("64:ff9b::a9fe:a9fe", METADATA, True),
        ("168.63.129.16", METADATA, True), ("fd00:ec2::254", METADATA, True),
        ("64:ff9b::5db8:d70e", "not public", False), ("2002:a01:203::", "private", False),
    ],
)  # fmt: skip
def test_an_address_is_told_from_a_public_one(address: str, place: str, is_credentials: bool) -> None:
    assert place_of(address) == place
    assert is_metadata(address) is is_credentials
