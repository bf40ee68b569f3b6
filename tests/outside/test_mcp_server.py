"""The official conformance suite against `casemate serve`, with the fixtures that the suite wants added to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.mcp_server.packages import node
from tests.outside.environments import conformance
from tests.service.daemon import environment
from tests.support.waiting import until

SECONDS = 100  # on a busy machine; it takes five
TOKEN = "a-token-of-the-tests-alone"
# Tasks are an extension that is not offered: a long call gives the handle of its run instead. What passes all
# the same is an error here.
EXPECTED_FAILURES = {"2025-11-25": set[str](), "2026-07-28": {
    "tasks-lifecycle", "tasks-capability-negotiation", "tasks-wire-fields", "tasks-request-state-removal",
    "tasks-mrtr-input", "tasks-request-headers", "tasks-dispatch-and-envelope", "tasks-required-task-error",
    "tasks-mrtr-composition",
}}  # fmt: skip
# The command as it is, whose server has the suite's fixtures, too.
PROGRAM = """
import sys
from casemate.surfaces.mcp import server as serving
from tests.outside.conformance_fixtures import add_fixtures
make = serving.make_server
def make_with_fixtures(*given, **terms):
    server = make(*given, **terms)
    add_fixtures(server)
    return server
serving.make_server = make_with_fixtures
from casemate.surfaces.cli import main
sys.exit(main())
"""
COMMAND = [sys.executable, "-c", PROGRAM, "serve", "--embedded", "--transport", "http", "--port", "0"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    log = folder / "log"
    path = os.pathsep.join(sys.path)
    env = {**environment(folder), "CASEMATE_SERVE_TOKEN": TOKEN, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    with (
        log.open("wb") as errors,
        subprocess.Popen(COMMAND, env=env, stdin=subprocess.DEVNULL, stderr=errors) as served,
    ):

        def told() -> re.Match[str] | None:
            assert served.poll() is None, log.read_text()
            return re.search(r"listens at http://127.0.0.1:(\d+)/mcp", log.read_text())

        try:
            with signing_in(int(until(told)[1])) as port:
                yield f"http://127.0.0.1:{port}/mcp"
        finally:
            served.terminate()


@contextlib.contextmanager
def signing_in(port: int) -> Iterator[int]:
    """A port of this machine on which every request gets the token, which the suite cannot send, and else nothing."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            there, onward = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(onward):
                head = re.sub(rb"(?im)^connection:.*\r\n", b"", head).replace(b":%d\r" % own, b":%d\r" % port)
                first, _, rest = head.partition(b"\r\n")
                onward.write(first + f"\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n".encode() + rest)
                ways = [asyncio.ensure_future(pass_on(*way)) for way in ((reader, onward), (there, writer))]
                _, others = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for other in others:
                    other.cancel()
                await asyncio.wait(ways)

    async def serve() -> None:
        server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
        begun.set_result((asyncio.get_running_loop(), server.sockets[0].getsockname()[1], stop := asyncio.Event()))
        await stop.wait()
        server.close()

    begun: Future[tuple[asyncio.AbstractEventLoop, int, asyncio.Event]] = Future()
    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    loop, own, stop = begun.result()
    try:
        yield own
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


@pytest.mark.parametrize(("revision", "least"), [("2025-11-25", 80), ("2026-07-28", 160)])
def test_everything_that_a_revision_requires_of_servers_holds(
    revision: str, least: int, address: str, tmp_path: Path
) -> None:
    command = [node(), str(conformance()), "server", "--url", address, "--requirements", revision]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path, check=False)
    summary = done.stdout.rpartition("=== SUMMARY ===")[2]
    scored, _, unscored = summary.partition("Not scored")
    failed = re.findall(r"✗ ([\w-]+)", scored) + re.findall(r"✗ ([\w-]+) \(", unscored)
    assert set(failed) == EXPECTED_FAILURES[revision], done.stdout[-4000:]
    passed = re.search(r"Total: (\d+) passed", scored)
    assert passed, done.stdout[-4000:] + done.stderr[-4000:]
    assert int(passed[1]) >= least, scored
    assert done.returncode == 0, done.stdout[-4000:]
