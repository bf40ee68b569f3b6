"""TLS that ends at the egress proxy: requests are seen, and clients notice nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.network.test_clients import needs
from tests.network.visits import World

from casemate import Limits, sync

AUTHORITY = "casemate authority of one sandbox"
_SHOWN = """
import ssl, socket
from cryptography import x509
for host, port in (("good.test", 443), ("other.test", 443)):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(socket.create_connection((host, port), 20), server_hostname=host) as s:
        print(x509.load_der_x509_certificate(s.getpeercert(True)).issuer.rfc4514_string())
"""


def seeing(world: World, audit: Path, **more: object) -> sync.Sandbox:
    """One that sees what is asked of good.test and api.good.test, and allows reading the first."""
    policy = {
        "allowed_domains": ["good.test", "*.good.test", "good.test:8443", "good.test:9443", "other.test"],
        "requests": [{"host": "good.test"}, {"host": "good.test:8443"}, {"host": "api.good.test", "methods": []}],
    }
    hosts = ["good.test", "api.good.test", "good.test:8443", "good.test:9443"]
    return sync.Sandbox(audit=audit, policy=policy, intercept=hosts, trust=world.folder / "ca.pem", **more)


@pytest.fixture
def sandbox(world: World, audit: Path) -> Iterator[sync.Sandbox]:
    with seeing(world, audit) as made:
        yield made


def command(*words: str) -> str:
    """A program of Python that becomes another."""
    return f"import os; os.execvp({words[0]!r}, {list(words)!r})"


URLLIB = "import urllib.request as u; print(u.urlopen('{}', timeout=60).read().decode())"
REQUESTS = "import requests; print(requests.get('{}', timeout=60).text)"
HTTPX = "import httpx; print(httpx.get('{}', timeout=60).text)"
AIOHTTP = """
import asyncio, aiohttp
async def main():
    async with aiohttp.ClientSession() as session:
        async with session.get('{}') as answer:
            print(await answer.text())
asyncio.run(main())
"""
FETCH = "fetch('{}').then(r => r.text()).then(t => console.log(t))"
OPENSSL = (
    "printf 'GET /x HTTP/1.1\\r\\nHost: good.test\\r\\nConnection: close\\r\\n\\r\\n' | openssl s_client -quiet"
    " -verify_return_error -verify_hostname good.test -connect good.test:443 -servername good.test"
    " 2>/dev/null | tail -1"
)
CLIENTS = [
    pytest.param("python", URLLIB, id="urllib"),
    pytest.param("python", REQUESTS, id="requests"),
    pytest.param("python", HTTPX, id="httpx"),
    pytest.param("python", AIOHTTP, id="aiohttp"),
    pytest.param("node", FETCH, id="fetch", marks=pytest.mark.needs("node")),
    pytest.param("shell", "curl -sS -m 20 {}", id="curl", marks=needs("curl")),
    pytest.param("shell", "wget -q -T 20 -O - {}", id="wget", marks=needs("wget")),
    pytest.param("shell", OPENSSL, id="openssl", marks=needs("openssl")),
    pytest.param("shell", "env -i /usr/bin/curl -sS -m 20 {}", id="curl without variables", marks=needs("curl")),
    pytest.param("shell", OPENSSL.replace("openssl", "env -i openssl"), id="openssl without", marks=needs("openssl")),
]


@pytest.mark.parametrize(("language", "program"), CLIENTS)
def test_a_client_trusts_the_certificate_and_is_answered(
    world: World, sandbox: sync.Sandbox, language: str, program: str
) -> None:
    visits = world.visits()
    execution = sandbox.run(program.replace("{}", "https://good.test/x"), language=language)
    assert (execution.stdout.strip(), execution.ok) == ("hello from GET /x", True), execution.stderr
    assert [visit.split(" ", 2)[2] for visit in world.visits()[len(visits) :]] == [
        "'GET /x HTTP/1.1 host=good.test x='"
    ]
    (crossing,) = execution.crossings
    assert (crossing.host, crossing.port, crossing.decision, crossing.connections) == ("good.test", 443, "allowed", 1)


@pytest.mark.full
def test_pip_installs_over_it(sandbox: sync.Sandbox) -> None:
    program = """
import subprocess, sys
options = ["--index-url", "https://good.test/site/", "--target", "/tmp/there", "--disable-pip-version-check"]
subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-cache-dir", *options, "tiny"], check=True)
sys.path.insert(0, "/tmp/there")
import tiny
print(tiny.SAYS)
"""
    assert sandbox.run(program, env={"PIP_CONFIG_FILE": "/dev/null"}).stdout == "tiny\n"


def test_uv_installs_over_it(sandbox: sync.Sandbox) -> None:
    program = """
import subprocess, sys, uv
options = ["--index-url", "https://good.test/site/", "--target", "/tmp/there", "--no-cache", "--no-config"]
subprocess.run([uv.find_uv_bin(), "pip", "install", "-q", "--python", sys.executable, *options, "tiny"], check=True)
sys.path.insert(0, "/tmp/there")
import tiny
print(tiny.SAYS)
"""
    execution = sandbox.run(program)
    assert execution.stdout == "tiny\n", execution.stderr


@pytest.mark.full
@needs("npm")
def test_npm_installs_over_it(sandbox: sync.Sandbox) -> None:
    program = (
        "npm install --silent --no-audit --no-fund --ignore-scripts --registry https://good.test/site/ small"
        " && node -p 'require(\"small\")'"
    )
    execution = sandbox.run(program, language="shell", env={"npm_config_cache": "/tmp/npm"})
    assert execution.stdout == "small\n", (execution.stderr, execution.crossings)


@needs("git")
def test_git_clones_over_it(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run("git clone -q https://good.test/repository cloned && cat cloned/file", language="shell")
    assert execution.stdout == "from git\n", execution.stderr


@pytest.mark.full
@needs("java", "javac")
def test_a_java_program_trusts_it(world: World, audit: Path) -> None:
    program = """
cat > Get.java <<'J'
import java.net.*;
import java.nio.charset.*;
public class Get {
    public static void main(String[] a) throws Exception {
        try (var in = new URI("https://good.test/x").toURL().openStream()) {
            System.out.println(new String(in.readAllBytes(), StandardCharsets.UTF_8));
        }
    }
}
J
java -Xmx128m -XX:ReservedCodeCacheSize=32m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 Get.java
"""
    with seeing(world, audit, limits=Limits(memory="2GiB", processes=128)) as large:
        execution = large.run(program, language="shell", timeout=60)
    assert execution.stdout == "hello from GET /x\n", execution.stderr


@pytest.mark.parametrize("language", ["python", pytest.param("node", marks=pytest.mark.needs("node")), "shell"])
def test_a_cell_that_was_ready_trusts_it_as_well(sandbox: sync.Sandbox, language: str) -> None:
    from tests.warm.ready import settle, start_of

    program = {"python": URLLIB, "node": FETCH, "shell": "curl -sS {}"}[language].format("https://good.test/x")
    settle(sandbox, language)
    execution = sandbox.run(program, language=language)
    assert (execution.stdout.strip(), start_of(execution)[0]) == ("hello from GET /x", "pool"), execution.stderr


def test_an_authority_that_is_renewed_at_any_moment_is_the_one_that_its_cell_trusts(
    sandbox: sync.Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casemate.egress.authority.Authority.is_old", True)  # so every use makes a new authority
    program = URLLIB.format("https://good.test/x")
    execution = sandbox.run(program)
    assert execution.stdout.strip() == "hello from GET /x", execution.stderr
    with sandbox.session() as session:
        step = session.run(program)
        assert step.stdout.strip() == "hello from GET /x", step.stderr


def test_a_host_that_is_not_named_shows_its_own_certificate(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run(_SHOWN)
    assert execution.stdout == f"CN={AUTHORITY}\nCN=the tests' authority\n", execution.stderr


def test_nothing_is_trusted_where_nothing_is_intercepted(audit: Path) -> None:
    program = "import os; print(os.path.exists('/etc/ssl/certs/casemate.pem'), 'SSL_CERT_FILE' in os.environ)"
    with sync.Sandbox(audit=audit, allowed_domains=["good.test"]) as plain:
        assert plain.run(program).stdout == "False False\n"


def test_a_variable_of_the_callers_wins(sandbox: sync.Sandbox) -> None:
    program = "import os; print(os.environ['SSL_CERT_FILE'], os.environ['PIP_CERT'])"
    execution = sandbox.run(program, env={"SSL_CERT_FILE": "/mine"})
    assert execution.stdout == "/mine /etc/ssl/certs/ca-certificates.crt\n"


def test_the_authoritys_key_is_in_no_file_of_the_cell_or_the_host(sandbox: sync.Sandbox) -> None:
    sandbox.run(URLLIB.format("https://good.test/x"))
    program = (
        "grep -rlE 'PRIVATE[ ]KEY' /etc /tmp /program /workspace 2>/dev/null | grep -v '^/etc/ssl/openssl'; echo done"
    )
    assert sandbox.run(program, language="shell").stdout == "done\n"
    folder = sandbox.asynchronous._context.sandbox_network._folder
    assert folder is not None
    assert not [path for path in Path(folder).rglob("*") if path.is_file() and b"PRIVATE" in path.read_bytes()]
    sandbox.close()
    assert not Path(folder).exists()


@pytest.mark.full
@needs("curl")
def test_a_wrapped_command_s_requests_are_seen_as_those_of_a_program(world: World, tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    rules = {"allowed_domains": ["good.test"], "requests": [{"host": "good.test", "path": "/v1"}]}
    policy.write_text(json.dumps({**rules, "intercept": ["good.test"], "trust": str(world.folder / "ca.pem")}))
    (tmp_path / "folder").mkdir()
    (tmp_path / "home").mkdir()
    asks = "for path in v1 v2; do curl -sS https://good.test/$path; done"
    done = subprocess.run(
        [sys.executable, "-m", "casemate", "wrap", "--policy", str(policy), "--", "bash", "-c", asks],
        cwd=tmp_path / "folder", env={**os.environ, "HOME": str(tmp_path / "home")}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert "hello from GET /v1" in done.stdout, done.stderr
    assert "no rule allows GET there" in done.stdout
    assert "hello from GET /v2" not in done.stdout
