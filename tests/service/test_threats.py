"""Code in a cell attacks the service that runs it: AP-04, taking the place of an absent approver.

AP-27, DNS rebinding by a page, is in test_who.py.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.service.daemon import ASKS, Daemon, environment, reserved_port, serving
from tests.support.waiting import MAX_WAIT

# Finds the pending requests of a service that it can reach, and allows them.
APPROVE = """
import glob, json, os, socket, threading, time

def ask(connect, operation, arguments):
    body = json.dumps(arguments).encode()
    with connect() as one:
        one.settimeout(5)
        head = f"POST /v1/{operation} HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n"
        one.sendall(head.encode() + b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
        answer = b""
        while piece := one.recv(65536):
            answer += piece
    return json.loads(answer.partition(b"\\r\\n\\r\\n")[2])

def unix(path):
    one = socket.socket(socket.AF_UNIX)
    one.connect(path)
    return one

def ways():
    for path in [PATH, *glob.glob("/run/**/service.sock", recursive=True), *glob.glob("/proc/*/root" + PATH)]:
        yield lambda path=path: unix(path)
    for host in ("127.0.0.1", "localhost", "198.18.0.1", "10.0.2.2", "host.docker.internal"):
        yield lambda host=host: socket.create_connection((host, PORT), 1)
    yield lambda: unix("\\0casemate")

def try_all():
    allowed = 0
    for way in ways():
        try:
            for one in ask(way, "approvals/pending", {}):
                allowed += bool(ask(way, "approvals/decide", {"request": one["id"], "allow": True}))
        except Exception:
            continue
    return allowed
"""


def attack(daemon: Daemon, port: int) -> str:
    return f"PATH, PORT = {str(daemon.socket)!r}, {port}\n{APPROVE}"


@contextmanager
def asking(folder: Path, seconds: float) -> Iterator[tuple[Daemon, int]]:
    """A service whose questions can be answered for so long."""
    policy = folder / "policy.json"
    policy.write_text(ASKS)
    env = {**environment(folder), "CASEMATE_POLICY": str(policy), "CASEMATE_APPROVAL_TIMEOUT": f"{seconds:g}"}
    with reserved_port() as port, serving(env, "--listen", f"127.0.0.1:{port}") as daemon:
        yield daemon, port


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, int]]:
    with asking(tmp_path_factory.mktemp("threats"), 4) as service:
        yield service


@pytest.mark.parametrize("left", ["thread", "process"])
async def test_ap_04_what_an_earlier_run_left_takes_no_approvers_chair(asked: tuple[Daemon, int], left: str) -> None:
    daemon, port = asked
    loop = "import time\nwhile True:\n    try_all()\n    time.sleep(0.05)"
    starts = {
        "thread": "def on():\n    while True:\n        try_all()\n        time.sleep(0.05)\n"
        "threading.Thread(target=on, daemon=True).start()",
        "process": f"import subprocess, sys\nopen('left.py', 'w').write(program + {loop!r})\n"
        "subprocess.Popen([sys.executable, 'left.py'])",
    }  # fmt: skip
    remote = await daemon.connect()
    session = (await remote("sessions.open"))["session"]
    code = f"program = {attack(daemon, port)!r}\nexec(program)\n{starts[left]}\nprint('left')"
    begun = await remote("runs.start", {"code": code, "session": session, "wait": 60.0})
    assert begun["execution"]["stdout"] == "left\n", begun
    arguments = {"code": "!echo crossed", "session": session, "wait": 60.0}
    state = await remote("runs.start", arguments)
    assert state["status"] == "waiting"  # nobody is connected that could answer
    done = await remote("runs.wait", {"run": state["run"], "seconds": 60.0, "told": [state["approvals"][0]["id"]]})
    assert done["status"] == "done"
    assert "crossed\n" not in done["execution"]["stdout"]
    assert await remote("approvals.pending") == []
    await remote("sessions.close", {"session": session})
    await remote.close()


async def test_the_same_program_on_the_host_would_have_allowed_it(tmp_path: Path) -> None:
    with asking(tmp_path, MAX_WAIT) as (daemon, port):
        await allowed_from_the_host(daemon, port)


async def allowed_from_the_host(daemon: Daemon, port: int) -> None:
    remote = await daemon.connect()
    state = await remote("runs.start", {"code": "!echo crossed", "session": "new", "wait": 60.0})
    assert state["status"] == "waiting"
    program = f"{attack(daemon, port)}\nprint(try_all())"
    ran = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=MAX_WAIT, check=True
    )
    assert int(ran.stdout) == 1
    done = await remote("runs.wait", {"run": state["run"], "seconds": 60.0, "told": [state["approvals"][0]["id"]]})
    assert done["execution"]["stdout"] == "crossed\n"
    await remote.close()


async def test_no_file_of_the_service_is_there_in_a_cell(asked: tuple[Daemon, int]) -> None:
    daemon, _ = asked
    remote = await daemon.connect()
    places = [str(daemon.socket), str(daemon.places.state), str(Path(daemon.env["HOME"]))]
    state = await remote(
        "runs.start", {"code": f"import os; print([os.path.exists(p) for p in {places}])", "wait": 60.0}
    )
    assert state["execution"]["stdout"] == "[False, False, False]\n"
    await remote.close()
