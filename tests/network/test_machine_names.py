"""The machine's hosts file, in which this world has its names, is the host's to read: cells do not see it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.network.test_clients import CURL, FETCH, URLLIB, needs
from tests.network.test_refused import new_visits
from tests.network.visits import World
from tests.support.approvers import answering
from tests.support.languages import every_language
from tests.support.walls import skip_without

from casemate import ApprovalRequest, Limits, sync

URL = "http://good.test/x"
CLIENTS = [
    pytest.param("python", URLLIB, id="python"),
    pytest.param("node", FETCH, id="node", marks=pytest.mark.needs("node")),
    pytest.param("shell", CURL, id="shell", marks=needs("curl")),
]
READ_HOSTS = {
    "python": "try: print(open('/etc/hosts').read())\nexcept OSError as error: print(error)",
    "node": "try { console.log(''+require('fs').readFileSync('/etc/hosts')) } catch (error) { console.log(error) }",
    "shell": "cat /etc/hosts; true",
}
SERVE = {
    "python": """
import socket
for name in ("localhost", "LOCALHOST", socket.gethostname()):
    with socket.create_server((name, 0)) as server:
        socket.create_connection((name, server.getsockname()[1]), 60).close()
        server.accept()[0].close()
print(socket.gethostbyaddr("127.0.0.1")[0], socket.gethostbyaddr("::1")[0])
""",
    "node": """
const net = require("net"), names = ["localhost", "LOCALHOST", require("os").hostname()];
let open = names.length;
const close = (server) => server.close(() => --open || console.log("localhost localhost"));
for (const name of names) {
  const server = net.createServer((client) => client.end() && close(server));
  server.listen(0, name, () => net.connect(server.address().port, name).resume());
}
""",
    "shell": """
for name in localhost LOCALHOST "$(uname -n)"; do
  getent ahostsv4 "$name" | grep -q '^127.0.0.1 ' || echo "no $name"
done
echo $(getent hosts 127.0.0.1 | awk '{print $2}') $(getent hosts ::1 | awk '{print $2}')
""",
}


@pytest.fixture(params=["native", "landlock"])
def wall(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    skip_without(request.param, tmp_path_factory)
    return str(request.param)


@pytest.fixture
def sandbox(wall: str, audit: Path) -> Iterator[sync.Sandbox]:
    with sync.Sandbox(isolation=wall, audit=audit, allowed_domains=["good.test"]) as made:
        yield made


@pytest.mark.parametrize(("language", "program"), CLIENTS)
def test_an_allowed_host_that_the_machines_hosts_file_names_is_reached_through_the_egress_proxy(
    sandbox: sync.Sandbox, language: str, program: str
) -> None:
    execution = sandbox.run(program.format(URL), language=language)
    assert execution.stdout.strip() == "hello from GET /x", execution.text
    assert [(one.host, one.decision, one.is_reached) for one in execution.crossings] == [("good.test", "allowed", True)]


def test_somebody_is_asked_about_a_host_that_the_machines_hosts_file_names(wall: str, audit: Path) -> None:
    asked: list[ApprovalRequest] = []
    with sync.Sandbox(isolation=wall, audit=audit, approve=answering(asked)) as sandbox:
        execution = sandbox.run(URLLIB.format(URL))
    assert [one.arguments["host"] for one in asked] == ["good.test"]
    assert execution.stdout.strip() == "hello from GET /x", execution.text
    assert [(one.host, one.decision, one.is_reached) for one in execution.crossings] == [("good.test", "allowed", True)]


@pytest.mark.parametrize(("language", "program"), CLIENTS)
def test_a_host_that_the_machines_hosts_file_names_and_no_rule_does_is_refused_and_on_record(
    world: World, sandbox: sync.Sandbox, language: str, program: str
) -> None:
    visits = world.visits()
    execution = sandbox.run(program.format("http://other.test/x"), language=language)
    assert "hello" not in execution.text
    assert [(one.host, one.decision) for one in execution.crossings] == [("other.test", "denied")]
    assert new_visits(world, visits) == []


@needs("curl")
def test_a_name_that_only_the_machines_hosts_file_has_is_reached_where_it_is_allowed(
    world: World, wall: str, audit: Path
) -> None:
    hosts = world.folder / "hosts"
    before = hosts.read_text()
    address = next(line.split()[0] for line in before.splitlines() if "good.test" in line.split())
    hosts.write_text(f"{before}{address} Added.test  # a company's name\n10.77.0.1 inside.test\n")
    try:
        with sync.Sandbox(isolation=wall, audit=audit, allowed_domains=["added.test", "inside.test"]) as sandbox:
            reached = sandbox.run(CURL.format("http://added.test/x"), language="shell")
            refused = sandbox.run(CURL.format("http://inside.test/x"), language="shell")
    finally:
        hosts.write_text(before)
    assert reached.stdout.strip() == "hello from GET /x", reached.text
    assert [(one.host, one.is_reached) for one in refused.crossings] == [("inside.test", False)]


@every_language
def test_a_program_does_not_read_what_the_machines_hosts_file_names(sandbox: sync.Sandbox, language: str) -> None:
    execution = sandbox.run(READ_HOSTS[language], language=language)
    assert execution.ok
    assert "good.test" not in execution.text


@every_language
@pytest.mark.parametrize("terms", [{"network": "none"}, {"allowed_domains": ["good.test"]}], ids=["none", "listed"])
def test_a_cell_has_localhost_and_its_own_name_whatever_it_may_reach(
    wall: str, audit: Path, language: str, terms: dict[str, Any]
) -> None:
    with sync.Sandbox(isolation=wall, audit=audit, **terms) as sandbox:
        execution = sandbox.run(SERVE[language], language=language)
    assert (execution.stdout, execution.crossings) == ("localhost localhost\n", ()), execution.text


def test_in_a_session_it_is_so_with_each_step(sandbox: sync.Sandbox) -> None:
    with sandbox.session() as session:
        assert session.run("import socket; print(socket.gethostbyname('localhost'))").stdout == "127.0.0.1\n"
        for _ in range(2):
            assert "hello" not in session.run(URLLIB.format("http://other.test/x")).text
            assert "hello from GET /x" in session.run(URLLIB.format(URL)).text


@pytest.mark.parametrize("terms", [{"network": "none"}, {"allowed_domains": ["good.test"]}], ids=["none", "listed"])
def test_names_are_answered_though_a_program_holds_many_sockets_that_ask_nothing_or_nonsense(
    wall: str, audit: Path, terms: dict[str, Any]
) -> None:
    program = """
import contextlib, socket
held = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(600)]
for one, text in zip(held[300:], (b"", b"x", bytes(12), bytes(17), b"\\xff" * 3000) * 60, strict=True):
    with contextlib.suppress(OSError):
        one.connect(("127.0.0.53", 53))
        one.send(text)
print([socket.gethostbyname("localhost") for _ in range(3)])
"""
    with sync.Sandbox(isolation=wall, audit=audit, **terms) as sandbox:
        execution = sandbox.run(program)
        assert execution.stdout == "['127.0.0.1', '127.0.0.1', '127.0.0.1']\n", execution.text
        assert sandbox.run("print(1)").ok


def test_two_hundred_threads_look_up_names_at_once(wall: str, audit: Path) -> None:
    program = """
import socket, threading
threading.stack_size(1 << 18)
failed = []
def look_up(name):
    try:
        for _ in range(3):
            socket.getaddrinfo(name, 80)
    except OSError as error:
        failed.append(f"{name}: {error}")
threads = [threading.Thread(target=look_up, args=(name,)) for name in ("localhost", "good.test") * 100]
for one in threads: one.start()
for one in threads: one.join()
print(failed)
"""
    limits = Limits(processes=260)
    with sync.Sandbox(isolation=wall, audit=audit, allowed_domains=["good.test"], limits=limits) as sandbox:
        assert sandbox.run(program).text.strip() == "[]"
