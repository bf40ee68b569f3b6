"""Servers that others wrote, installed once: the reference servers of MCP."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.daemon import reserved_port
from tests.support.waiting import until

PEERS = Path(__file__).resolve().parents[3] / ".peers"
PACKAGES = ("server-everything@2026.8.31", "server-filesystem", "server-memory")
SCOPE = "@modelcontextprotocol"
OTHERS = ("@anthropic-ai/mcpb@2.1.2",)  # judges bundles of servers


@pytest.fixture(scope="session")
def peers() -> Path:
    """The folder of the npm packages, installed once and kept."""
    return install()


def install() -> Path:
    """Have them; ./test does that before it copies the tree to an ordinary user, who need not reach a registry."""
    PEERS.mkdir(exist_ok=True)
    with (PEERS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = PEERS / "installed"
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != repr((PACKAGES, OTHERS)):
            names = [*(f"{SCOPE}/{package}" for package in PACKAGES), *OTHERS]
            quiet = ["--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(PEERS)]
            subprocess.run(["npm", "install", *quiet, *names], check=True, timeout=600, stdin=subprocess.DEVNULL)
            stamp.write_text(repr((PACKAGES, OTHERS)), encoding="utf-8")
    return PEERS / "node_modules" / SCOPE


def script(peers: Path, name: str) -> str:
    return str(peers / name / "dist" / "index.js")


@contextlib.contextmanager
def everything(peers: Path, transport: str) -> Iterator[str]:
    """The reference server with everything, by HTTP: its address."""
    with reserved_port() as port, everything_at(peers, transport, port):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def everything_at(peers: Path, transport: str, port: int) -> Iterator[None]:
    """The same at a port."""
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
        yield
    finally:
        server.kill()
        server.wait()
