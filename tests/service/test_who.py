"""Who may speak to the service: AP-27 (pages of a browser, DNS rebinding), tokens and what each may do, agents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.daemon import Daemon, environment, http, reserved_port, serving, tcp, unix

from casemate.errors import CasemateError, Denied, InvalidArgument, NotFound, Unavailable
from casemate.remote.client import connect
from casemate.surfaces.http.tokens import Tokens


class Open:
    """A service on TCP, with tokens of each kind."""

    def __init__(self, daemon: Daemon, port: int) -> None:
        self.daemon, self.port = daemon, port
        self.url = f"http://127.0.0.1:{port}"
        self.agent = daemon.token("agent")
        self.other = daemon.token("other")
        self.operator = daemon.token("operator", "--operator", "--may-approve")
        self.quiet = daemon.token("quiet", "--operator")
        self.elsewhere = daemon.token("elsewhere", "--operator", "--may-approve", "--namespace", "elsewhere")

    def answer(self, lines: str, body: bytes = b"{}", *, over: str = "tcp") -> tuple[int, dict[str, str], bytes]:
        with tcp(self.port) if over == "tcp" else unix(self.daemon) as one:
            return http(one, lines, body)


@pytest.fixture(scope="module")
def open_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    env = environment(tmp_path_factory.mktemp("who"))
    named = ("--host-name", "sandbox.test", "--allow-origin", "https://page.test")
    with reserved_port() as port, serving(env, "--listen", f"127.0.0.1:{port}", *named) as daemon:
        yield Open(daemon, port)


LIST = "POST /v1/runs/list HTTP/1.1\n"


@pytest.mark.full
@pytest.mark.parametrize("over", ["unix", "tcp"])
@pytest.mark.parametrize(
    "headers",
    [
        "Host: evil.test",
        "Host: evil.test:{port}",
        "Host: localhost.evil.test",
        "Host: {host}\nOrigin: http://evil.test",
        "Host: {host}\nOrigin: null",
        "Host: {host}\nOrigin: http://{host}",
        "Host: {host}\nOrigin: http://localhost:{port}",
        "Host: {host}\nHost: evil.test",
        "Host: {host}\nOrigin: https://page.test\nOrigin: http://evil.test",
    ],
)
@pytest.mark.parametrize(
    "path", ["POST /v1/runs/list", "POST /v1/approvals/decide", "GET /v1/health", "GET /openapi.json"]
)
def test_ap_27_a_page_or_a_name_bound_anew_is_refused_also_with_a_token(
    open_service: Open, over: str, headers: str, path: str
) -> None:
    host = "localhost" if over == "unix" else f"127.0.0.1:{open_service.port}"
    given = headers.format(host=host, port=open_service.port)
    token = f"\nAuthorization: Bearer {open_service.operator}"
    status, _, body = open_service.answer(f"{path} HTTP/1.1\n{given}{token}", over=over)
    assert status in (400, 403, 421)
    assert json.loads(body)["error"]["kind"] in ("denied", "invalid") if body else status == 400


@pytest.mark.full
@pytest.mark.parametrize(
    "headers",
    ["Host: 127.0.0.1:{port}", "Host: LOCALHOST:{port}", "Host: sandbox.test:{port}", "Host: localhost:{port}\nOrigin: https://page.test"],
)  # fmt: skip
def test_a_host_and_an_origin_that_are_expected_are_answered(open_service: Open, headers: str) -> None:
    token = f"\nAuthorization: Bearer {open_service.agent}"
    status, _, body = open_service.answer(f"{LIST}{headers.format(port=open_service.port)}{token}")
    assert (status, body) == (200, b"[]")


@pytest.mark.parametrize("given", ["", "Bearer ", "Bearer casemate_x_y", "Basic {agent}", "Bearer {agent}x", "{agent}"])
def test_over_tcp_nothing_is_answered_without_a_token_that_is_known(open_service: Open, given: str) -> None:
    lines = f"Host: 127.0.0.1:{open_service.port}"
    if given:
        lines += f"\nAuthorization: {given.format(agent=open_service.agent)}"
    for path in ("/v1/runs/list", "/v1/approvals/pending", "/v1/service/stop", "/v1/nothing"):
        status, headers, body = open_service.answer(f"POST {path} HTTP/1.1\n{lines}")
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert open_service.agent.encode() not in body
    status, _, _ = open_service.answer(f"PUT /v1/uploads HTTP/1.1\n{lines}", b"x")
    assert status == 401


def test_whether_it_is_there_may_be_known_to_all_and_nothing_else(open_service: Open) -> None:
    status, _, body = open_service.answer(f"GET /v1/health HTTP/1.1\nHost: localhost:{open_service.port}", b"")
    assert (status, json.loads(body)) == (200, {"status": "ok"})


async def test_an_agent_sees_its_own_only_and_does_nothing_of_operators(open_service: Open) -> None:
    one = await connect(open_service.url, open_service.agent)
    other = await connect(open_service.url, open_service.other)
    operator = await connect(open_service.url, open_service.operator)
    run = (await one("runs.start", {"code": "print(1)", "wait": 30.0}))["run"]
    session = (await one("sessions.open"))["session"]
    for operation, arguments in (
        ("runs.get", {"run": run}), ("runs.cancel", {"run": run}), ("files.list", {"session": session}),
        ("runs.start", {"code": "1", "session": session}), ("sessions.close", {"session": session}),
    ):  # fmt: skip
        with pytest.raises(NotFound):
            await other(operation, arguments)
    with pytest.raises(NotFound):
        await other.download("files", session, "x")
    assert await other("runs.list") == await other("sessions.list") == []
    for operation, arguments in (
        ("approvals.pending", {}), ("approvals.decide", {"request": "x", "allow": True}), ("vault.names", {}),
        ("tools.add", {"name": "x", "definition": {"command": "x"}}),
    ):  # fmt: skip
        with pytest.raises(Denied):
            await one(operation, arguments)
    assert [state["run"] for state in await operator("runs.list")] == [run]
    await operator("sessions.close", {"session": session})
    for remote in (one, other, operator):
        await remote.close()


async def test_a_token_opens_its_own_namespace_only(open_service: Open) -> None:
    here = await connect(open_service.url, open_service.operator)
    there = await connect(open_service.url, open_service.elsewhere)
    run = (await here("runs.start", {"code": "print(1)", "wait": 30.0}))["run"]
    with pytest.raises(NotFound):
        await there("runs.get", {"run": run})
    with pytest.raises(Denied, match="elsewhere"):
        await connect(open_service.url, open_service.elsewhere, namespace="default")
    await here.close()
    await there.close()


async def test_only_a_token_that_may_approve_answers_requests(open_service: Open) -> None:
    quiet = await connect(open_service.url, open_service.quiet)
    with pytest.raises(Denied, match="may approve"):
        await quiet("approvals.decide", {"request": "x", "allow": True})
    with pytest.raises(Denied, match="may approve"):
        await quiet("approvals.deny_all")
    assert await quiet("approvals.pending") == []
    await quiet.close()


async def test_an_agent_never_answers_what_it_has_asked_itself(open_service: Open) -> None:
    own = open_service.daemon.token("keen", "--may-approve")
    keen = await connect(open_service.url, own)
    asking = asyncio.ensure_future(keen("tools.register", {"name": "x", "definition": {"command": "true"}}))
    operator = await connect(open_service.url, open_service.operator)
    while not (waiting := await operator("approvals.pending")):
        await asyncio.sleep(0)
    with pytest.raises(Denied, match="its own"):
        await keen("approvals.decide", {"request": waiting[0]["id"], "allow": True})
    await operator("approvals.decide", {"request": waiting[0]["id"], "allow": False})
    with pytest.raises(Denied):
        await asking
    await keen.close()
    await operator.close()


async def test_a_surface_can_lower_itself_and_never_rise(open_service: Open) -> None:
    env = open_service.daemon.env
    reduced = await connect(environ=env, start=False, agent="mcp:1")
    with pytest.raises(Denied):
        await reduced("vault.names")
    await reduced.close()
    for wanted in ("operator:x", "agent:", "agent", f"agent:{'x' * 200}"):
        status, _, _ = open_service.answer(f"{LIST}Host: localhost\nCasemate-As: {wanted}", over="unix")
        assert status == 400, wanted
    remote = await connect(open_service.url, open_service.agent)
    token = f"Host: localhost:{open_service.port}\nAuthorization: Bearer {open_service.agent}"
    assert open_service.answer(f"{LIST}{token}\nCasemate-As: agent:other")[0] == 403
    with pytest.raises(Denied, match="on its machine"):
        operator = await connect(open_service.url, open_service.operator)
        try:
            await operator("service.stop")
        finally:
            await operator.close()
            await remote.close()


@pytest.mark.full
async def test_what_a_token_has_counts_against_it_whomever_it_asks_for(open_service: Open) -> None:
    """Casemate-As names as many agents as one likes."""
    body = b'{"language": "python"}'
    statuses = []
    for number in range(101):
        who = f"Authorization: Bearer {open_service.operator}\nCasemate-As: agent:{number}"
        head = f"POST /v1/sessions/open HTTP/1.1\nHost: localhost:{open_service.port}\n{who}"
        statuses.append(open_service.answer(f"{head}\nContent-Type: application/json", body)[0])
    assert statuses == [200] * 100 + [429]
    operator = await connect(open_service.url, open_service.operator)
    for one in await operator("sessions.list"):
        await operator("sessions.close", {"session": one["session"]})
    await operator.close()


async def test_a_token_that_is_removed_opens_nothing_any_more(open_service: Open) -> None:
    token = open_service.daemon.token("short-lived")
    remote = await connect(open_service.url, token)
    assert await remote("runs.list") == []
    listed = open_service.daemon.command("service", "token", "list").stdout
    assert "short-lived\tagent of default" in listed
    open_service.daemon.command("service", "token", "remove", "short-lived")
    with pytest.raises(Denied, match="unknown"):
        await remote("runs.list")
    await remote.close()


def test_a_token_is_nowhere_but_where_it_was_shown(open_service: Open) -> None:
    state = open_service.daemon.places.state
    for token in (open_service.agent, open_service.operator):
        secret = token.split("_", 2)[2].encode()
        assert len(secret) >= 40
        assert [one for one in state.rglob("*") if one.is_file() and secret in one.read_bytes()] == []
        assert secret.decode() not in open_service.daemon.command("service", "token", "list").stdout


def test_a_token_expires(tmp_path: Path) -> None:
    now = [1000.0]
    tokens = Tokens(tmp_path / "kept", lambda: now[0])
    text = tokens.add("one", expires_in=10)
    assert tokens.principals_of([text])
    now[0] = 1010.0
    assert tokens.principals_of([text]) == {}


@pytest.mark.parametrize("given", ["", "_", "__", "casemate__", "casemate_0_0", "\udcff", "x" * 10_000])
def test_what_is_no_token_is_nobodys(tmp_path: Path, given: str) -> None:
    tokens = Tokens(tmp_path / "kept")
    tokens.add("one")
    assert tokens.principals_of([given]) == {}


def test_a_name_is_given_once_and_a_file_that_others_can_read_is_not_believed(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "kept")
    text = tokens.add("one")
    with pytest.raises(InvalidArgument, match="already"):
        tokens.add("one")
    (tmp_path / "kept" / "tokens.json").chmod(0o644)
    with pytest.raises(Unavailable, match="open to other users"):
        Tokens(tmp_path / "kept").principals_of([text])


@pytest.mark.parametrize(("url", "why"), [
    ("http://198.51.100.1:80", "expose the token"), ("ftp://x", "is not unix"),
    ("http://u@localhost:1", "is not unix"),
    ("http://localhost:99999", "Port out of range"),
])  # fmt: skip
async def test_a_token_is_not_sent_where_others_read_it(url: str, why: str) -> None:
    with pytest.raises(CasemateError, match=why):
        await connect(url, "token")
