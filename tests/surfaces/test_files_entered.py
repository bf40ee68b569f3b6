"""How many files of casemate one action goes through, in all processes of the host: what a reader has to follow."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from tests.service.daemon import casemate_command, environment, serving
from tests.support.waiting import MAX_WAIT

import casemate

# Each Python process imports this first. A file entered in a hundredth of a second is a line of the log.
NOTING = """
import os, sys, threading, time
log, known = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), set()
def note(frame, event, argument):
    path = frame.f_code.co_filename
    if event == "call" and path.startswith({package!r}):
        line = f"{{int(time.monotonic() * 100)}} {{path}}\\n"
        if line not in known:
            known.add(line)
            os.write(log, line.encode())
threading.setprofile(note)
sys.setprofile(note)
"""
# The action is done five times until it is warm, and five times more. Prints when the second five began.
PROGRAM = """
import asyncio, time
from casemate import Sandbox
REFUSED = "import socket\\ntry: socket.create_connection(('refused.example', 80), 10)\\nexcept OSError: pass"
async def twice(act):
    for times in range(2):
        begun = time.monotonic()
        for _ in range(5):
            await act()
    print(begun)
async def main():
    async with Sandbox(audit={audit!r}, preload=(), approve={approve}) as sandbox:
        {action}
asyncio.run(main())
"""
# Each bound is one above all that was ever seen: what fills the pool of cells may fall within the five or not.
ACTIONS = {
    "run": ("await twice(lambda: sandbox.run('print(1)'))", 64),
    "step": ("async with sandbox.session() as session: await twice(lambda: session.run('print(1)'))", 69),
    "refused connection": ("await twice(lambda: sandbox.run(REFUSED))", 84),
}
MOST_BY_MCP = 108


PACKAGE = f"{Path(casemate.__file__).parent}/"


class Entered:
    """The files that processes with its variables enter."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "entered"
        self.env = environment(folder)
        (folder / "sitecustomize.py").write_text(NOTING.format(log=str(self._log), package=PACKAGE))
        self.env["PYTHONPATH"] = f"{folder}:{self.env['PYTHONPATH']}"

    def since(self, begun: float) -> list[str]:
        """Those entered since then, on the clock of `time.monotonic`."""
        lines = (line.split(" ", 1) for line in self._log.read_text().splitlines())
        return sorted({path.removeprefix(PACKAGE) for when, path in lines if int(when) >= int(begun * 100)})


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_goes_through_few_files(action: str, tmp_path: Path) -> None:
    entered = Entered(tmp_path)
    done, most = ACTIONS[action]
    approve = "lambda request: False" if action == "refused connection" else None
    program = PROGRAM.format(audit=str(tmp_path / "audit.db"), approve=approve, action=done)
    ran = subprocess.run(
        [sys.executable, "-c", program], env=entered.env, capture_output=True, text=True, timeout=MAX_WAIT, check=True
    )
    files = entered.since(float(ran.stdout))
    assert 10 < len(files) <= most, files


async def test_a_call_of_an_mcp_client_goes_through_few_files(tmp_path: Path) -> None:
    entered = Entered(tmp_path)
    command = casemate_command("serve")
    with serving(entered.env):
        server = StdioServerParameters(command=command[0], args=command[1:], env=entered.env)
        async with Client(stdio_client(server)) as client:
            for _ in range(5):
                await client.call_tool("execute_code", {"code": "print(1)"})
            begun = time.monotonic()
            for _ in range(5):
                await client.call_tool("execute_code", {"code": "print(1)"})
            files = entered.since(begun)
    assert 10 < len(files) <= MOST_BY_MCP, files
