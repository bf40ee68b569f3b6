"""Servers to connect to, and connections that end with the test."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.coroutines import pytest_pyfunc_call

from casemate.errors import InvalidArgument
from casemate.tools.connections.context import Surroundings
from casemate.tools.connections.servers import Servers

OWN = Path(__file__).with_name("own_server.py")
SECONDS = 60.0  # more than anything here takes, also on a busy machine

__all__ = ["pytest_pyfunc_call"]


class Secrets:
    """The vault, as far as connections see it."""

    def __init__(self, **values: str) -> None:
        self.values = dict(values)
        self.is_read_only = False

    def get(self, name: str) -> str | None:
        return self.values.get(name)

    def set(self, name: str, value: str) -> None:
        if self.is_read_only:
            raise InvalidArgument("name", "this store is only read")
        self.values[name] = value


@pytest.fixture
def secrets() -> Secrets:
    return Secrets(TOKEN="s3cret-value-of-the-vault")


Made = Callable[..., Servers]


@pytest.fixture
def connections(secrets: Secrets) -> Iterator[Made]:
    """Makes `Servers`, and closes them."""
    made: list[Servers] = []

    def make(environ: dict[str, str] | None = None, **arguments: Any) -> Servers:
        variables = dict(os.environ) if environ is None else environ
        made.append(Servers(Surroundings(variables, secrets, **arguments)))
        return made[-1]

    yield make
    for servers in made:
        servers.close()


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Where the tests' own server says what it did."""
    path = tmp_path / "marks"
    path.touch()
    return path


@pytest.fixture
def own(marks: Path) -> Callable[..., dict[str, Any]]:
    """The definition of the tests' own server in some mode."""

    def definition(mode: str = "good", **more: Any) -> dict[str, Any]:
        env = {"MARKS": str(marks), **more.pop("env", {})}
        return {"command": sys.executable, "args": ["-S", str(OWN), mode], "env": env, **more}

    return definition


@pytest.fixture
def good(connections: Made, own: Callable[..., dict[str, Any]]) -> Servers:
    """Connections to one good server, ``own``."""
    servers = connections()
    servers.add("own", own())
    return servers


def said(servers: Servers, tool: str, server: str = "own", **arguments: Any) -> str:
    """The text that a tool gave."""
    answer = servers.call(server, tool, arguments).result(SECONDS)
    assert not answer.is_error, answer
    text: str = answer.content[0]["text"]
    return text


def is_alive(pid: int) -> bool:
    """Whether such a process is there and has not ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    return False
