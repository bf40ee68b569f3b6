"""What is seen where TLS ends at the egress proxy: each request is checked, refusals are answers, and what is not
wanted is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.network.test_clients import needs
from tests.network.test_intercepted import seeing
from tests.network.visits import World

from casemate import InvalidArgument, sync

TRY = """
import urllib.request as u, urllib.error
try:
    print(u.urlopen(u.Request({!r}, {!r}, method={!r}), timeout=60).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print(type(error).__name__)
"""
BOTH = "https://good.test:8443"


@pytest.fixture
def sandbox(world: World, audit: Path) -> Iterator[sync.Sandbox]:
    with seeing(world, audit) as made:
        yield made


def new_visits(world: World, before: list[str]) -> list[str]:
    return [visit.split(" ", 2)[2].strip("'") for visit in world.visits()[len(before) :]]


@pytest.mark.parametrize("place", ["https://good.test", BOTH])
def test_a_request_that_no_rule_allows_is_answered_with_a_refusal(
    world: World, sandbox: sync.Sandbox, place: str
) -> None:
    visits = world.visits()
    execution = sandbox.run(TRY.format(f"{place}/x", b"data", "POST"))
    assert execution.stdout.startswith("403 casemate: good.test:"), execution.stderr
    assert "no rule allows" in execution.stdout
    assert new_visits(world, visits) == []
    assert "denied" in {crossing.decision for crossing in execution.crossings}


@needs("curl")
def test_a_client_that_would_rather_speak_http_2_speaks_http_1_and_so_does_the_server(
    world: World, sandbox: sync.Sandbox
) -> None:
    visits = world.visits()
    execution = sandbox.run(f"curl -sS -m 20 --http2 -w ' %{{http_version}}' {BOTH}/a", language="shell")
    assert execution.stdout == "hello from GET /a 1.1", (execution.stdout, execution.stderr)
    assert [what[:15] for what in new_visits(world, visits)] == ["GET /a HTTP/1.1"]


HTTP_2 = """
import socket, ssl
context = ssl.create_default_context({more})
{offer}
try:
    with context.wrap_socket(socket.create_connection(("good.test", 8443), 20), server_hostname="good.test") as s:
        print(s.selected_alpn_protocol())
        s.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes.fromhex("000000040000000000"))
        print(s.recv(1000).decode())
except ssl.SSLError as error:
    print(error)
"""
OFFERS_H2 = "context.set_alpn_protocols(['h2'])"


def test_a_client_that_speaks_only_http_2_is_refused_in_the_handshake_and_that_is_put_on_record(
    world: World, sandbox: sync.Sandbox
) -> None:
    visits = world.visits()
    execution = sandbox.run(HTTP_2.format(offer=OFFERS_H2, more=""))
    assert "no application protocol" in execution.stdout, (execution.stdout, execution.stderr)
    (crossing,) = execution.crossings
    assert (crossing.decision, crossing.host, crossing.port) == ("denied", "good.test", 8443)
    assert "does not offer HTTP/1.1" in crossing.reason
    assert new_visits(world, visits) == []


@pytest.mark.parametrize("offer", ["", "context.set_alpn_protocols(['h2', 'http/1.1'])"])
def test_http_2_that_was_not_agreed_on_is_refused_as_no_request(
    world: World, sandbox: sync.Sandbox, offer: str
) -> None:
    visits = world.visits()
    execution = sandbox.run(HTTP_2.format(offer=offer, more=""))
    assert "403 Forbidden" in execution.stdout, (execution.stdout, execution.stderr)
    assert "its HTTP request is not accepted" in execution.stdout
    assert "denied" in {crossing.decision for crossing in execution.crossings}
    assert new_visits(world, visits) == []


def test_a_host_that_is_not_intercepted_speaks_http_2(world: World, audit: Path) -> None:
    visits = world.visits()
    with sync.Sandbox(audit=audit, allowed_domains=["good.test:8443"], intercept=["good.test"]) as sandbox:
        program = HTTP_2.format(offer=OFFERS_H2, more="cafile='ca.pem'")
        execution = sandbox.run(program, files={"ca.pem": world.authority})
    assert execution.stdout.splitlines()[0] == "h2", execution.stderr
    assert new_visits(world, visits) == ["HTTP/2"]


@pytest.mark.full
@needs("curl")
def test_bodies_and_long_answers_arrive_whole(world: World, audit: Path) -> None:
    program = """
head -c 3000000 /dev/urandom > data
curl -sS -m 60 --data-binary @data https://api.good.test:8443/digest; echo
sha256sum data | cut -d ' ' -f 1
curl -sS -m 60 https://api.good.test:8443/big | wc -c
curl -sS -m 60 -Z https://api.good.test:8443/big https://api.good.test:8443/big | wc -c
"""
    with sync.Sandbox(
        audit=audit, allowed_domains=["api.good.test:8443"], intercept=["api.good.test:8443"],
        trust=world.folder / "ca.pem",
    ) as sandbox:  # fmt: skip
        execution = sandbox.run(program, language="shell")
    said, own, big, two = execution.stdout.split()
    assert said == own, execution.stderr
    assert (big, two) == (str(1 << 20), str(2 << 20))
    assert sum(one.bytes_in for one in execution.crossings) > 3 << 20


def test_an_event_arrives_when_it_is_sent_and_not_when_the_answer_is_over(sandbox: sync.Sandbox) -> None:
    program = """
import urllib.request as u
with u.urlopen("https://good.test/events", timeout=60) as answer:
    print(answer.readline().decode().strip(), answer.readline())
    u.urlopen("https://good.test/got", timeout=60).read()
    print(answer.read().decode().strip())
"""
    execution = sandbox.run(program)
    assert execution.stdout == "data: one b'\\n'\ndata: two\n", execution.stderr


def test_a_certificate_of_a_server_that_nobody_vouches_for_is_said_as_an_answer(
    world: World, sandbox: sync.Sandbox
) -> None:
    visits = world.visits()
    execution = sandbox.run(TRY.format("https://good.test:9443/x", None, "GET"))
    assert execution.stdout.startswith(
        "502 casemate: good.test:9443 cannot be reached: its certificate is not accepted"
    )
    assert new_visits(world, visits) == []


def test_without_the_operators_file_the_tests_servers_are_not_trusted(world: World, audit: Path) -> None:
    visits = world.visits()
    with sync.Sandbox(audit=audit, allowed_domains=["good.test"], intercept=["good.test"]) as sandbox:
        assert sandbox.run(TRY.format("https://good.test/x", None, "GET")).stdout.startswith("502 casemate: ")
    assert new_visits(world, visits) == []


@pytest.mark.parametrize(
    ("context", "said"),
    [
        ("ssl.create_default_context(cafile='ca.pem')", "rejected the certificate of casemate's authority"),
        ("ssl._create_unverified_context()", "closed the connection right after the handshake"),
    ],
    ids=["other authorities", "pinned"],
)
def test_a_client_that_does_not_trust_the_authority_is_put_on_record(
    world: World, sandbox: sync.Sandbox, context: str, said: str
) -> None:
    program = f"""
import socket, ssl
try:
    with {context}.wrap_socket(socket.create_connection(("good.test", 443), 20), server_hostname="good.test"):
        print("closed")
except ssl.SSLError as error:
    print(error.reason)
"""
    execution = sandbox.run(program, files={"ca.pem": world.authority})
    assert execution.stdout in ("CERTIFICATE_VERIFY_FAILED\n", "closed\n")
    reasons = [crossing.reason for crossing in execution.crossings if crossing.decision == "denied"]
    assert len(reasons) == 1, execution.crossings
    assert said in reasons[0]


@pytest.mark.parametrize("first", ["GET /x HTTP/1.1\\r\\nHost: good.test\\r\\n\\r\\n", "hello there, in clear"])
def test_plain_text_where_tls_is_intercepted_is_refused(world: World, sandbox: sync.Sandbox, first: str) -> None:
    visits = world.visits()
    program = f"""
import socket
s = socket.create_connection(("good.test", 443), 20)
s.sendall(b"{first}")
try:
    print(s.recv(100))
except ConnectionResetError:
    print("reset")
"""
    assert sandbox.run(program).stdout == "reset\n"
    assert new_visits(world, visits) == []


@pytest.mark.parametrize("host", ["evil.test", "other.test", "good.test:80", "good.test.evil.test"])
def test_a_host_in_the_request_that_is_not_the_connections_is_refused(
    world: World, sandbox: sync.Sandbox, host: str
) -> None:
    visits = world.visits()
    program = f"curl -sS -m 20 -H 'Host: {host}' https://good.test/x; curl -sS -m 20 -H 'Host: {host}' {BOTH}/x"
    execution = sandbox.run(program, language="shell")
    assert execution.stdout.count("casemate: good.test:") == 2, (execution.stdout, execution.stderr)
    assert new_visits(world, visits) == []


@needs("curl")
def test_through_the_proxy_it_is_the_same(sandbox: sync.Sandbox) -> None:
    proxy = "http://198.18.0.1:3128"
    program = (
        f"curl -sS -m 20 -p --proxy {proxy} https://good.test/x; curl -sS --proxy {proxy} -d x https://good.test/x"
    )
    execution = sandbox.run(program, language="shell")
    assert execution.stdout.startswith("hello from GET /xcasemate: good.test:443 is refused"), execution.stderr


@pytest.mark.parametrize(
    "host", ["*.good.test", "localhost", "10.0.0.1", "https://good.test", "host.casemate.internal"]
)
def test_what_is_no_single_host_cannot_be_intercepted(audit: Path, host: str) -> None:
    with pytest.raises(InvalidArgument, match="intercept"):
        sync.Sandbox(audit=audit, intercept=[host])


@needs("curl")
def test_the_proxy_does_not_ask_in_clear_where_tls_is_intercepted(world: World, sandbox: sync.Sandbox) -> None:
    visits = world.visits()
    execution = sandbox.run("curl -sS --proxy http://198.18.0.1:3128 http://good.test:443/x", language="shell")
    assert "plain text where TLS is expected" in execution.stdout, execution.stderr
    assert new_visits(world, visits) == []


def test_the_policy_names_hosts_and_a_file_relative_to_itself(world: World, audit: Path, tmp_path: Path) -> None:
    (tmp_path / "own.pem").write_bytes(world.authority)
    (tmp_path / "policy.yaml").write_text(
        "allowed_domains: [good.test]\nrequests: [{host: good.test, path: /x}]\n"
        "intercept: [good.test]\ntrust: own.pem\n"
    )
    with sync.Sandbox(audit=audit, policy=tmp_path / "policy.yaml") as sandbox:
        assert sandbox.run(TRY.format("https://good.test/x", None, "GET")).stdout == "hello from GET /x\n"
        assert sandbox.run(TRY.format("https://good.test/y", None, "GET")).stdout.startswith("403 casemate: ")


@pytest.mark.parametrize("content", [None, b"nothing of the kind"])
def test_a_file_without_certificates_is_an_error_that_names_it(
    audit: Path, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "own.pem"
    if content is not None:
        file.write_bytes(content)
    with (
        sync.Sandbox(audit=audit, allowed_domains=["good.test"], intercept=["good.test"], trust=file) as sandbox,
        pytest.raises(InvalidArgument, match=r"trust.*own\.pem"),
    ):
        sandbox.run("pass")
