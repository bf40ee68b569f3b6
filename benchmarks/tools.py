"""The cost of tools in a cell: a call against the same call by a plain MCP client, fifty calls at once, the first
import of a wrapper, and generating wrappers.

The server is a small program in this file that uses its standard streams. The plain client is the `mcp` package's, in
the application's process without casemate. The server responds at once, or when the request says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import measure
from benchmarks.measure import Goal, Series
from casemate import Sandbox, Session
from casemate.tools.modules.catalogue import Catalogue
from casemate.tools.tool import Tool

_ROOT = Path(__file__).resolve().parents[1]
_NOTION = _ROOT / "tests" / "tools" / "catalogues" / "notion.json"
_AT_ONCE = 50
_TURN = 20  # calls in a row in each turn: a step with one call would mostly measure the beginning of the step
_SLOWEST = 0.5  # seconds that each slow call takes
_SERVER = """
import json, sys, threading
lock = threading.Lock()
TAKES = {"type": "object", "properties": {"text": {"type": "string"}, "seconds": {"type": "number"}}}
def say(id, result):
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}) + "\\n")
        sys.stdout.flush()
for line in sys.stdin:
    received = json.loads(line)
    if "id" not in received: continue
    if received["method"] == "initialize":
        say(received["id"], {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                          "serverInfo": {"name": "bench", "version": "1"}})
    elif received["method"] == "tools/list":
        say(received["id"], {"tools": [{"name": "echo", "description": "Says it.", "inputSchema": TAKES}]})
    elif received["method"] == "tools/call":
        given = received["params"].get("arguments") or {}
        result = {"content": [{"type": "text", "text": given.get("text", "")}]}
        if given.get("seconds"): threading.Timer(given["seconds"], say, (received["id"], result)).start()
        else: say(received["id"], result)
    else:
        with lock:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": received["id"], "error": {"code": -32601, "message": ""}}) + "\\n")
            sys.stdout.flush()
"""  # noqa: E501
_POLICY = {"rules": [{"allow": "tool", "server": "bench", "tool": "echo", "arguments": "any"}]}
_CALLS = """
from mcptools.bench import echo
import threading, time
def once():
    start = time.perf_counter()
    echo.run(text="x")
    return time.perf_counter() - start
def turn(count):
    once()
    return [once() for _ in range(count)]
def at_once(count, seconds):
    threads = [threading.Thread(target=echo.run, kwargs={"text": "x", "seconds": seconds}) for _ in range(count)]
    start = time.perf_counter()
    for one in threads: one.start()
    for one in threads: one.join()
    return time.perf_counter() - start
"""
_IMPORT = """
import time
start = time.perf_counter()
import mcptools.bench.echo
print(time.perf_counter() - start)
"""

Timed = Callable[[], Awaitable[list[float]]]


def main() -> None:
    run = measure.Run("tools", __doc__ or "")
    with tempfile.TemporaryDirectory(prefix="casemate-tools-") as folder:
        asyncio.run(_measure(run, Path(folder)))
    _generated(run)
    run.finish()


async def _measure(run: measure.Run, folder: Path) -> None:
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    server = folder / "server.py"
    server.write_text(_SERVER)
    args = ["-S", str(server)]
    async with contextlib.AsyncExitStack() as opened:
        plain = await opened.enter_async_context(
            Client(stdio_client(StdioServerParameters(command=sys.executable, args=args)), cache=None)
        )
        await plain.call_tool("echo", {"text": "x"})
        sandbox = await opened.enter_async_context(Sandbox(audit=f"{folder}/audit.db", policy=_POLICY))
        await sandbox.tools.add("bench", {"command": sys.executable, "args": args})
        session = await opened.enter_async_context(sandbox.session())
        (await session.run(_CALLS)).raise_for_status()
        await _one(run, plain, sandbox, session)
        await _at_once(run, plain, session)
        await _imported(run, sandbox)


async def _one(run: measure.Run, plain: Any, sandbox: Sandbox, session: Session) -> None:
    async def in_cell() -> list[float]:
        said = await session.run(f"print(turn({_TURN}))")
        return [float(one) for one in json.loads(said.raise_for_status().stdout)]

    async def turn(call: Callable[[], Awaitable[object]]) -> list[float]:
        await call()
        return [await _timed(call()) for _ in range(_TURN)]

    things: dict[str, Timed] = {
        "plain client": lambda: turn(lambda: plain.call_tool("echo", {"text": "x"})),
        "sandbox.tools.call": lambda: turn(lambda: sandbox.tools.call("bench", "echo", {"text": "x"})),
        "from a cell": in_cell,
    }
    goals = {"from a cell": Goal(times=1, plus=1e-3)}
    run.compare("one call that a rule allows", await _in_turn(things, run.rounds(30), goals))


async def _at_once(run: measure.Run, plain: Any, session: Session) -> None:
    async def by_client() -> list[float]:
        calls = (plain.call_tool("echo", {"seconds": _SLOWEST}) for _ in range(_AT_ONCE))
        return [await _timed(asyncio.gather(*calls))]

    async def in_cell(count: int) -> list[float]:
        said = await session.run(f"print(at_once({count}, {_SLOWEST}))")
        return [float(said.raise_for_status().stdout)]

    things: dict[str, Timed] = {
        "one, from a cell": lambda: in_cell(1),
        f"{_AT_ONCE}, plain client": by_client,
        f"{_AT_ONCE}, from a cell": lambda: in_cell(_AT_ONCE),
    }
    goals = {f"{_AT_ONCE}, from a cell": Goal(times=1.1)}
    run.compare(f"calls that each take {_SLOWEST:g} s, at once", await _in_turn(things, run.rounds(10, 2), goals))


async def _imported(run: measure.Run, sandbox: Sandbox) -> None:
    """Measure the first import, each time in a new cell."""

    async def first() -> list[float]:
        return [float((await sandbox.run(_IMPORT)).raise_for_status().stdout)]

    async def in_session() -> list[float]:
        async with sandbox.session() as session:
            await session.run("pass")
            return [float((await session.run(_IMPORT)).raise_for_status().stdout)]

    goals = dict.fromkeys(("first in a program", "first in a session"), Goal(plus=5e-3))
    things: dict[str, Timed] = {"first in a program": first, "first in a session": in_session}
    run.compare("import of a wrapper in a fresh cell", await _in_turn(things, run.rounds(50), goals))


def _generated(run: measure.Run) -> None:
    rows = json.loads(_NOTION.read_text(encoding="utf-8"))
    tools = [
        Tool("notion", row["name"], row.get("description", ""), row["inputSchema"], row.get("outputSchema"))
        for row in rows
    ]

    def made() -> None:
        catalogue = Catalogue(tools)
        for row in catalogue.list_rows():
            catalogue.source(row["module"])

    [series] = measure.in_turn({f"{len(tools)} tools": made}, run.rounds(30))
    run.compare("wrappers of the notion server", [Series(series.name, series.seconds, Goal(plus=50e-3))])


async def _in_turn(things: dict[str, Timed], rounds: int, goals: dict[str, Goal]) -> list[Series]:
    """:func:`measure.in_turn` inside the running event loop."""
    samples: dict[str, list[float]] = {name: [] for name in things}
    names = list(things)
    for turn in range(-1, rounds):
        for n in range(len(names)):
            name = names[(turn + n) % len(names)]
            took = await things[name]()
            if turn >= 0:
                samples[name].extend(took)
    return [Series(name, tuple(taken), goals.get(name)) for name, taken in samples.items()]


async def _timed(work: Awaitable[object]) -> float:
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
