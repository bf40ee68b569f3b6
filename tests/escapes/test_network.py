"""A cell reaches no socket but its own: judged by who came to the host's listeners."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.escapes.cells import ROOT, Attack, attack, bare, without
from tests.escapes.listeners import Listeners

from casemate import sync


def test_no_listener_of_the_host_is_reached(listeners: Listeners, sandbox: sync.Sandbox, language: str) -> None:
    """TCP, UDP, MPTCP and raw on the loopback, abstract sockets and one by its path."""
    attack(sandbox, Attack("network", language), listeners.as_env())
    assert listeners.visitors() == set()


def test_control_bare_the_same_attack_reaches_them(listeners: Listeners, tmp_path: Path, language: str) -> None:
    bare(Attack("network", language), listeners.as_env(), tmp_path)
    expected = set(listeners.sockets)
    if language == "shell":
        expected = {name for name in expected if name.startswith(("tcp", "udp"))}
    if language == "node":
        expected -= {"abstract", "abstract_dgram"}  # not every Node knows them
    assert expected <= listeners.visitors()


@pytest.mark.parametrize("missing", [("seccomp",), ("landlock",), ("seccomp", "landlock", "capabilities", "mounts")])
def test_the_network_namespace_alone_holds(
    listeners: Listeners, sandbox: sync.Sandbox, missing: tuple[str, ...]
) -> None:
    with without(*missing):
        attack(sandbox, Attack("network"), listeners.as_env())
    assert listeners.visitors() == set()


@pytest.mark.needs("cc")
def test_a_static_program_reaches_nothing_either(listeners: Listeners, sandbox: sync.Sandbox, tmp_path: Path) -> None:
    program = tmp_path / "connect"
    source = Path(__file__).parent / "payloads/connect.c"
    built = subprocess.run(["cc", "-static", "-o", program, source], capture_output=True, text=True, check=False)
    if built.returncode != 0:
        pytest.skip("the C library is not there for static programs: apt-get install libc6-dev")
    it = Attack("network")
    execution = sandbox.run(it.code, env={**listeners.as_env(), "STATIC": "1"}, files={**it.files, "connect": program})
    assert execution.ok, execution.text
    assert listeners.visitors() == set()
    host, port = listeners.addresses["tcp_v4"].split()
    subprocess.run([program, host, port], check=True, env={})
    assert listeners.visitors() == {"tcp_v4"}, "the control"


WORKSPACE = """
import os, socket
from tests.escapes.payloads.attempts import attempt, finish
def meet():
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("agent.sock")
def copied():
    os.rename("agent.sock", "moved.sock")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("moved.sock")
def pipe():
    fd = os.open("fifo", os.O_WRONLY | os.O_NONBLOCK)
    os.write(fd, b"escaped")
attempt("socket", meet)
attempt("link", lambda: os.link("agent.sock", "linked.sock"))
attempt("moved", copied)
attempt("fifo", pipe)
finish()
"""
BY_SHELL = """
python3 -c "import socket; socket.socket(socket.AF_UNIX).connect('agent.sock')"
timeout 1 bash -c 'echo escaped 1<>fifo >fifo'
"""
BY_NODE = (
    "require('net').connect('agent.sock').on('error', (e) => console.log(e.code)).on('connect', () => process.exit())"
)


@pytest.mark.parametrize("mode", ["overlay", "direct"])
def test_sockets_and_fifos_in_a_callers_folder_lead_nowhere(scratch: Path, workspace: Path, mode: str) -> None:
    """An agent's socket lies in the project. Nobody comes through the overlay; written through, they do."""
    with socket.socket(socket.AF_UNIX) as agent, pytest.MonkeyPatch.context() as patch:
        patch.chdir(workspace)  # a socket's path is short
        agent.bind("agent.sock")
        agent.listen()
        agent.setblocking(False)
        os.mkfifo("fifo")
        reader = os.open("fifo", os.O_RDONLY | os.O_NONBLOCK)
        into = workspace if mode == "direct" else None
        try:
            with sync.Sandbox(audit=scratch / "audit-socket.db", workspace=workspace, workspace_mode=mode) as sandbox:
                if shutil.which("node"):
                    sandbox.run(BY_NODE, language="node", timeout=10)
                sandbox.run(BY_SHELL, language="shell", timeout=10)
                if mode == "overlay":
                    assert not _came(agent)
                attack(sandbox, Attack("workspace", source=WORKSPACE), into=into, timeout=20)
            assert _came(agent) == (mode == "direct")
            assert (os.read(reader, 100) != b"") == (mode == "direct")
        finally:
            os.close(reader)


def _came(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def test_no_other_address_is_reached(scratch: Path) -> None:
    """Private, link-local, public, mapped, a resolver: all at home in a namespace that the host application is in."""
    languages = ["python", "shell", *(["node"] if shutil.which("node") else [])]
    path = os.pathsep.join([str(ROOT), str(Path(sync.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-m", "tests.escapes.netns", scratch, *languages],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    if done.stderr.startswith("no network namespace"):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    for language in languages:
        assert told["visited"][f"cell {language}"] == []
        reached = {name for name in told["all"] if name.startswith(("tcp", "udp")) or name == "resolver"}
        assert set(told["visited"][f"bare {language}"]) >= reached, "the control"
    assert told["visited"]["cell resolving"] == []
