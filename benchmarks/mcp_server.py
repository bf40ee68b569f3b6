"""The overhead of the MCP server: a warm call of execute_code against the same step by the library, and its start.

The client is a pipe, with one line of JSON each way, so the times include no client. The times of the first response
and of the list of tools are for processes that have just started, with and without a running service.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import measure
from benchmarks.measure import Goal, Series
from casemate import Sandbox
from casemate.remote.address import connect
from casemate.remote.places import places_of
from casemate.remote.starting import find_service

_SERVE = [sys.executable, "-m", "casemate", "serve"]
_SERVICE = [sys.executable, "-m", "casemate", "service"]
_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
_INFO = {"name": "a pipe", "version": "1"}
_FIRST: dict[str, dict[str, Any]] = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": _INFO},
    "server/discover": {"_meta": _META},
}
_MOST = 5e-3  # seconds of overhead that a call may have
_FIRST_ROUNDS = 20  # not counted
_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid
_SOON = 1.0  # seconds to the first response


class Served:
    """A new server process, and a pipe to it."""

    def __init__(self, home: str, *options: str, is_modern: bool = True) -> None:
        environ = _environ(home)
        self._meta: dict[str, Any] = {"_meta": _META} if is_modern else {}
        self._number = 0
        self.began = time.perf_counter()
        self._process = subprocess.Popen(
            [*_SERVE, *options], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    @property
    def pid(self) -> int:
        """The pid of the server."""
        return self._process.pid

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send one request. Returns its result."""
        self._number += 1
        self._say({"jsonrpc": "2.0", "id": self._number, "method": method, "params": {**params, **self._meta}})
        assert self._process.stdout
        while True:
            received = json.loads(self._process.stdout.readline())
            if received.get("id") == self._number and "method" not in received:
                result: dict[str, Any] = received["result"]
                return result

    def greet(self) -> None:
        """Initialize as clients of this protocol revision do."""
        method = "server/discover" if self._meta else "initialize"
        self.ask(method, {} if self._meta else _FIRST[method])
        if not self._meta:
            self._say({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def run(self, **arguments: Any) -> dict[str, Any]:
        """Call execute_code. Returns the structured content."""
        result = self.ask("tools/call", {"name": "execute_code", "arguments": arguments})
        structure: dict[str, Any] = result["structuredContent"]
        assert structure["status"] == "ok", result
        return structure

    def end(self) -> None:
        """Close the pipe and end the server."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def _say(self, message: dict[str, Any]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()


def main() -> None:
    run = measure.Run("mcp_server", __doc__ or "")
    with tempfile.TemporaryDirectory(prefix="casemate-mcp-") as home:
        asyncio.run(_steps(run, home))
        _first(run, home)
    run.finish()


async def _steps(run: measure.Run, home: str) -> None:
    """Measure in turn. Each round begins with another way, because each call affects the next."""
    ways = {
        "stdio, own sandbox, 2026-07-28": Served(home, "--embedded"),
        "stdio, own sandbox, 2025-11-25": Served(home, "--embedded", is_modern=False),
        "stdio, the service, 2026-07-28": Served(home),
        "stdio, the service, 2025-11-25": Served(home, is_modern=False),
    }
    names = ["the library", *ways]
    samples: dict[str, list[float]] = {name: [] for name in names}
    async with Sandbox(audit=f"{home}/library.db") as sandbox, sandbox.session() as session:
        sessions = {}
        for name, server in ways.items():
            server.greet()
            sessions[name] = server.run(code="1", session="new")["session"]
        processes = {**{name: server.pid for name, server in ways.items()}, "the service, for both": _service(home)}
        before: dict[str, float] = {}
        rounds = run.rounds(300)
        for number in range(rounds + _FIRST_ROUNDS):
            if number == _FIRST_ROUNDS:  # the first calls have warmed up
                before = {name: _spent(pid) for name, pid in processes.items()}
            for name in (*names[number % len(names) :], *names[: number % len(names)]):
                begin = time.perf_counter()
                if name in ways:
                    ways[name].run(code="1", session=sessions[name])
                else:
                    await session.run("1")
                if number >= _FIRST_ROUNDS:
                    samples[name].append(time.perf_counter() - begin)
        spent = {name: (_spent(pid) - before[name]) / rounds for name, pid in processes.items()}
    for server in ways.values():
        server.end()
    goal = Goal(times=1, plus=_MOST)
    run.compare(
        "a step in a session that lives",
        [Series(name, tuple(seconds), goal if name in ways else None) for name, seconds in samples.items()],
    )
    rows: list[tuple[str, ...]] = [
        ("", "each round"),
        *((name, measure.duration(seconds)) for name, seconds in spent.items()),
    ]
    data: list[dict[str, Any]] = [{"name": name, "seconds": seconds} for name, seconds in spent.items()]
    run.table("processor time of these processes, on average, whatever else they did in it included", rows, data)


def _service(home: str) -> int:
    """The pid of the running service."""
    address = find_service(places_of(_environ(home)))
    assert address is not None
    with connect(address, 5.0) as connection:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(raw)[0]
    return pid


def _spent(pid: int) -> float:
    """Seconds of processor time of a process's current threads (schedstat in proc(5))."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e9


def _first(run: measure.Run, home: str) -> None:
    """Measure whole processes, each with one of the two first requests and then the list of tools."""
    samples: dict[str, list[float]] = {}
    for is_running in (False, True):
        for _ in range(run.rounds(15)):
            for method in _FIRST:
                if not is_running:
                    _stop(home)
                server = Served(home, is_modern=method == "server/discover")
                server.greet()
                when = "the service runs" if is_running else "nothing runs before"
                samples.setdefault(f"{method}, {when}", []).append(time.perf_counter() - server.began)
                server.ask("tools/list", {})
                samples.setdefault(f"the tools after {method}, {when}", []).append(time.perf_counter() - server.began)
                server.end()
    _stop(home)
    run.compare(
        "from the start of the process",
        [
            Series(name, tuple(seconds), None if name.startswith("the tools") else Goal(plus=_SOON))
            for name, seconds in samples.items()
        ],
    )


def _environ(home: str) -> dict[str, str]:
    """An environment with a separate home, so the user's own service is neither used nor stopped."""
    places = dict.fromkeys(("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), home)
    return {**os.environ, **places, "CASEMATE_AUDIT": f"{home}/audit.db"}


def _stop(home: str) -> None:
    subprocess.run(
        [*_SERVICE, "stop"], env=_environ(home), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )


if __name__ == "__main__":
    main()
