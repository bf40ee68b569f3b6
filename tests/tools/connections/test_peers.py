"""Servers that others wrote, over every transport: the reference servers of MCP."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.service.daemon import reserved_port
from tests.tools.connections.conftest import SECONDS, Made, said
from tests.tools.connections.peers import everything, everything_at, peers, script

from casemate.tools.connections.answers import CallProgress

__all__ = ["peers"]


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
    told: list[CallProgress] = []
    arguments = {"duration": 0.2, "steps": 2}
    servers.call("own", "trigger-long-running-operation", arguments, on_progress=told.append).result(SECONDS)
    assert CallProgress(2, 2) in told
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
def test_a_server_that_was_restarted_is_called_as_before(connections: Made, peers: Path) -> None:
    servers = connections()
    with reserved_port() as port:
        servers.add("own", {"url": f"http://127.0.0.1:{port}/mcp"})
        for message in ("before", "after"):
            with everything_at(peers, "streamableHttp", port):
                assert said(servers, "echo", message=message) == f"Echo: {message}"
        servers.close()


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
