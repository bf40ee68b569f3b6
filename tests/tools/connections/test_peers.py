"""Servers that others wrote, over every transport: the reference servers of MCP."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.tools.connections.conftest import SECONDS, Made, said, until

from casemate.tools.answers import Progress

PEERS = Path(__file__).resolve().parents[3] / ".peers"
PACKAGES = ("server-everything@2026.8.31", "server-filesystem", "server-memory")
SCOPE = "@modelcontextprotocol"


@pytest.fixture(scope="session")
def peers() -> Path:
    """The folder of the npm packages, installed once and kept."""
    PEERS.mkdir(exist_ok=True)
    with (PEERS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = PEERS / "installed"
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != repr(PACKAGES):
            names = [f"{SCOPE}/{package}" for package in PACKAGES]
            quiet = ["--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(PEERS)]
            subprocess.run(["npm", "install", *quiet, *names], check=True, timeout=100, stdin=subprocess.DEVNULL)
            stamp.write_text(repr(PACKAGES), encoding="utf-8")
    return PEERS / "node_modules" / SCOPE


def script(peers: Path, name: str) -> str:
    return str(peers / name / "dist" / "index.js")


@contextlib.contextmanager
def everything(peers: Path, transport: str) -> Iterator[str]:
    """The reference server with everything, by HTTP: its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        ["node", script(peers, "server-everything"), transport],
        env={**os.environ, "PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(listens, "the server listens")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def used(connections: Made, definition: dict[str, Any]) -> None:
    """All that the reference server with everything can show."""
    servers = connections()
    servers.add("own", definition)
    tools = servers.tools("own").result(SECONDS)
    assert {"echo", "get-sum", "get-tiny-image"} <= set(tools.tools)
    assert said(servers, "echo", message="hé ☃") == "Echo: hé ☃"
    image = servers.call("own", "get-tiny-image", {}).result(SECONDS)
    assert [block["type"] for block in image.content] == ["text", "image", "text"]
    weather = servers.call("own", "get-structured-content", {"location": "New York"}).result(SECONDS)
    assert set(weather.structured) == {"temperature", "conditions", "humidity"}
    told: list[Progress] = []
    arguments = {"duration": 0.2, "steps": 2}
    servers.call("own", "trigger-long-running-operation", arguments, on_progress=told.append).result(SECONDS)
    assert Progress(2, 2) in told
    links = servers.call("own", "get-resource-links", {"count": 2}).result(SECONDS).content
    uri = next(block["uri"] for block in links if block["type"] == "resource_link")
    assert servers.read("own", uri).result(SECONDS)[0]["uri"] == uri
    wrong = servers.call("own", "get-sum", {"a": "x"}).result(SECONDS)
    assert wrong.is_error
    servers.close()


@pytest.mark.needs("npm")
def test_the_server_with_everything_is_used_by_its_standard_streams(connections: Made, peers: Path) -> None:
    used(connections, {"command": "node", "args": [script(peers, "server-everything")]})


@pytest.mark.needs("npm")
@pytest.mark.parametrize(("transport", "path", "kind"), [("streamableHttp", "/mcp", "http"), ("sse", "/sse", "sse")])
def test_the_server_with_everything_is_used_by_http(
    connections: Made, peers: Path, transport: str, path: str, kind: str
) -> None:
    with everything(peers, transport) as url:
        used(connections, {"url": f"{url}{path}", "type": kind})


@pytest.mark.needs("npm")
def test_files_are_listed_and_what_lies_elsewhere_is_refused(connections: Made, peers: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello", encoding="utf-8")
    servers = connections()
    servers.add("files", {"command": "node", "args": [script(peers, "server-filesystem"), str(tmp_path)]})
    answer = servers.call("files", "list_directory", {"path": str(tmp_path)}).result(SECONDS)
    assert answer.structured == {"content": "[FILE] a.txt"}
    assert servers.call("files", "read_text_file", {"path": "/etc/passwd"}).result(SECONDS).is_error
    servers.close()


@pytest.mark.needs("npm")
def test_what_a_server_remembers_is_there_until_it_is_reset(connections: Made, peers: Path, tmp_path: Path) -> None:
    servers = connections()
    env = {"MEMORY_FILE_PATH": str(tmp_path / "memory.json")}
    servers.add("memory", {"command": "node", "args": [script(peers, "server-memory")], "env": env})
    entity = {"name": "Ada", "entityType": "person", "observations": ["writes"]}
    made = servers.call("memory", "create_entities", {"entities": [entity]}).result(SECONDS)
    assert made.structured == {"entities": [entity]}
    servers.reset("memory")
    found = servers.call("memory", "search_nodes", {"query": "Ada"}).result(SECONDS)
    assert found.structured["entities"] == [entity]
    servers.close()


def test_a_python_server_of_the_present_protocol_tells_the_time(connections: Made) -> None:
    servers = connections()
    servers.add("time", {"command": sys.executable, "args": ["-m", "mcp_server_time", "--local-timezone", "UTC"]})
    assert servers.tools("time").result(SECONDS).protocol == "2026-07-28"
    answer = servers.call("time", "get_current_time", {"timezone": "Europe/Berlin"}).result(SECONDS)
    assert answer.structured["timezone"] == "Europe/Berlin"
    servers.close()


def test_a_python_server_shows_a_repository(connections: Made, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    servers = connections()
    servers.add("git", {"command": sys.executable, "args": ["-m", "mcp_server_git", "--repository", str(tmp_path)]})
    status = said(servers, "git_status", "git", repo_path=str(tmp_path))
    assert "No commits yet" in json.dumps(status)
    servers.close()
