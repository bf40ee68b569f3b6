"""What the MCP server adds: a warm call of execute_code against the same step by the library, and how soon it answers.

The client is a pipe: one line of JSON to the server, one back, so that no client's own time is in it. The first
answer and the list of tools are those of processes that have just been started, with the service running or not.
"""

from __future__ import annotations

import asyncio
import json
import os
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
_MOST = 5e-3  # seconds that a call may take over the library's
_SOON = 1.0  # seconds to the first answer


class Served:
    """A server that was just started, and a pipe to it."""

    def __init__(self, home: str, *options: str, is_modern: bool = True) -> None:
        environ = {**os.environ, "HOME": home, "CASEMATE_AUDIT": f"{home}/audit.db"}
        self._meta: dict[str, Any] = {"_meta": _META} if is_modern else {}
        self._number = 0
        self.began = time.perf_counter()
        self._process = subprocess.Popen(
            [*_SERVE, *options], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """One request; its result."""
        self._number += 1
        self._say({"jsonrpc": "2.0", "id": self._number, "method": method, "params": {**params, **self._meta}})
        assert self._process.stdout
        while True:
            heard = json.loads(self._process.stdout.readline())
            if heard.get("id") == self._number and "method" not in heard:
                result: dict[str, Any] = heard["result"]
                return result

    def greet(self) -> None:
        """Begin as clients of the revision do."""
        method = "server/discover" if self._meta else "initialize"
        self.ask(method, {} if self._meta else _FIRST[method])
        if not self._meta:
            self._say({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def run(self, **arguments: Any) -> dict[str, Any]:
        """Call execute_code; the structured answer."""
        result = self.ask("tools/call", {"name": "execute_code", "arguments": arguments})
        structure: dict[str, Any] = result["structuredContent"]
        assert structure["status"] == "ok", result
        return structure

    def end(self) -> None:
        """Leave it."""
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
    ways = {
        "stdio, own sandbox, 2026-07-28": Served(home, "--embedded"),
        "stdio, own sandbox, 2025-11-25": Served(home, "--embedded", is_modern=False),
        "stdio, the service, 2026-07-28": Served(home),
    }
    samples: dict[str, list[float]] = {name: [] for name in ("the library", *ways)}
    async with Sandbox(audit=f"{home}/library.db") as sandbox, sandbox.session() as session:
        sessions = {}
        for name, server in ways.items():
            server.greet()
            sessions[name] = server.run(code="1", session="new")["session"]
        for number in range(run.rounds(300) + 10):
            begin = time.perf_counter()
            await session.run("1")
            taken = {"the library": time.perf_counter() - begin}
            for name, server in ways.items():
                begin = time.perf_counter()
                server.run(code="1", session=sessions[name])
                taken[name] = time.perf_counter() - begin
            if number >= 10:  # what is made at the first calls is there
                for name, seconds in taken.items():
                    samples[name].append(seconds)
    for server in ways.values():
        server.end()
    goal = Goal(times=1, plus=_MOST)
    run.compare(
        "a step in a session that lives",
        [Series(name, tuple(seconds), goal if name in ways else None) for name, seconds in samples.items()],
    )


def _first(run: measure.Run, home: str) -> None:
    """Whole processes, each with one of the two first requests, and then the list of tools."""
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


def _stop(home: str) -> None:
    environ = {**os.environ, "HOME": home, "CASEMATE_AUDIT": f"{home}/audit.db"}
    subprocess.run([*_SERVICE, "stop"], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    main()
