"""What no rule allows is not reached, in whatever way it is tried: judged by the servers and by the resolver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.network.visits import World

from casemate import InvalidArgument, sync

TRY = """
import socket
{}
try:
    s = socket.create_connection(({!r}, {}), 60)
    s.settimeout(60)
    s.sendall(b"GET / HTTP/1.1\\r\\nHost: {}\\r\\n\\r\\n")
    print("answered", s.recv(100))
except OSError as error:
    print(type(error).__name__)
"""


def attempt(sandbox: sync.Sandbox, host: str, port: int = 80, header: str = "", before: str = "") -> str:
    return sandbox.run(TRY.format(before, host, port, header or host)).stdout


def new_visits(world: World, before: list[str]) -> list[str]:
    return world.visits()[len(before) :]


@pytest.mark.parametrize("arguments", [{}, {"network": "none"}, {"allowed_domains": ["other.test"]}])
def test_eg_01_and_06_a_name_that_no_rule_covers_does_not_resolve_and_reaches_no_resolver(
    world: World, audit: Path, arguments: dict[str, Any]
) -> None:
    visits, queries = world.visits(), world.queries()
    with sync.Sandbox(audit=audit, **arguments) as sandbox:
        assert attempt(sandbox, "good.test") == "gaierror\n"
        assert attempt(sandbox, "secret-data.evil.test") == "gaierror\n"
    assert (new_visits(world, visits), world.queries()) == ([], queries)


@pytest.mark.parametrize("name", ["good.test.", "GOOD.test"])
def test_eg_02_other_spellings_of_the_same_name_are_that_name(sandbox: sync.Sandbox, name: str) -> None:
    assert "answered" in attempt(sandbox, name, header="good.test")


@pytest.mark.parametrize("name", ["evilgood.test", "good.test.evil.test", "evil.test", "93.184.216.66"])
def test_eg_02_a_name_that_looks_like_an_allowed_one_is_another(world: World, sandbox: sync.Sandbox, name: str) -> None:
    visits = world.visits()
    assert attempt(sandbox, name) in ("gaierror\n", "OSError\n")
    assert new_visits(world, visits) == []


@pytest.mark.parametrize("address", ["93.184.216.34", "10.77.0.1", "169.254.169.254", "127.0.0.1", "198.18.7.7",
                                     "93.184.215.1", "1572395042", "0x5db8d822", "0135.0270.0330.042"])  # fmt: skip
def test_an_address_is_not_reached_not_even_that_of_an_allowed_host(
    world: World, sandbox: sync.Sandbox, address: str
) -> None:
    visits = world.visits()
    assert "answered" not in attempt(sandbox, address)
    assert new_visits(world, visits) == []


@pytest.mark.parametrize(("name", "why"), [
    ("private.test", "private"), ("metadata.test", "metadata"), ("loopback.test", "loopback"), ("own.test", "own"),
])  # fmt: skip
def test_eg_05_a_name_that_leads_to_an_address_that_is_not_public_is_refused_after_resolution(
    world: World, audit: Path, name: str, why: str
) -> None:
    visits = world.visits()
    with sync.Sandbox(audit=audit, allowed_domains=[name]) as sandbox:
        execution = sandbox.run(TRY.format("", name, 80, name))
    assert "hello" not in execution.stdout
    assert new_visits(world, visits) == []
    assert [(one.host, one.decision) for one in execution.crossings] == [(name, "denied")]
    assert why in execution.crossings[0].reason


def test_a_name_that_has_only_addresses_of_ipv6_is_not_reached(audit: Path) -> None:
    with sync.Sandbox(audit=audit, allowed_domains=["six.test"]) as sandbox:
        execution = sandbox.run(TRY.format("", "six.test", 80, "six.test"))
    assert "hello" not in execution.stdout
    assert "not resolve" in execution.crossings[0].reason


@pytest.mark.parametrize("port", [22, 23, 7777, 8080])
def test_eg_07_other_ports_than_the_usual_are_closed_unless_given(world: World, audit: Path, port: int) -> None:
    visits = world.visits()
    with sync.Sandbox(audit=audit, allowed_domains=["good.test"]) as sandbox:
        assert "answered" not in attempt(sandbox, "good.test", port)
    assert new_visits(world, visits) == []


def test_eg_08_a_url_in_code_or_a_comment_allows_nothing(world: World, audit: Path) -> None:
    visits = world.visits()
    with sync.Sandbox(audit=audit) as sandbox:
        execution = sandbox.run("# http://good.test/\nimport urllib.request as u\nu.urlopen('http://good.test/')")
    assert execution.status == "failed"
    assert new_visits(world, visits) == []


def test_eg_10_another_host_in_the_header_than_the_name_is_refused(world: World, sandbox: sync.Sandbox) -> None:
    visits = world.visits()
    assert "hello" not in attempt(sandbox, "good.test", header="evil.test")
    assert new_visits(world, visits) == []


@pytest.mark.parametrize("sni", ["evil.test", "other.test", ""])
@pytest.mark.parametrize("through", ["", "http"])
def test_eg_10_another_name_in_tls_than_the_one_that_was_allowed_is_refused(
    world: World, sandbox: sync.Sandbox, sni: str, through: str
) -> None:
    visits = world.visits()
    program = f"""
import socket, ssl
context = ssl._create_unverified_context()
if {through!r}:
    s = socket.create_connection(("198.18.0.1", 3128), 10)
    s.sendall(b"CONNECT good.test:443 HTTP/1.1\\r\\nHost: good.test:443\\r\\n\\r\\n")
    print(s.recv(1000)[:12])
else:
    s = socket.create_connection(("good.test", 443), 10)
try:
    context.wrap_socket(s, server_hostname={sni!r} or None)
    print("answered")
except OSError as error:
    print(type(error).__name__)
"""
    assert "answered" not in sandbox.run(program).stdout
    assert new_visits(world, visits) == []


def test_eg_10_plain_text_where_tls_belongs_is_refused(world: World, sandbox: sync.Sandbox) -> None:
    visits = world.visits()
    assert "hello" not in attempt(sandbox, "good.test", 443)
    assert new_visits(world, visits) == []


def test_a_redirect_to_a_host_that_is_not_allowed_leads_nowhere(world: World, sandbox: sync.Sandbox) -> None:
    visits = world.visits()
    program = "import urllib.request as u; print(u.urlopen('http://good.test/redirect?http://evil.test/').read())"
    assert not sandbox.run(program).ok
    assert [visit.split()[0] for visit in new_visits(world, visits)] == ["93.184.216.34"]


@pytest.mark.parametrize("request_line", [
    "CONNECT 93.184.216.66:443 HTTP/1.1", "CONNECT evil.test:443 HTTP/1.1", "CONNECT good.test:22222 HTTP/1.1",
    "CONNECT 127.0.0.1:80 HTTP/1.1", "CONNECT [::1]:80 HTTP/1.1", "CONNECT good.test@evil.test:443 HTTP/1.1",
    "CONNECT good.test\\0.evil.test:443 HTTP/1.1", "GET http://evil.test/ HTTP/1.1", "GET http://10.77.0.1/ HTTP/1.1",
    "GET http://good.test@evil.test/ HTTP/1.1", "GET http://169.254.169.254/latest/ HTTP/1.1",
    "GET http://localhost:3128/ HTTP/1.1", "GET / HTTP/1.1", "GET ftp://good.test/ HTTP/1.1",
])  # fmt: skip
def test_the_proxy_is_no_way_round(world: World, sandbox: sync.Sandbox, request_line: str) -> None:
    visits = world.visits()
    program = f"""
import socket
s = socket.create_connection(("198.18.0.1", 3128), 10)
s.sendall(b"{request_line}\\r\\nHost: good.test\\r\\n\\r\\n")
print(s.recv(4000)[:12])
"""
    said = sandbox.run(program).stdout
    assert "200" not in said
    assert new_visits(world, visits) == []


def test_udp_goes_nowhere(world: World, sandbox: sync.Sandbox) -> None:
    queries = world.queries()
    program = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for where in (("127.0.0.54", 53), ("93.184.216.34", 53), ("198.18.0.1", 54), ("10.77.0.1", 53)):
    try:
        s.sendto(b"\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\4leak\\4test\\0\\0\\1\\0\\1", where)
    except OSError as error:
        print(type(error).__name__)
"""
    assert sandbox.run(program).stdout == "OSError\nOSError\n"
    assert world.queries() == queries


def test_the_loopback_of_a_cell_stays_its_own(sandbox: sync.Sandbox) -> None:
    program = """
import socket, threading
server = socket.create_server(("127.0.0.1", 8000))
threading.Thread(target=lambda: server.accept()[0].sendall(b"mine"), daemon=True).start()
print(socket.create_connection(("localhost", 8000)).recv(9))
other = socket.create_server(("0.0.0.0", 3129))
"""
    assert sandbox.run(program).stdout == "b'mine'\n"


def test_a_run_of_its_own_list_reaches_no_more_than_that(world: World, sandbox: sync.Sandbox) -> None:
    visits = world.visits()
    code = TRY.format("", "api.good.test", 80, "api.good.test")
    assert sandbox.run(code, allowed_domains=["good.test"]).stdout == "gaierror\n"
    assert "answered" in sandbox.run(code, allowed_domains=["api.good.test"]).stdout
    assert len(new_visits(world, visits)) == 1
    with pytest.raises(InvalidArgument, match=r"evil\.test"):
        sandbox.run("pass", allowed_domains=["evil.test"])


def test_public_is_every_public_host_and_nothing_else(world: World, audit: Path) -> None:
    visits = world.visits()
    with sync.Sandbox(audit=audit, network="public") as sandbox:
        assert "answered" in attempt(sandbox, "evil.test")
        for name in ("private.test", "metadata.test", "loopback.test", "own.test", "localhost"):
            assert "hello" not in attempt(sandbox, name)
    assert [visit.split()[0] for visit in new_visits(world, visits)] == ["93.184.216.66"]


def test_a_cell_of_another_run_cannot_use_what_this_one_was_allowed(world: World, audit: Path) -> None:
    with sync.Sandbox(audit=audit, allowed_domains=["good.test"]) as sandbox, sandbox.session() as session:
        address = session.run(
            "import socket; s = socket.create_connection(('good.test', 80)); print(s.getpeername()[0])"
        )
        again = f"s.close(); s = socket.create_connection(({address.stdout.strip()!r}, 80), 10)\n"
        again += "s.sendall(b'GET / HTTP/1.1\\r\\nHost: good.test\\r\\n\\r\\n'); print('answered', s.recv(100))"
        assert "answered" in session.run(again).stdout
        visits = world.visits()
        assert sandbox.run("pass", allowed_domains=[]).ok
        other = sandbox.run(TRY.format("", address.stdout.strip(), 80, "good.test"), allowed_domains=[])
    assert "answered" not in other.stdout
    assert new_visits(world, visits) == []
