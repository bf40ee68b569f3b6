"""What crosses a wall with permission: calls of tools, hosts that somebody allows, packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.packages.index import Index, wheel
from tests.packages.registry import Registry
from tests.support.approvers import answering
from tests.tools.peer import Peer
from tests.tools.test_cells import bounded, offering

from casemate import ApprovalRequest, Execution, sync

CALLS = {
    "python": "from mcptools.files.list_directory import run\nprint(run(path='.').content)",
    "node": "require('mcptools').files.list_directory({ path: '.' }).then((one) => console.log(one.content));",
    "shell": "tool files.list_directory path=.",
}


def test_a_program_calls_a_tool(wall: str, language: str, tmp_path: Path) -> None:
    peer = Peer()

    async def run() -> Execution:
        async with offering(peer, isolation=wall, audit=tmp_path / "audit.db") as sandbox:
            return await sandbox.run(CALLS[language], language=language)

    execution = bounded(run())
    assert "of ." in execution.stdout, execution.text
    assert [call["arguments"] for call in peer.calls] == [{"path": "."}]


ASKS = {
    "python": "import socket\nprint(socket.create_connection(('nobody.test', 80)).recv(9))",
    "node": "require('net').connect(80, 'nobody.test').on('error', () => 0).on('data', () => 0);",
    "shell": "exec 3<>/dev/tcp/nobody.test/80; cat <&3",
}


def test_somebody_is_asked_about_a_host_that_no_rule_names(wall: str, language: str, tmp_path: Path) -> None:
    asked: list[ApprovalRequest] = []
    with sync.Sandbox(isolation=wall, approve=answering(asked, answer=False), audit=tmp_path / "audit.db") as sandbox:
        sandbox.run(ASKS[language], language=language)
    assert [one.arguments["host"] for one in asked] == ["nobody.test"]


LOOKS_UP = {
    "python": "import socket\ntry: socket.getaddrinfo('nobody.test', 80)\n"
    "except socket.gaierror as error: print(error.errno == socket.EAI_NONAME)",
    "node": "require('dns').lookup('nobody.test', (error) => console.log(error.code == 'ENOTFOUND' && 'True'));",
    "shell": "case $( (exec 3<>/dev/tcp/nobody.test/80) 2>&1) in *'Name or service not known'*) echo True ;; esac",
}


@pytest.mark.parametrize("network", ["none", "listed"])
def test_a_name_that_nobody_can_be_asked_about_does_not_exist(wall: str, language: str, network: str) -> None:
    domains = ["other.test"] if network == "listed" else None
    with sync.Sandbox(isolation=wall, allowed_domains=domains) as sandbox:
        execution = sandbox.run(LOOKS_UP[language], language=language)
    assert execution.stdout == "True\n", execution.text


@pytest.mark.needs("node")
def test_npm_gives_up_at_once_where_there_is_no_network(wall: str) -> None:
    with sync.Sandbox(isolation=wall) as sandbox:
        if not sandbox.run("command -v npm", language="shell").ok:
            pytest.skip("the image of the engine has no npm")
        execution = sandbox.run("npm view nothing 2>&1; npm config get fetch-retries", language="shell", timeout=50)
    assert "ENOTFOUND" in execution.stdout
    assert execution.stdout.splitlines()[-1] == "0"


@pytest.fixture
def index() -> Iterator[Index]:
    """An index of packages on loopback."""
    one = Index()
    yield one
    one.close()


def test_packages_are_installed_into_a_session_one_after_the_other_and_for_all(
    wall: str, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    index.add(wheel("alpha"))
    index.add(wheel("beta"))
    given = {"package_indexes": [index.url], "approve": lambda request: request.kind == "package"}
    with sync.Sandbox(isolation=wall, audit=tmp_path / "audit.db", **given) as sandbox:
        with sandbox.session() as session:
            for name in ("alpha", "beta"):
                step = session.run(f"!pip install -q {name}\nimport {name}; print({name}.VERSION)")
                assert step.stdout == "1.0\n", step.text
        assert not sandbox.run("import alpha").ok
        for name in ("alpha", "beta"):
            assert sandbox.packages.install([name]).ok
            assert sandbox.run(f"import {name}; print({name}.VERSION)").stdout == "1.0\n"
        assert sandbox.packages.remove(["alpha"]) == (("alpha", "1.0"),)
        assert not sandbox.run("import alpha").ok


def test_packages_of_node_are_installed_into_a_session(
    wall: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NPM_CONFIG_USERCONFIG", str(tmp_path / "npmrc"))
    registry = Registry()
    try:
        (tmp_path / "npmrc").write_text(f"registry={registry.url}\n")
        registry.add("alpha", dependencies={"beta": "^1.0.0"})
        registry.add("beta")
        given = {"approve": lambda request: request.kind == "package", "audit": tmp_path / "audit.db"}
        with sync.Sandbox(isolation=wall, **given) as sandbox, sandbox.session(language="node") as session:
            installed = sandbox.packages.install(["alpha"], language="node", session=session)
            assert installed.ok, installed
            step = session.run("console.log(require('alpha').VERSION, require('beta').VERSION)")
            assert step.stdout == "1.0.0 1.0.0\n", step.text
    finally:
        registry.close()
