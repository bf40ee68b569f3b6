"""Programs reach the hosts that were allowed with whatever client they have, and nothing tells them of an egress
proxy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.network.visits import World

from casemate import sync

_TRUSTING = ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO")
TRUST = dict.fromkeys(_TRUSTING, "/workspace/ca.pem")
PROXY = "http://198.18.0.1:3128"
URLLIB = "import urllib.request as u; print(u.urlopen('{}', timeout=60).read().decode())"
TRIES = """
import contextlib, urllib.request
for address in ("http://gone.test", "https://gone.test", "https://gone.test"):
    with contextlib.suppress(OSError):
        urllib.request.urlopen(address, timeout=60)
print(urllib.request.urlopen("http://good.test/x", timeout=60).read().decode())
"""
REQUESTS = "import requests; print(requests.get('{}', timeout=60).text)"
FETCH = "fetch('{}').then(r => r.text()).then(t => console.log(t))"
CURL = "curl -sS -m 20 {}"
WGET = "wget -q -T 20 --ca-certificate=/workspace/ca.pem -O - {}; echo"  # of GnuTLS, which reads no variable


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


CLIENTS = [
    pytest.param("python", URLLIB, id="urllib"),
    pytest.param("python", REQUESTS, id="requests"),
    pytest.param("node", FETCH, id="fetch", marks=pytest.mark.needs("node")),
    pytest.param("shell", CURL, id="curl", marks=needs("curl")),
    pytest.param("shell", WGET, id="wget", marks=needs("wget")),
]


@pytest.mark.parametrize("url", ["http://good.test/x", "https://api.good.test/x"])
@pytest.mark.parametrize(("language", "program"), CLIENTS)
def test_a_client_reaches_an_allowed_host(
    world: World, sandbox: sync.Sandbox, language: str, program: str, url: str
) -> None:
    execution = sandbox.run(program.format(url), language=language, env=TRUST, files={"ca.pem": world.authority})
    assert (execution.stdout.strip(), execution.ok) == ("hello from GET /x", True), execution.stderr
    (crossing,) = execution.crossings
    assert (crossing.host, crossing.port) == (url.split("/")[2], 80 if url.startswith("http:") else 443)
    assert (crossing.decision, crossing.connections) == ("allowed", 1)
    assert crossing.bytes_out > 0
    assert crossing.bytes_in > 0


@needs("ssh")
def test_ssh_knows_nothing_of_proxies_and_gets_through(world: World, sandbox: sync.Sandbox) -> None:
    known = (world.folder / "known_hosts").read_bytes()
    command = "ssh -o UserKnownHostsFile=/workspace/known -o BatchMode=yes -o StrictHostKeyChecking=yes u@good.test hi"
    execution = sandbox.run(command, language="shell", files={"known": known})
    assert execution.stdout == "you said hi\n", execution.stderr


def test_psycopg_knows_nothing_of_proxies_and_gets_through(world: World, sandbox: sync.Sandbox) -> None:
    if not (world.folder / "postgres").exists():
        pytest.skip("needs the package pgserver, in a place that others than root may read")
    program = """
import psycopg
with psycopg.connect("host=good.test user=somebody dbname=postgres") as connection:
    print(connection.execute("select 6 * 7").fetchone())
"""
    assert sandbox.run(program).stdout == "(42,)\n"


def test_plain_tcp_by_name_gets_through_both_ways_and_half_closed(sandbox: sync.Sandbox) -> None:
    program = """
import socket
with socket.create_connection(("good.test", 7777), 20) as s:
    s.sendall(b"x" * 1000000)
    s.shutdown(socket.SHUT_WR)
    print(sum(len(d) for d in iter(lambda: s.recv(65536), b"")))
"""
    execution = sandbox.run(program)
    assert execution.stdout == "1000000\n", execution.stderr
    (crossing,) = execution.crossings
    assert (crossing.bytes_out, crossing.bytes_in) == (1000000, 1000000)


def test_steps_of_a_session_reach_it_and_each_tells_its_own(sandbox: sync.Sandbox) -> None:
    with sandbox.session() as session:
        session.run("import urllib.request as u")
        steps = [session.run("print(u.urlopen('http://good.test/x').read().decode())") for _ in range(2)]
        quiet = session.run("pass")
    assert [step.stdout for step in steps] == ["hello from GET /x\n"] * 2
    assert [[one.connections for one in step.crossings] for step in steps] == [[1], [1]]
    assert quiet.crossings == ()


@pytest.mark.parametrize("allow", [True, False])
def test_the_command_line_reaches_what_it_allows_and_says_what_was_not_reached(
    world: World, tmp_path: Path, allow: bool
) -> None:
    program = tmp_path / "get.py"
    program.write_text(URLLIB.format("http://good.test/x" if allow else "http://evil.test/x"))
    command = [sys.executable, "-m", "casemate", "run", str(program), "--allow", "good.test"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    if allow:
        assert (done.stdout, done.returncode) == ("hello from GET /x\n", 0), done.stderr
    else:
        assert done.returncode == 1
        assert "casemate: not reached: evil.test" in done.stderr


def test_the_command_line_says_once_that_a_host_that_is_allowed_has_no_address(world: World, tmp_path: Path) -> None:
    program = tmp_path / "get.py"
    program.write_text(TRIES)
    command = [sys.executable, "-m", "casemate", "run", str(program), "--allow", "gone.test", "--allow", "good.test"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("hello from GET /x\n", 0)
    assert done.stderr == "casemate: not reached: gone.test:80,443: its name does not resolve\n"
