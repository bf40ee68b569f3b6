"""Who comes with a browser: the link, the session, and what neither another page nor another port can do."""

from __future__ import annotations

import http.client
import json
import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from tests.console.conftest import Browser, link_of
from tests.service.daemon import Daemon, environment, reserved_port, serving, unix
from tests.service.daemon import http as raw_http
from tests.support.waiting import MAX_WAIT, until

from casemate.model.operation import Audience, Principal
from casemate.surfaces.http.identity import Refused
from casemate.surfaces.http.sign_in import SignIns, credential_in

USER = Principal("user", Audience.OPERATOR)


def listening_ports(daemon: Daemon) -> set[str]:
    """What the service listens at on TCP, by inode."""
    assert daemon.process is not None
    links = []
    for one in Path(f"/proc/{daemon.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.append(os.readlink(one))
    inodes = {one.removeprefix("socket:[").removesuffix("]") for one in links if one.startswith("socket:[")}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and row[9] in inodes}


@pytest.mark.full
def test_a_service_listens_at_a_port_only_once_somebody_wants_the_console(tmp_path: Path) -> None:
    with serving(environment(tmp_path)) as daemon:
        assert listening_ports(daemon) == set()
        first, second = (Browser(link_of(daemon)) for _ in range(2))
        address, _, port = first.host.partition(":")
        assert first.host == second.host
        assert listening_ports(daemon) == {f"0100007F:{int(port):04X}"}
        assert address == "127.0.0.1"
        other = daemon.command("console", "--format", "json", "--port", "1")
        assert Browser(json.loads(other.stdout)["url"]).host == first.host
        assert other.stderr == f"casemate: --port 1 was ignored: the service already listens at {first.host}\n"


def test_a_link_signs_in_once(browser: Browser) -> None:
    answer = browser.sign_in()
    assert answer.status == 200
    assert browser.ask("POST", "/v1/runs/list", {}).status == 200
    assert browser.sign_in().status == 401
    assert browser.ask("POST", "/v1/runs/list", {}).value == []


def test_the_cookie_is_for_no_script_and_no_other_site(browser: Browser) -> None:
    cookie, *rules = browser.sign_in().headers["set-cookie"].split("; ")
    assert set(rules) == {"HttpOnly", "SameSite=Strict", "Path=/"}
    assert cookie.startswith(f"casemate_{browser.host.partition(':')[2]}=")


@pytest.mark.parametrize(
    "headers",
    [
        {"Cookie": None},
        {"Casemate_Console": None},
        {"Casemate_Console": "guessed"},
        {"Cookie": "casemate_1=guessed"},
        {"Origin": None},
        {"Origin": "http://evil.test"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Host": "evil.test"},
    ],
)
def test_half_of_a_session_or_another_page_is_refused(browser: Browser, headers: dict[str, str | None]) -> None:
    browser.sign_in()
    assert browser.ask("POST", "/v1/approvals/deny_all", {}, **headers).status in (401, 403, 421)
    assert browser.ask("POST", "/v1/approvals/deny_all", {}).status == 200


@pytest.mark.parametrize("headers", [{"Casemate_Console": None}, {"Origin": None}, {"Origin": "http://evil.test"}])
def test_another_page_cannot_sign_in_and_the_link_is_still_good(
    browser: Browser, headers: dict[str, str | None]
) -> None:
    assert browser.sign_in(**headers).status == 403
    assert browser.sign_in().status == 200


def test_signing_out_ends_the_session_and_what_it_follows(browser: Browser) -> None:
    browser.sign_in()
    connection = http.client.HTTPConnection(browser.host, timeout=MAX_WAIT)
    headers = {"Origin": browser.origin, "Cookie": browser.cookie, "Casemate-Console": browser.key}
    connection.request("POST", "/v1/approvals/events", "{}", headers)
    followed = connection.getresponse()
    assert followed.status == 200
    answer = browser.ask("DELETE", "/console/session")
    assert (answer.status, "Max-Age=0" in answer.headers["set-cookie"]) == (200, True)
    assert b"event: error" in followed.read()
    connection.close()
    assert browser.ask("POST", "/v1/runs/list", {}).status == 401


def test_a_session_gives_no_links_and_stops_no_service(browser: Browser) -> None:
    browser.sign_in()
    assert browser.ask("POST", "/v1/service/console", {}).status == 403
    assert browser.ask("POST", "/v1/service/stop", {}).status == 403


@pytest.mark.full
def test_a_session_that_a_token_began_ends_with_the_token(tmp_path: Path) -> None:
    with reserved_port() as port, serving(environment(tmp_path), "--listen", f"127.0.0.1:{port}") as daemon:
        token = daemon.token("desk", "--operator")
        daemon.env |= {"CASEMATE_URL": f"http://127.0.0.1:{port}", "CASEMATE_TOKEN": token}
        one = Browser(daemon.command("console", "--print").stdout.strip())
        assert one.host == f"127.0.0.1:{port}"
        assert one.sign_in().value["name"] == "token:desk"
        assert one.ask("POST", "/v1/runs/list", {}).status == 200
        assert one.ask("POST", "/v1/approvals/deny_all", {}).status == 403  # nor may the token
        daemon.command("service", "token", "remove", "desk")
        assert one.ask("POST", "/v1/runs/list", {}).status == 401
        agent = daemon.token("agent")
        head = f"POST /v1/service/console HTTP/1.1\nHost: 127.0.0.1:{port}\nAuthorization: Bearer {agent}"
        with socket.create_connection(("127.0.0.1", port), MAX_WAIT) as connection:
            assert raw_http(connection, head, b"{}")[0] == 403


@pytest.mark.full
def test_the_link_is_in_no_log_and_in_no_command_that_starts_a_browser(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    starts = tmp_path / "browser"
    starts.write_text(f'#!/bin/sh\ncat "${{1#file://}}" > {seen}.page\necho "$@" > {seen}\n')
    starts.chmod(0o755)
    with serving({**environment(tmp_path), "BROWSER": f"{starts} %s"}) as daemon:
        said = daemon.command("console").stdout
        until(seen.exists)
        link = (tmp_path / "seen.page").read_text().partition("url=")[2].partition('"')[0]
        one = Browser(link)
        assert one.sign_in().status == 200
        told = [said, seen.read_text(), *(path.read_text() for path in Path(daemon.places.state).glob("*.log*"))]
        assert len(told) == 3
        assert not any(one.code in text or one.key in text for text in told)
        page = next(daemon.places.sockets.glob("console.html"))
        assert page.stat().st_mode & 0o777 == 0o600


def test_a_link_or_a_session_that_nobody_uses_ends() -> None:
    clock = [0.0]
    ones = SignIns(lambda _tokens: {}, lambda: clock[0])
    old = ones.make_link(USER, "")
    clock[0] = 61.0
    with pytest.raises(Refused):
        ones.begin(old)
    cookie, key, _ = ones.begin(ones.make_link(USER, ""))
    credential = credential_in(cookie, key)
    clock[0] += 11 * 3600
    assert ones.principals_of([credential]) == {credential: USER}
    clock[0] += 11 * 3600
    assert ones.principals_of([credential]) == {credential: USER}
    clock[0] += 13 * 3600
    assert ones.principals_of([credential]) == {}


def test_there_are_only_so_many_links_and_sessions() -> None:
    ones = SignIns(lambda _tokens: {})
    first, *_, last = [ones.make_link(USER, "") for _ in range(17)]
    with pytest.raises(Refused):
        ones.begin(first)
    ones.begin(last)
    begun = [credential_in(*ones.begin(ones.make_link(USER, ""))[:2]) for _ in range(33)]
    assert ones.principals_of(begun) == dict.fromkeys(begun[1:], USER)


def test_nobody_ends_the_links_and_sessions_of_another_account() -> None:
    other = Principal("token:other", Audience.OPERATOR, "other")
    ones = SignIns(lambda tokens: {one: other for one in tokens if one == "t"})
    credential, link = credential_in(*ones.begin(ones.make_link(USER, ""))[:2]), ones.make_link(USER, "")
    for _ in range(33):
        ones.begin(ones.make_link(other, "t"))
        ones.make_link(other, "t")
    assert ones.principals_of([credential]) == {credential: USER}
    assert ones.begin(link)[2] == USER


def test_a_cookie_that_another_port_has_put_before_it_changes_nothing(browser: Browser) -> None:
    browser.sign_in()
    tossed = f"{browser.cookie.partition('=')[0]}=tossed"
    both = f"{tossed}; {browser.cookie}; {tossed}"
    assert browser.ask("POST", "/v1/runs/list", {}, Cookie=both).status == 200
    assert browser.ask("POST", "/v1/runs/list", {}, Cookie=tossed).status == 401
    assert browser.ask("DELETE", "/console/session", Cookie=both).status == 200
    assert browser.ask("POST", "/v1/runs/list", {}).status == 401


def test_over_the_socket_there_is_no_page_to_be_had(daemon: Daemon) -> None:
    with unix(daemon) as connection:
        status, _, body = raw_http(connection, "GET /console/ HTTP/1.1\nHost: localhost")
        assert (status, json.loads(body)["error"]["kind"]) == (404, "not_found")
